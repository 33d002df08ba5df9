"""Where a run computes, and in which precision."""

from __future__ import annotations

import torch

from heartlm.errors import HeartlmError


def device_and_precision(device: str, precision: str) -> tuple[torch.device, torch.dtype]:
    """Resolve `auto`.

    Raises:
        HeartlmError: a GPU is asked for and there is none, or bf16 on a device without it.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise HeartlmError("device: 'cuda' found, but torch sees no GPU: use --device cpu")
    found = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    has_bf16 = found.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bf16" and found.type == "cuda" and not has_bf16:
        raise HeartlmError("precision: 'bf16' found, but this GPU has none: use --precision fp32")
    use_bf16 = precision == "bf16" or (precision == "auto" and has_bf16)
    return found, torch.bfloat16 if use_bf16 else torch.float32
