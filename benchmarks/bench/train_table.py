"""The table of the bench train: trainings by heartlm and plainly, on several numbers of ranks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.measure import BenchTable, Chart, Timed
from bench.train import Options
from bench.trainings import Size, Trained, Trainer, size_of
from heartlm.cluster.doctor.storage import small_corpus
from heartlm.errors import HeartlmError

PARTS = ("data", "compute", "communication", "optimizer", "other")
HEARTLM, PLAIN = "heartlm", "plain PyTorch"


def measured(options: Options) -> BenchTable:
    """Train every way in turns.

    Raises:
        HeartlmError: no such corpus or device, no place for so many ranks, or a training failed.
    """
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
    return table.close()


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
