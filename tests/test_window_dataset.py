"""Windows of a corpus as a dataset of torch, for training loops of other programs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import heartlm
from heartlm.corpus.corpus import open_corpus
from heartlm.errors import HeartlmError
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import training_windows


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_batches_of_a_loader_are_those_of_pretraining(tiny_corpus: Path, order: str):
    corpus = open_corpus(tiny_corpus)
    config = PretrainConfig(window=32, batch_size=4, seed=5, order=order)
    expected = training_windows(corpus, corpus.records.select("train"), config)
    windows = heartlm.WindowDataset(corpus, "train", 32, order=order, batch_size=4, steps=70, seed=5)
    assert len(windows) == 280
    for step, batch in enumerate(DataLoader(windows, batch_size=4, num_workers=2)):
        of_step = expected.windows(step)
        assert torch.equal(batch["codes"], torch.from_numpy(corpus.codes[of_step.index].astype(np.int64)))
        assert torch.equal(batch["valid"], torch.from_numpy(of_step.valid))
        assert torch.equal(batch["sample"], torch.from_numpy(corpus.sample[of_step.index]))
    assert step == 69


def test_each_token_of_the_split_is_in_one_window(tiny_corpus: Path):
    corpus = open_corpus(tiny_corpus)
    windows = heartlm.WindowDataset(tiny_corpus, "validation", window=50)
    assert isinstance(windows, Dataset)
    seen = list[tuple[int, int]]()
    for index in range(len(windows)):
        window = windows[index]
        assert {name: (x.dtype, tuple(x.shape)) for name, x in window.items()} == {
            "codes": (torch.int64, (50, corpus.codes.shape[1])),
            "valid": (torch.bool, (50,)),
            **dict.fromkeys(("sample", "beat_class", "rhythm"), (torch.int64, (50,))),
            "row": (torch.int64, ()),
        }
        row, valid = int(window["row"]), window["valid"].numpy()
        own = corpus.tokens_of(row)
        at = np.isin(corpus.sample[own], window["sample"].numpy())
        assert (corpus.beat_class[own][at] == window["beat_class"].numpy()[valid]).all()
        assert (corpus.rhythm[own][at] == window["rhythm"].numpy()[valid]).all()
        assert (window["beat_class"].numpy()[~valid] == -1).all()
        seen += [(row, sample) for sample in window["sample"].numpy()[valid].tolist()]
    rows = corpus.records.select("validation").tolist()
    assert seen == [(row, sample) for row in rows for sample in corpus.sample[corpus.tokens_of(row)].tolist()]
    assert torch.equal(windows[-1]["codes"], windows[len(windows) - 1]["codes"])
    with pytest.raises(IndexError, match="of"):
        windows[len(windows)]


def test_a_copy_for_another_process_maps_the_files_again(tiny_corpus: Path):
    windows = heartlm.WindowDataset(tiny_corpus, window=32)
    sent = pickle.dumps(windows)
    assert len(sent) < open_corpus(tiny_corpus).codes.nbytes
    copy = pickle.loads(sent)
    assert isinstance(copy.corpus.codes, np.memmap)
    assert torch.equal(copy[3]["codes"], windows[3]["codes"])


def test_settings_that_do_not_fit(tiny_corpus: Path, tmp_path: Path):
    for settings, message in (
        ({"window": 0}, "window: 0 found"),
        ({"split": "excluded"}, "split: 'excluded' found, but .* has no tokens of it"),
        ({"order": "random"}, "order: random found, .* batch_size and steps with it"),
        ({"batch_size": 4}, "order: None found"),
        ({"order": "epochs", "batch_size": 4, "steps": 1, "weights": {"simdb": 1.0}}, "weights: .* use order 'random'"),
    ):
        with pytest.raises(HeartlmError, match=message):
            heartlm.WindowDataset(tiny_corpus, **settings)
    with pytest.raises(HeartlmError, match="not a corpus"):
        heartlm.WindowDataset(tmp_path)


def test_torch_is_imported_on_use_alone():
    code = "import sys, heartlm.api; assert 'WindowDataset' in dir(heartlm) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
