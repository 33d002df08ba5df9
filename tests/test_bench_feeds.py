"""The supplies of batches that `benchmarks/feeding.py` compares: windows of one corpus, all of one shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import feeding
from benchmarks.feeds import made_up, take
from benchmarks.peers import Items, backings, nanogpt, sliding, torch_loaders


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
        drawn = np.asarray(codes).astype(np.uint16)
        assert drawn.shape == (4, 32, num_facets) and all(row.tobytes() in corpus.codes.tobytes() for row in drawn)


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


def test_steps_of_the_warm_up_alone_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["feeding", "--work", str(tmp_path / "work"), "--steps", "2"])
    with pytest.raises(SystemExit, match="2"):
        feeding.main()
    assert "--steps: 2 found, more than the 2 of the warm-up expected" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
