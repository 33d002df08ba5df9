"""The feed: batches of every step, ready on the device before they are asked for.

    order ─► windows of this rank ─► codes gathered, draft ─► (pinned) slot ─► device ─► batch ─► micro-batches
             └──────────────── in a thread, some steps ahead ────────────┘

Codes travel as the corpus holds them, two bytes each, and become int64 on the device; a corpus that fits is kept there
and gathered there, and only places travel.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from heartlm.corpus.watch import WatchedFile
from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.distributed.device import on_this_device
from heartlm.kernels.gather import gather_codes, gather_windows
from heartlm.training.batches import Batch, BatchPosition, DeviceBatch, HostBatch, MakeBatch
from heartlm.training.layout import BatchLayout
from heartlm.training.staging import DeviceCorpus, Pool, Slot


@dataclass(frozen=True)
class StepBatches:
    """What one rank computes in one step.

    Attributes:
        step: from 0.
        micro_batches: in order, on the device.
        num_counted: tokens (or windows) the loss counts, over these micro-batches.
        num_tokens: valid tokens of these micro-batches.
        num_prepared: steps that were prepared while this one was waited for; 0 where it was prepared with one before.
    """

    step: int
    micro_batches: list[Batch]
    num_counted: int
    num_tokens: int
    num_prepared: int = 1


TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""Steps prepared together where there is no thread: after a training step the processor's caches have forgotten how,
and the first of them costs as much as several others."""


class _Closed(Exception):  # noqa: N818
    """The feed was closed while a step was to be prepared."""


@dataclass(frozen=True)
class _Prepared:
    """One step on the host."""

    step: int
    slot: Slot
    windows: Windows
    draft: HostBatch
    tensors: dict[str, Tensor]


class Feed:
    """The batches of `steps`, in order; a context manager, so that its thread ends.

    Args:
        sampler: windows of every step.
        make_batch: windows to batches.
        steps: to feed, counted from 0.
        layout: which part of every global batch is this rank's; by default all of it.
        device: where the batches go.
        prefetch: steps to prepare ahead in a thread; 0 prepares some together when they are asked for. By default 2 for
            a GPU or a corpus larger than memory; on a CPU a thread would only take time from the step before.
        on_device: keep the corpus on the device; by default where the device is a GPU and the corpus fits.

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
        on_device: bool | None = None,
    ) -> None:
        self.sampler, self.make_batch, self.steps = sampler, make_batch, steps
        self.layout = layout or BatchLayout(sampler.batch_size)
        self._part = self.layout.first_window, self.layout.num_windows
        self.device = device or torch.device("cpu")
        codes = make_batch.corpus.codes
        resident = DeviceCorpus.fits(codes, self.device) if on_device is None else on_device
        self.resident = DeviceCorpus(codes, self.device) if resident else None
        self._shape = self.layout.num_windows, sampler.width, codes.shape[1]
        self._all_valid = torch.ones(self._shape[:2], dtype=torch.bool, device=self.device)
        self._pool = Pool()
        self._watched = WatchedFile(codes)
        self._announced = sampler.buffer_at(steps.start) - 1
        gpu, from_disk = self.device.type == "cuda", bool(sampler.reads(0, *self._part))
        self.prefetch = (2 if gpu or from_disk else 0) if prefetch is None else prefetch
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
        """End the thread; one that hangs in a lost disk is left behind."""
        self._free.queue.clear()
        self._free.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._watched.close()

    def __iter__(self) -> Iterator[StepBatches]:
        """Feed every step.

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
        """Do what the host has to do for `step`."""
        windows = self.sampler.windows(step, *self._part)
        draft = self.make_batch.draft(windows, BatchPosition(step, self.layout.first_window, self.layout.batch_size))
        tensors = {}
        if draft.hidden is not None:
            tensors["hidden"] = slot.hold("hidden", draft.hidden)
        if draft.labels is not None:
            tensors["labels"] = slot.hold("labels", draft.labels)
        if self.resident or windows.length.min() < windows.width:
            tensors["length"] = slot.hold("length", windows.length)
        if self.resident:
            tensors["first"] = slot.hold("first", windows.first)
        else:
            tensors["codes"] = self._gathered(step, windows, slot)
        return _Prepared(step, slot, windows, draft, tensors)

    def _gathered(self, step: int, windows: Windows, slot: Slot) -> Tensor:
        self._watched.check()
        while self._announced <= self.sampler.buffer_at(step):
            self._announced += 1
            for tokens in self.sampler.reads(self._announced, *self._part):
                self._watched.read_ahead(tokens)
        where = windows.first, windows.length, windows.width
        codes = self.make_batch.corpus.codes
        if not slot.pinned:
            return torch.from_numpy(gather_codes(codes, *where, self._pool.empty(self._shape)))
        out = slot.empty("codes", self._shape, torch.uint16)
        gather_windows(codes, *where, out.numpy())
        return out

    def _finish(self, prepared: _Prepared) -> StepBatches:
        """Send what was prepared to the device and make the batches there."""
        width, draft = prepared.windows.width, prepared.draft
        sent = prepared.slot.send(prepared.tensors, self.device)
        length = sent.get("length")
        if self.resident:
            assert length is not None
            codes = self.resident.gather(sent["first"], length, width)
        else:
            codes = sent["codes"].to(torch.int64)
        valid = self._all_valid if length is None else torch.arange(width, device=self.device) < length[:, None]
        spare = (
            torch.from_numpy(self._pool.empty(self._shape)) if "hidden" in sent and not prepared.slot.pinned else None
        )
        parts = DeviceBatch(codes, valid, sent.get("hidden"), sent.get("labels"), spare)
        batch = self.make_batch.finish(parts, draft)
        micro_batches = batch.micro_batches(self.layout.accumulation)
        return StepBatches(prepared.step, micro_batches, batch.num_counted, batch.num_tokens)
