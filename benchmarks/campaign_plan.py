"""Memory of a GPU that larger models need, 8 windows of 512 tokens a rank, by how ranks share them.

    python -m benchmarks.campaign_plan

A PREDICTION: nothing here was run on a GPU. Memory is what `heartlm plan memory` counts on CPU kernels.
"""

from __future__ import annotations

from benchmarks.common.measure import Table
from benchmarks.common.output import write_results
from benchmarks.common.places import options
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, step_memory

DEPTHS = (8, 16, 24, 32)
PLANNED: tuple[tuple[Sharing, int], ...] = (
    ("ddp", 4),
    ("zero1", 4),
    ("zero1", 16),
    ("fsdp", 4),
    ("fsdp", 16),
    ("fsdp", 64),
)


def larger_models() -> Table:
    """Memory of a rank by depth, ranks and way."""
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    columns = ("depth", "parameters, M", *(f"{way}, {ranks} ranks" for way, ranks in PLANNED))
    table = Table("Prediction: GB of a rank, 8 windows of 512 tokens each", columns)
    for depth in DEPTHS:
        plans = [
            step_memory(PretrainConfig(depth=depth, window=512, batch_size=8 * ranks), tokenizer, ranks, way)
            for way, ranks in PLANNED
        ]
        table.add(depth, plans[0].num_parameters / 1e6, *(plan.peak / 1e9 for plan in plans))
    return table


def main() -> None:
    options(__doc__).parse_args()
    write_results("campaign_plan", "Memory of larger models, predicted", [larger_models()])


if __name__ == "__main__":
    main()
