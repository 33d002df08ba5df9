"""What an installation without torch takes, and what answering without torch costs.

    python -m benchmarks.light --work FOLDER
    python -m benchmarks.light --work FOLDER --venv VENV --before SRC

Networks: the shipped ones on windows as analysis gives them, one thread, in turns: in NumPy with the kernels, by torch,
and by ONNX Runtime from graphs that torch exports (where its exporter can). Commands: processor time and memory of
whole processes, as other programs on the machine change it less than the time on the clock; that time too, which needs
an idle machine. With `--before`, the folder `src` of another version, its commands take turns with those of this one.
With `--venv`, an environment with heartlm and what it needs, the size of what lies in it, and the commands are run by
it. With `--commands`, these alone are measured, and nothing is written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.analyzing import LEADS, simulated
from heartlm.models.pretrained import FOLDER
from heartlm.system.cores import limit_threads
from lab.measure import Spread, Table, interleaved, per
from lab.output import write_results
from lab.places import options

WINDOWS = {"beats": (32, 128), "af": (32, 128), "statements": (6, 600), "waveform": (64, 400)}
"""Windows of a batch, and tokens of a window."""
START = (
    "import sys; src = sys.argv.pop(1);"
    "sys.meta_path[:] = [each for each in sys.meta_path if 'Redirecting' not in type(each).__name__];"
    "sys.path.insert(0, src); import heartlm; assert heartlm.__file__.startswith(src);"
    "from heartlm.cli.main import run_process; run_process()"
)
"""Runs a command of the version in a folder, also where another one is installed for editing."""


def study_networks(work: Path, rounds: int) -> Table:
    import torch

    from heartlm.inference.load import load_network
    from heartlm.models.answering import answering
    from heartlm.models.store import load_model

    limit_threads(1)
    table = Table("Networks, one thread", ("network", "numpy, ms", "torch, ms", "onnxruntime, ms", "torch / numpy"))
    for name, shape in WINDOWS.items():
        folder, rng = FOLDER / name / "models/last", np.random.default_rng(0)
        (network, info), model = load_network(folder), load_model(folder)[0]
        codes = np.stack([rng.integers(0, size, shape) for size in info.config.facet_sizes], axis=2).astype(np.uint16)
        by_torch = answering(model)
        rivals: dict[str, Callable[[], object]] = {
            "numpy": partial(network.probabilities, codes),
            "torch": partial(by_torch.probabilities, codes),
        }
        try:
            rivals["onnxruntime"] = _session(model, torch.from_numpy(codes.astype(np.int64)), work / f"{name}.onnx")
        except torch.onnx.OnnxExporterError:
            table.notes.append(f"{name}: the exporter of torch refuses it")
        times = {each: per(taken, 1e-3) for each, taken in interleaved(rivals, rounds).items()}
        ratio = times["torch"].median / times["numpy"].median
        table.add(name, times["numpy"], times["torch"], times.get("onnxruntime"), ratio)
    return table.close()


def _session(model: Any, codes: Any, path: Path) -> Callable[[], object]:
    import onnxruntime
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, codes: torch.Tensor) -> Any:
            return self.model.class_logits(codes)

    program = torch.onnx.export(Logits().eval(), (codes,), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: codes.numpy()}
    return lambda: session.run(None, given)


def used(words: list[str]) -> tuple[float, float, float]:
    """Return processor time and time on the clock in s, and the largest memory in MB, of a process with one thread."""
    began = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began, usage.ru_maxrss / 1024


def until_ready(words: list[str]) -> float:
    """Return the time on the clock in s until a server prints its address; it is ended then."""
    began = time.perf_counter()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if "http://" in line:
                    return time.perf_counter() - began
        finally:
            child.terminate()
    raise SystemExit(f"{' '.join(words)} ended without an address")


def study_commands(work: Path, python: Path | None, before: Path | None, rounds: int) -> Table:
    minute, hour = (
        next(simulated(work, name, 1, minutes, LEADS, 250).glob("s*.hea")).with_suffix("")
        for name, minutes in (("minute", 1), ("hour", 60))
    )
    commands = {
        "a page of a minute": ["analyze", str(minute), "--out", str(work / "out")],
        "a page of an hour": ["analyze", str(hour), "--out", str(work / "out")],
        "vectors of the beats of an hour": ["embed", "foundation", str(hour), "--out", str(work / "out.parquet")],
        "alarms of a stream of an hour": ["alarms", str(hour), "--out", str(work / "out")],
    }
    here = [str(python), "-m", "heartlm"] if python else [sys.executable, "-m", "heartlm"]
    versions = {"now": here} | ({"before": [sys.executable, "-c", START, str(before)]} if before else {})
    columns = "command", "version", "processor time, s", "time on the clock, s", "largest memory, MB"
    table = Table("Commands, one thread", columns)
    for what, words in commands.items():
        found: dict[str, list[tuple[float, float, float]]] = {version: [] for version in versions}
        for _ in range(rounds):
            for version, start in versions.items():
                shutil.rmtree(work / "out", ignore_errors=True)  # complete results would be kept
                found[version].append(used([*start, *words]))
        for version, each in found.items():
            times, on_clock, memory = zip(*each, strict=True)
            table.add(what, version, Spread.of(times), Spread.of(on_clock), f"{max(memory):.0f}")
    times, on_clock, _ = zip(*(used([here[0], "-c", "import heartlm"]) for _ in range(rounds)), strict=True)
    table.add("import heartlm", "now", Spread.of(times), Spread.of(on_clock), None)
    ready = list[float]()
    for _ in range(rounds):
        with TemporaryDirectory(dir=work) as out:  # a replay continues in the same folder
            ready.append(until_ready([*here, "monitor", "--replay", str(minute.parent), "--out", out, "--port", "0"]))
    table.add("monitor --replay shows its address", "now", None, Spread.of(ready), None)
    return table.close()


def study_sizes(venv: Path) -> Table:
    (folder,) = venv.glob("lib/python3*/site-packages")
    sizes = dict[str, float]()
    for path in folder.iterdir():
        name = path.name.partition("-")[0].removesuffix(".libs")
        files = (each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
        sizes[name] = sizes.get(name, 0) + sum(each.stat().st_size for each in files) / 1e6
    table = Table("An environment with heartlm alone", ("package", "MB"))
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
        table.add(name, round(size, 1))
    table.add("all", round(sum(sizes.values()), 1))
    return table.close()


def main() -> None:
    parser = options(__doc__, "work", rounds=7)
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--commands", action="store_true")
    settings = parser.parse_args()
    settings.work.mkdir(parents=True, exist_ok=True)
    python = settings.venv and settings.venv / "bin/python"
    # Commands first: a process counts the memory of the one that started it, which is large after importing torch.
    tables = [study_commands(settings.work, python, settings.before, settings.rounds)]
    if settings.commands:
        return
    tables.append(study_networks(settings.work, settings.rounds))
    if settings.venv:
        tables.append(study_sizes(settings.venv))
    write_results("light", "Reading without torch", tables)


if __name__ == "__main__":
    main()
