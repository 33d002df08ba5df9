"""The data feed: prepares the batches of every step on the device in advance.

    order ─► windows of this rank ─► codes gathered, draft ─► (pinned) slot ─► device ─► batch ─► micro-batches
             └──────────────── in a thread, some steps ahead ────────────┘

Codes are copied to a GPU as stored in the corpus, two bytes each, and converted to int64 there.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.watch import WatchedFile
from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.distributed.device import on_this_device
from heartlm.kernels.gather import gather_codes, gather_windows
from heartlm.training.batches import Batch, BatchPosition, HostBatch, MakeBatch
from heartlm.training.layout import BatchLayout


@dataclass(frozen=True)
class StepBatches:
    """The batches of one rank in one step.

    Attributes:
        step: step number, from 0.
        micro_batches: micro-batches in order, on the device.
        num_counted: tokens (or windows) that count in the loss, over these micro-batches.
        num_tokens: valid tokens of these micro-batches.
        num_prepared: number of steps prepared together with this one; 0 if it was prepared with an earlier step.
    """

    step: int
    micro_batches: list[Batch]
    num_counted: int
    num_tokens: int
    num_prepared: int = 1


TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""Steps prepared together without a thread, and their size in bytes.

After a training step the CPU caches are cold, so the first step prepared costs as much as several others."""


class _Closed(Exception):  # noqa: N818
    """The feed was closed while it waited for a free slot."""


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


@dataclass(frozen=True)
class _Prepared:
    """One step, prepared on the host."""

    step: int
    slot: Slot
    draft: HostBatch
    tensors: dict[str, Tensor]


class Feed:
    """Iterates over the batches of `steps`, in order; a context manager that ends its thread.

    Args:
        sampler: sampler of the windows of every step.
        make_batch: builder of batches from windows.
        steps: steps to feed, counted from 0.
        layout: part of this rank in every global batch; by default all of it.
        device: device of the batches.
        prefetch: steps to prepare in advance in a thread; 0 prepares several together on request. By default 2 for a
            GPU, else 0: on a CPU a thread competes with the training step.

    Raises:
        HeartlmError: the corpus cannot be read.
    """

    def __init__(
        self,
        sampler: WindowSampler,
        make_batch: MakeBatch,
        steps: range,
        layout: BatchLayout | None = None,
        *,
        device: torch.device | None = None,
        prefetch: int | None = None,
    ) -> None:
        self.sampler, self.make_batch, self.steps = sampler, make_batch, steps
        self.layout = layout or BatchLayout(sampler.batch_size)
        self._part = self.layout.first_window, self.layout.num_windows
        self.device = device or torch.device("cpu")
        codes = make_batch.corpus.codes
        self._shape = self.layout.num_windows, sampler.width, codes.shape[1]
        self._all_valid = torch.ones(self._shape[:2], dtype=torch.bool, device=self.device)
        self._watched = WatchedFile(codes)
        gpu = self.device.type == "cuda"
        self.prefetch = (2 if gpu else 0) if prefetch is None else prefetch
        self._free: queue.Queue[Slot | None] = queue.Queue()
        self._ready: queue.Queue[_Prepared | BaseException] = queue.Queue()
        for _ in range(max(1, self.prefetch)):
            self._free.put(Slot(pinned=gpu))
        self._thread = threading.Thread(target=on_this_device(self._work), name="heartlm-feed", daemon=True)

    def __enter__(self) -> Feed:
        if self.prefetch:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, waiting at most 10 s, for example if a disk does not respond."""
        self._free.queue.clear()
        self._free.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._watched.close()

    def __iter__(self) -> Iterator[StepBatches]:
        """Iterate over the batches of every step.

        Raises:
            HeartlmError: the corpus cannot be read any more.
        """
        return self._from_thread() if self.prefetch else self._from_here()

    def _from_thread(self) -> Iterator[StepBatches]:
        for _ in self.steps:
            prepared = self._ready.get()
            if isinstance(prepared, BaseException):
                raise prepared
            batches = self._finish(prepared)
            self._free.put(prepared.slot)
            yield batches

    def _from_here(self) -> Iterator[StepBatches]:
        slot = self._slot()
        together = min(max(1, TOGETHER_BYTES // (8 * math.prod(self._shape))), TOGETHER)
        for first in self.steps[::together]:
            ready: list[StepBatches] = []
            error = None
            try:
                for step in range(first, min(first + together, self.steps.stop)):
                    ready.append(self._finish(self._prepare(step, slot)))
            except BaseException as found:
                error = found
            num_prepared = len(ready)
            while ready:
                yield replace(ready.pop(0), num_prepared=num_prepared)
                num_prepared = 0
            if error is not None:
                raise error

    def _slot(self) -> Slot:
        """Wait for a free slot."""
        slot = self._free.get()
        if slot is None:
            raise _Closed
        return slot

    def _work(self) -> None:
        try:
            for step in self.steps:
                self._ready.put(self._prepare(step, self._slot()))
        except BaseException as error:
            self._ready.put(error)

    def _prepare(self, step: int, slot: Slot) -> _Prepared:
        """Prepare `step` on the host."""
        windows = self.sampler.windows(step, *self._part)
        draft = self.make_batch.draft(windows, BatchPosition(step, self.layout.first_window, self.layout.batch_size))
        arrays = {"hidden": draft.hidden, "labels": draft.labels}
        if windows.length.min() < windows.width:
            arrays["valid"] = windows.valid
        tensors = {name: slot.hold(name, array) for name, array in arrays.items() if array is not None}
        return _Prepared(step, slot, draft, tensors | {"codes": self._gathered(windows, slot)})

    def _gathered(self, windows: Windows, slot: Slot) -> Tensor:
        self._watched.check()
        where = windows.first, windows.length, windows.width
        codes = self.make_batch.corpus.codes
        if not slot.pinned:
            return torch.from_numpy(gather_codes(codes, *where))
        out = slot.empty("codes", self._shape, torch.uint16)
        gather_windows(codes, *where, out.numpy())
        return out

    def _finish(self, prepared: _Prepared) -> StepBatches:
        """Copy a prepared step to the device and build its batches there."""
        sent = prepared.slot.send(prepared.tensors, self.device)
        codes, valid = sent["codes"].to(torch.int64), sent.get("valid", self._all_valid)
        batch = self.make_batch.finish(prepared.draft, codes, valid, sent.get("hidden"), sent.get("labels"))
        micro_batches = batch.micro_batches(self.layout.accumulation)
        return StepBatches(prepared.step, micro_batches, batch.num_counted, batch.num_tokens)
