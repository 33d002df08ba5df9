"""`heartlm plan memory`: compute the memory of a rank in training, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from heartlm.cli.options import existing, parse
from heartlm.cli.score_table import aligned
from heartlm.errors import HeartlmError, require
from heartlm.training.config import PretrainConfig


@dataclass(frozen=True)
class MemoryOptions(PretrainConfig):
    """Options of `heartlm plan memory`: those of heartlm pretrain, of which some matter for memory, and these.

    Attributes:
        corpus: corpus whose tokenizer sets the vocabulary; by default the tokenizer of the shipped model foundation.
        ranks: number of processes, up to 1024.
        memory_gb: memory of a rank in gigabytes (10^9 bytes). If given, the plan states whether the step fits, and the
            exit status is 1 if it does not.
        json: print JSON instead of a table.
    """

    ranks: int = 1
    memory_gb: float | None = None
    json: bool = False


def run(arguments: Sequence[str]) -> int:
    """Compute the peak memory of a rank in a training step, by a dry run that does not allocate the model.

    Examples:
        heartlm plan memory --depth 16 --window 512 --batch-size 256 --ranks 64 --parallel fsdp
        heartlm plan memory pretrain.yaml --ranks 4 --memory-gb 40
    """
    options = parse(MemoryOptions, arguments, "plan memory", run, config_file=True).resolved()
    require(options, lambda value: value > 0, "more than 0", "memory_gb")
    from heartlm.models.pretrained import FOLDER
    from heartlm.tokenizers.base import load_tokenizer
    from heartlm.training.dry_run import MOST_RANKS, step_memory

    if not 1 <= options.ranks <= MOST_RANKS:
        raise HeartlmError(f"ranks: {options.ranks} found, 1 to {MOST_RANKS} expected")
    folder = FOLDER / "foundation" if options.corpus is None else existing(options.corpus, "corpus")
    sharing: Literal["ddp", "fsdp"] = "fsdp" if options.parallel == "fsdp" else "ddp"
    memory = step_memory(options, load_tokenizer(folder / "tokenizer"), options.ranks, sharing)
    fits = options.memory_gb is None or memory.peak <= options.memory_gb * 1e9
    if options.json:
        print(json.dumps({**asdict(memory), "peak": memory.peak, "batch_size": options.batch_size, "fits": fits}))
        return 0 if fits else 1
    ranks = f"{options.ranks} ranks, {sharing}" if options.ranks > 1 else "one rank"
    windows = f"{options.batch_size} windows of {options.window} tokens a step"
    precision = "bf16" if options.precision == "bf16" else "fp32"
    print(f"depth {options.depth}, {memory.num_parameters:,} parameters, {windows}, {precision}, {ranks}")
    rows = [["bytes of a rank when a step needs most", "MB"]]
    for name in ("parameters", "gradients", "optimizer", "activations", "rest", "peak"):
        rows.append([name, f"{getattr(memory, name) / 1e6:,.1f}"])
    print("\n".join(aligned(rows)))
    print("Counted: what torch allocates. Not counted: Python, libraries, the process group, the context of a GPU.")
    if not fits:
        print(f"does not fit: {memory.peak / 1e9:.2f} GB needed, {options.memory_gb:g} GB given")
    return 0 if fits else 1
