"""Autoregressive sampling from a causal model, token by token; the facets of a token are sampled coarse to fine.

Shapes: T tokens, F facets, C codes of a facet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from heartlm.errors import require
from heartlm.models.heart import HeartModel


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters.

    Attributes:
        temperature: divisor of the logits; 0 always selects the most probable code.
        top_p: cumulative probability of nucleus sampling; None samples from all codes.
        seed: seed of the random numbers.
    """

    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            HeartlmError: a value is invalid; the message names the field.
        """
        require(self, lambda value: 0 <= value < math.inf, "0 or more", "temperature")
        require(self, lambda value: 0 < value <= 1, "above 0 and up to 1", "top_p")
        require(self, lambda value: 0 <= value < 2**63, "0 to 2^63 - 1", "seed")


@torch.inference_mode()
def generate(
    model: HeartModel, prompt: NDArray[np.uint16], num_tokens: int, *, context: int, sampling: Sampling
) -> NDArray[np.uint16]:
    """Continue `prompt` by `num_tokens` tokens.

    Args:
        model: causal model in evaluation mode.
        prompt: codes of at least one token, uint16 `[T, F]`.
        num_tokens: number of tokens to generate.
        context: maximum number of previous tokens in the input, equal to the training window.
        sampling: sampling parameters; equal parameters generate equal tokens.

    Returns:
        uint16 `[num_tokens, F]`.
    """
    assert model.config.causal, "only a causal model can write on"
    assert len(prompt), "there is nothing to continue"
    device = next(model.parameters()).device
    random = torch.Generator().manual_seed(sampling.seed)

    def draw(logits: Tensor) -> int:
        return int(torch.multinomial(probabilities(logits.float().cpu(), sampling), 1, generator=random))

    codes = torch.from_numpy(prompt.astype(np.int64)).to(device)
    for _ in range(num_tokens):
        hidden, table = model.hidden(codes[None, -context:])
        codes = torch.cat([codes, _next_token(model, hidden[0, -1], table, draw)[None]])
    return codes[len(prompt) :].cpu().numpy().astype(np.uint16)


def _next_token(model: HeartModel, hidden: Tensor, table: Tensor, draw: Callable[[Tensor], int]) -> Tensor:
    """Sample the facets of one token, int64 `[F]`, each conditioned on `hidden` `[D]` and the earlier facets."""
    token: list[int] = []
    for head, offset in zip(model.facet_heads, model.embedding.offset, strict=True):
        token.append(draw(head(hidden)))
        hidden = hidden + F.embedding(offset + token[-1], table)
    return torch.tensor(token, device=table.device)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return sampling probabilities `[C]`, zero for excluded codes; the most probable code is never excluded.

    `top_p` selects codes by nucleus sampling (Holtzman 2020, arXiv 1904.09751).
    """
    if sampling.temperature == 0:
        return F.one_hot(logits.argmax(), len(logits)).float()
    ordered, order = (logits / sampling.temperature).softmax(dim=-1).sort(descending=True)
    if sampling.top_p is not None:
        ordered = ordered * (ordered.cumsum(0) - ordered < sampling.top_p)
    kept = torch.zeros_like(ordered).scatter(0, order, ordered)
    return kept / kept.sum()
