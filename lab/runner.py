"""Run all benchmarks. Results measured from the same sources on the same machine are not repeated.

    make benchmarks                             # speed tables, short ones first
    make benchmarks ONLY=feeding,training       # only these
    make benchmarks-long                        # long benchmarks: scores on real recordings
    python -m lab.runner --list          # list the benchmarks to run, with approximate durations

Recordings are read from HEARTLM_TEST_DATA (../shared/data by default). Unpacked archives, simulated databases, corpora
and logs are written to runs/benchmarks, which git ignores; HEARTLM_BENCH_WORK sets another folder. If a benchmark
fails, it is listed at the end, and the others still run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.catalog import BENCHMARKS, Benchmark, digest_of
from lab.output import environment
from lab.places import DATA, ROOT, result_of, unpacked

WORK = Path(os.environ.get("HEARTLM_BENCH_WORK", ROOT / "runs" / "benchmarks"))
MACHINE = ("processor", "vector", "python", "numpy", "torch")
"""What of the environment must be the same for a result to count as measured here."""


def is_measured(benchmark: Benchmark) -> bool:
    """Whether there is a result of these sources, measured on a machine like this one."""
    path = result_of(benchmark.name)
    if path is None:
        return False
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("sources") != digest_of(benchmark):
        return False
    here = environment()
    return all(result["environment"].get(name) == here.get(name) for name in MACHINE)


def words_of(benchmark: Benchmark) -> list[str]:
    """Its arguments, after the archives that they name were unpacked."""
    work = WORK / benchmark.name
    known = {"data": DATA, "work": work}
    words = []

    def archive(name: str) -> Path:
        return unpacked(DATA / f"{name}.tar.xz", WORK / "archives" / name, flat=False)

    for word in benchmark.arguments.split():
        for name in re.findall(r"{([^}]+)}", word):
            other = WORK / name.removeprefix("work:") if name.startswith("work:") else None
            word = word.replace(f"{{{name}}}", str((known.get(name) or other or archive(name)).resolve()))
        words.append(word)
    return words


def measure(benchmark: Benchmark) -> bool:
    """Run it; its output goes to a log, which the terminal shows the end of where it fails."""
    log, work = WORK / f"{benchmark.name}.log", WORK / benchmark.name
    of, sources = work / "sources", digest_of(benchmark)
    if work.is_dir() and (not of.is_file() or of.read_text() != sources):
        shutil.rmtree(work)  # what another version left there must not pass for a result of this one
    work.mkdir(parents=True, exist_ok=True)
    of.write_text(str(sources))
    module = ".".join(benchmark.path.relative_to(ROOT).with_suffix("").parts)
    command = [sys.executable, "-m", module, *words_of(benchmark)]
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
