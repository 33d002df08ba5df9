"""Useful arithmetic, against what torch counts, and peaks that are known or not."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from heartlm.instrumentation.utilization import flops_per_token, peak_flops
from heartlm.models.config import ModelConfig
from heartlm.models.store import build_model

SIZES = (64, 32)


@pytest.mark.parametrize("window", [16, 64])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_formula_is_what_torch_counts(window: int, share: float) -> None:
    """Every product of the trunk and the heads, forward and backward; the table of embeddings is left out."""
    config = ModelConfig(SIZES, depth=3, width=64).resolve()
    model = build_model(config, [torch.randn(size, 3) for size in SIZES])
    codes = torch.stack([torch.randint(size, (2, window)) for size in SIZES], dim=-1).flatten(0, 1)
    asked = torch.arange(int(share * len(codes)))
    x, valid = torch.randn(2, window, 64, requires_grad=True), torch.ones(2, window, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hidden = model.trunk(x, valid, None, asked)
        logits = model.facet_logits(hidden, codes[asked], torch.zeros(sum(SIZES) + 2, 64))
        sum(facet.sum() for facet in logits).backward()
    assert flops_per_token(config, window, head_share=share) == pytest.approx(counter.get_total_flops() / len(codes))


def test_labels_are_asked_for_every_token() -> None:
    config = ModelConfig(SIZES, depth=2, width=64).resolve()
    without_heads = flops_per_token(config, 128) - 6 * 64 * sum(SIZES)
    assert flops_per_token(config, 128, num_classes=5, head_share=0) == without_heads + 6 * 64 * 5


def test_peaks_are_known_by_the_exact_name_or_not_at_all() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp32") == pytest.approx(66.9e12)
    assert peak_flops("NVIDIA H100", "bf16") is None
    assert peak_flops("cpu", "fp32") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
