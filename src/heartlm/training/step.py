"""A training step of one rank, the same on a CPU and on a GPU.

    micro-batches ─► losses, gradients ─► sums over ranks ─► mean losses, norm ─► good? ─► AdamW, clipped ─► numbers

On a GPU a step reads no number on the host, so that steps can be queued (`queued.py`): whether it is good is decided on
the device, and AdamW does not take a bad one. So the weights are right whenever the host reads the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.distributed.parallel import HostAllReduce
from heartlm.training.bad_steps import BadSteps, DeviceCheck
from heartlm.training.batches import CodesForm, HostBatch, MakeBatch
from heartlm.training.feed import StepBatches
from heartlm.training.learner import Learner
from heartlm.training.resident import ResidentCodes


@dataclass(frozen=True)
class StepNumbers:
    """Numbers of a step, on the host.

    Attributes:
        step: step number, from 0.
        rate: learning rate.
        losses: mean of each loss over the counted tokens of the global batch, the first named "loss".
        norm: gradient norm before clipping.
        is_taken: whether the optimiser took the step.
    """

    step: int
    rate: float
    losses: dict[str, float]
    norm: float
    is_taken: bool


class Steps:
    """Takes the steps of one rank, each at once.

    Args:
        learner: model and optimiser on the device.
        make_batch: builder of batches.
        bad_steps: bad steps so far; `BadSteps.judge` must be called with the numbers of each step that is read.
        resident: codes of the corpus on the device; None if the feed sends them.
        sums: sums over ranks on the host; None sums on the device.
        span: measures a part of the step, see `Meters.span`.

    Attributes:
        form: form of the codes that the feed sends.
    """

    MAX_PENDING: ClassVar[int] = 0
    """Steps that the host may be ahead."""

    def __init__(
        self,
        learner: Learner,
        make_batch: MakeBatch,
        bad_steps: BadSteps,
        resident: ResidentCodes | None = None,
        *,
        sums: HostAllReduce | None = None,
        span: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    ) -> None:
        self.learner, self.make_batch, self.resident = learner, make_batch, resident
        self.form: CodesForm = "windows" if resident else "stored" if learner.device.type == "cuda" else "int64"
        self.check = DeviceCheck(bad_steps, learner.device)
        self._sums, self._span = sums, span
        self._names: tuple[str, ...] = ()
        self._pending = deque[tuple[int, float, Tensor, Any]]()

    def draw_keys(self, step: int, index: int, num_rows: int) -> Tensor | None:
        """Return the dropout keys of a micro-batch that the feed adds to it; None without dropout."""
        return self.learner.draw_keys(step, index, num_rows)

    def take(self, batches: StepBatches, rate: float, num_counted: Callable[[], float]) -> None:
        """Take a step with learning rate `rate`.

        Args:
            batches: micro-batches of this rank.
            rate: learning rate.
            num_counted: returns the number of counted tokens of the global batch, at least 1; called when it is needed.
        """
        self._pending.append((batches.step, rate, self._step(batches.parts, rate, num_counted), None))

    def read(self, max_pending: int = 0) -> Iterator[StepNumbers]:
        """Iterate over the steps that are done, in order; wait until at most `max_pending` are not.

        With several ranks, steps that are done earlier are kept as well: after a bad step all ranks save together, so
        all must read it before the same next step.
        """
        while self._pending:
            step, rate, numbers, event = self._pending[0]
            if len(self._pending) > max_pending:
                if event is not None:
                    event.synchronize()
            elif event is None or dist.is_initialized() or not event.query():
                return
            self._pending.popleft()
            *losses, norm, is_taken = numbers.tolist()
            yield StepNumbers(step, rate, dict(zip(self._names, losses, strict=True)), norm, is_taken > 0)

    def _step(
        self, parts: Sequence[HostBatch], rate: float | Tensor, num_counted: Callable[[], float | Tensor]
    ) -> Tensor:
        """Compute a step; return its mean losses, the norm and whether it was taken, float64 on the device."""
        batches = [self.make_batch.finish(part.with_codes(self.resident)) for part in parts]
        self._names, losses, norm = self.learner.backward(batches, num_counted)
        if self._sums is not None:
            with self._span("communication"):
                losses = torch.tensor(self._sums(*losses.tolist()), dtype=torch.float64)
        elif dist.is_initialized():
            dist.all_reduce(losses)
        means, whole = losses.double() / num_counted(), norm.double()
        is_taken = self.check(means[0], whole)
        with self._span("optimizer"):
            self.learner.update(rate, norm, is_taken)
        return torch.cat([means, torch.stack([whole, is_taken.double()])])
