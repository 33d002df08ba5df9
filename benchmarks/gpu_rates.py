"""Training rates measured on one GPU, and the duration of a training that follows from them.

    rates of a result of benchmarks/gpu.py ─► seconds per token at a window, between measured windows ─► hours

The cost of a token grows linearly with the window (attention), so seconds per token are interpolated linearly between
the two nearest measured windows. Nothing is extrapolated. A training also takes the time to start: the imports, the
compilation and the capture of the step. Between small experiments it is most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class MeasuredRate:
    """The rate of one training on one GPU.

    Attributes:
        training: masked or causal pretraining, or finetune.
        tokenizer: kind of the tokenizer, such as beat.
        depth: number of blocks.
        width: width of the model.
        window: tokens per window.
        batch_size: windows per step.
        tokens_per_s: tokens per second after the warm-up.
        start_s: seconds from the start of the command until the warm-up is over.
    """

    training: str
    tokenizer: str
    depth: int
    width: int
    window: int
    batch_size: int
    tokens_per_s: float
    start_s: float


def seconds_of(target: MeasuredRate, tokens: float, rates: Sequence[MeasuredRate]) -> float:
    """Return the duration of training on `tokens`, with the start, interpolated between measured windows.

    Raises:
        HeartlmError: no two measured windows of the same training enclose the window.
    """
    shape = attrgetter("training", "tokenizer", "depth", "width", "batch_size")  # all but the window
    same = sorted((rate for rate in rates if shape(rate) == shape(target)), key=attrgetter("window"))
    # a window that was measured is its own bracket
    for low, high in (*((rate, rate) for rate in same), *pairwise(same)):
        if low.window <= target.window <= high.window:
            weight = (target.window - low.window) / max(1, high.window - low.window)
            start_s = (1 - weight) * low.start_s + weight * high.start_s
            return start_s + tokens * ((1 - weight) / low.tokens_per_s + weight / high.tokens_per_s)
    measured = ", ".join(str(rate.window) for rate in same) or "none"
    raise HeartlmError(
        f"rates: windows {measured} found for {target.training} of {target.tokenizer} tokens, depth {target.depth}, "
        f"width {target.width}, batch size {target.batch_size}; measured windows around {target.window} expected"
    )
