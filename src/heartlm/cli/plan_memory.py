"""`heartlm plan memory`: compute the memory of a rank in training, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import existing, parse
from heartlm.cli.score_table import aligned
from heartlm.errors import HeartlmError, require


@dataclass(frozen=True)
class MemoryOptions:
    """Options of `heartlm plan memory`.

    Attributes:
        corpus: corpus whose tokenizer sets the vocabulary; by default the tokenizer of the shipped model foundation.
        objective: pretraining objective.
        depth: number of transformer blocks.
        width: width of the model; by default 32 times the depth.
        window: number of tokens per window.
        batch_size: windows in the global batch of all ranks; by default about 2048 tokens, more for deeper models.
        accumulation: number of micro-batches per rank and step.
        ranks: number of processes, up to 1024.
        parallel: distribution of the model over ranks: ddp replicates it, zero1 shards the optimiser state, fsdp shards
            parameters, gradients and optimiser state. heartlm trains with ddp and fsdp; zero1 is for comparison only.
        precision: precision of matrix products.
        activation_checkpointing: recompute activations in the backward pass instead of storing them.
        dropout: dropout probability in training.
        memory_gb: memory of a rank in gigabytes (10^9 bytes). If given, the plan states whether the step fits, and the
            exit status is 1 if it does not.
        json: print JSON instead of a table.
    """

    corpus: Path | None = None
    objective: Literal["masked", "causal"] = "masked"
    depth: int = 4
    width: int | None = None
    window: int = 128
    batch_size: int | None = None
    accumulation: int = 1
    ranks: int = 1
    parallel: Literal["ddp", "zero1", "fsdp"] = "ddp"
    precision: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: bool = False
    dropout: float = 0.0
    memory_gb: float | None = None
    json: bool = False


def run(arguments: Sequence[str]) -> int:
    """Compute the peak memory of a rank in a training step, by a dry run that does not allocate the model.

    Examples:
        heartlm plan memory --depth 16 --window 512 --batch-size 256 --ranks 64 --parallel fsdp
        heartlm plan memory --depth 24 --batch-size 64 --ranks 4 --memory-gb 40
    """
    options = parse(MemoryOptions, arguments, "plan memory", run)
    require(options, lambda value: value > 0, "more than 0", "memory_gb")
    from heartlm.models.pretrained import FOLDER
    from heartlm.tokenizers.base import load_tokenizer
    from heartlm.training.config import PretrainConfig
    from heartlm.training.dry_run import MOST_RANKS, step_memory

    if not 1 <= options.ranks <= MOST_RANKS:
        raise HeartlmError(f"ranks: {options.ranks} found, 1 to {MOST_RANKS} expected")
    settings = asdict(options)
    for name in ("corpus", "ranks", "parallel", "memory_gb", "json"):
        del settings[name]
    config = PretrainConfig(**settings)
    config.check()
    folder = FOLDER / "foundation" if options.corpus is None else existing(options.corpus, "corpus")
    found = step_memory(config, load_tokenizer(folder / "tokenizer"), options.ranks, options.parallel)
    fits = options.memory_gb is None or found.peak <= options.memory_gb * 1e9
    if options.json:
        more = {"peak": found.peak, "batch_size": config.batch_size, "fits": fits}
        print(json.dumps({**asdict(found), **more}, indent=2))
        return 0 if fits else 1
    ranks = f"{options.ranks} ranks, {options.parallel}" if options.ranks > 1 else "one rank"
    windows = f"{config.batch_size} windows of {config.window} tokens a step"
    print(f"depth {config.depth}, {found.num_parameters:,} parameters, {windows}, {options.precision}, {ranks}")
    rows = [["bytes of a rank when a step needs most", "MB"]]
    for name in ("parameters", "gradients", "optimizer", "activations", "rest", "peak"):
        rows.append([name, f"{getattr(found, name) / 1e6:,.1f}"])
    print("\n".join(aligned(rows)))
    print("Counted: what torch allocates. Not counted: Python, libraries, the process group, the context of a GPU.")
    if not fits:
        print(f"does not fit: {found.peak / 1e9:.2f} GB needed, {options.memory_gb:g} GB given")
    return 0 if fits else 1
