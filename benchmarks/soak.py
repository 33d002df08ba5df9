"""Memory use over a long training run, which must not grow.

    python benchmarks/soak.py --work FOLDER --minutes 30

One process pretrains with validation and checkpoints every hundred steps until the time limit, and is then stopped. Its
resident memory is read every second. The table gives the median of each tenth of the run, and the growth from the
second tenth, when all buffers are allocated, to the last.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.measure import Table, cores
from bench.output import write_results
from steps import Steps

GROWTH = 0.01
"""Maximum allowed relative growth."""


def resident_bytes(process: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--core", type=int, default=0)
    chosen = parser.parse_args()
    steps, data, corpus, out = Steps(chosen.work), *(chosen.work / name for name in ("data", "corpus", "soak"))
    steps.run("simulate", data, "data", "simulate", data, "--patients", 20, "--minutes", 10, "--seed", 1)
    steps.run("tokenize", corpus, "tokenize", data, "--tokenizer", "beat", "--out", corpus)
    shutil.rmtree(out, ignore_errors=True)
    often = ("--validate-every", "100", "--checkpoint-every", "100", "--log-every", "20")
    command = [sys.executable, "-m", "heartlm", "pretrain", "--corpus", str(corpus), "--out", str(out)]
    core = cores()[chosen.core]
    run = subprocess.Popen(
        [*command, "--depth", "2", "--steps", "100000000", *often],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    table = Table("resident memory, MiB", ("tenth of the run", "median", "largest"))
    sizes, end = list[int](), time.monotonic() + 60 * chosen.minutes
    while time.monotonic() < end:
        time.sleep(1.0)
        if run.poll() is not None:
            raise SystemExit(f"the run ended early with status {run.returncode}: start it by hand to see why")
        sizes.append(resident_bytes(run.pid))
    run.send_signal(signal.SIGTERM)
    status = run.wait()
    tenths = [sizes[len(sizes) * part // 10 : len(sizes) * (part + 1) // 10] for part in range(10)]
    for part, found in enumerate(tenths, start=1):
        table.add(part, f"{statistics.median(found) / 2**20:.1f}", f"{max(found) / 2**20:.1f}")
    table.close()
    growth = statistics.median(tenths[-1]) / statistics.median(tenths[1]) - 1
    verdict = "memory grew" if growth > GROWTH else "memory did not grow"
    lines = (out / "metrics.jsonl").read_text().splitlines()
    more = {"minutes": chosen.minutes, "growth": f"{growth:+.4f}", "verdict": verdict, "ended with status": status}
    write_results("soak", "Memory over a long run", [table], more | {"lines of metrics": len(lines)})
    print(verdict, f"{growth:+.2%}")
    raise SystemExit(growth > GROWTH)


if __name__ == "__main__":
    main()
