"""Sizes of a model, derived from its depth. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from heartlm.errors import HeartlmError, require

HEAD_WIDTH = 32


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a heart language model.

    `resolve` derives every size that is None from `depth`.

    Attributes:
        facet_sizes: number of codes of each facet of the tokenizer; the model adds one mask code.
        depth: number of transformer blocks.
        width: width of the residual stream; by default 32 times the depth.
        heads: attention heads; by default the width divided by 32.
        feed_forward: inner width of the SwiGLU; by default 8/3 of the width, rounded up to a multiple of 32.
        causal: whether each token attends only to itself and earlier tokens.
        dropout: dropout probability in training, 0 to below 1.
        network: a transformer over tokens, or a convolutional network with `depth` layers: waveform of the waveform
            task, leads and residual of the statements task.
        members: networks of the statements task that are trained together and whose logits are averaged.
    """

    facet_sizes: tuple[int, ...]
    depth: int = 4
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    causal: bool = False
    dropout: float = 0.0
    network: Literal["transformer", "waveform", "leads", "residual"] = "transformer"
    members: int = 1

    @property
    def joins_leads(self) -> bool:
        """Whether the network reads all leads of a recording together."""
        return self.network in ("leads", "residual")

    def resolve(self) -> ModelConfig:
        """Return a copy with every size set.

        Raises:
            HeartlmError: a value is invalid; the message names the field.
        """
        require(self, lambda value: value >= 1, "at least 1", "depth", "width", "heads", "feed_forward", "members")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "dropout")
        width = self.width or HEAD_WIDTH * self.depth
        heads = self.heads or max(1, width // HEAD_WIDTH)
        feed_forward = self.feed_forward or -(-8 * width // (3 * 32)) * 32
        if width % heads or (width // heads) % 2:
            raise HeartlmError(f"heads: {heads} found; it must divide the width {width} into even parts")
        return replace(self, width=width, heads=heads, feed_forward=feed_forward)
