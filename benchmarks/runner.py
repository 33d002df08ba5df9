"""Run all benchmarks. Results measured from the same sources on the same machine are not repeated.

    make benchmarks                             # speed tables, short ones first
    make benchmarks ONLY=feeding,training       # only these
    make benchmarks-long                        # long benchmarks: scores on real recordings
    python benchmarks/runner.py --list          # list the benchmarks to run, with approximate durations

Recordings are read from HEARTLM_TEST_DATA (../shared/data by default). Unpacked archives, simulated databases, corpora
and logs are written to runs/benchmarks, which git ignores; HEARTLM_BENCH_WORK sets another folder. If a benchmark
fails, it is listed at the end, and the others still run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
WORK = Path(os.environ.get("HEARTLM_BENCH_WORK", ROOT / "runs" / "benchmarks"))
DATA = Path(os.environ.get("HEARTLM_TEST_DATA", ROOT.parent / "shared" / "data"))
MACHINE = ("processor", "vector", "python", "numpy", "torch")
"""What of the environment must be the same for a result to count as measured here."""


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder and how it is called.

    Attributes:
        name: of the result file, and of the script unless `script` names another.
        arguments: words with {data} (the recordings), {work} (a folder of its own), {work:NAME} (that of another, or
            one that is shared and kept) and {NAME} for the unpacked archive NAME.tar.xz of {data}.
        packages: of heartlm whose speed it measures, and `bench` of this folder: their sources decide whether a result
            is out of date.
        minutes: about how long it takes on two cores.
        long: belongs to `make benchmarks-long`.
        script: without `.py`.
    """

    name: str
    arguments: tuple[str, ...]
    packages: tuple[str, ...]
    minutes: float
    long: bool = False
    script: str = ""

    @property
    def path(self) -> Path:
        """Of the script."""
        return HERE / f"{self.script or self.name}.py"


TRAINING = ("training", "models", "corpus", "kernels", "bench", "distributed", "instrumentation")
FEDERATED = ("extensions/federated", "training", "models", "kernels")
BENCHMARKS = (
    Benchmark("reading", ("--data", "{data}", "--work", "{work:recordings}"), ("ecg", "kernels"), 2),
    Benchmark("feeding", ("--work", "{work}"), ("training", "corpus", "kernels", "bench"), 4),
    Benchmark("ranks", ("--work", "{work}", "--tokens", "2048"), ("extensions/cluster", *TRAINING), 4),
    Benchmark(
        "tokenizing", ("--data", "{data}", "--work", "{work:recordings}"), ("ecg", "tokenizers", "corpus", "kernels"), 4
    ),
    Benchmark("federated_rounds", ("--data", "{data}/mitdb", "--work", "{work}"), FEDERATED, 6),
    Benchmark("conv1d", (), ("extensions/conv1d", "kernels", "bench"), 5),
    Benchmark("sharding", ("times",), TRAINING, 10),
    Benchmark("sharding_memory", ("memory",), TRAINING, 12, script="sharding"),
    Benchmark("training", ("--work", "{work}"), TRAINING, 6),
    Benchmark("detect", ("{data}", "--ludb", "{ludb}/ludb"), ("ecg", "kernels"), 5),
    Benchmark("prediction", ("--work", "{work}", "--windows", "128", "1024"), ("extensions/scaling", *TRAINING), 16),
    Benchmark(
        "scaling",
        ("--work", "{work}", "--windows", "128", "--study", "{work:prediction}/study"),
        ("extensions/scaling", *TRAINING),
        4,
    ),
    Benchmark("federated", ("--data", "{data}/mitdb", "--work", "{work}"), FEDERATED, 20, long=True),
    Benchmark("federated_ways", ("--data", "{data}/mitdb", "--work", "{work}"), FEDERATED, 15, long=True),
    Benchmark(
        "quality",
        ("--data", "{data}", "--work", "{work}"),
        ("evaluation", "ecg", "tokenizers", *TRAINING),
        150,
        long=True,
    ),
    Benchmark(
        "delineate",
        ("--ludb", "{ludb}/ludb", "--qtdb", "{qtdb}/qtdb", "--networks", "{work}"),
        ("delineation", "ecg", "kernels"),
        15,
        long=True,
    ),
    Benchmark(
        "labels",
        ("--quality", "{work:quality}", "--work", "{work}"),
        ("evaluation", "ecg", "tokenizers", *TRAINING),
        40,
        long=True,
    ),
    Benchmark(
        "waveform",
        ("--data", "{data}", "--cinc2017", "{cinc2017-train}/cinc2017", "--nstdb", "{nstdb}/nstdb", "--work", "{work}"),
        ("evaluation", "ecg", "tokenizers", *TRAINING),
        25,
        long=True,
    ),
    Benchmark(
        "af_rhythm",
        (
            *("--data", "{data}", "--ltafdb", "{ltafdb}/ltafdb"),
            *("--vitaldb", "{vitaldb-arrhythmia}/vitaldb-arrhythmia", "--work", "{work}"),
        ),
        ("evaluation", "ecg", "tokenizers", *TRAINING),
        40,
        long=True,
    ),
    Benchmark(
        "af_recordings",
        ("--cinc2017", "{cinc2017-train}/cinc2017", "--work", "{work}"),
        ("evaluation", "ecg", "tokenizers", *TRAINING),
        40,
        long=True,
    ),
)


