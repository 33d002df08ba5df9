"""Windows of a corpus as a dataset of torch, for training loops of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.windows import EpochSampler, sampler
from heartlm.errors import HeartlmError


class WindowDataset(Dataset[dict[str, Tensor]]):
    """Windows of the tokens of a corpus; map-style, so that a `DataLoader` may shuffle it and read it in workers.

    A window lies in one lead of one recording. It is a dictionary of `codes`, int64 `[window, num_facets]`; `valid`,
    bool `[window]`, false in the padding of short windows; `sample`, position in the recording, `beat_class` and
    `rhythm`, the indices of `Corpus`, −1 without a label and in padding, int64 `[window]`; and `row`, that of
    `corpus.records`. Padding repeats the last code and position.

    Args:
        corpus: corpus or its folder.
        split: `"train"`, `"validation"` or `"test"`.
        window: tokens per window.
        order: None has each token once, in consecutive windows in the order of the corpus. `"random"` and `"epochs"`
            have the windows of `heartlm.pretrain` with this order, step after step: window i is that of place
            i mod `batch_size` in the global batch of step i // `batch_size`.
        batch_size: windows per step; only with `order`.
        steps: number of steps; only with `order`.
        seed: seed of the order, as in `PretrainConfig`.
        weights: relative frequency of each database in the order `"random"`; by default its number of tokens.

    Raises:
        HeartlmError: there is no corpus, the split has no tokens, or settings do not fit each other.

    Examples:
        >>> import heartlm
        >>> windows = heartlm.WindowDataset("corpora/mitdb", "train", window=64)
        >>> codes = windows[0]["codes"]
    """

    def __init__(
        self,
        corpus: Corpus | str | Path,
        split: Literal["train", "validation", "test"] = "train",
        window: int = 128,
        *,
        order: Literal["random", "epochs"] | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        for name, value in {"window": window, "batch_size": batch_size, "steps": steps}.items():
            if value is not None and value < 1:
                raise HeartlmError(f"{name}: {value} found, at least 1 expected")
        if (batch_size is None or steps is None) if order else (batch_size, steps, weights) != (None, None, None):
            raise HeartlmError(f"order: {order} found, 'random' or 'epochs' expected, and batch_size and steps with it")
        self.corpus = corpus if isinstance(corpus, Corpus) else open_corpus(Path(corpus))
        rows = self.corpus.records.select(split)
        if len(rows) == 0:
            raise HeartlmError(f"split: {split!r} found, but {self.corpus.folder} has no tokens of it")
        self._sampler = sampler(
            self.corpus.records,
            rows,
            width=window,
            batch_size=batch_size or 1,
            seed=seed,
            weights=weights,
            order=order or "epochs",
        )
        self._steps = steps

    def __len__(self) -> int:
        if self._steps is not None:
            return self._steps * self._sampler.batch_size
        assert isinstance(self._sampler, EpochSampler)
        return self._sampler.num_windows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        index = int(index) % len(self)
        if self._steps is None:
            assert isinstance(self._sampler, EpochSampler)
            firsts, lengths = self._sampler.numbered(np.array([index]))
        else:
            windows = self._sampler.windows(*divmod(index, self._sampler.batch_size), 1)
            firsts, lengths = windows.first, windows.length
        first, length = int(firsts[0]), int(lengths[0])
        # Not by the kernels that gather batches: their threads would not exist in forked workers.
        place = np.minimum(np.arange(self._sampler.width), length - 1) + first
        valid = np.arange(self._sampler.width) < length
        arrays = {
            "codes": self.corpus.codes[place].astype(np.int64),
            "valid": valid,
            "sample": self.corpus.sample[place],
            "beat_class": np.where(valid, self.corpus.beat_class[place], -1).astype(np.int64),
            "rhythm": np.where(valid, self.corpus.rhythm[place], -1).astype(np.int64),
            "row": np.searchsorted(self.corpus.records.first_token, first, side="right") - 1,
        }
        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    def __getstate__(self) -> dict[str, Any]:
        # Workers that are not forked map the files of the corpus again, instead of getting a copy of them.
        return {**self.__dict__, "corpus": self.corpus.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, corpus=open_corpus(state["corpus"]))
