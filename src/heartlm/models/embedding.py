"""Token embedding: the sum of the embeddings of the facets.

Each code of a facet has coordinates in the tokenizer, such as a codebook centroid or an interval level. The embedding
of a code is a learned projection of its coordinates plus a free vector initialised to zero, so similar codes start with
similar embeddings. Each facet has an extra last code, the mask code.

The table of all embeddings has two forms with equal values. On a CPU each facet is projected by itself. On a GPU, where
the number of operations counts, all are projected by one product with a block-diagonal matrix of coordinates:

    [ places of facet 0         0          ]   [ project of facet 0 ]
    [        0           places of facet 1 ] @ [ project of facet 1 ] + free
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class FacetEmbedding(nn.Module):
    """Embeds `[..., num_facets]` codes as their facets' sum, `[..., width]`.

    Args:
        geometry: coordinates of the codes of each facet, float32 `[num_codes, num_coordinates]`.
        width: embedding dimension.

    Attributes:
        project: projections of the coordinates of all facets, `[sum(num_coordinates), width]`.
        free: free vectors of the codes of all facets, mask codes last, `[sum(sizes) + num_facets, width]`.
        blocks: block-diagonal coordinates, `[sum(sizes) + num_facets, sum(num_coordinates)]`, after `batch`; else None.
        compiled: compiled sum of the embeddings, used in training; None runs uncompiled.
    """

    offset: Tensor
    blocks: Tensor | None

    def __init__(self, geometry: list[Tensor], width: int) -> None:
        super().__init__()
        self.sizes = [len(coordinates) for coordinates in geometry]
        self.num_coordinates = [coordinates.shape[1] for coordinates in geometry]
        starts = [self.mask_row(facet) - size for facet, size in enumerate(self.sizes)]
        self.register_buffer("offset", torch.tensor(starts), persistent=False)
        for facet, coordinates in enumerate(geometry):
            self.register_buffer(f"places_{facet}", coordinates)
        self.register_buffer("blocks", None, persistent=False)
        self.compiled: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        # Linear layers draw their weights here, so that a seed gives the weights that it gave to earlier versions.
        layers = [nn.Linear(num, width, bias=False) for num in self.num_coordinates]
        self.project = nn.Parameter(torch.cat([layer.weight.detach().T for layer in layers]))
        self.free = nn.Parameter(torch.zeros(sum(self.sizes) + len(self.sizes), width))
        self.reset()

    def reset(self) -> None:
        """Initialise: projected vectors with standard deviation 0.02, free vectors zero, mask vectors random."""
        nn.init.zeros_(self.free)
        with torch.no_grad():
            for facet, weight in enumerate(torch.split(self.project, self.num_coordinates)):
                coordinates = self.get_buffer(f"places_{facet}")
                typical = float(coordinates.square().sum(dim=1).mean().sqrt()) or 1.0
                drawn = nn.init.normal_(weight.new_empty(weight.shape[::-1]), std=0.02 / typical)
                weight.copy_(drawn.T)
                nn.init.normal_(self.free[self.mask_row(facet)], std=0.02)

    def batch(self) -> None:
        """Use the form for GPUs."""
        coordinates = [self.get_buffer(f"places_{facet}") for facet in range(len(self.sizes))]
        mask_row = self.project.new_empty(1, 0)  # a row of zeros in the block-diagonal matrix
        blocks = (block for each in coordinates for block in (each, mask_row))
        self.blocks = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]

    def mask_row(self, facet: int) -> int:
        """Return the row of `table` of the mask code of this facet."""
        return sum(self.sizes[: facet + 1]) + facet

    def table(self) -> Tensor:
        """Return embeddings of all codes of all facets, mask codes last: `[sum(sizes) + num_facets, width]`."""
        if self.blocks is not None:
            with torch.autocast(self.free.device.type, enabled=False):  # the residual stream begins in full precision
                return torch.addmm(self.free, self.blocks, self.project)
        rows = []
        for facet, weight in enumerate(torch.split(self.project, self.num_coordinates)):
            projected = self.get_buffer(f"places_{facet}") @ weight
            rows += [projected, projected.new_zeros(1, projected.shape[1])]
        return torch.cat(rows) + self.free

    def forward(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding of each token, `[..., width]`, and the table of `FacetEmbedding.table`."""
        return self.compiled(codes) if self.compiled is not None and self.training else self._embed(codes)

    def compile(self) -> None:
        """Compile the embedding for training."""
        self.compiled = torch.compile(self._embed, fullgraph=True, dynamic=False)

    def _embed(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        table, rows = self.table(), codes + self.offset
        if torch.compiler.is_compiling():  # the compiler fuses look-up and sum, but not a bag
            return F.embedding(rows, table).sum(dim=-2), table
        # one bag per token: the embeddings of its facets are summed without being stored
        bags = rows.flatten(end_dim=-2)
        return F.embedding_bag(bags, table, mode="sum").view(*codes.shape[:-1], -1), table
