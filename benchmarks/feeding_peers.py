"""More rivals of the feeding benchmark than peers.py has: packages with loaders.

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
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.dlpack import from_dlpack

from benchmarks.peers import WORKERS, Batches


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
    rivals: dict[str, Batches] = {}
    for workers in WORKERS:
        drawn = RandomSampler(dataset, replacement=True, num_samples=1 << 40)
        loader = DataLoader(dataset, batch_size, sampler=drawn, num_workers=workers)
        rivals[f"Hugging Face datasets, {_workers(workers)}"] = iter(loader)
    return rivals


class _Drawn:
    """Draws batches from a memory map, which each worker opens itself."""

    def __init__(self, folder: Path, batch_size: int, whole: bool) -> None:
        self.path, self.batch_size, self.whole = folder / "items.npy", batch_size, whole
        self.items: Any = None

    def __call__(self, batch: Any) -> Any:
        number = batch if isinstance(batch, int) else batch.iteration
        if self.items is None:
            self.items = np.load(self.path, mmap_mode="r")
        drawn = self.items[np.random.default_rng(number).integers(0, len(self.items), self.batch_size)]
        return drawn if self.whole else list(drawn)  # workers hand over single items


def dali(items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """NVIDIA DALI on the CPU: an external source that hands over whole batches, drawn at random, widened by DALI."""
    from nvidia.dali import fn, pipeline_def, types

    folder.mkdir(parents=True)
    np.save(folder / "items.npy", items)

    def batches(workers: int) -> Batches:
        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=batch_size, num_threads=1, device_id=None, py_num_workers=workers or 1, py_start_method="spawn"
        )
        def pipeline() -> Any:
            codes = fn.external_source(
                _Drawn(folder, batch_size, not workers), batch=True, dtype=types.UINT16, ndim=1, parallel=bool(workers)
            )
            return fn.cast(codes, dtype=types.INT64)

        built = pipeline()
        built.build()
        while True:
            (codes,) = built.run()
            yield from_dlpack(codes.as_tensor())

    return {f"NVIDIA DALI, {_workers(workers)}": batches(workers) for workers in WORKERS}


Packaged = Callable[[NDArray[np.uint16], Path, int], dict[str, Batches]]
PACKAGES: dict[str, tuple[str, str, Packaged]] = {
    "streaming": ("MosaicML streaming", "mosaicml-streaming", streaming),
    "webdataset": ("WebDataset", "webdataset", webdataset),
    "datasets": ("Hugging Face datasets", "datasets", hugging_face),
    "nvidia.dali": ("NVIDIA DALI", "nvidia-dali-cuda120", dali),
}
"""Module that has to be there, then name, package and maker of the rivals."""


def installed() -> dict[str, tuple[str, str, Packaged]]:
    return {module: entry for module, entry in PACKAGES.items() if _is_there(module)}


def _is_there(module: str) -> bool:
    parent, _, _ = module.rpartition(".")
    return (not parent or _is_there(parent)) and importlib.util.find_spec(module) is not None


def _workers(number: int) -> str:
    return f"{number} workers"
