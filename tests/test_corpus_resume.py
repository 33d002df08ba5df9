"""A build that was killed continues where it was, and what it makes does not tell."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.corpus import build as building
from heartlm.corpus import plan as planning
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import open_corpus
from heartlm.corpus.encode import Part, encode_part
from heartlm.corpus.journal import partial_folder
from heartlm.corpus.plan import PartRecords, listed, make_plan
from heartlm.databases import discovery, spool
from heartlm.databases.database import open_database
from heartlm.databases.spool import RecordSpool
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.system.engine import EngineOptions
from heartlm.system.processes import AHEAD, run_each
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer

NUM_RECORDS = 26


@pytest.fixture(scope="module")
def unspoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("databases") / "many"
    simulate_database(folder, SimulationConfig(patients=24, minutes=0.3, name="many"))
    assert len(open_database(folder).record_ids) == NUM_RECORDS
    return folder


@pytest.fixture
def database(unspoilt: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(unspoilt, tmp_path / "many"))


@pytest.fixture(autouse=True)
def two_records_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NUM_PARTS", NUM_RECORDS // 2)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def num_done(out: Path) -> int:
    """Parts that the journal of a build under way notes."""
    path = partial(out) / "journal.jsonl"
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


# --- killed -----------------------------------------------------------------------------------------------------------

SLOW = """
import os, sys, time
from pathlib import Path
from heartlm.corpus import plan
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.tokenizers.rhythm import RhythmTokenizer

