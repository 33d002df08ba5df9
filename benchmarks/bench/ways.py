"""Ways from windows on disk to batches where a network computes: the CrossScale study's A0 to A3, and what it lacks.

    A0   DataLoader of single windows, each read from its shard, in random order
    A1   the same in the order of the shards           A2   A1 from pinned memory        A3   A2 without waiting
    ours gathered from a memory map of every sample once, in random order; that ahead, in a thread; kept on the device

Every way is given the same places, batch by batch, hands over what the host has to prepare, and sends it.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.shards import SHARD_WINDOWS, Shards, read_shard
from heartlm.kernels.gather import gather_windows

Places = NDArray[np.int64]
"""Numbers of the windows of a batch `[B]`."""


@dataclass
class Slot:
    """Reusable host buffers for the tensors that one step sends to the device.

    Attributes:
        pinned: whether buffers are page-locked, for asynchronous copies to a GPU.
        kept: buffers by name.
        sent: event that completes with the last copy.
    """

    pinned: bool
    kept: dict[str, Tensor] = field(default_factory=dict)
    sent: torch.cuda.Event | None = None

    def empty(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Return an uninitialised buffer of `shape`, after the last copy from this slot is done."""
        if self.sent is not None:
            self.sent.synchronize()
            self.sent = None
        if name not in self.kept or self.kept[name].shape != shape:
            self.kept[name] = torch.empty(shape, dtype=kind, pin_memory=self.pinned)
        return self.kept[name]

    def hold(self, name: str, array: NDArray[Any]) -> Tensor:
        """Return `array` as a tensor: a view, or a copy in pinned memory for a GPU."""
        tensor = torch.from_numpy(array)
        return self.empty(name, array.shape, tensor.dtype).copy_(tensor) if self.pinned else tensor

    def send(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Copy tensors of this slot to `device`; on a GPU the copies are enqueued on the current stream."""
        there = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        if self.pinned:
            self.sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.sent.record(torch.cuda.current_stream(device))
        return there


Ready = tuple[Slot | None, dict[str, Tensor]]
"""What the host has prepared: the memory it lies in, if that is used again, and tensors."""

AHEAD = 2
"""Batches that a thread prepares ahead."""


class Way(ABC):
    """One way of getting batches.

    Attributes:
        shuffled: it takes windows in random order; the others read shards from their beginning to their end.
    """

    shuffled = True

    def __init__(self, shards: Shards, device: torch.device) -> None:
        self.shards, self.device = shards, device

    @abstractmethod
    def prepare(self, batches: Iterable[Places]) -> Generator[Ready, None, None]:
        """What the host does for each batch; the next may overwrite it unless it is pinned."""

    def send(self, ready: Ready) -> tuple[Tensor, Tensor]:
        """Windows float32 `[B, 1, L]` and labels int64 `[B]`, on the device."""
        slot, tensors = ready
        sent = slot.send(tensors, self.device) if slot else self._sent(tensors)
        return sent["windows"].unsqueeze(1), sent["labels"]

    def _sent(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}


class _Windows(Dataset[tuple[Tensor, int]]):
    """Single windows, each read from its shard when it is asked for."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.files = [os.open(path, os.O_RDONLY) for path in shards.paths]

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shard, offset = self.shards.place(index)
        read = bytearray(os.pread(self.files[shard], 4 * self.shards.length, offset))
        return torch.frombuffer(read, dtype=torch.float32), int(self.shards.label[index])

    def close(self) -> None:
        for file in self.files:
            os.close(file)


class Loader(Way):
    """The study's way: a DataLoader over single windows.

    Args:
        shards: the windows.
        device: that computes.
        shuffled: in random order.
        pinned: batches are copied into pinned memory.
        non_blocking: sending does not wait.
        workers: processes that read.
    """

    def __init__(
        self,
        shards: Shards,
        device: torch.device,
        *,
        shuffled: bool = False,
        pinned: bool = False,
        non_blocking: bool = False,
        workers: int = 0,
    ) -> None:
        super().__init__(shards, device)
        self.shuffled, self.pinned, self.non_blocking, self.workers = shuffled, pinned, non_blocking, workers

    def prepare(self, batches: Iterable[Places]) -> Generator[Ready, None, None]:
        """Batches as the DataLoader collates them."""
        windows = _Windows(self.shards)
        try:
            listed = [places.tolist() for places in batches]
            loader = DataLoader(windows, batch_sampler=listed, num_workers=self.workers, pin_memory=self.pinned)
            for read, labels in loader:
                yield None, {"windows": read, "labels": labels}
        finally:
            windows.close()

    def _sent(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device, non_blocking=self.non_blocking) for name, tensor in tensors.items()}


