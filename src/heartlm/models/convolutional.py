"""What networks of convolutions share: the interface of `HeartModel`, without its layers and codes to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel


class ConvolutionalModel(HeartModel):
    """Base class of networks that classify whole windows by convolutions over voltages.

    Args:
        config: sizes; `depth` is the number of blocks, and `width` the number of channels of the last.
        geometry: coordinates of the codes of each facet, the voltage first, float32 `[num_codes, num_coordinates]`.
        num_classes: number of classes.
        depth: the only depth of this network.

    Attributes:
        samples_per_token: samples that count as one token in the size of a batch, since a sample costs less.
    """

    normalises_batches = True
    samples_per_token: ClassVar[int]

    def __init__(self, config: ModelConfig, geometry: Sequence[Tensor], num_classes: int, depth: int) -> None:
        nn.Module.__init__(self)  # only the interface of HeartModel is used, none of its layers
        assert config.width and config.depth == depth, "resolve the config first"
        self.config, self.pooled, self.num_classes = config, True, num_classes
        # Voltages of the codes, under the name of the tokenizer geometry in models on disk.
        self.embedding = nn.Module()  # type: ignore[assignment]
        for facet, coordinates in enumerate(geometry):
            self.embedding.register_buffer(f"places_{facet}", coordinates)

    def recompute(self, recompute: bool = True) -> None:
        """Do nothing: the activations are too small for checkpointing."""

    def batch_facets(self) -> None:
        """Do nothing: the network embeds no codes and has no facet heads."""

    def compile(self) -> None:
        """Compile the blocks."""
        for block in self.trunk.blocks:
            block.compile()

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` samples per batch."""
        return super().windows_at_once(-(-width // self.samples_per_token))
