"""Run mutated cases, each in a forked process with bounded time and memory.

    python -m tests.fuzz.campaign --cases 5000 --seed 7
    python -m tests.fuzz.campaign --subject corpus --only 17 --keep FOLDER

A case is a pure function of (subject, seed, number), so a failing one is repeated by its number. The allowed outcomes
are exit status 0 or 1 (recordings left out, faults found), if the subject's own check agrees, and exit status 2 with a
line that starts with "heartlm".
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.main import COMMANDS, main
from heartlm.cli.registry import registered
from tests.fuzz.mutations import mutate
from tests.fuzz.subjects import SUBJECTS, Subject

CPU_LIMIT_S, WAIT_LIMIT_S, MEMORY_LIMIT_BYTES, PEAK_LIMIT_BYTES = 20, 300, 4 << 30, 2 << 30
"""Limits of a case: processor time, time in all (on a busy machine), address space, resident memory. The last is what
`SMALL_SAMPLES` of `heartlm.storage.limits` take, which a file of any size may unpack to."""


_PARSERS = "scp_ecg dicom_waveform hl7_aecg sierra_xml ge_muse_xml mortara_el250 mfer"
PRELOADED = (
    *("pyarrow.csv", "pyarrow.parquet", "pyarrow.compute", "h5py", "pydicom", "soundfile", "wfdb"),
    *(f"ecgdatakit.parsing.parsers.{name}" for name in _PARSERS.split()),
    *("heartlm.formats.table_files", "heartlm.corpus.build"),
    *("heartlm.tokenizers.sample", "heartlm.tokenizers.rhythm"),
    *("torch._dynamo", "torch.distributed.checkpoint", "heartlm.training.pretrain", "heartlm.tasks.load"),
)
"""Modules that commands import when they need them."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit status (negative: the signal), what it printed, and its peak of memory."""

    status: int
    stdout: str
    stderr: str
    peak_bytes: int = 0

    def fault(self, allowed: Sequence[int]) -> str | None:
        """What is wrong with it, if anything; `allowed` are the exit statuses that a damaged file may give."""
        if self.status == -signal.SIGXCPU or self.status == -signal.SIGALRM:
            return f"did not end within {CPU_LIMIT_S} s of processor time and {WAIT_LIMIT_S} s in all"
        if self.status < 0:
            return f"ended by signal {signal.Signals(-self.status).name}: {self.stderr.strip()[-300:]}"
        if self.peak_bytes > PEAK_LIMIT_BYTES:
            return f"took {self.peak_bytes >> 20} MiB of memory, at most {PEAK_LIMIT_BYTES >> 20} MiB expected"
        if "does not fit into memory" in self.stderr:  # of `one_line`: an allocation was tried before any check
            return f"asked for more than {MEMORY_LIMIT_BYTES >> 20} MiB: {self.stderr.strip()[-300:]}"
        if "Traceback" in self.stderr:
            return "traceback: " + " | ".join(self.stderr.strip().splitlines()[-3:])
        if self.status not in allowed:
            return f"exit status {self.status}: {self.stderr.strip()[-300:]}"
        if self.status == 2:
            last = (self.stderr.strip().splitlines() or [""])[-1]
            if not last.startswith("heartlm") or "\x1b" in last or not self.stderr.endswith("\n"):
                return f"exit status 2 without a clear last line: {self.stderr[-300:]!r}"
        return None


def run_forked(work: Callable[[], int], folder: Path, cpu_limit_s: int = CPU_LIMIT_S) -> Outcome:
    """Call `work` in a forked process whose time and memory are bounded."""
    out, err, begin = folder / "stdout", folder / "stderr", folder / "begin"
    page = os.sysconf("SC_PAGE_SIZE")
    child = os.fork()
    if child == 0:
        status = 70
        try:
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            used = int(Path("/proc/self/statm").read_text().split()[0]) * page
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(WAIT_LIMIT_S)
            os.chdir(folder)
            # Less than the parent has: pages of files are mapped again when they are used.
            begin.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, raw, usage = os.wait4(child, 0)
    texts = (path.read_text(errors="replace") if path.exists() else "" for path in (out, err))
    resident = int(begin.read_text()) if begin.exists() else usage.ru_maxrss
    return Outcome(os.waitstatus_to_exitcode(raw), *texts, (usage.ru_maxrss - resident) * 1024)


