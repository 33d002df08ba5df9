"""The rivals of the feeding benchmark: endless batches of int64 `[B, W]` from the same tokens, each in its usual way.

A rival is an iterator of batches. Those that store windows as items hold the first tokens of the corpus, cut side by
side; they are shuffled within that. What is not installed gives no rivals.
"""

from __future__ import annotations

import importlib.util
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

Batches = Iterator[Any]
WORKERS = (0, 2)


def nanogpt(corpus: Path, width: int, batch_size: int) -> Batches:
    """nanoGPT's get_batch in its plain form: a fresh memory map, one slice a window, inputs and targets."""
    while True:
        data = np.memmap(corpus, np.uint16, "r")
        starts = torch.randint(len(data) - width, (batch_size,))
        inputs = torch.stack([torch.from_numpy(data[i : i + width].astype(np.int64)) for i in starts])
        targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + width].astype(np.int64)) for i in starts])
        yield inputs, targets


def sliding(corpus: Path, width: int, batch_size: int) -> Batches:
    """NumPy alone: a view of all windows of the memory map, indexed by their starts."""
    view = np.lib.stride_tricks.sliding_window_view(np.memmap(corpus, np.uint16, "r"), width)
    random = np.random.default_rng(0)
    while True:
        yield torch.from_numpy(view[random.integers(0, len(view), batch_size)].astype(np.int64))


class Items(Dataset[Tensor]):
    """Windows as items: whatever `items[i]` gives, as a tensor."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.items[index].astype(np.int64))


class MappedWindows:
    """Windows side by side in a memory map of tokens."""

    def __init__(self, corpus: Path, num_items: int, width: int) -> None:
        self.tokens, self.num_items, self.width = np.memmap(corpus, np.uint16, "r"), num_items, width

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> NDArray[np.uint16]:
        return self.tokens[index * self.width : (index + 1) * self.width]


def endless(loader: Any) -> Batches:
    while True:
        yield from loader


def torch_loaders(corpus: Path, items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """PyTorch's DataLoader over single items, held in a pickled list, in an .npy file, in the memory map."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items.pickle").write_bytes(pickle.dumps(list(items)))
    np.save(folder / "items.npy", items)
    backings: dict[str, Any] = {
        "pickle": pickle.loads((folder / "items.pickle").read_bytes()),
        "npy": np.load(folder / "items.npy"),
        "memmap": MappedWindows(corpus, len(items), items.shape[1]),
    }
    rivals = {}
    for (name, backing), workers in itertools.product(backings.items(), WORKERS):
        drawn = RandomSampler(backing, replacement=True, num_samples=1 << 40)
        loader = DataLoader(Items(backing), batch_size, sampler=drawn, num_workers=workers)
        rivals[f"DataLoader, {name}, {_workers(workers)}"] = iter(loader)
    return rivals


def streaming(items: NDArray[np.uint16], folder: Path, batch_size: int) -> dict[str, Batches]:
    """MosaicML streaming: a local StreamingDataset, shuffled, through a DataLoader."""
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
PACKAGES: dict[str, tuple[str, Packaged]] = {
    "streaming": ("MosaicML streaming", streaming),
    "webdataset": ("WebDataset", webdataset),
    "datasets": ("Hugging Face datasets", hugging_face),
}
"""What has to be installed for it: module, then name and maker of the rivals."""


def installed() -> dict[str, tuple[str, Packaged]]:
    return {module: entry for module, entry in PACKAGES.items() if importlib.util.find_spec(module)}


def _workers(number: int) -> str:
    return f"{number} workers"
