"""Transfers between host and device: reusable buffers, and a corpus stored on the device."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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


class Pool:
    """Arrays that are reused when no longer referenced, since allocating memory costs more than writing to it."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.int64]] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return an uninitialised int64 array of `shape`."""
        with self._lock:
            for index in range(len(self._kept)):
                # two references: the list and the argument; a tensor that views the array would be a third
                if sys.getrefcount(self._kept[index]) == 2 and self._kept[index].shape == shape:
                    return self._kept[index]
            self._kept.append(np.empty(shape, np.int64))
            return self._kept[-1]


class DeviceCorpus:
    """The codes of a corpus on a device; gathers windows there.

    Args:
        codes: uint16 `[num_tokens, num_facets]`.
        device: device that stores the codes.
    """

    CHUNK = 1 << 24

    def __init__(self, codes: NDArray[np.uint16], device: torch.device) -> None:
        # torch supports few operations on uint16, so the bits are stored as int16
        self.bits = torch.empty(codes.shape, dtype=torch.int16, device=device)
        for first in range(0, len(codes), self.CHUNK):
            part = slice(first, first + self.CHUNK)
            self.bits[part] = torch.from_numpy(np.array(codes[part]).view(np.int16))

    def gather(self, first: Tensor, length: Tensor, width: int) -> Tensor:
        """Return codes of windows, int64 `[B, width, F]`; short windows are padded with their last token."""
        offset = torch.minimum(torch.arange(width, device=first.device), length[:, None] - 1)
        index = (first[:, None] + offset).flatten()
        codes = self.bits.index_select(0, index).to(torch.int64) & 0xFFFF
        return codes.view(len(first), width, -1)

    @staticmethod
    def fits(codes: NDArray[np.uint16], device: torch.device) -> bool:
        """Return whether the device is a GPU and the codes fit in a quarter of its free memory."""
        return device.type == "cuda" and codes.nbytes <= torch.cuda.mem_get_info(device)[0] // 4
