"""heartlm's convolution compared with those of torch and with the CrossScale study's kernel.

    python -m benchmarks.conv1d               # one thread and two, about six minutes
    python -m benchmarks.conv1d --quick

Tables, for each number of threads: the study's own grid, where its kernel, written for this comparison, competes too;
layers of ECG networks in inference and in training, against eager `conv1d`, `conv2d` with channels last,
`torch.compile`, and oneDNN with packed weights in either layout; what the rule that shares shapes out between the
kernel and torch gains and loses; TinyECG as a whole. The layers come from two draws. The rule was fitted to times
measured on sizes of a grid: "layers of ECG networks" are of it, "new layers" are drawn from sizes between, which were
never fitted to; the rule is tried on single recordings of them too. `torch.compile` competes for the new layers.

All but the study's kernel are called as layers and allocate their results, from memory that the process keeps. Between
ours and the study's kernel both ways are measured: as called by a user, and the bare kernels writing into the same
array. The peak is measured with multiplications and additions on registers alone.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.convolutions import (
    STUDY_GRID,
    case_of,
    described,
    ecg_grid,
    fastest,
    flops,
    layers_between,
    race,
    timed_turns,
    tiny_ecg_turns,
)
from heartlm.extensions.conv1d.kernel import ConvShape, prepared
from heartlm.extensions.conv1d.module import conv1d
from heartlm.extensions.conv1d.rule import PASSES
from heartlm.extensions.conv1d.rule import fastest as rule
from heartlm.system.memory import keep_memory
from lab.measure import BenchTable, Spread, cores, geometric_mean, seconds
from lab.output import write_results
from lab.places import options

HERE = Path(__file__).parent
NUM_LAYERS, MOST_FLOPS = 40, 2e8
NEW_LAYERS_SEED = 2026


def compiled(name: str, folder: Path, *flags: str) -> ctypes.CDLL:
    """`name`.c next to this file as a library, by the system's compiler."""
    out = folder / f"lib{name}.so"
    command = ["cc", "-O3", "-shared", "-fPIC", "-fopenmp", *flags, "-o", str(out), str(HERE / f"{name}.c")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


def pin_each(where: list[int]) -> None:
    """Put this thread, and each of those that OpenMP starts for it, on a core of its own of `where`.

    Left alone, the kernel of a virtual machine may let two threads share a core.
    """
    os.sched_setaffinity(0, where)
    before = {path.name for path in Path("/proc/self/task").iterdir()}
    torch.ones(1 << 20).exp_()
    started = sorted(int(path.name) for path in Path("/proc/self/task").iterdir() if path.name not in before)
    for thread, core in zip((0, *started), where, strict=False):
        os.sched_setaffinity(thread, {core})


def fma_peak(library: ctypes.CDLL, threads: int) -> float:
    """Multiplications and additions a second on registers alone, at best."""
    library.fma_work.restype = ctypes.c_double
    library.fma_work.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p)
    sink, rounds = ctypes.c_float(), 2_000_000
    work = library.fma_work(rounds, threads, ctypes.addressof(sink))
    return float(work) / min(
        seconds(lambda: library.fma_work(rounds, threads, ctypes.addressof(sink))) for _ in range(7)
    )


def study_table(study: ctypes.CDLL, threads: int, rounds: int) -> BenchTable:
    """The study's grid: one channel to one, without padding and bias."""
    study.crossscale_conv1d.argtypes = (*[ctypes.c_void_p] * 3, *[ctypes.c_int] * 4)
    study.crossscale_conv1d.restype = None
    columns = "shape", "heartlm µs", "F.conv1d µs", "bare kernel µs", "study's kernel µs", "over F.conv1d"
    table = BenchTable(
        f"The study's grid, one channel to one: {threads} thread{'s'[: threads - 1]}",
        (*columns, "bare over the study's", "as called over the study's"),
    )
    for shape in STUDY_GRID:
        times = study_times(study, shape, threads, rounds)
        ours, theirs, bare, crossscale = (taken.median for taken in times.values())
        micros = (taken.times(1e6) for taken in times.values())
        table.add(described(shape), *micros, theirs / ours, crossscale / bare, crossscale / ours)
    return with_means(table, *columns[-1:], *table.columns[-2:])


def with_means(table: BenchTable, *columns: str) -> BenchTable:
    """The table, closed, with the geometric mean of some columns as notes."""
    for name in columns:
        ratios = [cell for cell in table.column(name) if isinstance(cell, float)]
        table.notes.append(f"{name}: {geometric_mean(ratios):.2f} times.")
    return table.close()