class Slow(RhythmTokenizer):
    def encode(self, lead):
        with open(sys.argv[4], "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        time.sleep(0.1)
        return super().encode(lead)

plan.NUM_PARTS = 13
build_corpus([Path(sys.argv[1])], Slow(), Path(sys.argv[2]), TokenizeConfig(processes=int(sys.argv[3])))
"""


def ended(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_and_started_again_it_goes_on_and_ends_the_same(
    unspoilt: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], processes: int
) -> None:
    out, workers = tmp_path / "corpus", tmp_path / "workers"
    command = [sys.executable, "-c", SLOW, str(unspoilt), str(out), str(processes), str(workers)]
    build = subprocess.Popen(command)
    while num_done(out) < 3:
        assert build.poll() is None
        time.sleep(0.01)
    build.send_signal(signal.SIGKILL)
    build.wait()
    while not all(ended(int(line)) for line in workers.read_text().split()):
        time.sleep(0.01)
    done = num_done(out)
    assert 3 <= done < NUM_RECORDS // 2 and not out.exists()

    words = ["tokenize", str(unspoilt), "--tokenizer", "rhythm", "--processes", str(processes), "--out"]
    assert main([*words, str(out)]) == 0
    assert f"continues after {2 * done} of {NUM_RECORDS} recordings" in capfd.readouterr().err
    assert main([*words, str(tmp_path / "straight")]) == 0
    resumed, straight = content(out), content(tmp_path / "straight")
    for files, name in ((resumed, "corpus"), (straight, "straight")):
        manifest = json.loads(files.pop("manifest.json"))
        assert manifest.pop("command").endswith(f"/{name}")
        files["manifest"] = json.dumps(manifest).encode()
    assert resumed == straight and not partial(out).exists()


# --- interrupted in this process: what is kept, and what it continues from --------------------------------------------


class Interrupted(RhythmTokenizer):
    """Stopped at a recording, as by Ctrl-C."""

    def __init__(self, after: int = 10) -> None:
        super().__init__()
        self.left = after

    def encode(self, lead: Lead) -> Tokens:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode(lead)


@pytest.fixture
def stopped(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a corpus should be, of whose thirteen parts five are done."""
    monkeypatch.setattr(building, "WORTH_KEEPING_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(), tmp_path / "corpus", TokenizeConfig(processes=1))
    assert num_done(tmp_path / "corpus") == 5
    return tmp_path / "corpus"


def straight(database: Path, tmp_path: Path) -> dict[str, bytes]:
    build_corpus([database], RhythmTokenizer(), tmp_path / "straight", TokenizeConfig(processes=1))
    return content(tmp_path / "straight")


def test_it_goes_on_with_another_number_of_processes(
    stopped: Path, database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(processes=3))
    assert "continues after 10 of 26 recordings" in capfd.readouterr().err
    assert content(stopped) == straight(database, tmp_path)


@pytest.mark.parametrize("file", ["codes.bin", "scale.bin", "journal.jsonl"])
@pytest.mark.parametrize("damage", ["cut", "cut by one", "changed", "longer"])
def test_it_goes_on_from_the_last_part_that_is_there_to_the_byte(
    stopped: Path, database: Path, tmp_path: Path, file: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a loss of power, which may leave less, other bytes or more than the journal says."""
    path = partial(stopped) / file
    whole = path.read_bytes()
    contents = {
        "cut": whole[:-5],
        "cut by one": whole[:-1],  # the end of the line, in the journal
        "changed": whole[:-5] + b"\0\0\0\0\0",
        "longer": whole + b"{12345",
    }
    path.write_bytes(contents[damage])
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(processes=1))
    done = 10 if damage == "longer" else 8
    assert f"continues after {done} of 26 recordings" in capfd.readouterr().err
    assert content(stopped) == straight(database, tmp_path)


@pytest.mark.parametrize("settings", [{}, {"beats": "annotated"}], ids=["continues", "starts again"])
def test_what_was_half_written_does_not_get_into_the_corpus(
    stopped: Path, database: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    (partial(stopped) / ".manifest.json.x7").write_text("{")
    (partial(stopped) / ".tokenizer.x7").mkdir()
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(processes=1, **settings))
    build_corpus([database], RhythmTokenizer(), tmp_path / "straight", TokenizeConfig(processes=1, **settings))
    assert content(stopped) == content(tmp_path / "straight")
    assert {path.name for path in stopped.iterdir()} == {path.name for path in (tmp_path / "straight").iterdir()}


def test_other_settings_begin_anew_and_say_so(
    stopped: Path, database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(beats="annotated", processes=1))
    assert "starts again" in (said := capfd.readouterr().err) and "beats changed" in said
    build_corpus([database], RhythmTokenizer(), tmp_path / "straight", TokenizeConfig(beats="annotated", processes=1))
    assert content(stopped) == content(tmp_path / "straight")


@pytest.mark.parametrize("change", ["touched", "gone", "added"])
def test_other_recordings_begin_anew_and_say_so(
    stopped: Path, database: Path, tmp_path: Path, change: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record_id = open_database(database).record_ids[0]
    if change == "touched":
        os.utime(database / f"{record_id}.atr", (1, 1))
    elif change == "gone":
        (database / "RECORDS").write_text("\n".join(open_database(database).record_ids[1:]))
    else:
        (database / "database.json").write_text((database / "database.json").read_text() + " ")
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(processes=1))
    assert "recordings changed" in capfd.readouterr().err
    assert content(stopped) == straight(database, tmp_path)


def test_a_fitted_tokenizer_is_not_fitted_again(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[Lead]()

    class InterruptedBeat(BeatTokenizer):
        def encode(self, lead: Lead) -> Tokens:
            encoded.append(lead)
            if len(encoded) == 8:
                raise KeyboardInterrupt
            return super().encode(lead)

    monkeypatch.setattr(building, "WORTH_KEEPING_S", 0.0)
    build_corpus([database], BeatTokenizer(num_codes=8), tmp_path / "straight", TokenizeConfig(processes=1))
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], InterruptedBeat(num_codes=8), tmp_path / "corpus", TokenizeConfig(processes=1))
    monkeypatch.setattr(BeatTokenizer, "fit", lambda *_: pytest.fail("fitted again"))
    build_corpus([database], BeatTokenizer(num_codes=8), tmp_path / "corpus", TokenizeConfig(processes=1))
    assert content(tmp_path / "corpus") == content(tmp_path / "straight")


def test_an_unreadable_recording_loses_nothing(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Told to skip it, the build continues; told not to skip any more, it starts again, since it skipped one before."""
    monkeypatch.setattr(building, "WORTH_KEEPING_S", 0.0)
    bad = open_database(database).record_ids[15]
    (database / f"{bad}.atr").write_bytes(b"\x01")
    out = tmp_path / "corpus"
    for _ in range(2):
        with pytest.raises(HeartlmError, match=rf"{bad}\.atr.* kept, the same command continues there$"):
            build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    capfd.readouterr()
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(5), out, TokenizeConfig(processes=1, skip_unreadable=True))
    assert "continues after 14 of 26" in capfd.readouterr().err and num_done(out) == 10
    with pytest.raises(HeartlmError, match=bad):
        build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    assert "skip_unreadable changed" in capfd.readouterr().err
    manifest = build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1, skip_unreadable=True))
    assert "continues after 14 of 26" in capfd.readouterr().err
    assert [entry["record"] for entry in manifest["dropped"]] == [f"many/{bad}"]
    build_corpus(
        [database], RhythmTokenizer(), tmp_path / "straight", TokenizeConfig(processes=1, skip_unreadable=True)
    )
    assert content(out) == content(tmp_path / "straight")


