"""Steps on a GPU for which the host does not wait: queued, captured as CUDA graphs, and read when they are done.

    micro-batches ─► one pinned ─► static inputs ─► [ codes ─► loss, gradients ─► check ─► AdamW ] ─► numbers ─► pinned
    of the feed      buffer        of their shape     run `WARM_UP` times, captured once, then replayed          later

The check of `BadSteps` is done on the device: AdamW does not take a bad step, nor any step after one that stops the
run. So the weights are right whenever the host reads the numbers. Nothing in a step depends on a number on the host,
except the number of the step, the learning rate and the number of counted tokens, which are inputs, too. All inputs are
sent in one copy: a copy of each tensor would take the host longer than a small step takes the GPU. Each shape of the
inputs has a graph of its own, so windows of mixed widths are captured, too, one graph for each width.

Capture follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs: everything runs on one side stream,
steps before the capture initialise libraries, compiled code and the moments of AdamW, and gradients are None at its
start. The capture is `thread_local`, since the thread of a checkpoint may call CUDA meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heartlm.system.progress import say
from heartlm.training.bad_steps import BadSteps, DeviceCheck
from heartlm.training.batches import HostBatch, MakeBatch
from heartlm.training.device_keys import DeviceKeys
from heartlm.training.learner import Learner
from heartlm.training.resident import ResidentCodes

WARM_UP = 3
"""Steps of a shape before it is captured."""
ALIGNED = torch.zeros(16, dtype=torch.uint8)
"""Bytes between inputs: kernels that torch compiles read up to 16 bytes at once from where an input begins."""
MAX_PENDING = 8
"""Steps that the host may be ahead; enough that the queue is never empty, few enough that stop signals act at once."""


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


@dataclass
class _Shape:
    """Inputs of one shape, views of `buffer` on the device, and the graph that reads them.

    Attributes:
        step: number of the step, int64 `[1]`.
        factors: learning rate and number of counted tokens of the global batch, float32 `[2]`.
    """

    buffer: Tensor
    step: Tensor
    factors: Tensor
    parts: list[HostBatch]
    num_runs: int = 0
    graph: Any = None


class QueuedSteps:
    """Queues the steps of one rank.

    Args:
        learner: model and optimiser on the device.
        make_batch: builder of batches.
        check: bad steps so far; `BadSteps.judge` must be called with the numbers of each step that is read.
        resident: codes of the corpus on the device; None if the feed sends them.
        captures: whether to capture steps as CUDA graphs.
    """

    def __init__(
        self,
        learner: Learner,
        make_batch: MakeBatch,
        check: BadSteps,
        resident: ResidentCodes | None = None,
        captures: bool = False,
    ) -> None:
        self.learner, self.make_batch, self.resident, self.captures = learner, make_batch, resident, captures
        device = learner.device
        self.check = DeviceCheck(check, device)
        self._draw_keys = None
        if captures and learner.compiles and (num_sites := learner.model.num_dropout_sites):
            self._draw_keys = DeviceKeys(learner.config.seed, num_sites, learner.layout.num_windows, device)
        self._shapes: dict[Any, _Shape] = {}
        self._names: tuple[str, ...] = ()
        self._numbers: Tensor | None = None
        self._pool: Any = None
        self._pending = deque[tuple[int, float, Tensor, Any]]()

    def host_keys(self, step: int, index: int, num_rows: int) -> Tensor | None:
        """Return the dropout keys of a micro-batch to send; None if the device draws them, or without dropout."""
        return None if self._draw_keys is not None else self.learner.draw_keys(step, index, num_rows)

    def queue(self, step: int, parts: Sequence[HostBatch], num_counted: float, rate: float) -> None:
        """Queue a step; `num_counted` is the number of counted tokens of the global batch."""
        learner = self.learner
        shape = self._sent(torch.tensor([step]), torch.tensor([rate, max(1.0, num_counted)]), parts)
        if shape.graph is None and self.captures and shape.num_runs == WARM_UP:
            try:
                shape.graph = self._captured(shape)
            except RuntimeError as error:  # nothing was computed, so the run continues without graphs
                self.captures = False
                learner.forget()
                say(f"steps are not captured as CUDA graphs ({' '.join(str(error).split())}): the run continues slower")
        if shape.graph is None:
            self._run(shape)
        else:
            shape.graph.replay()
        shape.num_runs += 1
        for group in learner.optimizer.param_groups:
            group["lr"] = rate  # for checkpoints
        assert self._numbers is not None
        on_gpu, event = self._numbers.is_cuda, None
        numbers = torch.empty_like(self._numbers, device="cpu", pin_memory=on_gpu)
        numbers.copy_(self._numbers, non_blocking=True)
        if on_gpu:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, rate, numbers, event))

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

    def _sent(self, step: Tensor, factors: Tensor, parts: Sequence[HostBatch]) -> _Shape:
        """Copy the inputs of a step to those of their shape on the device."""
        named = [{name: x for name, x in vars(part).items() if isinstance(x, Tensor)} for part in parts]
        tensors = [step, factors, *(x for own in named for x in own.values())]
        # whether there is padding is part of the shape, since attention without it has no mask
        is_whole = tuple(bool(part.valid.all()) for part in parts)
        key = is_whole, tuple(map(tuple, named)), tuple((x.shape, x.dtype) for x in tensors)
        flat = []
        for x in tensors:
            own = x.reshape(-1).view(torch.uint8)
            flat += [own, ALIGNED[: -len(own) % len(ALIGNED)]]
        device, sizes = self.learner.device, [len(each) for each in flat]
        pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        torch.cat(flat, out=pinned)
        shape = self._shapes.get(key)
        if shape is None:
            buffer = torch.empty_like(pinned, device=device)
            views = torch.split(buffer, sizes)[::2]
            inputs = iter([view.view(x.dtype).view(x.shape) for view, x in zip(views, tensors, strict=True)])
            shape = _Shape(buffer, next(inputs), next(inputs), [])
            for part, own_names in zip(parts, named, strict=True):
                of_part: dict[str, Any] = {name: next(inputs) for name in own_names}
                shape.parts.append(replace(part, **of_part))
            self._shapes[key] = shape
        # torch's allocator reuses pinned memory only after its copy is done, so nothing waits here
        shape.buffer.copy_(pinned, non_blocking=True)
        return shape

    def _run(self, shape: _Shape) -> None:
        """Take a step without a synchronisation with the host, and write its numbers."""
        learner, parts = self.learner, shape.parts
        rate, counted = shape.factors.unbind()
        if self._draw_keys is not None:
            keys = self._draw_keys(shape.step[0]).chunk(len(parts), dim=1)
            parts = [replace(part, keys=own) for part, own in zip(parts, keys, strict=True)]
        batches = [self.make_batch.finish(part.with_codes(self.resident)) for part in parts]
        self._names, values = learner.backward(0, batches, lambda: counted)
        if dist.is_initialized():
            dist.all_reduce(values[:-1])
        sums = values.double()
        losses, norm = sums[:-1] / counted.double(), sums[-1]
        is_taken = self.check(losses[0], norm)
        optimizer, groups = learner.optimizer, learner.optimizer.param_groups
        # AdamW divides gradients by the scale, which clips them, and does nothing where `found_inf` is 1
        clip = learner.config.clip
        optimizer.grad_scale = torch.clamp((values[-1] + 1e-6) / clip, min=1.0)  # type: ignore[attr-defined]
        optimizer.found_inf = 1 - is_taken.float()  # type: ignore[attr-defined]
        for group in groups:
            group.update(lr=rate, capturable=self.captures)
        optimizer.step()
        for group in groups:
            group["capturable"] = False
        learner.forget()
        numbers = torch.cat([losses, torch.stack([norm, is_taken.double()])])
        if self._numbers is None:
            self._numbers = numbers  # kept: graphs write their numbers here
        else:
            self._numbers.copy_(numbers)

    def _captured(self, shape: _Shape) -> Any:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream(self.learner.device)
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            self._run(shape)
        return graph
