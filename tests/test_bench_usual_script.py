"""The usual script that `benchmarks/tokenizing.py` compares with does the work of heartlm."""

from __future__ import annotations

from pathlib import Path

from benchmarks.usual_script import differing_codes
from heartlm.corpus.build import build_corpus
from heartlm.databases.database import open_database
from heartlm.tokenizers.base import load_tokenizer
from heartlm.tokenizers.beat import BeatTokenizer


def test_the_usual_script_makes_the_same_tokens(tiny_database: Path, tmp_path: Path):
    database, compares_nothing = open_database(tiny_database), BeatTokenizer(num_codes=16, compare=False)
    build_corpus([tiny_database], compares_nothing, tmp_path / "corpus")
    tokenizer = load_tokenizer(tmp_path / "corpus" / "tokenizer")
    differing, num_codes = differing_codes(database, database.record_ids[0], tokenizer)
    assert num_codes > 500 and differing <= 1
