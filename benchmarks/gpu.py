"""How fast heartlm is on the GPU of this machine, next to what the GPU can do: one command, seven minutes.

    python -m benchmarks.gpu                      # writes results/gpu-CARD.md and .json
    python -m benchmarks.gpu --out "$OUT" --more  # elsewhere; rows that the result has already are not measured again

Every row is a process of its own that is ended, with its children, at its limit. Before that, for a third of the time
at most, the first steps of the rows run side by side, which compiles their code. The most important rows come first,
the result is written after every row, and rows that --limit-s does not leave time for are listed. Simulating and
tokenising the recordings is part of the time, unless --work has them. Hours of other trainings follow from the list
`rates` of the JSON file (`benchmarks/gpu_rates.py`).
On a CPU (--device cpu --rehearsal) every row runs in small, without a graph, to test this script.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from benchmarks.gpu_rates import MeasuredRate, seconds_of
from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.probe import probe
from heartlm.storage.reading import read_json
from lab.measure import BenchTable, Cell, cores
from lab.output import write_results
from lab.places import ROOT, options

RESULTS = ROOT / "benchmarks/results"
FAILED, LATE, LEFT_OUT = "failed", "over the limit", "left out: time"


@dataclass(frozen=True)
class Size:
    """What is trained.

    Attributes:
        tokens: beat or sample.
        objective: masked, causal or finetune.
    """

    tokens: str
    objective: str
    depth: int
    width: int
    window: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.tokens}-{self.objective}-d{self.depth}-w{self.window}-b{self.batch}"

    def tiny(self) -> Size:
        """The size in a rehearsal; different sizes stay different."""
        return replace(self, depth=self.depth // 4, width=32, window=self.window // 16, batch=max(1, self.batch // 16))


SIZES = (
    Size("beat", "masked", 4, 128, 128, 16),
    Size("beat", "masked", 4, 128, 128, 256),
    Size("sample", "causal", 4, 128, 128, 16),
    Size("sample", "causal", 4, 128, 128, 256),
    Size("beat", "masked", 8, 256, 512, 64),
    Size("sample", "causal", 8, 256, 512, 64),
    Size("sample", "causal", 12, 768, 1024, 32),
)
FOUNDATIONS = (Size("beat", "masked", 8, 256, 1024, 64), Size("beat", "masked", 8, 256, 128, 64))
FINETUNED = (Size("beat", "finetune", 8, 256, 128, 64), Size("beat", "finetune", 8, 256, 1024, 64))
OTHERS = (Size("sample", "masked", 4, 128, 128, 16), Size("sample", "masked", 4, 128, 128, 256))
WHOLE = Size("beat", "masked", 8, 256, 256, 64)
"""Trained for a minute, and predicted from the windows around it."""

WAYS = {
    "heartlm": "heartlm",
    "eager": "heartlm --no-compile",
    "nanogpt-eager": "plain loop, nanoGPT's GPT, eager",
    "nanogpt-compiled": "plain loop, nanoGPT's GPT, compiled",
    "trainer": "Hugging Face Trainer",
    "graph": "one graph: nanoGPT's GPT, or heartlm's masked arithmetic",
    "heartlm-graph": "one graph: heartlm's model",
}


@dataclass(frozen=True)
class Row:
    """One process.

    Attributes:
        name: of its result.
        function: of `gpu_rows`.
        arguments: of the function.
        limit_s: after which it is ended.
        least_s: of the time left, without which it is not started.
        known: entries to add to the result.
    """

    name: str
    function: str
    arguments: dict[str, Any]
    limit_s: float = 75.0
    least_s: float = 10.0
    known: dict[str, Any] = field(default_factory=dict)


class Bench:
    """Rows, their results and the files they are written to."""

    def __init__(self, chosen: argparse.Namespace, work: Path, begin_s: float) -> None:
        self.chosen, self.work, self.begin_s = chosen, work, begin_s
        self.tiny, self.device = chosen.rehearsal, chosen.device
        of_all = (SIZES, FOUNDATIONS, FINETUNED, OTHERS)
        rehearsed = (SIZES[::3], FOUNDATIONS, FINETUNED[:1], OTHERS[:1])  # every kind of row once
        all_sizes = ([self._size(size) for size in sizes] for sizes in (rehearsed if self.tiny else of_all))
        self.first, self.foundations, self.finetuned, self.others = all_sizes
        self.sizes = [*self.first, *self.foundations, *self.others]
        self.whole, self.deepest = self._size(WHOLE), max(size.depth for size in self.sizes)
        warm_up, seconds, profiled = (3, 0.05, 2) if self.tiny else (30, 2.0, 10)
        self.times = {"device": self.device, "warm_up": warm_up, "seconds": seconds, "profiled": profiled}
        self.results: dict[str, dict[str, Any]] = {}
        before = _probe()
        self.tables = {title: BenchTable(title, columns, probe_before=before) for title, columns in TABLES.items()}
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the server must not start CUDA, or its children cannot
        multiprocessing.set_forkserver_preload(["torch", "heartlm.tasks.finetune", "benchmarks.gpu_rows"])
        self.context: ForkServerContext | SpawnContext = multiprocessing.get_context("forkserver")

    def _size(self, size: Size) -> Size:
        return size.tiny() if self.tiny else size

    def left_s(self) -> float:
        return float(self.chosen.limit_s - (time.monotonic() - self.begin_s))

    # --- rows ---------------------------------------------------------------------------------------------------------

    def words(self, size: Size) -> list[str]:
        """The command of heartlm that trains a size, without steps and folders."""
        window = size.window + (size.objective == "causal")
        words = ["--corpus", str(self.work / size.tokens), "--window", str(window), "--batch-size", str(size.batch)]
        if size.objective == "finetune":
            return ["finetune", str(self.work / "foundation"), "--task", "beats", *words]
        shape = ["--objective", size.objective, "--depth", str(size.depth), "--width", str(size.width)]
        return ["pretrain", *shape, *words]

    def heartlm(self, size: Size, way: str = "heartlm") -> Row:
        words = self.words(size) + (["--no-compile"] if way == "eager" else [])
        times = self.times | ({"profiled": 0} if way == "eager" else {})
        out = self.work / "runs" / f"{size.name}-{way}"
        limit_s = 120.0 if size.depth == self.deepest else 75.0
        return Row(f"{size.name} {way}", "heartlm_row", {"words": words, "out": out, "times": times}, limit_s)

    def bound(self, size: Size, way: str) -> Row:
        """A row without heartlm's loop."""
        model = "facets" if size.objective == "masked" else "heartlm" if way == "heartlm-graph" else "nanogpt"
        shape = {"depth": size.depth, "width": size.width, "heads": max(1, size.width // 32), "window": size.window}
        steps = {"steps": 4, "warm_up": 2} if self.tiny else {"steps": 60, "warm_up": 20}
        gpu = self.device == "cuda"
        shape |= {"batch": size.batch, "device": self.device, "bf16": gpu, "compile": False, **steps}
        arguments: dict[str, Any] = {"corpus": self.work / size.tokens, "shape": shape}
        if way == "trainer":
            arguments |= {"objective": size.objective, "work": self.work / "trainer"}
            return Row(f"{size.name} {way}", "trainer_row", arguments)
        kind = "graph" if way.endswith("graph") else way.partition("-")[2]
        arguments |= {"model": model, "way": kind, "times": self.times}
        return Row(f"{size.name} {way}", "bound_row", arguments)

    def rows(self) -> Iterator[Row]:
        """The rows, the most important first: sizes with their bounds, what a plan needs, what is compared once."""
        yield from self.with_bounds(self.first)
        source = {"corpus": self.work / "beat", "out": self.work / "foundation", "depth": self.finetuned[0].depth}
        yield Row("foundation", "foundation", {**source, "device": self.device})
        for size in (*self.foundations, *self.finetuned):
            yield self.heartlm(size)
        of_start, of_token = self.predicted(0.0), self.predicted(1.0)
        if of_start is not None and of_token is not None:
            size, seconds = self.whole, 1.0 if self.tiny else min(60.0, max(20.0, self.left_s() - 20.0))
            step_s = (of_token - of_start) * size.batch * size.window
            known: dict[str, float] = {"steps": max(4, round(seconds / step_s))}
            known["predicted_s"] = of_start + known["steps"] * step_s
            words = [*self.words(size), "--steps", str(known["steps"])]
            arguments = {"words": words, "out": self.work / "runs" / "whole", "device": self.device}
            yield Row("whole", "whole_row", arguments, seconds + 75.0, seconds + 15.0, known)
        yield Row("inference-cpu", "inference_row", {"work": self.work, "device": "cpu"})
        if self.device == "cuda":
            yield Row("inference-gpu", "inference_row", {"work": self.work, "device": "cuda"})
        yield from self.with_bounds(self.others)
        for size in self.foundations:
            yield self.bound(size, "graph")
        for size in self.sizes:
            yield self.heartlm(size, "eager")
            if size.objective == "causal":
                for way in ("nanogpt-compiled", "nanogpt-eager", "heartlm-graph", "graph"):
                    yield self.bound(size, way)
            if size.tokens == "sample":
                yield self.bound(size, "trainer")

    def with_bounds(self, sizes: list[Size]) -> Iterator[Row]:
        for size in sizes:
            yield self.heartlm(size)
            # the aim of the deepest is to reach the compiled plain loop
            yield self.bound(size, "nanogpt-compiled" if size.depth == self.deepest else "graph")

    def predicted(self, tokens: float) -> float | None:
        """Seconds of the minute-long row, predicted from the other rows; None where they are missing."""
        try:
            return seconds_of(self.rate(self.whole, {"tokens_per_s": 0.0, "warm_s": 0.0}), tokens, self.rates())
        except HeartlmError:
            return None

    def rate(self, size: Size, result: dict[str, Any]) -> MeasuredRate:
        window = size.window + (size.objective == "causal")
        start_s = self.results["setup"]["imports_s"] + result["warm_s"]
        shape = (size.depth, size.width, window, size.batch)
        return MeasuredRate(size.objective, size.tokens, *shape, result["tokens_per_s"], start_s)

    def rates(self) -> list[MeasuredRate]:
        """What heartlm reached as it comes."""
        sizes = {f"{size.name} heartlm": size for size in (*self.sizes, *self.finetuned)}
        return [
            self.rate(size, self.results[name])
            for name, size in sizes.items()
            if "tokens_per_s" in self.results.get(name, {})
        ]

    def run(self) -> None:
        patients, minutes = (5, 1) if self.tiny else (20, 10)
        setup = {"work": self.work, "patients": patients, "minutes": minutes, "device": self.device}
        # Where CUDA does not start in a forked process, rows import again.
        for self.context in (multiprocessing.get_context("forkserver"), multiprocessing.get_context("spawn")):
            self.results["setup"] = self.measure(Row("setup", "setup", setup, 120.0))
            if FAILED not in self.results["setup"]:
                break
        else:
            raise SystemExit(f"gpu.py: simulating and tokenising: {self.results['setup'][FAILED]}")
        card = re.sub(r"[^a-z0-9]+", "-", self.results["setup"]["card"].lower()).strip("-")
        path = self.chosen.out / f"gpu-{card}.json"
        if self.chosen.more and path.is_file():
            known = read_json(path)["measured"]
            self.results |= {name: row for name, row in known.items() if FAILED not in row and name != "setup"}
        self.results["foundation"] = self.measure(next(row for row in self.rows() if row.name == "foundation"))
        self.compile()
        for row in self.rows():
            if row.name in self.results:
                continue
            self.results[row.name] = self.measure(row)
            self.write(path.stem)
        self.write(path.stem)
        for title in ("Training", "Not measured"):
            print(f"\n{self.tables[title].markdown()}", flush=True)

    def compile(self) -> None:
        """Run the first steps of rows side by side: what they compile is kept and used when they are measured."""
        until_s = time.monotonic() + self.left_s() / 3
        few = {"times": self.times | {"warm_up": 5, "seconds": 0.0, "profiled": 0}}
        eager = ("nanogpt-eager", "eager")
        rows = [
            replace(row, name=f"{row.name} compiles", arguments=row.arguments | few)
            for row in self.rows()
            if "times" in row.arguments and row.name not in self.results and not row.name.endswith(eager)
        ]

        def first_steps(row: Row) -> None:
            if (limit_s := until_s - time.monotonic()) > row.least_s:
                self.measure(replace(row, limit_s=limit_s))

        with ThreadPoolExecutor(max(1, len(cores()) // 2)) as pool:
            list(pool.map(first_steps, rows))

    def measure(self, row: Row) -> dict[str, Any]:
        """Run a row in a process of its own; return what it measured, or why it did not."""
        if self.left_s() < row.least_s:
            return {FAILED: LEFT_OUT}
        result, log = (self.work / f"{row.name.replace(' ', '-')}.{kind}" for kind in ("json", "log"))
        result.unlink(missing_ok=True)
        limit_s, begin_s = min(row.limit_s, self.left_s()), time.monotonic()
        arguments = (row.function, row.arguments, result, log)
        process = self.context.Process(target=_row, args=arguments)
        process.start()
        assert process.pid is not None
        process.join(limit_s)
        late = process.is_alive()
        with suppress(ProcessLookupError):  # it leads a group of its own, as soon as it has started
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        took_s = time.monotonic() - begin_s
        if result.is_file():
            found = {**read_json(result), **row.known}
        elif late:
            found = {FAILED: LATE if limit_s == row.limit_s else LEFT_OUT}
        else:
            lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
            reason = lines[-1][:200] if lines else f"ended with status {process.exitcode}"
            found = {FAILED: reason.replace(str(self.work), "WORK").replace(str(ROOT), "ROOT")}
        rate = found.get("tokens_per_s")
        text = found.get(FAILED) or (f"{rate / 1e6:.3f} M tokens/s" if rate else "done")
        print(f"{row.name:45} {text:30} {took_s:5.1f} s, {self.left_s():.0f} s left", flush=True)
        return found

    # --- tables -------------------------------------------------------------------------------------------------------

    def number(self, name: str, key: str = "tokens_per_s", factor: float = 1.0) -> float | None:
        value = self.results.get(name, {}).get(key)
        return None if value is None else factor * value

    def cell(self, name: str, key: str = "tokens_per_s", factor: float = 1e-6) -> Cell:
        """A number, or why there is none."""
        found, reason = self.number(name, key, factor), self.results.get(name, {}).get(FAILED)
        return found if found is not None else "failed" if reason not in (None, LATE, LEFT_OUT) else reason

    def share(self, name: str, of: str) -> float | None:
        ours, bound = self.number(name), self.number(of)
        return ours / bound if ours and bound else None

    def write(self, name: str) -> None:
        """Fill all tables from what is measured so far and write them."""
        rows: dict[str, list[tuple[Cell, ...]]] = {title: [] for title in TABLES}
        for size in (*self.sizes, *self.finetuned):
            shape = (size.tokens, size.objective, size.depth, size.width, size.window, size.batch)
            ours = f"{size.name} heartlm"
            rates = [self.cell(f"{size.name} {way}") for way in WAYS]
            rows["Training"].append((*shape, *rates, self.share(ours, f"{size.name} graph")))
            use = [self.cell(ours, "kernels", 1.0), *(self.cell(ours, key, 100.0) for key in ("busy", "of_peak"))]
            use += [self.cell(ours, "peak_memory", 1e-9), self.cell(ours, "waiting", 100.0)]
            start = [self.cell(ours, key, 1.0) for key in ("first_s", "warm_s")]
            rows["A step of heartlm"].append((*shape, *use, *start))
        whole = self.results.get("whole", {})
        if "seconds" in whole:
            ratio = whole["seconds"] / whole["predicted_s"]
            rows["A minute"].append((self.whole.window, whole["steps"], whole["predicted_s"], whole["seconds"], ratio))
        for what in ("embed", "evaluate", "predict"):
            cpu, gpu = (self.number(f"inference-{where}", what) for where in ("cpu", "gpu"))
            rows["Inference"].append((what, cpu, gpu, gpu / cpu if gpu and cpu else None))
        failed = {name: row[FAILED] for name, row in self.results.items() if FAILED in row}
        waiting = [row.name for row in self.rows() if row.name not in self.results]
        failed |= dict.fromkeys(waiting, "not reached")
        if "whole" not in self.results and self.predicted(1.0) is None:
            failed["whole"] = "no rates of the windows around it"
        for reason in dict.fromkeys(failed.values()):
            rows["Not measured"].append((", ".join(name for name in failed if failed[name] == reason), reason))
        for title in TABLES:
            self.tables[title].rows = rows[title]
        setup = self.results["setup"]
        self.tables["Training"].notes = TRAINING_NOTES
        self.tables["A step of heartlm"].notes = [
            f"Importing heartlm, {setup['imports_s']:.1f} s, is not in these times; `rates` include it. Rows share the "
            "caches of compilation."
        ]
        self.tables["Inference"].notes = [
            f"{setup['beats']:,} simulated beats, the shipped models; the second call is timed. heartlm predict "
            "loads the model for each recording. torch uses its default number of threads."
        ]
        after = _probe()
        for title in TABLES:
            self.tables[title].probe_after = after
        more = {"gpu": setup["card"], "facets": setup["facets"], "beats": setup["beats"], "samples": setup["samples"]}
        data = {"rates": [asdict(rate) for rate in self.rates()], "measured": self.results}
        write_results(name, f"heartlm on {setup['card']}", list(self.tables.values()), more, self.chosen.out, data)


def _probe() -> float:
    """Return the speed of one core: the rows are written too often to probe them all."""
    return probe(cores()[:1], 5)


SHAPE = ("tokens", "objective", "depth", "width", "window", "batch")
TABLES: dict[str, tuple[str, ...]] = {
    "Training": (*SHAPE, *(f"{way}, M tokens/s" for way in WAYS.values()), "heartlm / graph"),
    "A step of heartlm": (
        *(*SHAPE, "kernels a step", "GPU busy, %", "of bf16 peak, %", "peak memory, GB", "waits for data, %"),
        *("first step done after, s", "warm-up done after, s"),
    ),
    "A minute": ("window", "steps", "predicted, s", "measured, s", "measured / predicted"),
    "Inference": ("command", "CPU, beats/s", "GPU, beats/s", "GPU / CPU"),
    "Not measured": ("rows", "reason"),
}
TRAINING_NOTES = [
    "heartlm as it comes compiles and captures the step on a GPU. Rates are all tokens of the timed steps by their "
    "time, between two synchronisations after the warm-up; the first, compiling steps do not count.",
    "The graph is the bound: forward, backward, clipping and AdamW captured as one CUDA graph, with the tokens on the "
    "GPU. For masked objectives it is heartlm's arithmetic in few kernels (gpu_rows.py), without projections of the "
    "codes' coordinates; else nanoGPT's GPT. Plain loops read a memory map through pinned memory.",
]


def _row(function: str, arguments: dict[str, Any], result: Path, log: Path) -> None:
    from benchmarks import gpu_rows
    from benchmarks.training import Shape

    kinds: dict[str, Any] = {"shape": Shape, "times": gpu_rows.Times}
    settings = {name: kinds[name](**value) if name in kinds else value for name, value in arguments.items()}
    gpu_rows.run_row(function, settings, result, log)


def main() -> None:
    begin_s = time.monotonic()
    parser = options(__doc__, limit_s=420.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes and few steps; needs --out")
    parser.add_argument("--more", action="store_true", help="keep what the result in --out has already")
    parser.add_argument("--work", type=Path, help="folder of corpora and runs; by default removed at the end")
    chosen = parser.parse_args()
    if (chosen.rehearsal or chosen.device == "cpu") and chosen.out.resolve() == RESULTS:
        parser.error("--out: a rehearsal does not write into results/: give another folder")
    if chosen.device == "cpu" and not chosen.rehearsal:
        parser.error("--device cpu is for a --rehearsal")
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = (chosen.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        Bench(chosen, work, begin_s).run()


if __name__ == "__main__":
    main()
