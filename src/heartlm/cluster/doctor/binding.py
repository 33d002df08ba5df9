"""Where threads run: the settings of OpenMP, and whether the kernel leaves two processes on one core.

A guest of a busy host may keep two processes on one core while another idles. So some that only count are started, as
they come and each pinned to a core of its own, and what they count together is compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Any

from heartlm.cluster.doctor.section import Advice, Context, Section
from heartlm.cores import usable_cores

THREAD_NAMES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "MKL_NUM_THREADS",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "SLURM_CPU_BIND",
)
WORTH = 1.1
COUNT_S, QUICK_COUNT_S, ROUNDS = 1.5, 0.6, 3

COUNTING = """
import os, sys, time
if sys.argv[1] != "anywhere":
    os.sched_setaffinity(0, {int(sys.argv[1])})
sys.stdin.readline()
begin, begin_cpu, count = time.perf_counter(), time.process_time(), 0
while time.perf_counter() - begin < float(sys.argv[2]):
    for _ in range(2000):
        count += 1
print(count, (time.process_time() - begin_cpu) / (time.perf_counter() - begin))
"""


def check_binding(context: Context) -> Section:
    """Look at the settings, and count with and without pinning."""
    facts: dict[str, Any] = {"settings": {name: os.environ[name] for name in THREAD_NAMES if name in os.environ}}
    told = ", ".join(f"{name}={value}" for name, value in facts["settings"].items()) or "none set"
    lines = [f"variables of threads: {told}"]
    cpus = context.fact("processors", "core_cpus") or [core.cpus[0] for core in usable_cores()]
    cores = list(cpus)[: min(4, int(context.fact("processors", "usable_cores", len(cpus))))]  # a CPU of each
    if len(cores) < 2:
        return Section([*lines, "one core: there is nothing to pin"], facts)
    for_s = (QUICK_COUNT_S if context.quick else COUNT_S) / ROUNDS
    anywhere, apart = ["anywhere"] * len(cores), [str(core) for core in cores]
    rounds = [(counted(anywhere, for_s), counted(apart, for_s)) for _ in range(ROUNDS)]
    gain = statistics.median(sum(n for n, _ in pinned) / sum(n for n, _ in free) for free, pinned in rounds)
    shares = [statistics.median(free[place][1] for free, _ in rounds) for place in range(len(cores))]
    facts |= {"pinned_gain": gain, "shares_of_a_core": shares}
    lines.append(
        f"{len(cores)} processes as they come got {', '.join(f'{share:.2f}' for share in shares)} of a core; "
        f"pinned, they count {gain:.2f}x as fast"
    )
    if gain < WORTH:
        return Section(lines, facts)
    because = f"{len(cores)} unpinned processes shared cores, and were {gain:.2f}x slower together than pinned ones"
    how = f"taskset -c {cores[0]} heartlm …   taskset -c {cores[1]} heartlm …   (ranks of torchrun are pinned anyway)"
    return Section(lines, facts, [Advice("pin runs that are side by side", how, gain, because)])


def counted(places: list[str], for_s: float) -> list[tuple[int, float]]:
    """Let a process for each place (`anywhere` or a CPU) count at the same time: how far, and its share of a CPU."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", COUNTING, place, str(for_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60 + for_s)[0].split() for process in processes]
    return [(int(count), float(share)) for count, share in answers]
