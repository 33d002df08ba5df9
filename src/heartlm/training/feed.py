"""The feed: batches of every step, ready on the device before they are asked for.

    order ─► windows of this rank ─► draft, in a thread, into reused (pinned) buffers ─► device ─► micro-batches

With n ranks and a micro-batches each, micro-batch j of rank r is block r × a + j of the n × a equal blocks of the
global batch, so that batch is the same however it is split.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch

from heartlm.corpus.windows import WindowSampler
from heartlm.errors import HeartlmError
from heartlm.training.batches import Batch, MakeBatch


@dataclass(frozen=True)
class StepBatches:
    """What one rank computes in one step.

    Attributes:
        step: from 0.
        micro_batches: in order, on the device.
        num_counted: tokens (or windows) the loss counts, over these micro-batches.
        num_tokens: valid tokens of these micro-batches.
    """

    step: int
    micro_batches: list[Batch]
    num_counted: int
    num_tokens: int


class Feed:
    """Steps `first_step` to `last_step` (left out), in order; a context manager, so that its thread ends.

    Args:
        sampler: windows of every step.
        make_batch: windows to batches.
        first_step: the first step to feed.
        last_step: the step after the last one.
        rank: of this process.
        world_size: number of ranks.
        accumulation: micro-batches of a step on each rank.
        device: where the batches go.
        prefetch: steps to prepare ahead in a thread; 0 prepares each when it is asked for.

    Raises:
        HeartlmError: the global batch cannot be split that way.
    """

    def __init__(
        self,
        sampler: WindowSampler,
        make_batch: MakeBatch,
        *,
        first_step: int,
        last_step: int,
        rank: int = 0,
        world_size: int = 1,
        accumulation: int = 1,
        device: torch.device | None = None,
        prefetch: int | None = None,
    ) -> None:
        if sampler.batch_size % (world_size * accumulation):
            raise HeartlmError(
                f"batch_size: {sampler.batch_size} found; {world_size} ranks of {accumulation} micro-batches each "
                f"must divide it: take a multiple of {world_size * accumulation}"
            )
        self.sampler, self.make_batch = sampler, make_batch
        self.steps = range(first_step, last_step)
        self.accumulation = accumulation
        self.num_windows = sampler.batch_size // world_size
        self.first_window = rank * self.num_windows
        self.device = device or torch.device("cpu")
        self.prefetch = (2 if self.device.type == "cuda" else 0) if prefetch is None else prefetch
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue()
        self._room = threading.Semaphore(self.prefetch)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartlm-feed", daemon=True)

    def __enter__(self) -> Feed:
        if self.prefetch:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, whatever it is at."""
        self._closed.set()
        self._room.release()
        if self._thread.is_alive():
            self._thread.join()

    def __iter__(self) -> Iterator[StepBatches]:
        """Feed every step.

        Raises:
            HeartlmError: the corpus cannot be read any more.
        """
        for step in self.steps:
            draft = self._taken() if self.prefetch else self._draft(step)
            batch = draft.to(self.device)
            parts = [batch.part(index, self.accumulation) for index in range(self.accumulation)]
            yield StepBatches(step, parts, batch.num_counted, batch.num_tokens)

    def _taken(self) -> Batch:
        taken = self._ready.get()
        if isinstance(taken, BaseException):
            raise taken
        self._room.release()
        return taken

    def _work(self) -> None:
        try:
            for step in self.steps:
                self._room.acquire()
                if self._closed.is_set():
                    return
                self._ready.put(self._draft(step))
        except BaseException as error:
            self._ready.put(error)

    def _draft(self, step: int) -> Batch:
        windows = self.sampler.windows(step, self.first_window, self.num_windows)
        return self.make_batch(windows, step, self.first_window, self.sampler.batch_size)
