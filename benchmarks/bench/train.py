"""Pretraining speed in tokens per second and time of each part of a step, compared with plain PyTorch.

corpus ─► heartlm on 1, 2 … ranks ┐ trainings in turns, each in separate processes, ranks on separate cores
          plain PyTorch on 1, 2 … ┘ of the same size ─► tokens/s, parts of a step, MFU where the device is known

    python benchmarks/machine.py train
    python benchmarks/machine.py train --corpus corpora/many --depth 8 --window 512
    python benchmarks/machine.py train --ranks '[1, 2, 4]' --objective masked
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.measure import BenchTable, Chart, Timed
from bench.options import BenchOptions, at_least, each_at_least
from bench.trainings import Size, Trained, Trainer, size_of
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.doctor.trials import small_corpus

PARTS = ("data", "compute", "communication", "optimizer", "other")
HEARTLM, PLAIN = "heartlm", "plain PyTorch"


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the training bench.

    Attributes:
        rounds: number of trainings of every method; the median is reported.
        corpus: folder of a corpus; by default a small one is simulated, with one token per sample.
        objective: causal predicts the next token, masked predicts hidden tokens.
        depth: number of transformer blocks.
        width: width of the residual stream; by default 32 per block.
        window: tokens per window.
        batch_size: windows per rank and step.
        steps: number of measured steps.
        warm_up: number of steps before the measured ones.
        ranks: numbers of ranks to measure; every rank has a whole batch.
        threads: threads of each rank on a CPU.
        device: training device; auto uses GPUs if there are any.
        precision: numeric precision; auto is fp32 on a CPU and bf16 on a GPU.
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
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
        """
        super().__post_init__()
        for name in ("depth", "batch_size", "steps", "threads"):
            at_least(name, getattr(self, name), 1)
        at_least("window", self.window, 8, " tokens")
        at_least("warm_up", self.warm_up, 2)
        each_at_least("ranks", self.ranks, 1)


def run(options: Options) -> list[BenchTable]:
    """Train with every method in turns.

    Raises:
        HeartlmError: the corpus or device does not exist, there are too few cores or GPUs, or a training failed.
    """
    if Ranks.from_environment().world_size > 1:
        raise HeartlmError("ranks: this bench starts its own: call it without torchrun")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = options.corpus or small_corpus(Path(scratch))
        size = size_of(options, corpus)
        trainer = Trainer(size, corpus, Path(scratch))
        ranks = [num for num in options.ranks if num <= size.most_ranks]
        if not ranks:
            raise HeartlmError(f"ranks: {min(options.ranks)} found, at most {size.most_ranks} fit on {size.places}")
        table = _empty_table(options, size)
        ways = [(kind, num) for num in ranks for kind in (HEARTLM, PLAIN)]
        found: dict[tuple[str, int], list[Trained]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for kind, num in ways:
                found[kind, num].append(trainer.heartlm(num) if kind == HEARTLM else trainer.plain(num))
    _fill(table, found, size)
    table.notes += [
        f"{num} ranks left out: at most {size.most_ranks} fit on {size.places}."
        for num in options.ranks
        if num > size.most_ranks
    ]
    return [table.close()]


def _empty_table(options: Options, size: Size) -> BenchTable:
    columns = ("way", "ranks", "tokens/s", "spread %", "times plain", "times one rank", "step ms")
    title = (
        f"{options.objective} pretraining: depth {size.depth}, width {size.width}, {options.batch_size} windows of "
        f"{options.window} on each rank, {size.precision} on {size.device} (median of {options.rounds})"
    )
    table = BenchTable(title, (*columns, *(f"{name} ms" for name in PARTS), "MFU %"))
    table.chart = Chart("stack", ("way", "ranks"), tuple(f"{name} ms" for name in PARTS), "ms of a step")
    return table


def _fill(table: BenchTable, found: Mapping[tuple[str, int], Sequence[Trained]], size: Size) -> None:
    timed = {way: Timed(tuple(each.seconds for each in runs), runs[0].tokens) for way, runs in found.items()}
    fewest = min(num for _, num in found)
    for (kind, num), runs in found.items():
        own = timed[kind, num]
        ratios = own.times_faster_than(timed[PLAIN, num]), own.times_faster_than(timed[kind, fewest])
        parts_ms = [_middle_ms([each.part_s[name] for each in runs]) for name in PARTS]
        step_ms = 1e3 * own.median_s / size.steps
        peak = size.peak_flops
        mfu = None if peak is None else 100 * own.rate * runs[0].flops_per_token / (num * peak)
        table.add(kind, num, own.rate, 100 * own.spread, *ratios, step_ms, *parts_ms, mfu)
    parameters = {kind: runs[0].num_parameters for (kind, _), runs in found.items()}
    table.notes.append(
        f"Parameters: {', '.join(f'{kind} {num:,}' for kind, num in parameters.items())}; {size.steps} steps count, "
        f"{size.warm_up} before them do not. Every training is a process of its own a rank, on cores of its own."
    )
    table.notes.append("Communication of plain PyTorch (DDP) lies within its compute; its losses and ours were finite.")
    if size.peak_flops is None:
        table.notes.append(f"No MFU: the peak of {size.device_name} is not known.")


def _middle_ms(values_s: Sequence[float | None]) -> float | None:
    known = [value for value in values_s if value is not None]
    return 1e3 * statistics.median(known) if known else None
