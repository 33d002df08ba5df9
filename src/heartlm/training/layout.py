"""Split of the global batch of a step among ranks and micro-batches. Imports no torch.

    windows of the global batch    | block 0 | block 1 | block 2 | block 3 |
    2 ranks × 2 micro-batches      |      rank 0       |      rank 1       |

With n ranks and a micro-batches per rank, micro-batch j of rank r is block r × a + j of n × a equal blocks. So the
global batch does not depend on the split.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class BatchLayout:
    """The part of this rank in every global batch.

    Attributes:
        batch_size: windows in the global batch.
        accumulation: micro-batches per rank.
        ranks: rank of this process and number of ranks.

    Raises:
        HeartlmError: the global batch does not divide into equal blocks.
    """

    batch_size: int
    accumulation: int = 1
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        num_blocks = self.ranks.world_size * self.accumulation
        if self.batch_size % num_blocks == 0:
            return
        if self.ranks.world_size == 1:
            raise HeartlmError(
                f"accumulation: {self.accumulation} found; it must divide batch_size, which is {self.batch_size}"
            )
        raise HeartlmError(
            f"batch_size: {self.batch_size} found, a multiple of {num_blocks} expected: {self.ranks.world_size} ranks "
            f"with {self.accumulation} micro-batches each"
        )

    @property
    def num_windows(self) -> int:
        """Windows of this rank."""
        return self.batch_size // self.ranks.world_size

    @property
    def first_window(self) -> int:
        """Index of this rank's first window in the global batch."""
        return self.ranks.rank * self.num_windows

    def rows_of_rank(self, num_rows: int) -> tuple[int, int]:
        """Return start and stop of this rank's part of `num_rows` rows; parts differ by at most one row."""
        rank, num_ranks = self.ranks.rank, self.ranks.world_size
        return rank * num_rows // num_ranks, (rank + 1) * num_rows // num_ranks

    def first_row(self, micro_batch: int, num_rows: int) -> int:
        """Return the index in the global batch of the first row of a micro-batch of `num_rows` rows.

        Rows are windows, or the parts of equal width into which a step splits its windows.
        """
        return (self.ranks.rank * self.accumulation + micro_batch) * num_rows