def sources_of(name: str) -> str | None:
    """A digest of the script, of the modules of this folder that it imports, and of the packages it measures.

    None for a benchmark that is not in the list.
    """
    found = [each for each in BENCHMARKS if each.name == name]
    if not found:
        return None
    digest = hashlib.sha256()
    for path in _files(found[0]):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _files(benchmark: Benchmark) -> Iterator[Path]:
    scripts, waiting = set[Path](), [benchmark.path]
    while waiting:
        path = waiting.pop()
        if path.is_file() and path not in scripts:
            scripts.add(path)
            imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
            waiting += [HERE / f"{module}.py" for module in imported if module != "runner"]
    yield from sorted(scripts)
    for package in sorted(set(benchmark.packages)):
        files = folder_of(package).rglob("*")
        yield from sorted(path for path in files if path.suffix in (".py", ".c", ".h"))


def folder_of(package: str) -> Path:
    """Where the sources of one of `Benchmark.packages` are."""
    return HERE / package if package == "bench" else ROOT / "src" / "heartlm" / package


def is_measured(benchmark: Benchmark) -> bool:
    """Whether there is a result of these sources, measured on a machine like this one."""
    path = RESULTS / f"{benchmark.name}.json"
    if not path.is_file():
        return False
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("sources") != sources_of(benchmark.name):
        return False
    from bench.output import environment

    here = environment()
    return all(result["environment"].get(name) == here.get(name) for name in MACHINE)


def words_of(benchmark: Benchmark) -> list[str]:
    """Its arguments, after the archives that they name were unpacked."""
    work = WORK / benchmark.name
    known = {"data": DATA, "work": work}
    words = []
    for word in benchmark.arguments:
        for name in re.findall(r"{([^}]+)}", word):
            other = WORK / name.removeprefix("work:") if name.startswith("work:") else None
            word = word.replace(f"{{{name}}}", str((known.get(name) or other or unpacked(name)).resolve()))
        words.append(word)
    return words


def unpacked(name: str) -> Path:
    """The folder into which `name`.tar.xz was unpacked, once."""
    folder, archive = WORK / "archives" / name, DATA / f"{name}.tar.xz"
    if not folder.is_dir():
        if not archive.is_file():
            raise SystemExit(f"{archive}: not found; set HEARTLM_TEST_DATA to the folder that holds it")
        partial = folder.with_name(f".{name}")
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        partial.rename(folder)
    return folder


def measure(benchmark: Benchmark) -> bool:
    """Run it; its output goes to a log, which the terminal shows the end of where it fails."""
    log, work = WORK / f"{benchmark.name}.log", WORK / benchmark.name
    of, sources = work / "sources", sources_of(benchmark.name)
    if work.is_dir() and (not of.is_file() or of.read_text() != sources):
        shutil.rmtree(work)  # what another version left there must not pass for a result of this one
    work.mkdir(parents=True, exist_ok=True)
    of.write_text(str(sources))
    command = [sys.executable, str(benchmark.path), *words_of(benchmark)]
    print(f"{benchmark.name}: about {benchmark.minutes:g} min …", end=" ", flush=True)
    begin_s = time.monotonic()
    with log.open("w") as stream:
        status = subprocess.run(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT).returncode
    took = f"{(time.monotonic() - begin_s) / 60:.1f} min"
    print(took if status == 0 else f"FAILED with status {status} after {took}; the end of {log}:", flush=True)
    if status:
        print("\n".join(log.read_text(errors="replace").splitlines()[-5:]), flush=True)
    else:
        of.unlink()  # measured again, it starts from nothing
    with (WORK / "minutes.log").open("a") as stream:
        stream.write(f"{time.strftime('%Y-%m-%d %H:%M')} {benchmark.name} status {status} {took}\n")
    return status == 0


def chosen(only: str, long: bool) -> list[Benchmark]:
    """The benchmarks named in `only`, separated by commas, or all of a kind."""
    names = [name for name in only.split(",") if name]
    unknown = set(names) - {each.name for each in BENCHMARKS}
    if unknown:
        raise SystemExit(f"ONLY: no benchmark {', '.join(sorted(unknown))}; there are: {_names(BENCHMARKS)}")
    return [each for each in BENCHMARKS if (each.name in names if names else each.long == long)]


def _names(benchmarks: Sequence[Benchmark]) -> str:
    return ", ".join(each.name for each in benchmarks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--long", action="store_true", help="what takes hours")
    parser.add_argument("--again", action="store_true", help="measure again what is measured already")
    parser.add_argument("--list", action="store_true", help="list what would be measured")
    given = parser.parse_args()
    wanted = chosen(given.only, given.long)
    left = [each for each in wanted if given.again or not is_measured(each)]
    if given.list:
        for each in wanted:
            print(f"{each.name:18} {'to measure' if each in left else 'measured':10} about {each.minutes:g} min")
        return 0
    WORK.mkdir(parents=True, exist_ok=True)
    print(f"measured already: {_names([each for each in wanted if each not in left]) or 'none'}", flush=True)
    failed = [each for each in left if not measure(each)]
    if failed:
        print(f"failed: {_names(failed)}; the logs are in {WORK}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
