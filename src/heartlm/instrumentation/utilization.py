"""Model FLOPs utilisation: the useful arithmetic of training divided by the peak of the devices.

Useful operations are those that the model needs for the valid tokens. Padding, recomputed activations and attention
masks do not change the count (Chowdhery et al. 2022, PaLM, appendix B).
"""

from __future__ import annotations

from pathlib import Path

from heartlm.models.config import ModelConfig
from heartlm.storage.reading import read_json

# Dense peaks in 10^12 operations per second, by CUDA device name; half of the peaks with sparsity.
#
# NVIDIA A100 data sheet (nvidia-a100-datasheet-us-nvidia-1758950), H100 Tensor Core GPU Architecture white paper (the
# GPU of H200 and GH200 is the same), H100 data sheet for PCIe.
_PEAKS = Path(__file__).with_name("peak_tflops.json")


def flops_per_token(config: ModelConfig, window: int, num_classes: int = 0, head_share: float = 1.0) -> float:
    """Return the floating-point operations of training per token, forward and backward.

    6 N + 12 L T D (PaLM, appendix B): N weights of matrix products, each 2 operations forward and 4 backward; L blocks;
    T tokens per window; D width. Attention counts in full, causal or not. Embedding look-ups are not counted. Heads and
    the last block after attention count only for the output tokens.

    Args:
        config: resolved sizes.
        window: tokens per window.
        num_classes: classes of the label head, which is applied to every token.
        head_share: fraction of tokens to which the facet heads are applied: 1 for the causal objective, the fraction
            of hidden tokens for the masked one, 0 in fine-tuning.
    """
    assert config.width and config.feed_forward, "resolve the config first"
    to_attention = 3 * config.width**2
    after_attention = config.width * (config.width + 3 * config.feed_forward)
    predicted_share = 1.0 if num_classes else head_share
    trunk = config.depth * to_attention + (config.depth - 1 + predicted_share) * after_attention
    heads = config.width * (head_share * sum(config.facet_sizes) + num_classes)
    return 6 * (trunk + heads) + 12 * config.depth * window * config.width


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the dense peak of one device in floating-point operations per second; None if unknown, as for CPUs.

    Args:
        device_name: name from `torch.cuda.get_device_name`.
        precision: bf16, tf32 or fp32.
    """
    tflops = read_json(_PEAKS, dict[str, dict[str, float]]).get(device_name, {}).get(precision)
    return None if tflops is None else tflops * 1e12
