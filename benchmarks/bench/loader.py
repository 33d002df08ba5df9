"""How fast windows of tokens reach a training step, by heartlm's feed and by others.

a corpus ─► windows at random, int64 batches on the host ─► M tokens a second of every way, at several widths

    python benchmarks/machine.py loader
    python benchmarks/machine.py loader --corpus corpora/many --widths '[128, 512]'
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.measure import BenchTable
from bench.options import BenchOptions, at_least, each_at_least


@dataclass(frozen=True)
class Options(BenchOptions):
    """Which corpus, and which windows of it.

    Attributes:
        rounds: turns of every way; the median counts.
        corpus: folder of a corpus; without, random tokens of one facet are written.
        tokens: how many random tokens.
        widths: tokens of a window.
        batch_tokens: tokens of a batch.
        workers: processes of PyTorch's DataLoader, each number in turn.
        turn_s: seconds of a turn, about.
    """

    rounds: int = 3
    corpus: Path | None = None
    tokens: int = 1 << 24
    widths: tuple[int, ...] = (128, 256, 512, 1024)
    batch_tokens: int = 1 << 16
    workers: tuple[int, ...] = (0, 2)
    turn_s: float = 0.2

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            HeartlmError: the text names the field, what was found and what is expected.
        """
        super().__post_init__()
        each_at_least("widths", self.widths, 2)
        each_at_least("workers", self.workers, 0)
        at_least("batch_tokens", self.batch_tokens, max(self.widths), ", a window,")
        at_least("tokens", self.tokens, 2 * max(self.widths), ", two windows,")
        at_least("turn_s", self.turn_s, 0.001)


def run(options: Options) -> list[BenchTable]:
    """Let every way hand over batches in turns, one width after the other, this process on one core."""
    from bench.loader_table import measured

    return [measured(options)]
