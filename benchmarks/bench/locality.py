"""What the layout of windows and the way to the device cost a small network.

    windows of ECG ─► ways of fetching a batch ─► TinyECG: forward, backward, SGD ─► ms of each part, windows a second

After Module 1 of the CrossScale study: its shards, window, batch sizes and network. Its shards have no labels, and its
trainings took zeros; one option set the order of all four ways, so that A0 and A1 were the same; and its clock waited
for every copy, so that nothing could overlap. Here the labels are those of the beats, A0 is random, and steps follow
each other as in training.

    python benchmarks/machine.py locality
    python benchmarks/machine.py locality --recordings mitdb
    python benchmarks/machine.py locality --recordings mitdb --batch_sizes '[256]' --cold true
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.measure import BenchTable
from bench.options import BenchOptions, at_least, each_at_least


@dataclass(frozen=True)
class Options(BenchOptions):
    """Which windows, and how they are trained on.

    Attributes:
        recordings: folder of a database with classified beats; without, patients are simulated.
        windows: how many windows of it to use.
        length: samples of a window.
        stride: samples from one window to the next.
        batch_sizes: windows of a batch.
        turn_windows: windows that a turn trains on; by default 2048 on a CPU, 65536 on a GPU.
        device: where the network computes; auto takes a GPU if there is one.
        precision: of the network; auto is fp32, and on a GPU that has it bf16 (AMP), too.
        convolution: of the network on a CPU: torch's or heartlm's.
        threads: of the network on a CPU.
        workers: processes of the DataLoader in A0 to A3.
        cold: have the system forget the files before every turn, so that they come from the disk.
        work: keep the windows written in this folder; by default they are removed.
    """

    recordings: Path | None = None
    windows: int = 16_384
    length: int = 500
    stride: int = 250
    batch_sizes: tuple[int, ...] = (64, 128, 256, 512)
    turn_windows: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    convolution: Literal["torch", "heartlm"] = "torch"
    threads: int = 1
    workers: int = 0
    cold: bool = False
    work: Path | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            HeartlmError: the text names the field, what was found and what is expected.
        """
        super().__post_init__()
        each_at_least("batch_sizes", self.batch_sizes, 1)
        at_least("length", self.length, 16, " samples")
        for name in ("stride", "threads"):
            at_least(name, getattr(self, name), 1)
        at_least("workers", self.workers, 0)
        at_least("windows", self.windows, max(self.batch_sizes), ", a whole batch,")
        if self.turn_windows is not None:
            at_least("turn_windows", self.turn_windows, max(self.batch_sizes), ", a whole batch,")


def run(options: Options) -> list[BenchTable]:
    """Write the windows, check that every way gives the same ones, and let the ways take turns."""
    from bench.locality_table import measured

    return [measured(options)]
