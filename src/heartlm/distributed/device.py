"""Device and precision of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from heartlm.errors import HeartlmError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def device_and_precision(device: str, precision: str, local_rank: int = 0) -> tuple[torch.device, torch.dtype]:
    """Resolve `auto` and return device and dtype; a rank uses the GPU with index `local_rank`.

    Raises:
        HeartlmError: `device` is unknown, there is no GPU or fewer GPUs than ranks, or it does not support bf16.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise HeartlmError(f"device: {device!r} found, auto, cpu or cuda expected")
    if device == "cuda" and not torch.cuda.is_available():
        raise HeartlmError("device: 'cuda' found, but torch sees no GPU: use --device cpu")
    chosen = torch.device("cpu")
    if device != "cpu" and torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise HeartlmError(
                f"device: rank {local_rank} of this machine needs a GPU of its own, torch sees "
                f"{torch.cuda.device_count()}: start fewer ranks, or use --device cpu"
            )
        chosen = torch.device("cuda", local_rank)
        torch.cuda.set_device(chosen)
    # without emulation: GPUs before Ampere emulate bf16, which is slower than fp32
    has_bf16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and chosen.type == "cuda" and not has_bf16:
        raise HeartlmError("precision: 'bf16' found, but this GPU has none: use --precision fp32")
    use_bf16 = precision == "bf16" or (precision == "auto" and has_bf16)
    return chosen, torch.bfloat16 if use_bf16 else torch.float32


def on_this_device(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap `function` for another thread, so that it uses the current GPU of this thread.

    The current CUDA device is a property of the thread. A new thread starts with device 0, so ranks with another GPU
    would each open a context there.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return function
    device = torch.cuda.current_device()

    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        torch.cuda.set_device(device)
        return function(*arguments, **named)

    return run
