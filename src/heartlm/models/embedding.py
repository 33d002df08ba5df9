"""Token embedding: the sum of the embeddings of the facets.

Each code of a facet has coordinates in the tokenizer, such as a codebook centroid or an interval level. The embedding
of a code is a learned projection of its coordinates plus a free vector initialised to zero, so similar codes start with
similar embeddings. Each facet has an extra last code, the mask code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FacetEmbedding(nn.Module):
    """Embeds `[..., num_facets]` codes as their facets' sum, `[..., width]`.

    Args:
        geometry: coordinates of the codes of each facet, float32 `[num_codes, num_coordinates]`.
        width: embedding dimension.
    """

    offset: Tensor

    def __init__(self, geometry: list[Tensor], width: int) -> None:
        super().__init__()
        self.sizes = [len(places) for places in geometry]
        starts = [sum(size + 1 for size in self.sizes[:facet]) for facet in range(len(geometry))]
        self.register_buffer("offset", torch.tensor(starts), persistent=False)
        for facet, places in enumerate(geometry):
            self.register_buffer(f"places_{facet}", places)
        self.project = nn.ModuleList(nn.Linear(places.shape[1], width, bias=False) for places in geometry)
        self.free = nn.Parameter(torch.zeros(sum(self.sizes) + len(self.sizes), width))
        self.reset()

    def reset(self) -> None:
        """Initialise: projected vectors with standard deviation 0.02, free vectors zero, mask vectors random."""
        nn.init.zeros_(self.free)
        with torch.no_grad():
            for facet, linear in enumerate(self.project):
                places = self.get_buffer(f"places_{facet}")
                typical = float(places.square().sum(dim=1).mean().sqrt()) or 1.0
                assert isinstance(linear, nn.Linear)
                nn.init.normal_(linear.weight, std=0.02 / typical)
                nn.init.normal_(self.free[self.mask_row(facet)], std=0.02)

    def mask_row(self, facet: int) -> int:
        """Return the row of `table` of the mask code of this facet."""
        return sum(self.sizes[: facet + 1]) + facet

    def table(self) -> Tensor:
        """Return embeddings of all codes of all facets, mask codes last: `[sum(sizes) + num_facets, width]`."""
        rows = []
        for facet, linear in enumerate(self.project):
            places = linear(self.get_buffer(f"places_{facet}"))
            rows.append(torch.cat([places, places.new_zeros(1, places.shape[1])]))
        return torch.cat(rows) + self.free

    def forward(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding of each token, `[..., width]`, and the table of `FacetEmbedding.table`."""
        table = self.table()
        # one bag per token: the embeddings of its facets are summed without being stored
        bags = (codes + self.offset).flatten(end_dim=-2)
        return nn.functional.embedding_bag(bags, table, mode="sum").view(*codes.shape[:-1], -1), table
