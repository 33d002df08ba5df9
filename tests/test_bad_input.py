"""Bad input, each kind tried through the command line: one line, status 2, and what was there before is still there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

from heartlm.cli.main import COMMANDS, main
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import open_corpus
from heartlm.corpus.journal import Journal
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import sha256_of
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import SampleTokenizer
from heartlm.training.checkpoint import Checkpoints
from tests.conftest import Refused, edit_json, mounted_disk, refused_line

RECORD = "s0001"
NUM_SAMPLES = 7500
SMALL = ["--depth", "1", "--window", "16", "--batch-size", "4", "--threads", "1", "--device", "cpu", "--log-every", "1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command writes without being told where must not land in the checkout."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def content(folder: Path) -> dict[str, str]:
    """Every file below `folder` by its name, hidden ones too, as a checksum."""
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def last_line(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run a command that must fail with status 2; return the last line of standard error."""
    capfd.readouterr()
    assert main([str(word) for word in words]) == 2
    said = capfd.readouterr()
    assert said.out == "" and "Traceback" not in said.err and said.err.endswith("\n")
    line = said.err.splitlines()[-1]
    assert line.startswith(f"heartlm {words[0]}: ")
    return line


# --- recordings -------------------------------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def truncate_signal(folder: Path) -> None:
    os.truncate(folder / f"{RECORD}.dat", 5000)


def lose_signal(folder: Path) -> None:
    (folder / f"{RECORD}.dat").unlink()


def header_says_more(folder: Path) -> None:
    edit(folder / f"{RECORD}.hea", f" 250 {NUM_SAMPLES}", " 250 90000")


def header_says_less(folder: Path) -> None:
    edit(folder / f"{RECORD}.hea", f" 250 {NUM_SAMPLES}", " 250 1000")


def gain_zero(folder: Path) -> None:
    edit(folder / f"{RECORD}.hea", "200.0(1024)/mV", "0(1024)/mV")


def garble_header(folder: Path) -> None:
    (folder / f"{RECORD}.hea").write_bytes(bytes(range(256)))


def truncate_annotations(folder: Path) -> None:
    os.truncate(folder / f"{RECORD}.atr", 20)


def lose_a_record(folder: Path) -> None:
    for path in folder.glob(f"{RECORD}.*"):
        path.unlink()


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def lose_everything(folder: Path) -> None:
    shutil.rmtree(folder)


def garble_settings(folder: Path) -> None:
    (folder / "database.json").write_text('{"name": ')


SPOILS: dict[Callable[[Path], None], tuple[str, str]] = {
    truncate_signal: (f"{RECORD}.dat", "truncated"),
    lose_signal: (f"{RECORD}.dat", "missing"),
    header_says_more: (f"{RECORD}.dat", "says 90000"),
    header_says_less: (f"{RECORD}.dat", "says 1000 "),
    gain_zero: (f"{RECORD}.hea", "gain 0"),
    garble_header: (f"{RECORD}.hea", ""),
    truncate_annotations: (f"{RECORD}.atr", "truncated"),
    lose_a_record: (RECORD, "RECORDS"),
    empty: ("tinydb", "no recordings found"),
    lose_everything: ("tinydb", "no such folder"),
    garble_settings: ("database.json", "not valid JSON"),
}


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("tokenizer", ["beat", "sample"])
def test_spoilt_recordings(
    database: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    refused: Refused,
    spoil: Callable[[Path], None],
    tokenizer: str,
) -> None:
    out = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, out)
    before = content(out)
    spoil(database)
    file, reason = SPOILS[spoil]
    said = refused("tokenize", database, "--tokenizer", tokenizer, "--out", out)
    assert file in said and reason in said
    assert content(out) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("spoil", [truncate_signal, lose_signal, header_says_more, gain_zero, truncate_annotations])
