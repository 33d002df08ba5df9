"""Between host and device: memory that is used again from step to step, and a corpus that lives on the device."""

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
    """Memory for what one step sends to the device, used again and again.

    Attributes:
        pinned: the device is a GPU, so sending does not wait, and the memory must not move.
        kept: memory by name.
        sent: when the last sending is done.
    """

    pinned: bool
    kept: dict[str, Tensor] = field(default_factory=dict)
    sent: torch.cuda.Event | None = None

    def empty(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Memory of that shape; what it held before is gone, once it has been sent."""
        if self.sent is not None:
            self.sent.synchronize()
            self.sent = None
        if name not in self.kept or self.kept[name].shape != shape:
            self.kept[name] = torch.empty(shape, dtype=kind, pin_memory=self.pinned)
        return self.kept[name]

    def hold(self, name: str, array: NDArray[Any]) -> Tensor:
        """`array` as a tensor that can be sent: itself, or a copy in pinned memory."""
        tensor = torch.from_numpy(array)
        return self.empty(name, array.shape, tensor.dtype).copy_(tensor) if self.pinned else tensor

    def send(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Send tensors of this slot to `device`; on a GPU they arrive before what is asked of it next."""
        there = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        if self.pinned:
            self.sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.sent.record(torch.cuda.current_stream(device))
        return there


class Pool:
    """Arrays that are used again once they are free: fresh memory costs more than what is written to it."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.int64]] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """An int64 array of that shape, with anything in it."""
        with self._lock:
            for index in range(len(self._kept)):
                # two: the list, and the argument itself; a tensor made of the array would be a third
                if sys.getrefcount(self._kept[index]) == 2 and self._kept[index].shape == shape:
                    return self._kept[index]
            self._kept.append(np.empty(shape, np.int64))
            return self._kept[-1]


class DeviceCorpus:
    """The codes of a corpus on a device, and windows gathered there.

    Args:
        codes: uint16 `[num_tokens, num_facets]`.
        device: where to keep them.
    """

    CHUNK = 1 << 24

    def __init__(self, codes: NDArray[np.uint16], device: torch.device) -> None:
        # torch can do little with uint16, so the bits are kept as int16
        self.bits = torch.empty(codes.shape, dtype=torch.int16, device=device)
        for first in range(0, len(codes), self.CHUNK):
            part = slice(first, first + self.CHUNK)
            self.bits[part] = torch.from_numpy(np.array(codes[part]).view(np.int16))

    def gather(self, first: Tensor, length: Tensor, width: int) -> Tensor:
        """Codes of windows, int64 `[B, width, F]`, the ends of short ones repeating their last token."""
        offset = torch.minimum(torch.arange(width, device=first.device), length[:, None] - 1)
        index = (first[:, None] + offset).flatten()
        codes = self.bits.index_select(0, index).to(torch.int64) & 0xFFFF
        return codes.view(len(first), width, -1)

    @staticmethod
    def fits(codes: NDArray[np.uint16], device: torch.device) -> bool:
        """Whether the device is a GPU and a quarter of its free memory holds the codes."""
        return device.type == "cuda" and codes.nbytes <= torch.cuda.mem_get_info(device)[0] // 4