def test_what_was_kept_is_kept_when_the_next_attempt_fails_at_once(
    stopped: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "WORTH_KEEPING_S", 1e9)
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(0), stopped, TokenizeConfig(processes=1))
    assert num_done(stopped) == 5
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(), tmp_path / "quick", TokenizeConfig(processes=1))
    assert not partial(tmp_path / "quick").exists(), "what took no time is not worth keeping"


def test_a_disk_that_is_full_loses_nothing(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "WORTH_KEEPING_S", 0.0)
    out, before = tmp_path / "corpus", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(
            HeartlmError, match=rf"^cannot write {out}: File too large[^\n]*; what is tokenised so far is kept"
        ):
            build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    done = num_done(out)
    assert 0 < done < NUM_RECORDS // 2 and not out.exists()
    build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    assert f"continues after {2 * done} of 26" in capfd.readouterr().err
    assert content(out) == straight(database, tmp_path)


def test_two_builds_of_one_corpus_do_not_mix(database: Path, tmp_path: Path) -> None:
    holder = "import sys, time; from pathlib import Path; from heartlm.corpus.journal import partial_folder\n"
    holder += "with partial_folder(Path(sys.argv[1])): print('holds', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "corpus")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "holds\n"
    try:
        with pytest.raises(HeartlmError, match="another process is making it"):
            build_corpus([database], RhythmTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))
    finally:
        other.kill()
        other.communicate()
    build_corpus([database], RhythmTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))
    assert open_corpus(tmp_path / "corpus").manifest["num_records"] == NUM_RECORDS


def test_an_earlier_corpus_stays_while_another_is_under_way(stopped: Path, database: Path, tmp_path: Path) -> None:
    build_corpus([database], RhythmTokenizer(), tmp_path / "earlier", TokenizeConfig(beats="annotated", processes=1))
    shutil.move(tmp_path / "earlier", stopped)
    before = content(stopped)
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(4), stopped, TokenizeConfig(processes=1))
    assert content(stopped) == before and num_done(stopped) == 7
    build_corpus([database], RhythmTokenizer(), stopped, TokenizeConfig(processes=1))
    assert content(stopped) == straight(database, tmp_path)


# --- any number of processes, and of recordings -----------------------------------------------------------------------


def test_the_corpus_is_the_same_for_one_two_and_three_processes(unspoilt: Path, tmp_path: Path) -> None:
    made = {}
    for processes in (1, 2, 3):
        build_corpus(
            [unspoilt],
            BeatTokenizer(num_codes=8),
            tmp_path / "corpus",
            TokenizeConfig(training_leads="all", processes=processes),
        )
        made[processes] = content(tmp_path / "corpus")
    assert made[1] == made[2] == made[3]


class Counted(RhythmTokenizer):
    """Adds a byte to a file for every recording, in whatever process."""

    path: Path

    def encode(self, lead: Lead) -> Tokens:
        with self.path.open("ab") as stream:
            stream.write(b".")
        return super().encode(lead)