def study_times(study: ctypes.CDLL, shape: ConvShape, threads: int, rounds: int) -> dict[str, Spread]:
    """Seconds of ours and torch's as called, and of our kernel and the study's into an array that is there."""
    case = case_of(shape, bias=False)
    x, weight, out = case.x, case.layer.weight.detach(), torch.empty_like(case.dy)
    addresses = x.data_ptr(), weight.data_ptr(), out.data_ptr()
    sizes = shape.batch, shape.length, shape.kernel_size, threads
    study.crossscale_conv1d(*addresses, *sizes)
    assert torch.allclose(out, F.conv1d(x, weight), atol=1e-5)
    assert torch.allclose(conv1d(x, weight), F.conv1d(x, weight), atol=1e-5)
    bare = prepared(shape, "conv1d_forward", threads)
    turns = {
        "heartlm": lambda: conv1d(x, weight),
        "F.conv1d": lambda: F.conv1d(x, weight),
        "bare": lambda: bare(*addresses[:2], 0, addresses[2]),
        "study": lambda: study.crossscale_conv1d(*addresses, *sizes),
    }
    return timed_turns(turns, rounds)


PACKED = ["packed", "packed, channels last"]


def shapes_table(
    title: str, shapes: Sequence[ConvShape], rounds: int, compiled: bool, mode: str, peak: float
) -> BenchTable:
    """Race all rivals over `shapes`, in inference or training.

    Args:
        title: of what the shapes are.
        shapes: to convolve.
        rounds: in which every rival has its turn.
        compiled: whether `torch.compile` competes.
        mode: `inference`, or `training`: forward and backward, with all gradients.
        peak: multiplications and additions a second at most.
    """
    threads = torch.get_num_threads()
    trains = mode == "training"
    names = ["eager", "channels_last", *(["compiled"] if compiled else []), *([] if trains else PACKED)]
    columns = "shape", "heartlm µs", *(f"{name} µs" for name in names), "over eager", "over best", "% of peak"
    table = BenchTable(f"{title}: {mode}, {threads} thread{'s'[: threads - 1]}", columns)
    for shape in shapes:
        times = race(shape, rounds, compiled, trains)
        seconds_of = {name: spread.median for name, spread in times.items()}
        ours = seconds_of.pop("heartlm")
        share = flops(shape) * (3 if trains else 1) / ours / peak
        micros = (times[name].times(1e6) for name in ("heartlm", *names))
        over_best = min(seconds_of.values()) / ours
        table.add(described(shape), *micros, seconds_of["eager"] / ours, over_best, 100 * share)
    table.notes.append(f"Peak: {peak / 1e9:.0f} GFLOP/s.")
    return with_means(table, "over eager", "over best")


def tiny_ecg_table(rounds: int) -> BenchTable:
    """TinyECG with torch's layers and with ours, in inference and for a step of training."""
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


def rule_table(shapes: Sequence[ConvShape], threads: int) -> BenchTable:
    """What `conv1d/rule.py` gains and loses on shapes that it was not fitted to, pass by pass."""
    columns = "pass", "shapes", "left to torch", "kernel alone", "by the rule", "by the faster of both", "rule at worst"
    table = BenchTable(f"The rule on new layers, times torch's conv1d: {threads} thread{'s'[: threads - 1]}", columns)
    entries = [fastest(case_of(shape)) for shape in shapes]
    for name in PASSES:
        to_torch = [name not in rule(shape, threads) for shape in shapes]
        ratios = [theirs / ours for ours, theirs in (entry[name] for entry in entries)]
        ruled = [1.0 if torch_does else ratio for torch_does, ratio in zip(to_torch, ratios, strict=True)]
        best = [max(1.0, ratio) for ratio in ratios]
        means = (geometric_mean(each) for each in (ratios, ruled, best))
        lost = min(ours / most for ours, most in zip(ruled, best, strict=True))
        table.add(name, len(shapes), sum(to_torch), *means, lost)
    table.notes.append("At worst: over the faster of both, 1 where the rule chose right for every shape.")
    return table.close()


def main() -> None:
    parser = options(__doc__, core=0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="four shapes, few rounds, without torch.compile")
    chosen = parser.parse_args()
    keep_memory()
    allowed, tables = cores(), []
    with tempfile.TemporaryDirectory() as scratch:
        study = compiled("crossscale_conv1d", Path(scratch), "-mavx2", "-mfma")
        peaks = compiled("fma_peak", Path(scratch), "-march=native")
        for threads in chosen.threads:
            torch.set_num_threads(threads)
            pin_each([allowed[(chosen.core + place) % len(allowed)] for place in range(threads)])
            peak = fma_peak(peaks, threads)
            tables.append(study_table(study, threads, 3 if chosen.quick else 15))
            rounds, num = (3, 4) if chosen.quick else (11, NUM_LAYERS)
            grid, new = ecg_grid(num, MOST_FLOPS), layers_between(num, MOST_FLOPS, NEW_LAYERS_SEED)
            for mode in ("inference", "training"):
                tables.append(shapes_table("New layers", new, rounds, not chosen.quick, mode, peak))
                tables.append(shapes_table("Layers of ECG networks", grid, rounds, False, mode, peak))
            single = (replace(shape, batch=1) for shape in new[: num // 2])
            tables += [rule_table([*new, *single], threads), tiny_ecg_table(2 * rounds)]
            for table in tables[-7:]:
                print(table.markdown(), flush=True)
    write_results("conv1d", "Convolution on CPUs", tables)


if __name__ == "__main__":
    main()
