"""The runs of the published campaign, 8 widths, planned for A100-40 and H100: memory of a GPU.

    python benchmarks/campaign_plan.py

A PREDICTION: nothing here was run on a GPU. Memory is what `heartlm plan memory` counts on CPU kernels, one GPU a run.
The size of the published models is not known and is taken as depth 8. Hours are not predicted here: `heartlm plan
examples/published_campaign_one_gpu.yaml` computes them from rates that benchmarks/gpu.py measured. A second table plans
larger models, 8 windows of 512 tokens a rank, by how ranks share them.
"""

from __future__ import annotations

import argparse

from bench.measure import Table
from bench.output import write_results

from heartlm.extensions.scaling.hardware import load_hardware
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, step_memory

WIDTHS = (128, 256, 384, 512, 640, 768, 896, 1024)
MACHINES = {"A100-40": "meluxina", "H100": "dgx-h100"}
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
    table.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch-tokens", type=int, default=1 << 15, help="of a step")
    settings = parser.parse_args()
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    memory = {name: load_hardware(of).facts["device_memory_bytes"].value for name, of in MACHINES.items()}
    columns = ("width", "windows a step", "memory of a run, GB", *(f"runs that fit into {name}" for name in memory))
    table = Table("Prediction: memory of a run at a width", columns)
    for window in WIDTHS:
        windows = settings.batch_tokens // window
        config = PretrainConfig(depth=settings.depth, window=window, batch_size=windows)
        needed = step_memory(config, tokenizer, 1, "ddp").peak
        table.add(window, windows, needed / 1e9, *(int(each // needed) for each in memory.values()))
    table.close()
    settings_used = {"depth": settings.depth, "batch tokens": settings.batch_tokens}
    heading = "Memory of the published campaign on other GPUs, predicted"
    write_results("campaign_plan", heading, [table, larger_models()], settings_used)


if __name__ == "__main__":
    main()