def test_a_spoilt_recording_is_skipped_when_asked_and_listed(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    words = ["tokenize", database, "--tokenizer", "sample", "--out", tmp_path / "corpus", "--skip-unreadable"]
    assert main([str(word) for word in words]) == 1
    assert "left out: 1 x" in capfd.readouterr().out
    corpus = open_corpus(tmp_path / "corpus")
    (dropped,) = corpus.manifest["dropped"]
    assert dropped["record"] == f"tinydb/{RECORD}" and SPOILS[spoil][1] in dropped["reason"]
    assert RECORD not in corpus.records.record_id


def rewrite_annotations(folder: Path, change: Callable[[Any], None]) -> None:
    annotations = wfdb.rdann(str(folder / RECORD), "atr")
    change(annotations)
    wfdb.wrann(
        RECORD,
        "atr",
        annotations.sample,
        symbol=annotations.symbol,
        aux_note=annotations.aux_note,
        fs=250,
        write_dir=str(folder),
    )


def test_annotations_past_the_end_are_kept_out_and_counted(
    database: Path, unspoilt: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def add_two(annotations: Any) -> None:
        annotations.sample = np.append(annotations.sample, [NUM_SAMPLES, NUM_SAMPLES + 300])
        annotations.symbol += ["N", "V"]
        annotations.aux_note += ["", ""]

    rewrite_annotations(database, add_two)
    out = tmp_path / "corpus"
    assert main(["tokenize", str(database), "--tokenizer", "rhythm", "--out", str(out)]) == 0
    assert "left out: 2 x annotation: past the end (listed in manifest.json)" in capfd.readouterr().out
    corpus = open_corpus(out)
    expected = {"record": f"tinydb/{RECORD}", "reason": "annotation: past the end", "count": 2}
    assert corpus.manifest["dropped"] == [expected]
    whole = open_database(unspoilt)
    annotations = [whole.annotations(record_id) for record_id in whole.record_ids]
    assert corpus.manifest["num_tokens"] == sum(found.num_beats for found in annotations if found is not None)
    assert corpus.sample.max() < NUM_SAMPLES


def with_lead(folder: Path, value: float) -> None:
    """Replace the first lead of `RECORD` by one value throughout."""
    record = wfdb.rdrecord(str(folder / RECORD))
    record.p_signal[:, 0] = value
    for path in (folder / f"{RECORD}.dat", folder / f"{RECORD}.hea"):
        path.unlink()
    wfdb.wrsamp(
        RECORD,
        fs=250,
        units=record.units,
        sig_name=record.sig_name,
        p_signal=record.p_signal,
        fmt=["16", "16"],
        adc_gain=[200.0, 200.0],
        baseline=[0, 0],
        write_dir=str(folder),
    )


@pytest.mark.parametrize(("value", "reason"), [(0.25, "lead MLII: flat"), (np.nan, "lead MLII: no valid sample")])
@pytest.mark.parametrize("tokenizer", ["beat", "sample"])
def test_leads_without_a_heartbeat_are_left_out_and_counted(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], value: float, reason: str, tokenizer: str
) -> None:
    with_lead(database, value)
    out = tmp_path / "corpus"
    words = ["tokenize", database, "--tokenizer", tokenizer, "--training-leads", "all", "--out", out]
    assert main([str(word) for word in words]) == 0
    assert f"left out: 1 x {reason}" in capfd.readouterr().out
    corpus = open_corpus(out)
    assert corpus.manifest["dropped"] == [{"record": f"tinydb/{RECORD}", "reason": reason}]
    assert [row.lead for row in corpus.records.rows if row.record_id == RECORD] == ["V1"]


def test_a_database_of_nothing_but_flat_leads(database: Path, tmp_path: Path, refused: Refused) -> None:
    (database / "RECORDS").write_text(f"{RECORD}\n")
    with_lead(database, 0.25)
    said = refused("tokenize", database, "--out", tmp_path / "corpus")
    assert "no recording of the training split can be fitted on: lead MLII: flat (1)" in said


# --- corpora and runs -------------------------------------------------------------------------------------------------


def test_a_corpus_of_another_schema_version(
    tiny_corpus: Path, tiny_pretrained: Path, tiny_finetuned: Path, tmp_path: Path, refused: Refused
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    edit_json(corpus / "manifest.json", schema_version=99)
    before = content(corpus)
    for words in (
        ["pretrain", "--corpus", corpus],
        ["finetune", tiny_pretrained, "--corpus", corpus],
        ["evaluate", tiny_finetuned, "--on", corpus],
    ):
        assert f"{corpus}: corpus of schema version 99, this heartlm reads 1" in refused(*words)
    assert content(corpus) == before


def test_tokens_of_another_tokenizer(
    unspoilt: Path,
    tiny_pretrained: Path,
    tiny_finetuned: Path,
    tmp_path: Path,
    refused: Refused,
) -> None:
    other = tmp_path / "rhythms"
    assert main(["tokenize", str(unspoilt), "--tokenizer", "rhythm", "--out", str(other)]) == 0
    before = content(tiny_finetuned)
    for words in (["finetune", tiny_pretrained, "--corpus", other], ["evaluate", tiny_finetuned, "--on", other]):
        assert f"{other}: made by tokenizer" in refused(*words)
    assert content(tiny_finetuned) == before


def test_a_run_is_not_resumed_on_tokens_made_anew(tiny_corpus: Path, tmp_path: Path, refused: Refused) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(tiny_corpus, corpus)
    assert main(["pretrain", "--corpus", str(corpus), "--out", str(run), "--steps", "1", *SMALL]) == 0
    edit_json(run / "run.json", finished=None)
    edit_json(corpus / "manifest.json", num_beats=1)
    before = content(run)
    assert f"but {run} was started on" in refused("pretrain", "--resume", run)
    assert content(run) == before


@pytest.mark.parametrize("file", ["models/best/model.safetensors", "models/best/config.json", "run.json"])
def test_a_damaged_run(tiny_pretrained: Path, tiny_corpus: Path, tmp_path: Path, refused: Refused, file: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_pretrained, run)
    os.truncate(run / file, 30)
    said = refused("finetune", run, "--corpus", tiny_corpus, "--out", tmp_path / "beats")
    assert Path(file).name in said
    assert not (tmp_path / "beats").exists()


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2.2 MB: room for a corpus, and for a run until its second checkpoint, each of 1.6 MB."""
    with mounted_disk(tmp_path / "disk", 2200) as folder:
        yield folder


def test_a_full_disk_leaves_the_earlier_corpus(small_disk: Path, tiny_database: Path, refused: Refused) -> None:
    out = small_disk / "corpus"
    assert main(["tokenize", str(tiny_database), "--tokenizer", "rhythm", "--out", str(out)]) == 0
    before = content(small_disk)
    said = refused("tokenize", tiny_database, "--tokenizer", "sample", "--training-leads", "all", "--out", out)
    assert f"cannot write {out}" in said and "No space left on device" in said
    assert content(small_disk) == before


def test_a_full_disk_leaves_a_checkpoint_that_resumes_when_there_is_room(
    small_disk: Path, tiny_corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "--corpus", str(tiny_corpus), *SMALL, "--steps", "12", "--checkpoint-every", "3", "--out"]
    run, straight = small_disk / "run", tmp_path / "straight"
    assert main([*words, str(straight)]) == 0
    said = last_line(capfd, *words, run)
    assert f"cannot write {run}" in said and "No space left on device" in said
    (kept, *_) = Checkpoints(run / "checkpoints").complete()
    assert kept.name == "step-000000003"
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert "resumed after step" in capfd.readouterr().err
    last = Path("models/last/model.safetensors")
    assert (run / last).read_bytes() == (straight / last).read_bytes()


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let writes beyond `num_bytes` of any file fail, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [100, 3_000, 60_000, 200_000])
def test_whatever_cannot_be_written_in_full_is_one_line(
    tiny_corpus: Path, unspoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], num_bytes: int
) -> None:
    """From the first small file to the weights and the checkpoint: the limit meets each of them."""
    run = tmp_path / "run"
    with largest_file(num_bytes):
        said = last_line(capsys, "pretrain", "--corpus", tiny_corpus, *SMALL, "--steps", "2", "--out", run)
    assert f"cannot write {run}" in said and "File too large" in said
    corpus = tmp_path / "corpus"
    with largest_file(min(num_bytes, 60_000)):
        said = refused_line(capsys, "tokenize", unspoilt, "--tokenizer", "sample", "--out", corpus)
    assert f"cannot write {corpus}" in said and not corpus.exists()


class Killed(RhythmTokenizer):
    """Dies in the middle, as a process does that the kernel kills for want of memory."""

    def encode(self, lead: Lead) -> Tokens:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(lead)


def test_a_killed_process_of_the_build_is_one_line(unspoilt: Path, tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match=r"^tinydb/s0001: its process ended[^\n]*twice[^\n]*--skip-unread[^\n]*$"):
        build_corpus([unspoilt], Killed(), tmp_path / "corpus", TokenizeConfig(processes=2))
    assert list(tmp_path.iterdir()) == [tmp_path / "cwd"]


def test_a_build_that_cannot_write_waits_for_nobody(
    unspoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(HeartlmError, match="No space left on device"):
        build_corpus([unspoilt], SampleTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=2))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("place", ["a_file/below", "/proc/nothing/here"])
def test_an_unwritable_output(
    tiny_corpus: Path,
    unspoilt: Path,
    tiny_pretrained: Path,
    tmp_path: Path,
    refused: Refused,
    place: str,
) -> None:
    (tmp_path / "a_file").write_text("earlier")
    out = tmp_path / place
    for words in (
        ["tokenize", unspoilt, "--out", out],
        ["pretrain", "--corpus", tiny_corpus, *SMALL, "--steps", "1", "--out", out],
        ["finetune", tiny_pretrained, "--corpus", tiny_corpus, "--steps", "1", "--out", out],
    ):
        assert f"cannot write {out}" in refused(*words)
    assert (tmp_path / "a_file").read_text() == "earlier"


def test_an_output_that_is_something_else_is_never_replaced(database: Path, tmp_path: Path, refused: Refused) -> None:
    before = content(database)
    assert f"{database} exists and is no corpus" in refused("tokenize", database, "--out", database)
    (tmp_path / "thesis.txt").write_text("ten years")
    said = refused("tokenize", database, "--out", tmp_path / "thesis.txt")
    assert "thesis.txt exists and is no corpus" in said
    assert content(database) == before and (tmp_path / "thesis.txt").read_text() == "ten years"


# --- words ------------------------------------------------------------------------------------------------------------


def test_an_unknown_command(refused: Refused) -> None:
    said = refused("soup")
    assert "no command 'soup'; it is one of analyze, review, alarms, delineate, data, tokenize" in said
    for name, meant in {
        "analyse": "analyze",
        "pretrian": "pretrain",
        "Demo": "demo",
        "finetun": "finetune",
    }.items():
        assert f"no command '{name}'; did you mean {meant}?" in refused(name)
    assert "no command 'data sohw'; did you mean show?" in refused("data", "sohw")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("data", "plan")])
def test_an_unknown_option(refused: Refused, name: str) -> None:
    said = refused(name, "--no-such-option", "3")
    assert "--no-such-option" in said or "required" in said


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["tokenize"], "databases"),
        (["tokenize", "somewhere"], "out"),
        (["pretrain"], "corpus"),
        (["finetune"], "run"),
        (["evaluate"], "run"),
        (["predict", "run"], "record"),
        (["report"], "run"),
        (["data", "simulate"], "folder"),
        (["tokenize", "somewhere", "--out"], "--out"),
        (["tokenize", "somewhere", "--out", "x", "--processes", "0"], "processes"),
        (["tokenize", "somewhere", "--out", "x", "--seed", "-1"], "seed"),
        (["demo", "--hours", "0"], "hours: 0.0 found, 0.01 to 24 expected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_missing_or_impossible_argument(refused: Refused, words: list[str], missing: str) -> None:
    assert missing in refused(*words).partition(": ")[2]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["pretrain", "--help"], ["data", "list"]], ids=" ".join)
def test_a_reader_of_the_output_that_has_gone_is_no_traceback(words: list[str]) -> None:
    receiver, sender = os.pipe()
    os.close(receiver)
    done = subprocess.run([sys.executable, "-m", "heartlm", *words], stdout=sender, stderr=subprocess.PIPE, text=True)
    os.close(sender)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_pipe_that_breaks_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(words: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("heartlm.cli.data.run", broken)
    with pytest.raises(BrokenPipeError):
        main(["data"])


ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghij"
)
DEEP = "a: " + "[" * 2000 + "]" * 2000


@pytest.mark.parametrize("text", [ALIAS_BOMB, DEEP], ids=["aliases", "depth"])
@pytest.mark.parametrize(
    "words",
    [["pretrain"], ["pretrain", "--config"]],
    ids=" ".join,
)
def test_a_settings_file_that_would_hang_is_one_line(
    tmp_path: Path, refused: Refused, words: list[str], text: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    said = refused(*words, path)
    assert "settings.yaml: not valid YAML (" in said
    assert "more than 1000000 values" in said or "nested more than 64 deep" in said


@pytest.mark.parametrize("value", ["{a: " + "[" * 500 + "]" * 500 + "}", "{" + ALIAS_BOMB.replace("\n", ", ") + "}"])
def test_an_option_that_would_hang_is_one_line(refused: Refused, value: str) -> None:
    for given in ([f"--weights={value}"], ["--weights", value]):
        said = refused("pretrain", "--corpus", "x", *given)
        assert '"weights": Expected a mapping' in said