def run_case(subject: Subject, seeds: Path, seed: int, number: int, keep: Path | None = None) -> tuple[str, str | None]:
    """Damage one file of the subject and run one of its commands: what was done, and the fault if there is one."""
    draw = random.Random(f"{subject.name} {seed} {number}")
    folder = Path(tempfile.mkdtemp(prefix="heartlm-fuzz-"))
    try:
        shutil.copytree(seeds / subject.name, folder / "in")
        victim = draw.choice(subject.victims(folder / "in"))
        content, mutation = mutate(victim.name, victim.read_bytes(), draw)
        victim.write_bytes(content)
        words = [word.format(folder=folder / "in", out=folder / "out") for word in draw.choice(subject.commands)]
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        outcome = run_forked(lambda: main(words), folder)
        # 1: data verify found faults, tokenize, analyze and data convert left recordings out
        may_be_1 = words[0] in ("tokenize", "analyze") or words[:2] in (["data", "verify"], ["data", "convert"])
        fault = outcome.fault((0, 1, 2) if may_be_1 else (0, 2))
        if fault is None and outcome.status in (0, 1) and subject.check is not None:
            fault = subject.check(folder, seeds / subject.name, victim, outcome.stderr)
        if fault is None and outcome.status == 2 and (folder / "out").exists():
            fault = "an output was left although the command failed"
        done = f"{subject.name} {number}: {mutation} of {victim.relative_to(folder / 'in')}, {' '.join(words[:2])}"
        return done, fault
    finally:
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def prepare(subjects: Sequence[Subject], seeds: Path) -> None:
    """Write the valid files of each subject, each in a process of its own so that this one starts no thread."""
    located = [where.partition(":")[0] for where, _ in registered(COMMANDS).commands.values()]
    # imported once here, not once a subject and a case
    for name in (*(f"heartlm.cli.{name}" for name in COMMANDS), *located, *PRELOADED):
        with suppress(ImportError):
            importlib.import_module(name)
    built = dict[Callable[[Path], None], Path]()
    for subject in subjects:
        if subject.build in built:  # a training
            shutil.copytree(built[subject.build], seeds / subject.name)
            continue
        built[subject.build] = seeds / subject.name
        (seeds / subject.name).mkdir(parents=True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                subject.build(seeds / subject.name)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, raw = os.waitpid(child, 0)
        if raw != 0:
            raise SystemExit(f"the valid files of {subject.name} could not be written")


def run_campaign(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the cases and print the faults; the exit status is 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500, help="of all subjects together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subject", choices=sorted(SUBJECTS), action="append", help="only this one; may be repeated")
    parser.add_argument("--only", type=int, help="only the case of this number")
    parser.add_argument("--keep", type=Path, help="with --only: keep the damaged files in this folder")
    options = parser.parse_args(arguments)
    subjects = [subject for name, subject in SUBJECTS.items() if options.subject is None or name in options.subject]
    numbers = range(-(-options.cases // len(subjects))) if options.only is None else [options.only]
    num_cases, faults = 0, 0
    with tempfile.TemporaryDirectory(prefix="heartlm-fuzz-") as seeds:
        prepare(subjects, Path(seeds))
        for subject in subjects:
            for number in numbers:
                done, fault = run_case(subject, Path(seeds), options.seed, number, options.keep)
                num_cases += 1
                if fault is not None:
                    faults += 1
                    print(f"FAULT {done}\n    {fault}", flush=True)
                elif options.only is not None:
                    print(done)
            print(f"{subject.name}: {len(numbers)} cases", file=sys.stderr, flush=True)
    print(f"{num_cases} cases, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run_campaign())
