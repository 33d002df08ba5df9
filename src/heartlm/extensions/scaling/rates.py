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
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed


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


def load_rates(path: Path) -> list[MeasuredRate]:
    """Read the rates from a result file of `benchmarks/gpu.py`.

    Raises:
        HeartlmError: the file does not exist or has no valid rates; the text names the file and the field.
    """
    if not path.is_file():
        raise HeartlmError(f"rates: {path} not found: measure it on the GPU with  python -m benchmarks.gpu")
    content = read_json(path)
    entries = content.get("rates") if isinstance(content, dict) else None
    rates = typed(dict[str, list[MeasuredRate]], {"rates": entries}, path)["rates"]
    for rate in rates:
        if rate.tokens_per_s <= 0:
            raise HeartlmError(f"{path}: rates: {rate.tokens_per_s:g} tokens/s found, more than 0 expected")
        if rate.start_s < 0:
            raise HeartlmError(f"{path}: rates: start_s: {rate.start_s:g} found, at least 0 expected")
    return rates


def training_of(command: str, fields: dict[str, Any], tokenizer: str) -> MeasuredRate:
    """Return the training of a pretrain or finetune command, without a rate.

    Raises:
        HeartlmError: the size of the model or of the batch is missing or invalid; the text names the field.
    """
    if fields.get("batch_size") is None:
        raise HeartlmError("batch_size: nothing found, the number of windows at which the rate was measured expected")
    names = ("depth", "width", "window", "batch_size")
    given = typed(dict[str, int], {name: fields[name] for name in names if fields.get(name) is not None})
    shape = {"depth": 4, "window": 128, **given}  # the defaults of training, where the fields leave them open
    shape.setdefault("width", 32 * shape["depth"])
    training = "finetune" if command == "finetune" else str(fields.get("objective") or "masked")
    return MeasuredRate(training=training, tokenizer=tokenizer, **shape, tokens_per_s=0.0, start_s=0.0)


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
