"""Cost of the layout of windows and of the transfer to the device for a small network.

    windows of ECG ─► methods to load a batch ─► TinyECG: forward, backward, SGD ─► ms of each part, windows per second

The bench follows Module 1 of the CrossScale study: its shards, window, batch sizes and network. The study's shards have
no labels, and it trained with zeros. One option set the order of all four methods, so A0 and A1 were the same. Its
timer waited for every copy, so nothing could overlap. Here the labels are those of the beats, A0 is random, and steps
follow each other as in training.

    python benchmarks/machine.py locality
    python benchmarks/machine.py locality --recordings mitdb
    python benchmarks/machine.py locality --recordings mitdb --batch_sizes '[256]' --cold true
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from bench.measure import BenchTable, Chart, Timed
from bench.options import BenchOptions, at_least, each_at_least
from bench.shards import Lead, Shards, leads_of, simulated_leads, write_shards
from bench.stepping import Setting, Steps, check_same_windows, timed_ways
from bench.ways import Way, study_and_ours
from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.system.memory import keep_memory

TURN_WINDOWS = {"cpu": 2048, "cuda": 1 << 16}


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the locality bench.

    Attributes:
        recordings: folder of a database with classified beats; by default patients are simulated.
        windows: number of windows to use.
        length: samples per window.
        stride: samples between the starts of consecutive windows.
        batch_sizes: windows per batch.
        turn_windows: training windows per turn; by default 2048 on a CPU, 65536 on a GPU.
        device: device of the network; auto uses a GPU if there is one.
        precision: precision of the network; auto is fp32, and also bf16 (AMP) on a GPU that supports it.
        convolution: convolution of the network on a CPU: torch's or heartlm's.
        threads: threads of the network on a CPU.
        workers: processes of the DataLoader in A0 to A3.
        cold: drop the files from the page cache before every turn, so that they are read from the disk.
        work: folder to keep the written windows in; by default they are removed.
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
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
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
    """Write the windows, check that every method gives the same ones, and measure the methods in turns.

    Raises:
        HeartlmError: the folder or device does not exist, or too few windows have a classified beat.
    """
    keep_memory()
    device, kind = device_and_precision(options.device, options.precision)
    precisions = _precisions(options, kind == torch.bfloat16)
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as scratch:
        shards = _written(options, options.work or Path(scratch))
        try:
            torch.set_num_threads(options.threads)
            return [_raced(options, shards, study_and_ours(shards, device, options.workers), device, precisions)]
        finally:
            torch.set_num_threads(before)


def _written(options: Options, folder: Path) -> Shards:
    sizes = {"length": options.length, "stride": options.stride, "num_windows": options.windows}
    shards = write_shards(folder / "windows", _leads(options), **sizes)
    if len(shards) < max(options.batch_sizes):
        raise HeartlmError(
            f"batch_sizes: {max(options.batch_sizes)} found, at most {len(shards)} expected: there are no more windows "
            "with a classified beat"
        )
    return shards


def _raced(
    options: Options,
    shards: Shards,
    ways: Mapping[str, Way | None],
    device: torch.device,
    precisions: Sequence[str],
) -> BenchTable:
    present = {name: way for name, way in ways.items() if way is not None}
    check_same_windows(shards, present, max(options.batch_sizes))
    table = _empty_table(options, shards, device)
    turn_windows = options.turn_windows or TURN_WINDOWS[device.type]
    forget = partial(_forget, shards) if options.cold else None
    for precision, batch_size in product(precisions, options.batch_sizes):
        setting = Setting(batch_size, max(1, turn_windows // batch_size), precision, options.convolution)
        found = timed_ways(present, setting, options.rounds, forget)
        for name in ways:
            _add(table, name, setting, found.get(name), found["A0 random"].timed)
    return table.close()


def _add(table: BenchTable, name: str, setting: Setting, steps: Steps | None, first: Timed) -> None:
    if steps is None:
        table.add(name, setting.precision, setting.batch_size, None, "none", *[None] * 5)
        return
    data_ms, h2d_ms, compute_ms = steps.medians_ms()
    step_ms = 1e3 * steps.timed.median_s / setting.num_steps
    times = data_ms, "none" if h2d_ms is None else h2d_ms, compute_ms, step_ms
    rates = steps.timed.rate, 100 * steps.timed.spread, steps.timed.times_faster_than(first)
    table.add(name, setting.precision, setting.batch_size, *times, *rates)


def _leads(options: Options) -> Iterator[Lead]:
    if options.recordings is None:
        return simulated_leads(options.windows, options.stride)
    return leads_of(options.recordings, options.windows, options.length, options.stride)


def _precisions(options: Options, has_bf16: bool) -> Sequence[str]:
    if options.precision != "auto":
        return (options.precision,)
    return ("fp32", "bf16") if has_bf16 else ("fp32",)


def _empty_table(options: Options, shards: Shards, device: torch.device) -> BenchTable:
    columns = ("way", "precision", "batch", "data ms", "H2D ms", "compute ms", "step ms")
    whose = f"{options.convolution}'s convolution"
    title = f"TinyECG on {device.type}, {whose}, {shards.length} samples a window (median of {options.rounds})"
    table = BenchTable(title, (*columns, "windows/s", "spread %", "times A0"))
    counts = ", ".join(f"{name} {count:,}" for name, count in shards.class_counts.items())
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in shards.left_out.items() if count)
    source = options.recordings.name if options.recordings else "simulated patients"
    table.notes += [
        f"{len(shards):,} windows of {source}, labelled {counts}; left out: {left_out or 'none'}.",
        f"Shards hold {shards.shard_bytes / 1e6:.1f} MB, every sample once {shards.signal_bytes / 1e6:.1f} MB; "
        + ("forgotten by the system before every turn." if options.cold else "all in the page cache."),
        "Every way gave the windows that lie in the shards; those in the same order trained to the same losses.",
    ]
    if device.type == "cpu":
        table.notes.append("A2 and A3 are A1 on a CPU: memory is pinned for a device that fetches from it.")
    table.chart = Chart("lines", ("batch",), ("windows/s",), "windows a second", by="way", log=True)
    parts = "data ms", "H2D ms", "compute ms"
    largest = "batch", max(options.batch_sizes)
    table.more_charts = (Chart("stack", ("way", "precision"), parts, "ms of a step", only=largest),)
    return table


def _forget(shards: Shards) -> None:
    """Drop the files from the page cache, which works if nothing maps them."""
    for path in (*shards.paths, shards.signal):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
