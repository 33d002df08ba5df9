"""The published campaign, 16 databases × 8 widths, planned for A100-40 and H100: memory of a GPU and node-hours.

    python benchmarks/campaign_plan.py

A PREDICTION: nothing here was run on a GPU. Memory is what `heartlm plan memory` counts on CPU kernels, one GPU a run.
Node-hours are the floating-point operations of all tokens over a share of the vendor's dense TF32 peak, whole nodes,
one run on each GPU. What share small models reach is not known: 5 and 40 % are assumed. The campaign's 50 million beats
are published (HLM on HPC, arXiv 2503.21033); the size of its models and the number of epochs are not, and are taken as
depth 8 and ten. A second table plans larger models, 8 windows of 512 tokens a rank, by how ranks share them.
"""

from __future__ import annotations

import argparse

from bench.measure import Table
from bench.output import write_results

from heartlm.instrumentation.utilization import flops_per_token
from heartlm.models.pretrained import FOLDER
from heartlm.scaling.hardware import load_hardware
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import Sharing, step_memory
from heartlm.training.pretrain import model_to_pretrain

WIDTHS = (128, 256, 384, 512, 640, 768, 896, 1024)
BEATS = 50e6
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
SHARES = (0.05, 0.4)
"""Of the peak, assumed."""


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
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch-tokens", type=int, default=1 << 15, help="of a step")
    settings = parser.parse_args()
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    known = {name: load_hardware(of).facts.items() for name, of in MACHINES.items()}
    machines = {name: {key: fact.value for key, fact in facts} for name, facts in known.items()}
    columns = ["width", "windows a step", "memory of a run, GB"]
    columns += [f"runs that fit into {name}" for name in machines]
    columns += [f"{name}, node-hours at {share:.0%}" for name in machines for share in SHARES]
    table = Table("Prediction: all 16 databases at a width, and all widths", tuple(columns))
    totals = [0.0] * len(MACHINES) * len(SHARES)
    for window in WIDTHS:
        windows = settings.batch_tokens // window
        config = PretrainConfig(depth=settings.depth, window=window, batch_size=windows)
        shape = model_to_pretrain(config, tokenizer).config
        needed = step_memory(config, tokenizer, 1, "ddp").peak
        work = BEATS * settings.epochs * flops_per_token(shape, window, head_share=config.mask_share)
        hours = [
            work / (share * facts["peak_tflops"]["tf32"] * 1e12) / 3600 / facts["devices_per_node"]
            for facts in machines.values()
            for share in SHARES
        ]
        totals = [total + each for total, each in zip(totals, hours, strict=True)]
        fitting = [int(facts["device_memory_bytes"] // needed) for facts in machines.values()]
        table.add(window, windows, needed / 1e9, *fitting, *hours)
    table.add("all", "–", "–", *("–" for _ in machines), *totals)
    table.close()
    settings_used = {"depth": settings.depth, "epochs": settings.epochs, "batch tokens": settings.batch_tokens}
    tables = [table, larger_models()]
    write_results("campaign_plan", "The published campaign on other GPUs, predicted", tables, settings_used)


if __name__ == "__main__":
    main()
