"""Steps on a GPU for which the host does not wait: queued, captured as CUDA graphs, and read when they are done.

    micro-batches ─► one pinned ─► static inputs ─► [ a step, see `step.py` ] ─► numbers ─► pinned
    of the feed      buffer        of their shape     run `WARM_UP` times,                  later
                                                      captured once, then replayed

Nothing in a step depends on a number on the host, except the number of the step, the learning rate and the number of
counted tokens, which are inputs, too. All inputs are sent in one copy: a copy of each tensor would take the host longer
than a small step takes the GPU. Each shape of the inputs has a graph of its own, so windows of mixed widths are
captured, too, one graph for each width.

Capture follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs: everything runs on one side stream,
steps before the capture initialise libraries, compiled code and the moments of AdamW, and gradients are None at its
start. The capture is `thread_local`, since the thread of a checkpoint may call CUDA meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from heartlm.system.progress import say
from heartlm.training.bad_steps import BadSteps
from heartlm.training.batches import HostBatch, MakeBatch
from heartlm.training.device_keys import DeviceKeys
from heartlm.training.feed import StepBatches
from heartlm.training.learner import Learner
from heartlm.training.resident import ResidentCodes
from heartlm.training.step import Steps

WARM_UP = 3
"""Steps of a shape before it is captured."""
ALIGNED = torch.zeros(16, dtype=torch.uint8)
"""Bytes between inputs: kernels that torch compiles read up to 16 bytes at once from where an input begins."""


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


class QueuedSteps(Steps):
    """Queues the steps of one rank.

    Args:
        learner: as in `Steps`, like the next three.
        captures: whether to capture steps as CUDA graphs.
    """

    MAX_PENDING: ClassVar[int] = 8
    """Enough that the queue is never empty, few enough that stop signals act at once."""

    def __init__(
        self,
        learner: Learner,
        make_batch: MakeBatch,
        bad_steps: BadSteps,
        resident: ResidentCodes | None = None,
        captures: bool = False,
    ) -> None:
        super().__init__(learner, make_batch, bad_steps, resident)
        self.captures = captures
        self._device_keys = None
        if captures and learner.compiles and (num_sites := learner.model.num_dropout_sites):
            self._device_keys = DeviceKeys(learner.config.seed, num_sites, learner.layout.num_windows, learner.device)
        self._shapes: dict[Any, _Shape] = {}
        self._numbers: Tensor | None = None
        self._pool: Any = None

    def draw_keys(self, step: int, index: int, num_rows: int) -> Tensor | None:
        """Same as `Steps.draw_keys`; None also if the device draws them."""
        return None if self._device_keys is not None else super().draw_keys(step, index, num_rows)

    def take(self, batches: StepBatches, rate: float, num_counted: Callable[[], float]) -> None:
        """Queue a step; see `Steps.take`."""
        learner = self.learner
        shape = self._sent(torch.tensor([batches.step]), torch.tensor([rate, num_counted()]), batches.parts)
        if shape.graph is None and self.captures and shape.num_runs == WARM_UP:
            try:
                shape.graph = self._captured(shape)
            except RuntimeError as error:  # nothing was computed, so the run continues without graphs
                self.captures = False
                learner.forget()
                say(f"steps are not captured as CUDA graphs ({' '.join(str(error).split())}): the run continues slower")
        if shape.graph is None:
            self._compute(shape)
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
        self._pending.append((batches.step, rate, numbers, event))

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

    def _compute(self, shape: _Shape) -> None:
        """Take a step without a synchronisation with the host, and write its numbers."""
        parts, groups = shape.parts, self.learner.optimizer.param_groups
        rate, counted = shape.factors.unbind()
        if self._device_keys is not None:
            keys = self._device_keys(shape.step[0]).chunk(len(parts), dim=1)
            parts = [replace(part, keys=own) for part, own in zip(parts, keys, strict=True)]
        for group in groups:
            group["capturable"] = self.captures  # else torch refuses to capture AdamW
        numbers = self._step(parts, rate, lambda: counted)
        for group in groups:
            group["capturable"] = False  # checkpoints have the groups, and a CPU may resume them
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
            self._compute(shape)
        return graph
