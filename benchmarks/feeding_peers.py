"""More rivals of the feeding benchmark than `benchmarks/machine.py loader` has: packages with loaders.

Each gives endless batches of int64 `[B, W]` from the same tokens in its usual way. Those that store windows as items
hold the first tokens of the corpus, cut side by side; they are shuffled within that. What is not installed gives none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from bench.peers import WORKERS, Batches
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler


def endless(loader: Any) -> Batches:
    while True:
        yield from loader


def streaming(items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """MosaicML streaming: a local StreamingDataset, shuffled, through a DataLoader."""
    for unused in ("streaming.vision", "streaming.multimodal"):  # they import torchvision, whose build must fit torch's
        sys.modules.setdefault(unused, ModuleType(unused))
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    with MDSWriter(out=str(folder), columns={"codes": f"ndarray:uint16:{items.shape[1]}"}) as writer:
        for item in items:
            writer.write({"codes": item})

    def collate(samples: list[dict[str, Any]]) -> Tensor:
        return torch.from_numpy(np.stack([sample["codes"] for sample in samples]).astype(np.int64))

    rivals = {}
    for workers in WORKERS:
        clean_stale_shared_memory()
        dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=batch_size)
        loader = DataLoader(dataset, batch_size, num_workers=workers, collate_fn=collate, drop_last=True)
        rivals[f"MosaicML streaming, {_workers(workers)}"] = endless(loader)
    return rivals


def webdataset(items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """WebDataset: tar files of raw tokens, resampled, shuffled in a buffer, batched."""
    import webdataset as wds

    folder.mkdir(parents=True)
    with wds.ShardWriter(str(folder / "%04d.tar"), maxcount=-(-len(items) // 8), verbose=0) as writer:
        for index, item in enumerate(items):
            writer.write({"__key__": f"{index:09d}", "bin": item.tobytes()})
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]

    def decode(sample: dict[str, Any]) -> tuple[Tensor]:
        return (torch.from_numpy(np.frombuffer(sample["bin"], np.uint16).astype(np.int64)),)

    rivals = {}
    for workers in WORKERS:
        stream = wds.WebDataset(shards, resampled=True, shardshuffle=False).shuffle(1000)
        stream = stream.map(decode).batched(batch_size)
        loader = DataLoader(stream, batch_size=None, num_workers=workers) if workers else stream
        rivals[f"WebDataset, {_workers(workers)}"] = iter(loader)
    return rivals


def hugging_face(items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """Hugging Face datasets: an Arrow file on disk in torch format, through a DataLoader."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"codes": items}).save_to_disk(str(folder))
    dataset = datasets.load_from_disk(str(folder)).with_format("torch")
    rivals = {}
    for workers in WORKERS:
        drawn = RandomSampler(dataset, replacement=True, num_samples=1 << 40)
        loader = DataLoader(dataset, batch_size, sampler=drawn, num_workers=workers)
        rivals[f"Hugging Face datasets, {_workers(workers)}"] = iter(loader)
    return rivals


Packaged = Callable[[NDArray[np.uint16], Path, int], dict[str, Batches]]
PACKAGES: dict[str, tuple[str, str, Packaged]] = {
    "streaming": ("MosaicML streaming", "mosaicml-streaming", streaming),
    "webdataset": ("WebDataset", "webdataset", webdataset),
    "datasets": ("Hugging Face datasets", "datasets", hugging_face),
}
"""Module that has to be there, then name, package and maker of the rivals."""


def installed() -> dict[str, tuple[str, str, Packaged]]:
    return {module: entry for module, entry in PACKAGES.items() if importlib.util.find_spec(module)}


def _workers(number: int) -> str:
    return f"{number} workers"