class Gathered(Way):
    """Windows gathered from a memory map of every sample once, into memory that is used again."""

    def prepare(self, batches: Iterable[Places]) -> Generator[Ready, None, None]:
        """Batches gathered one after the other."""
        mapped, slots = self.mapped(), self._slots(1)
        for places in batches:
            yield self.gathered(mapped, places, slots[0])

    def mapped(self) -> NDArray[np.float32]:
        """Every sample once, `[num_samples]`."""
        return np.memmap(self.shards.signal, np.float32, "r")

    def gathered(self, signal: NDArray[np.float32], places: Places, slot: Slot) -> Ready:
        """The windows at `places` with their labels, in memory of `slot`."""
        shards, num = self.shards, len(places)
        windows = slot.empty("windows", (num, shards.length), torch.float32)
        labels = slot.empty("labels", (num,), torch.int64)
        length = np.full(num, shards.length, np.int64)
        gather_windows(signal, shards.first[places], length, shards.length, windows.numpy())
        np.take(shards.label, places, out=labels.numpy())
        return slot, {"windows": windows, "labels": labels}

    def _slots(self, num: int) -> list[Slot]:
        return [Slot(pinned=self.device.type == "cuda") for _ in range(num)]


class Ahead(Gathered):
    """The same in a thread, some batches ahead of the network."""

    def prepare(self, batches: Iterable[Places]) -> Generator[Ready, None, None]:
        """Batches as the thread has them ready; a slot is free again when its batch was used."""
        mapped = self.mapped()
        free: queue.Queue[Slot | None] = queue.Queue()
        ready: queue.Queue[Ready | BaseException | None] = queue.Queue()
        for slot in self._slots(AHEAD):
            free.put(slot)

        def work() -> None:
            try:
                for places in batches:
                    if (slot := free.get()) is None:
                        return
                    ready.put(self.gathered(mapped, places, slot))
                ready.put(None)
            except BaseException as error:
                ready.put(error)

        thread = threading.Thread(target=work, name="heartlm-bench-ahead", daemon=True)
        thread.start()
        try:
            while (prepared := ready.get()) is not None:
                if isinstance(prepared, BaseException):
                    raise prepared
                yield prepared
                free.put(prepared[0])
        finally:
            free.put(None)
            thread.join()


class Resident(Way):
    """All samples once in the memory of the device that computes, and gathered there; only places travel."""

    def __init__(self, shards: Shards, device: torch.device) -> None:
        super().__init__(shards, device)
        self.signal = torch.from_numpy(np.fromfile(shards.signal, np.float32)).to(device)
        self.first = torch.from_numpy(shards.first).to(device)
        self.label = torch.from_numpy(shards.label).to(device)
        self.offset = torch.arange(shards.length, device=device)

    def prepare(self, batches: Iterable[Places]) -> Generator[Ready, None, None]:
        """Places alone."""
        slot = Slot(pinned=self.device.type == "cuda")
        for places in batches:
            yield slot, {"places": slot.hold("places", places)}

    def send(self, ready: Ready) -> tuple[Tensor, Tensor]:
        """Gather on the device."""
        slot, tensors = ready
        assert slot is not None
        places = slot.send(tensors, self.device)["places"]
        index = (self.first[places][:, None] + self.offset).flatten()
        windows = self.signal.index_select(0, index).view(len(places), 1, -1)
        return windows, self.label[places]


def batches_of(num_windows: int, batch_size: int, num_batches: int, shuffled: bool) -> list[Places]:
    """Places of every batch: epochs in a random order each, or all in the order they lie; none is cut short."""
    places: list[Places] = []
    whole = num_windows // batch_size * batch_size
    while len(places) < num_batches:
        random = np.random.Generator(np.random.Philox(len(places)))
        order = random.permutation(num_windows) if shuffled else np.arange(num_windows)
        places += list(order[:whole].reshape(-1, batch_size).astype(np.int64))
    return places[:num_batches]


def reference(shards: Shards, places: Places) -> tuple[NDArray[np.float32], list[int]]:
    """The windows `[B, L]` and labels that every way must give for `places`, read from the shards plainly."""
    read = {shard: read_shard(shards.paths[shard]) for shard in {int(place) // SHARD_WINDOWS for place in places}}
    rows = [read[int(place) // SHARD_WINDOWS][int(place) % SHARD_WINDOWS] for place in places]
    return np.stack(rows), shards.label[places].tolist()


def study_and_ours(shards: Shards, device: torch.device, workers: int) -> dict[str, Way | None]:
    """The ways by name; None where a way is another one on this device: memory is pinned for a GPU to fetch from."""
    gpu = device.type == "cuda"
    pinned = Loader(shards, device, pinned=True, workers=workers) if gpu else None
    non_blocking = Loader(shards, device, pinned=True, non_blocking=True, workers=workers) if gpu else None
    return {
        "A0 random": Loader(shards, device, shuffled=True, workers=workers),
        "A1 contiguous": Loader(shards, device, workers=workers),
        "A2 contiguous, pinned": pinned,
        "A3 contiguous, pinned, non-blocking": non_blocking,
        "heartlm: mapped, random": Gathered(shards, device),
        "heartlm: mapped, random, ahead": Ahead(shards, device),
        "heartlm: resident, random": Resident(shards, device),
    }
