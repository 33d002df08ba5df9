"""`benchmarks/machine.py loader` in small: every loader hands over windows of the same corpus."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from bench.feeds import OURS, made_up, own, take
from bench.loader import Options, check_windows, run
from bench.peers import Items, backings, nanogpt, sliding, torch_loaders
from machine import main

from heartlm.corpus.corpus import open_corpus
from heartlm.errors import HeartlmError

SMALL = {"rounds": 2, "turn_s": 0.001, "workers": (0,), "batch_tokens": 512}
COLUMNS = ("way", "width", "M tokens/s", "spread %", "heartlm is times faster")


def test_every_way_has_a_row_for_every_width(tmp_path: Path):
    (table,) = run(Options(out=tmp_path, widths=(16, 64), tokens=4096, **SMALL))
    assert table.columns == COLUMNS
    ways = list(dict.fromkeys(table.column("way")))
    assert ways == [
        "heartlm gather alone, uint16",
        OURS,
        "heartlm feed, masked",
        "nanoGPT get_batch",
        "NumPy sliding windows",
        "DataLoader, npy, 0 workers",
        "DataLoader, memmap, 0 workers",
    ]
    assert list(zip(table.column("way"), table.column("width"), strict=True)) == [
        (way, width) for width in (16, 64) for way in ways
    ]
    assert all(cells[4] == 1 for cells in table.rows if cells[0] == OURS)
    assert any("lie in the corpus" in note for note in table.notes)


def test_a_corpus_of_several_facets_is_fed_whole(tiny_corpus: Path, tmp_path: Path):
    (table,) = run(Options(out=tmp_path, corpus=tiny_corpus, widths=(32,), **SMALL))
    facets = open_corpus(tiny_corpus).codes.shape[1]
    assert facets > 1 and any(f"of {facets} facet(s) ({tiny_corpus.name})" in note for note in table.notes)


@pytest.mark.parametrize("num_facets", [1, 3])
def test_peers_give_batches_of_one_shape(num_facets: int, tmp_path: Path):
    corpus = made_up(tmp_path / "codes.bin", 2048, num_facets)
    items = np.array(corpus.codes[:1024]).reshape(-1, 32, num_facets)
    rivals = {
        "nanoGPT": nanogpt(tmp_path / "codes.bin", 32, 4, num_facets),
        "sliding": sliding(tmp_path / "codes.bin", 32, 4, num_facets),
        **torch_loaders(backings(tmp_path / "codes.bin", items, tmp_path / "items"), 4, (0,)),
    }
    for batches in rivals.values():
        batch = next(batches)
        codes = batch[0] if isinstance(batch, tuple) else batch
        assert tuple(codes.shape) == (4, 32, num_facets) and codes.dtype.is_floating_point is False
    check_windows(corpus, rivals | own(corpus, 32, 4))


def test_windows_that_are_not_in_the_corpus_are_found_out(tmp_path: Path):
    corpus = made_up(tmp_path / "codes.bin", 2048, 1)
    with pytest.raises(HeartlmError, match="a thief: a window that is not in the corpus"):
        check_windows(corpus, {"a thief": itertools.repeat(np.full((4, 32, 1), 999, np.int64))})


def test_the_data_loader_fetches_a_whole_batch_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = made_up(tmp_path / "codes.bin", 2048, 1)
    items = np.array(corpus.codes[:1024]).reshape(-1, 32, 1)
    asked: list[int] = []
    fetch = Items.__getitems__
    monkeypatch.setattr(Items, "__getitems__", lambda self, chosen: asked.append(len(chosen)) or fetch(self, chosen))
    monkeypatch.delattr(Items, "__getitem__")
    for batches in torch_loaders(backings(tmp_path / "codes.bin", items, tmp_path / "items"), 4, (0,)).values():
        take(batches, 3)
    assert asked == [4] * 6


def test_taking_takes():
    batches = iter(range(10))
    take(batches, 3)
    assert next(batches) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--corpus", "/nowhere"], "/nowhere: no manifest.json"),
        (["--widths", "[]"], "widths: nothing found"),
        (["--widths", "[128]", "--batch_tokens", "64"], "batch_tokens: 64 found, at least 128"),
        (["--workers", "[-1]"], "workers: -1 found"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["loader", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
