"""Run time and memory of `heartlm analyze`, from files to pages.

    python -m benchmarks.analyzing --work FOLDER
    python -m benchmarks.analyzing --work FOLDER --processor-time

The recordings are simulated: an hour, a day and a week (the day seven times) of three leads at 250 Hz, each on one
core; and a folder of 1,000 recordings of 15 s, the shortest that the simulator makes, with twelve leads at 500 Hz, on
all cores. The comparison is NeuroKit2's `ecg_process`, which does a part of the work: it cleans one lead of the hour
and finds its beats, intervals, quality and P and T waves, but finds no events and classifies nothing. It runs on the
same core, in interleaved turns. With `--processor-time` only the day is analysed, and what counts is the time that a
processor worked on it, which other programs of the machine change less.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lab.measure import Table, interleaved, per
from lab.output import write_results
from lab.places import options
from lab.steps import Steps

HOURS = {"an hour": 1, "a day": 24, "a week": 168}
LEADS = "[MLII, V1, V5]"


def simulated(work: Path, name: str, patients: int, minutes: float, leads: str, rate_hz: int) -> Path:
    folder, size = work / name, ("--patients", patients, "--minutes", minutes, "--leads", leads, "--rate-hz", rate_hz)
    Steps(work).run(name, folder, "data", "simulate", folder, *size, "--seed", 1)
    return folder


def week_of(work: Path) -> Path:
    """Write the simulated day seven times in a row: a day is the simulator's maximum."""
    folder, day = work / "week", next((work / "day").glob("s*.hea"))
    if not folder.exists():
        folder.mkdir()
        lines = day.read_text().splitlines()
        first = lines[0].split()
        first[3] = str(7 * int(first[3]))
        fields = [line.split(maxsplit=8) for line in lines[1:] if not line.startswith("#")]
        for each in fields:
            each[6] = str(((7 * int(each[6]) + 0x8000) & 0xFFFF) - 0x8000)  # the checksum is a sum of 16 bits
        (folder / day.name).write_text("\n".join(map(" ".join, [first, *fields])) + "\n")
        (signal,) = {each[0] for each in fields}
        with (folder / signal).open("wb") as stream:
            for _ in range(7):
                stream.write((day.parent / signal).read_bytes())
        shutil.copy(day.parent / "database.json", folder)
    return folder


def analyzed(path: Path, out: Path, processes: int) -> tuple[float, float, float]:
    """Return the run time in seconds, the largest resident memory of a process in MB, and the processor time in s."""
    shutil.rmtree(out, ignore_errors=True)
    words = [sys.executable, "-m", "heartlm", "analyze", str(path), "--out", str(out), "--processes", str(processes)]
    begin = time.monotonic()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)} ended with status {status}")
    return time.monotonic() - begin, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def study_day(work: Path) -> Table:
    """The processor time of a day."""
    day = simulated(work, "day", 1, 60 * HOURS["a day"], LEADS, 250)
    (record,) = (path.stem for path in day.glob("s*.hea"))
    _, memory, busy = analyzed(day / record, work / "out", 1)
    table = Table("Processor time, one process", ("recordings", "s", "largest memory, MB"))
    table.add("a day, 3 leads at 250 Hz", f"{busy:.1f}", f"{memory:.0f}")
    table.close()
    return table


def main() -> None:
    parser = options(__doc__, "work", rounds=3)
    parser.add_argument("--longest", choices=HOURS, default="a week")
    parser.add_argument("--processor-time", action="store_true", help="of a day, instead of all else")
    settings = parser.parse_args()
    if settings.processor_time:
        table = study_day(settings.work)
        write_results("analyzing-processor", "Processor time of heartlm analyze", [table])
        return
    work, out = settings.work, settings.work / "out"
    cores = sorted(os.sched_getaffinity(0))
    table = Table("From files to pages", ("recordings", "cores", "s", "largest memory, MB"))
    os.sched_setaffinity(0, cores[:1])
    names = list(HOURS)[: list(HOURS).index(settings.longest) + 1]
    for name in names:
        size = 1, 60 * HOURS[name], LEADS, 250
        folder = week_of(work) if HOURS[name] > 24 else simulated(work, name.split()[1], *size)
        (record,) = (path.stem for path in folder.glob("s*.hea"))
        found = [analyzed(folder / record, out, 1) for _ in range(settings.rounds if HOURS[name] < 24 else 1)]
        seconds, memory, _ = zip(*found, strict=True)
        table.add(f"{name}, 3 leads at 250 Hz", 1, f"{sorted(seconds)[len(seconds) // 2]:.1f}", f"{max(memory):.0f}")
    os.sched_setaffinity(0, cores)
    leads = "[I, II, III, aVR, aVL, aVF, V1, V2, V3, V4, V5, V6]"
    folder = simulated(work, "short", 910, 0.25, leads, 500)
    number = len(list(folder.glob("*.hea")))
    took, largest, _ = analyzed(folder, out, len(cores))
    table.add(f"{number:,} of 15 s, 12 leads at 500 Hz", len(cores), f"{took:.1f}", f"{largest:.0f}")
    table.close()
    os.sched_setaffinity(0, cores[:1])
    hour = work / "hour"
    (record,) = (path.stem for path in hour.glob("s*.hea"))

    def peer() -> None:
        code = (
            "import sys, wfdb, neurokit2 as nk; s = wfdb.rdrecord(sys.argv[1], channels=[0]);"
            "nk.ecg_process(s.p_signal[:, 0], sampling_rate=s.fs)"
        )
        subprocess.run([sys.executable, "-c", code, str(hour / record)], check=True, stderr=subprocess.DEVNULL)

    rivals = Table("An hour on one core, whole process", ("what", "s"))
    turns = {"heartlm analyze, 3 leads": lambda: analyzed(hour / record, out, 1), "NeuroKit2, 1 lead": peer}
    for name, times in interleaved(turns, settings.rounds).items():
        rivals.add(name, per(times))
    rivals.close()
    write_results("analyzing", "Time and memory of heartlm analyze", [table, rivals])


if __name__ == "__main__":
    main()
