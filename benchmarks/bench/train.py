"""Tokens a second of pretraining, and where a step's time goes, beside plain PyTorch.

corpus ─► heartlm on 1, 2 … ranks ┐ trainings in turns, each in processes of its own, ranks on cores of their own
          plain PyTorch on 1, 2 … ┘ of the same size ─► tokens/s, parts of a step, MFU where the device is known

    python benchmarks/machine.py train
    python benchmarks/machine.py train --corpus corpora/many --depth 8 --window 512
    python benchmarks/machine.py train --ranks '[1, 2, 4]' --objective masked
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.measure import BenchTable
from bench.options import BenchOptions, at_least, each_at_least
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class Options(BenchOptions):
    """The model, and how it is trained.

    Attributes:
        rounds: trainings of every way; the median counts.
        corpus: folder of a corpus; without, a small one is simulated, every sample a token.
        objective: causal predicts the next token, masked hidden ones.
        depth: transformer blocks.
        width: of the residual stream; by default 32 for each block.
        window: tokens a window.
        batch_size: windows of each rank and step.
        steps: that count.
        warm_up: steps before them that do not.
        ranks: how many train together, each number in turn; every rank has a whole batch.
        threads: of each rank on a CPU.
        device: where to train; auto takes GPUs if there are any.
        precision: auto is fp32 on a CPU and bf16 on a GPU.
    """

    rounds: int = 3
    corpus: Path | None = None
    objective: Literal["causal", "masked"] = "causal"
    depth: int = 4
    width: int | None = None
    window: int = 128
    batch_size: int = 16
    steps: int = 20
    warm_up: int = 5
    ranks: tuple[int, ...] = (1, 2)
    threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            HeartlmError: the text names the field, what was found and what is expected.
        """
        super().__post_init__()
        for name in ("depth", "batch_size", "steps", "threads"):
            at_least(name, getattr(self, name), 1)
        at_least("window", self.window, 8, " tokens")
        at_least("warm_up", self.warm_up, 2)
        each_at_least("ranks", self.ranks, 1)


def run(options: Options) -> list[BenchTable]:
    """Train every way in turns."""
    if Ranks.from_environment().world_size > 1:
        raise HeartlmError("ranks: this bench starts its own: call it without torchrun")
    from bench.train_table import measured

    return [measured(options)]
