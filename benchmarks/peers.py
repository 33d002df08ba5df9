"""Loaders that the feed is compared with: endless batches of int64 tokens, each made in the loader's usual way.

    tokens of a corpus, uint16 [num_tokens, F] ─► batches int64 [B, W, F], windows at random

Loaders that store windows as items hold the first tokens of the corpus, cut into adjacent windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

Batches = Iterator[Any]
WORKERS = (0, 2)


def mapped(corpus: Path, num_facets: int) -> NDArray[np.uint16]:
    """A fresh memory map of all tokens, `[num_tokens, F]`."""
    tokens: NDArray[np.uint16] = np.memmap(corpus, np.uint16, "r")
    return tokens.reshape(-1, num_facets)


def nanogpt(corpus: Path, width: int, batch_size: int, num_facets: int = 1) -> Batches:
    """nanoGPT's get_batch in its plain form: a fresh memory map, one slice a window, inputs and targets."""
    while True:
        data = mapped(corpus, num_facets)
        starts = torch.randint(len(data) - width, (batch_size,))
        inputs = torch.stack([torch.from_numpy(data[i : i + width].astype(np.int64)) for i in starts])
        targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + width].astype(np.int64)) for i in starts])
        yield inputs, targets


def sliding(corpus: Path, width: int, batch_size: int, num_facets: int = 1) -> Batches:
    """NumPy alone: a view of all windows of the memory map, indexed by their starts."""
    tokens = mapped(corpus, num_facets).reshape(-1)
    view = np.lib.stride_tricks.sliding_window_view(tokens, width * num_facets)[::num_facets]
    random = np.random.default_rng(0)
    while True:
        drawn = view[random.integers(0, len(view), batch_size)].astype(np.int64)
        yield torch.from_numpy(drawn.reshape(batch_size, width, num_facets))


class Items(Dataset[Tensor]):
    """Windows `[N, W, F]`, fetched a batch at a time."""

    def __init__(self, items: NDArray[np.uint16]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.items[index].astype(np.int64))

    def __getitems__(self, indices: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.items[indices].astype(np.int64))


class RandomBatches(Sampler[Any]):
    """Endless batches of indices, with replacement, each drawn in one call."""

    def __init__(self, num_items: int, batch_size: int) -> None:
        self.num_items, self.batch_size = num_items, batch_size

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        random = np.random.default_rng(0)
        while True:
            yield random.integers(0, self.num_items, self.batch_size)


def backings(corpus: Path, items: NDArray[np.uint16], folder: Path) -> dict[str, NDArray[np.uint16]]:
    """What a DataLoader may read items `[N, W, F]` from: an .npy file in memory, and the memory map of the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "items.npy", items)
    num_items, width, num_facets = items.shape
    tokens = mapped(corpus, num_facets)[: num_items * width]
    return {"npy": np.load(folder / "items.npy"), "memmap": tokens.reshape(items.shape)}


def torch_loaders(
    held: Mapping[str, NDArray[np.uint16]], batch_size: int, workers: Sequence[int] = WORKERS
) -> dict[str, Batches]:
    """PyTorch's DataLoader over each of the `backings`, with each number of worker processes.

    It is used in its fastest way: a sampler of batches, and a data set that fetches a batch in one call.
    """
    rivals: dict[str, Batches] = {}
    for (name, items), number in itertools.product(held.items(), workers):
        drawn = RandomBatches(len(items), batch_size)
        loader = DataLoader(Items(items), batch_sampler=drawn, collate_fn=_as_fetched, num_workers=number)
        rivals[f"DataLoader, {name}, {number} workers"] = iter(loader)
    return rivals


def _as_fetched(batch: Any) -> Any:
    return batch
