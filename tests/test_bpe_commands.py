"""BPE tokens through the commands: tokenised, trained on, scored; options that make no sense refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.corpus.corpus import open_corpus
from heartlm.ecg.database import open_database
from heartlm.evaluation.annotate import annotate
from heartlm.tokenizers.bpe import BPETokenizer
from tests.untrained import annotated_leads, untrained_run

RECORD = "s0001"


@pytest.fixture(scope="module")
def tokenizer(tiny_database: Path) -> BPETokenizer:
    fitted = BPETokenizer(num_codes=200)
    fitted.fit(annotated_leads(open_database(tiny_database)))
    return fitted


@pytest.fixture(scope="module")
def corpus(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bpe") / "corpus"
    assert tokenize(tiny_database, "--tokenizer", "bpe", "--num-codes", 200, "--out", out) == 0
    return out


def tokenize(*words: object) -> int:
    return main(["tokenize", *map(str, words), "--processes", "1"])


def test_another_corpus_is_made_with_the_same_runs(corpus: Path, tiny_database: Path, tmp_path: Path) -> None:
    assert tokenize(tiny_database, "--tokenizer-from", corpus, "--out", tmp_path / "again") == 0
    one, other = open_corpus(corpus), open_corpus(tmp_path / "again")
    assert one.manifest["tokenizer"]["facets"] == [{"name": "bpe", "size": 200, "causal": True}]
    assert one.tokenizer_hash == other.tokenizer_hash and one.manifest["checksums"] == other.manifest["checksums"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokenizer", "bpe", "--num-codes", "4"), "num_codes: 4 found, 128 to 8192 expected"),
        (("--tokenizer", "sample", "--num-codes", "256"), "num_codes: only the bpe tokenizer takes it, not sample"),
        (("--tokenizer", "bpe", "--causal"), "causal: the bpe tokenizer is always causal"),
        (("--tokenizer-from", "x", "--num-codes", "256"), "num_codes: the tokenizer of x has its settings"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(
    tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert tokenize(tiny_database, *words, "--out", tmp_path / "corpus") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


def test_a_model_is_trained_and_scored_on_runs(corpus: Path, tmp_path: Path) -> None:
    small = ["--corpus", str(corpus), "--window", "32", "--steps", "3", "--threads", "1", "--device", "cpu"]
    foundation, tuned = str(tmp_path / "foundation"), str(tmp_path / "beats")
    assert main(["pretrain", *small, "--depth", "1", "--out", foundation]) == 0
    assert main(["finetune", foundation, "--task", "beats", *small, "--out", tuned]) == 0
    assert main(["evaluate", tuned, "--on", str(corpus), "--checkpoint", "last", "--bootstrap", "10"]) == 0
    path = tmp_path / "beats" / "scores" / "corpus-test-annotated-last" / "scores.json"
    beats = open_corpus(corpus).manifest["databases"][0]["splits"]["test"]["beats_per_class"]
    scored = json.loads(path.read_text())["scores"]["num_beats"]
    assert scored == sum(beats[name] for name in beats if name in "NSVF") > 100


def test_beats_are_named_where_they_are(tiny_database: Path, tokenizer: BPETokenizer, tmp_path: Path) -> None:
    run, database = untrained_run(tmp_path / "run", tokenizer, task="beats"), open_database(tiny_database)
    known = database.annotations(RECORD)
    assert known is not None
    assert np.array_equal(annotate(run, database, RECORD).found.sample, known.sample)
