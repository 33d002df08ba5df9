"""The data feed: prepares the batches of every step in advance.

    order ─► windows of this rank ─► codes gathered, draft ─► micro-batches on the host
             └──── perhaps in a thread, some steps ahead ──────────────────┘

The step finishes them on its device. For a GPU, codes stay as stored in the corpus, two bytes each, and are converted
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor

from heartlm.corpus.watch import WatchedFile
from heartlm.corpus.windows import WindowSampler
from heartlm.distributed.device import on_this_device
from heartlm.training.batches import BatchPosition, CodesForm, HostBatch, MakeBatch
from heartlm.training.layout import BatchLayout

DrawKeys = Callable[[int, int, int], Tensor | None]


@dataclass(frozen=True)
class StepBatches:
    """The batches of one rank in one step.

    Attributes:
        step: step number, from 0.
        parts: micro-batches in order, on the host.
        num_counted: tokens (or windows) that count in the loss, over these micro-batches.
        num_tokens: valid tokens of these micro-batches.
        num_prepared: number of steps prepared together with this one; 0 if it was prepared with an earlier step.
    """

    step: int
    parts: list[HostBatch]
    num_counted: int
    num_tokens: int
    num_prepared: int = 1


TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""Steps prepared together without a thread, and their size in bytes.

After a training step the CPU caches are cold, so the first step prepared costs as much as several others."""


class Feed:
    """Iterates over the batches of `steps`, in order; a context manager that ends its thread.

    Args:
        sampler: sampler of the windows of every step.
        make_batch: builder of batches from windows.
        steps: steps to feed, counted from 0.
        layout: part of this rank in every global batch; by default all of it.
        form: form of the codes.
        prefetch: steps to prepare in advance in a thread; 0 prepares several together on request. By default 2 for
            codes as stored, for a GPU, else 0: on a CPU a thread competes with the training step, and what is left to
            do for resident codes takes less time than two threads lose by taking turns in Python.
        is_static: whether shapes must not depend on what was drawn, for compiled and captured steps.
        keys: draws the dropout keys of a micro-batch from its step, its index and its number of rows; None draws none.

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
        form: CodesForm = "int64",
        prefetch: int | None = None,
        is_static: bool = False,
        keys: DrawKeys | None = None,
    ) -> None:
        self.sampler, self.make_batch, self.steps = sampler, make_batch, steps
        self.layout = layout or BatchLayout(sampler.batch_size)
        codes = make_batch.corpus.codes
        self.is_static, self._form, self._keys = is_static, form, keys
        self._num_bytes = 8 * self.layout.num_windows * sampler.width * codes.shape[1]
        self._watched = WatchedFile(codes)
        self.prefetch = (2 if form == "stored" else 0) if prefetch is None else prefetch
        self._pool = ThreadPoolExecutor(1, "heartlm-feed")
        self._ahead: deque[Future[list[HostBatch]]] = deque()
        self._unprepared = iter(steps)

    def __enter__(self) -> Feed:
        self._prepare_ahead(self.prefetch)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._watched.close()

    def __iter__(self) -> Iterator[StepBatches]:
        """Iterate over the batches of every step.

        Raises:
            HeartlmError: the corpus cannot be read any more.
        """
        together = 1 if self.prefetch else min(max(1, TOGETHER_BYTES // self._num_bytes), TOGETHER)
        for first in self.steps[::together]:
            ready: list[StepBatches] = []
            error = None
            try:
                for step in range(first, min(first + together, self.steps.stop)):
                    ready.append(self._prepared(step))
            except BaseException as found:  # raised after the steps prepared before it
                error = found
            num_prepared = len(ready)
            while ready:  # no batch is kept here, so that the next one reuses its memory, which is in the caches
                yield replace(ready.pop(0), num_prepared=num_prepared)
                num_prepared = 0
            if error is not None:
                raise error

    def _prepared(self, step: int) -> StepBatches:
        if self.prefetch:
            parts = self._ahead.popleft().result()
            self._prepare_ahead(1)
        else:
            parts = self._prepare(step)
        num_counted = sum(int(part.num_counting.sum()) for part in parts)
        num_tokens = sum(int(part.num_valid.sum()) for part in parts)
        return StepBatches(step, parts, num_counted, num_tokens)

    def _prepare_ahead(self, num_steps: int) -> None:
        prepare = on_this_device(self._prepare)
        self._ahead.extend(self._pool.submit(prepare, step) for step in islice(self._unprepared, num_steps))

    def _prepare(self, step: int) -> list[HostBatch]:
        """Compute the host parts of the micro-batches of `step`."""
        self._watched.check()
        windows = self.sampler.windows(step, self.layout.first_window, self.layout.num_windows)
        position = BatchPosition(step, self.layout.first_window, self.layout.batch_size)
        draft = self.make_batch.draft(windows, position, self._form)
        parts = [self.make_batch.choose(part, self.is_static) for part in draft.parts(self.layout.accumulation)]
        if self._keys:
            parts = [replace(part, keys=self._keys(step, i, len(part.num_valid))) for i, part in enumerate(parts)]
        return parts