def test_few_parts_are_ahead_of_the_writer(unspoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the writer and however many recordings: what is encoded waits for it, a few parts a process."""
    monkeypatch.setattr(planning, "NUM_PARTS", NUM_RECORDS)
    tokenizer = Counted()
    tokenizer.path = tmp_path / "count"
    opened, choice = open_database(unspoilt), TokenizeConfig()
    plan = make_plan([opened.record_ids])

    def encode(part: PartRecords) -> Part:
        return encode_part(opened, part.record_ids, tokenizer, choice, {})

    parts = run_each(encode, plan, EngineOptions(), 2, start="fork")
    for number in range(5):
        next(parts)
        while tokenizer.path.stat().st_size < number + AHEAD * 2 + 1:
            time.sleep(0.01)
        time.sleep(0.05)
        assert tokenizer.path.stat().st_size == number + AHEAD * 2 + 1 < NUM_RECORDS
    parts.close()


def test_the_folder_of_a_corpus_under_way_is_hidden_and_beside_it(tmp_path: Path) -> None:
    with partial_folder(tmp_path / "corpora" / "mitdb") as folder:
        assert folder == tmp_path / "corpora" / ".mitdb.partial"


def test_parts_hold_a_recording_of_a_small_database_and_some_of_a_large_one(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = open_database(database).record_ids
    for num_parts, most, records in ((256, 16, 1), (10, 16, 2), (4, 16, 6), (1, 16, 16), (1, 64, NUM_RECORDS)):
        monkeypatch.setattr(planning, "NUM_PARTS", num_parts)
        monkeypatch.setattr(planning, "PART_RECORDS", most)
        plan = make_plan([names, names])
        parts = list(plan)
        assert max(len(part.record_ids) for part in parts) == records and len(plan) == len(parts)
        assert [(part.database, name) for part in parts for name in part.record_ids] == [
            (number, name) for number in (0, 1) for name in names
        ]
        assert list(plan.parts(1)) == parts[1:] and list(plan.parts(2, 5)) == parts[2:5]
        for num_shards in (1, 3, 7):
            shards = plan.shards(num_shards)
            assert len(shards) == num_shards and [part for shard in shards for part in shard] == parts
            sizes = [shard.num_records for shard in shards]
            assert sum(sizes) == 2 * NUM_RECORDS and max(sizes) - min(sizes) <= 2 * records


def test_a_list_on_disk_gives_the_same_parts(unspoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "CHUNK", 5)
    database, names = listed(unspoilt, "warn")
    monkeypatch.setattr(discovery, "HELD", 3)
    without, on_disk = listed(unspoilt, "warn")
    assert not without.record_ids and isinstance(on_disk, RecordSpool) and len(on_disk) == len(names) == NUM_RECORDS
    whole, streamed = make_plan([names, names]), make_plan([on_disk, on_disk])
    for plan in (streamed, pickle.loads(pickle.dumps(streamed))):
        for first, stop in ((0, len(plan)), (3, 4), (5, 19), (25, 26)):
            pairs = list(zip(whole.parts(first, stop), plan.parts(first, stop), strict=True))
            assert len(pairs) == stop - first
            for known, part in pairs:
                assert (part.database, list(part.record_ids)) == (known.database, list(known.record_ids))
                opened = part.opened([without, without])
                assert [opened.files(name) for name in part.record_ids] == [
                    database.files(name) for name in known.record_ids
                ]
    _, shard, _ = streamed.shards(3)
    assert list(pickle.loads(pickle.dumps(shard))) == list(shard)
    assert len(pickle.dumps(shard)) < len(pickle.dumps(streamed)), "a shard takes its own recordings along"
    assert on_disk.digest == listed(unspoilt, "warn")[1].digest  # type: ignore[union-attr]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_corpus_of_a_list_on_disk_is_the_same(
    unspoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    folders, config = [unspoilt], TokenizeConfig(processes=2, shards=shards)
    build_corpus(folders, BeatTokenizer(num_codes=8), tmp_path / "whole", config)
    monkeypatch.setattr(discovery, "HELD", 3)
    monkeypatch.setattr(spool, "CHUNK", 7)
    build_corpus(folders, BeatTokenizer(num_codes=8), tmp_path / "listed", config)
    assert content(tmp_path / "whole") == content(tmp_path / "listed")


def test_a_build_of_a_list_on_disk_continues(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "WORTH_KEEPING_S", 0.0)
    monkeypatch.setattr(discovery, "HELD", 3)
    out = tmp_path / "corpus"
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(4), out, TokenizeConfig(processes=1))
    build_corpus([database], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    assert "continues after" in capfd.readouterr().err
    assert content(out) == straight(database, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build_corpus([database], Interrupted(4), tmp_path / "other", TokenizeConfig(processes=1))
    (database / "s0001.atr").touch()
    build_corpus([database], RhythmTokenizer(), tmp_path / "other", TokenizeConfig(processes=1))
    assert "recordings changed since: starts again" in capfd.readouterr().err
