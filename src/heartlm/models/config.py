"""The shape of a model, from one dial. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from heartlm.errors import HeartlmError, require

HEAD_WIDTH = 32


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a heart language model.

    `depth` is the dial: `resolve` fills in every size left at None.

    Attributes:
        facet_sizes: number of codes of each facet of the tokenizer; the model adds one for "masked".
        depth: number of transformer blocks.
        width: width of the residual stream; by default 32 for each block.
        heads: attention heads; by default one for each 32 of width.
        feed_forward: inner width of the SwiGLU; by default 8/3 of the width, rounded up to a multiple of 32.
        causal: each token sees only itself and those before it.
        dropout: share of activations dropped in training, 0 to below 1.
        network: a transformer over tokens, or the convolutions of the task waveform, of which `depth` and `width` tell.
    """

    facet_sizes: tuple[int, ...]
    depth: int = 4
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    causal: bool = False
    dropout: float = 0.0
    network: Literal["transformer", "waveform"] = "transformer"

    def resolve(self) -> ModelConfig:
        """Return the same shape with every size filled in.

        Raises:
            HeartlmError: an impossible value; the text names the field.
        """
        require(self, lambda value: value >= 1, "at least 1", "depth", "width", "heads", "feed_forward")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "dropout")
        width = self.width or HEAD_WIDTH * self.depth
        heads = self.heads or max(1, width // HEAD_WIDTH)
        feed_forward = self.feed_forward or -(-8 * width // (3 * 32)) * 32
        if width % heads or (width // heads) % 2:
            raise HeartlmError(f"heads: {heads} found; it must divide the width {width} into even parts")
        return replace(self, width=width, heads=heads, feed_forward=feed_forward)
