"""A corpus in shards has the rows, tokens and windows of the corpus of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus, build_part
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.shards import ALIGN_TOKENS, first_tokens
from heartlm.corpus.watch import WatchedFile
from heartlm.corpus.windows import sampler
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.tokenizers.rhythm import RhythmTokenizer

CONFIG = TokenizeConfig(training_leads="all", processes=1)


@pytest.fixture(scope="module")
def whole(unspoilt: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("whole") / "corpus"
    build_corpus([unspoilt], RhythmTokenizer(), out, CONFIG)
    return open_corpus(out)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_same(corpus: Corpus, whole: Corpus) -> None:
    assert [replace(row, first_token=0) for row in corpus.records.rows] == [
        replace(row, first_token=0) for row in whole.records.rows
    ]
    own = np.concatenate([np.arange(len(corpus.codes))[corpus.tokens_of(row)] for row in range(len(corpus.records))])
    for name in ("codes", "sample", "labels", "scale_mv"):
        np.testing.assert_array_equal(getattr(corpus, name)[own], getattr(whole, name))
    unused = np.setdiff1d(np.arange(len(corpus.codes)), own)
    assert (corpus.labels[unused] == -1).all() and not corpus.labels.flags.writeable
    for order in ("random", "epochs"):
        drawn = []
        for each in (corpus, whole):
            rows = each.records.select("train")
            windows = sampler(each.records, rows, width=16, batch_size=8, seed=5, order=order)
            drawn.append([each.codes[windows.windows(step).index] for step in range(4)])
        np.testing.assert_array_equal(*drawn)


def test_shards_begin_where_pages_do() -> None:
    assert first_tokens([5, ALIGN_TOKENS, 0, 7]) == [
        0,
        ALIGN_TOKENS,
        2 * ALIGN_TOKENS,
        2 * ALIGN_TOKENS,
        2 * ALIGN_TOKENS + 7,
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_corpus_in_shards_gives_the_windows_of_one(
    whole: Corpus, unspoilt: Path, tmp_path: Path, processes: int
) -> None:
    config = replace(CONFIG, shards=3, processes=processes)
    manifest = build_corpus([unspoilt], RhythmTokenizer(), tmp_path / "corpus", config)
    corpus = open_corpus(tmp_path / "corpus")
    assert [each["folder"] for each in manifest["shards"]] == ["shards/0000", "shards/0001", "shards/0002"]
    assert min(each["num_tokens"] for each in manifest["shards"]) > 0
    different = {"shards", "checksums"}
    assert {k: v for k, v in manifest.items() if k not in different} == {
        k: v for k, v in whole.manifest.items() if k not in different
    }
    check_same(corpus, whole)
    assert list(tmp_path.iterdir()) == [tmp_path / "corpus"]
    assert not list((tmp_path / "corpus").rglob("journal.jsonl"))
    with pytest.raises(HeartlmError, match="bytes found"):
        watched = WatchedFile(corpus.codes)
        os.truncate(tmp_path / "corpus" / "shards" / "0001" / "codes.bin", 3)
        watched.check()
    with pytest.raises(HeartlmError, match=r"shards/0001/codes\.bin: 3 bytes found"):
        open_corpus(tmp_path / "corpus")


def test_parts_are_shards_that_a_last_command_joins(whole: Corpus, unspoilt: Path, tmp_path: Path) -> None:
    words = ["tokenize", str(unspoilt), "--tokenizer", "rhythm", "--training-leads", "all", "--processes", "1"]
    for folder, commands in (
        ("parts", ["--part=2/3", "--part=1/3", "--part=3/3", "--shards=3"]),
        ("at once", ["--shards=3"]),
    ):
        for option in commands:
            assert main([*words, "--out", str(tmp_path / folder / "corpus"), option]) == 0
    check_same(open_corpus(tmp_path / "parts" / "corpus"), whole)
    first, second = (content(tmp_path / folder) for folder in ("parts", "at once"))
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} <= {"corpus/manifest.json"}  # has the command


@pytest.mark.parametrize("then", ["--shards=2", "--shards=1"])
def test_shards_of_a_build_that_was_given_up_are_removed(
    whole: Corpus, unspoilt: Path, tmp_path: Path, then: str
) -> None:
    words = ["tokenize", str(unspoilt), "--tokenizer", "rhythm", "--training-leads", "all", "--processes", "1"]
    for option in ("--part=4/4", then):
        assert main([*words, "--out", str(tmp_path / "corpus"), option]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    check_same(open_corpus(tmp_path / "corpus"), whole)


class Failing(RhythmTokenizer):
    """Has no tokens of any lead."""

    def encode(self, lead: Lead) -> Tokens:
        raise HeartlmError("a fault")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_build_removes_shards_of_another_number_when_it_begins(unspoilt: Path, tmp_path: Path, shards: int) -> None:
    out = tmp_path / "corpus"
    for number in (2, 3, 4):
        build_part([unspoilt], out, replace(CONFIG, tokenizer="rhythm", part=f"{number}/4"), None)
    writing = (
        "import sys; from pathlib import Path; from heartlm.corpus.journal import partial_folder\n"
        "with partial_folder(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", writing, tmp_path / ".corpus.shards" / "0003"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(HeartlmError, match="a fault"):
            build_corpus([unspoilt], Failing(), out, replace(CONFIG, shards=shards))
        process.communicate()
    assert [path.name for path in sorted((tmp_path / ".corpus.shards").glob("[0-9]*"))] == ["0003"]


def test_a_build_keeps_the_shards_that_it_needs(unspoilt: Path, tmp_path: Path) -> None:
    build_part([unspoilt], tmp_path / "corpus", replace(CONFIG, tokenizer="rhythm", part="3/3"), None)
    folder = (tmp_path / ".corpus.shards" / "0002").stat().st_ino
    build_corpus([unspoilt], RhythmTokenizer(), tmp_path / "corpus", replace(CONFIG, shards=3))
    assert (tmp_path / "corpus" / "shards" / "0002").stat().st_ino == folder


class KilledOnce(RhythmTokenizer):
    """Dies at the tokens of some recordings, each as often as it is told."""

    folder: Path
    deaths: dict[int, int]

    def encode(self, lead: Lead) -> Tokens:
        number = len(lead.annotations.sample)
        died = len(list(self.folder.glob(f"{number}-*")))
        if died < self.deaths.get(number, 0):
            (self.folder / f"{number}-{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(lead)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_worker_that_is_killed_costs_its_recording_at_most(
    whole: Corpus, unspoilt: Path, tmp_path: Path, shards: int
) -> None:
    rows = {row.num_tokens: row.record_id for row in whole.records.rows}
    *_, once, always = [number for number in rows if sum(row.num_tokens == number for row in whole.records.rows) == 1]
    tokenizer = KilledOnce()
    tokenizer.folder, tokenizer.deaths = tmp_path, {once: 1, always: 10**6}
    config = replace(CONFIG, shards=shards, processes=2, skip_unreadable=True)
    manifest = build_corpus([unspoilt], tokenizer, tmp_path / "corpus", config)
    reasons = [each["reason"] for each in manifest["dropped"] if each["record"] == f"tinydb/{rows[always]}"]
    assert len(reasons) == 1 and "its process ended" in reasons[0]
    kept = {row.record_id for row in open_corpus(tmp_path / "corpus").records.rows}
    assert kept == {row.record_id for row in whole.records.rows} - {rows[always]} and rows[once] in kept
