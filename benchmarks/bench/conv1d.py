"""heartlm's convolution compared with those of torch, on shapes of ECG networks.

    shapes ─► check of equal results ─► turns ─► speedup, fraction of the machine's peak

The tables: the grid of the CrossScale study (one channel to one), layers of ECG networks in inference and in training,
and TinyECG as a whole. Speedups are over torch's `conv1d`, the usual choice, and over the fastest option of torch: its
two-dimensional convolution with channels last, `torch.compile`, or oneDNN with packed weights in either layout.

    python benchmarks/machine.py conv1d
    python benchmarks/machine.py conv1d --threads '[1, 2, 4]' --shapes 48
    python benchmarks/machine.py conv1d --compile true
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.measure import BenchTable, Chart, Spread, geometric_mean
from bench.options import BenchOptions, at_least, each_at_least

if TYPE_CHECKING:
    from heartlm.extensions.conv1d.kernel import ConvShape


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the convolution bench.

    Attributes:
        threads: numbers of threads, with separate tables for each.
        shapes: number of layers of ECG networks: the corners of the grid first, then a fixed random sample.
        most_gflops: maximum work of a forward pass in GFLOP; larger layers get a smaller batch.
        compile: include `torch.compile`, which takes a few seconds per shape.
    """

    threads: tuple[int, ...] = (1,)
    shapes: int = 12
    most_gflops: float = 0.2
    compile: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
        """
        super().__post_init__()
        each_at_least("threads", self.threads, 1)
        at_least("shapes", self.shapes, 1)
        at_least("most_gflops", self.most_gflops, 0.01)


def run(options: Options) -> list[BenchTable]:
    """Measure all tables, for each number of threads."""
    import torch

    from bench.convolutions import STUDY_GRID, ecg_grid
    from heartlm.system.memory import keep_memory

    keep_memory()
    before, tables = torch.get_num_threads(), list[BenchTable]()
    try:
        for threads in options.threads:
            torch.set_num_threads(threads)
            grid = ecg_grid(options.shapes, 1e9 * options.most_gflops)
            study = shapes_table(
                "the grid of the CrossScale study", STUDY_GRID, options.rounds, options.compile, "inference"
            )
            layers = shapes_table("layers of ECG networks", grid, options.rounds, options.compile, "inference")
            training = shapes_table("layers of ECG networks", grid, options.rounds, options.compile, "training")
            tables += [study, layers, training, tiny_ecg_table(options.rounds)]
    finally:
        torch.set_num_threads(before)
    return tables


PACKED = ["packed", "packed, channels last"]


@dataclass
class Ratios:
    """Times that ours is faster, shape by shape."""

    eager: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)

    def add(self, times: Mapping[str, Spread]) -> None:
        """Take in the seconds of all rivals at a shape."""
        medians = {name: spread.median for name, spread in times.items()}
        ours = medians.pop("heartlm")
        self.eager.append(medians["eager"] / ours)
        self.best.append(min(medians.values()) / ours)

    def __str__(self) -> str:
        slower = sum(ratio < 0.95 for ratio in self.best)
        return (
            f"{geometric_mean(self.eager):.2f} times as fast as torch's conv1d ({min(self.eager):.2f} to "
            f"{max(self.eager):.1f}), {geometric_mean(self.best):.2f} times as fast as the best of torch "
            f"({min(self.best):.2f} to {max(self.best):.1f}), by geometric means over {len(self.eager)} shapes; "
            f"{slower} of them more than 5 % slower than the best of torch"
        )


def shapes_table(
    title: str, shapes: Sequence[ConvShape], rounds: int, compiled: bool, mode: str, peak: float | None = None
) -> BenchTable:
    """Race all rivals over `shapes`, in inference or training.

    Args:
        title: of what the shapes are.
        shapes: to convolve.
        rounds: in which every rival has its turn.
        compiled: whether `torch.compile` competes.
        mode: `inference`, or `training`: forward and backward, with all gradients.
        peak: multiplications and additions a second at most; by default those of a large matrix product.
    """
    import torch

    from bench.convolutions import described, flops, peak_flops, race, shape_class

    threads = torch.get_num_threads()
    peak = peak or peak_flops(threads)
    trains = mode == "training"
    names = ["eager", "channels_last", *(["compiled"] if compiled else []), *([] if trains else PACKED)]
    columns = "shape", "heartlm µs", *(f"{name} µs" for name in names), "over eager", "over best", "% of peak"
    table = BenchTable(f"{title}: {mode}, {threads} thread{'s'[: threads - 1]}", columns)
    table.chart = Chart("bars", ("shape",), ("over eager", "over best"), "times as fast as torch")
    classes: dict[str, tuple[Ratios, list[float]]] = {}
    overall = Ratios()
    for shape in shapes:
        times = race(shape, rounds, compiled, trains)
        work = flops(shape) * (3 if trains else 1)
        share = work / times["heartlm"].median / peak
        ratios, shares = classes.setdefault(shape_class(shape), (Ratios(), []))
        for each in (overall, ratios):
            each.add(times)
        shares.append(share)
        micros = (times[name].times(1e6) for name in ("heartlm", *names))
        table.add(described(shape), *micros, overall.eager[-1], overall.best[-1], 100 * share)
    table.notes += [f"{overall}.", f"Peak: {peak / 1e9:.0f} GFLOP/s."]
    table.notes += [
        f"{name}: {ratios}; median {100 * sorted(shares)[len(shares) // 2]:.0f} % of peak."
        for name, (ratios, shares) in sorted(classes.items())
    ]
    return table.close()


def tiny_ecg_table(rounds: int) -> BenchTable:
    """TinyECG with torch's layers and with ours, in inference and for a step of training."""
    import torch

    from bench.convolutions import timed_turns, tiny_ecg_turns

    threads = torch.get_num_threads()
    columns = "what", "heartlm µs", "eager µs", "over eager"
    table = BenchTable(f"TinyECG: {threads} thread{'s'[: threads - 1]}", columns)
    ratios = []
    for mode in ("inference", "training"):
        for batch, length in ((1, 500), (64, 36), (64, 360), (256, 500)):
            times = timed_turns(tiny_ecg_turns(batch, length, mode == "training"), rounds)
            ratios.append(times["eager"].median / times["heartlm"].median)
            micros = (times[name].times(1e6) for name in ("heartlm", "eager"))
            table.add(f"{mode}, {batch} × 1, L {length}", *micros, ratios[-1])
    table.notes.append(f"Geometric mean {geometric_mean(ratios):.2f}. Training is a step of SGD.")
    return table.close()
