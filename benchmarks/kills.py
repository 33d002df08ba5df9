"""Kill tests: no committed data is lost, each failure gives a clear message, and resumed runs equal uninterrupted ones.

    python benchmarks/kills.py --work FOLDER

Each scenario trains a small model and interrupts it several times, at random times drawn from --seed: SIGKILL of the
only process, of one rank of two, or of both ranks and their launcher, between checkpoints or while one is written; a
full disk; a deleted corpus. After each interruption the newest complete checkpoint must be at least as new as the
newest one seen before. Finally the run is resumed to its end, and its weights are compared bit by bit with those of an
uninterrupted run. The full disk is a mounted filesystem, which needs root; without root that row is omitted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Table
from bench.output import write_results
from steps import Steps

HEARTLM = (sys.executable, "-m", "heartlm")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "heartlm")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    for name, value in (("kills", 3), ("steps", 300), ("seed", 1), ("depth", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


@dataclass
class Run:
    """A training run that is ended again and again.

    Attributes:
        out: its folder.
        corpus: what it reads.
        ranks: 1 or 2.
        settings: further words of the command that begins it.
    """

    out: Path
    corpus: Path
    ranks: int
    settings: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, or resume."""
        words = ["--resume", str(self.out)]
        if not (self.out / "run.json").exists():
            words = ["--corpus", str(self.corpus), "--out", str(self.out), *self.settings]
        with self.log.open("wb") as log:
            command = [*(HEARTLM if self.ranks == 1 else TORCHRUN), "pretrain", *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    def newest(self) -> int:
        """Step of the newest complete checkpoint, 0 where there is none."""
        complete = (self.out / "checkpoints").glob("step-*")
        return max((int(path.name.removeprefix("step-")) for path in complete), default=0)

    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self.out / "checkpoints").glob(".step-*"))

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for `condition`; False when the run ends before."""
        assert self.process is not None
        while not condition():
            if self.process.poll() is not None:
                return False
            time.sleep(0.002)
        return True

    def rank_processes(self) -> list[int]:
        """Process numbers of the ranks."""
        assert self.process is not None
        if self.ranks == 1:
            return [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def end(self) -> str:
        """Wait for the end; the line that says why it came."""
        assert self.process is not None
        self.process.wait()
        lines = self.log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith(("heartlm pretrain: ", "heartlm: "))]
        return said[-1] if said else f"said: nothing, status={self.process.returncode}"

    def weights(self) -> bytes:
        """What it ended with."""
        return (self.out / "models" / "last" / "model.safetensors").read_bytes()

    def finish(self) -> bytes:
        """Continue to the end; the weights then."""
        self.start()
        said = self.end()
        assert self.process is not None
        if self.process.returncode != 0:
            raise SystemExit(f"{self.out} did not end well: {said}; see {self.log}")
        return self.weights()


@dataclass
class Found:
    """What came of the ends of one scenario."""

    num_ends: int = 0
    num_lost: int = 0
    said: set[str] = field(default_factory=set)

    def note(self, run: Run, newest_before: int) -> None:
        line = run.end()
        self.num_ends += 1
        self.num_lost += run.newest() < newest_before
        self.said.add(without_places(line, run))


def without_places(line: str, run: Run) -> str:
    """The line, its numbers and folders left out, so that equal ends are said once."""
    words = line.replace(str(run.out), "RUN").replace(str(run.corpus), "CORPUS").partition(": ")[2].split()
    return " ".join("N" if word.strip("(),:;").isdecimal() else word for word in words)


def kill(run: Run, victims: str, chance: random.Random) -> None:
    """SIGKILL one rank, or all and their launcher."""
    assert run.process is not None
    if victims == "all":
        os.killpg(run.process.pid, signal.SIGKILL)
    else:
        os.kill(chance.choice(run.rank_processes()), signal.SIGKILL)


def killed(run: Run, victims: str, while_writing: bool, num_kills: int, chance: random.Random) -> Found:
    """Kill a run `num_kills` times, each time after it has got on."""
    found = Found()
    for _ in range(num_kills):
        begun_at = run.newest()
        run.start()
        if not run.wait_until(lambda begun_at=begun_at: run.newest() > begun_at):
            raise SystemExit(f"{run.out} ended by itself; take more --steps; see {run.log}")
        time.sleep(chance.uniform(0, 0.5))
        if while_writing:
            run.wait_until(run.is_writing)
            time.sleep(chance.uniform(0, 0.02))
        newest = run.newest()
        kill(run, victims, chance)
        found.note(run, newest)
    return found


def without_corpus(run: Run) -> Found:
    """Delete the corpus under the run; what it has mapped stays. Then bring the corpus back."""
    found, kept = Found(), run.corpus.with_name("kept")
    shutil.copytree(run.corpus, kept, dirs_exist_ok=True)
    run.start()
    run.wait_until(lambda: run.newest() > 0)
    newest = run.newest()
    shutil.rmtree(run.corpus)
    found.note(run, newest)
    kept.rename(run.corpus)
    return found


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def on_a_full_disk(run: Run, disk: Path) -> Found:
    """Fill the disk once the run has a checkpoint, and make room again when it has ended."""
    found, filler = Found(), disk / "filler"
    run.start()
    run.wait_until(lambda: run.newest() > 0)
    newest = run.newest()
    fill(filler)
    found.note(run, newest)
    filler.unlink()
    return found


def fill(path: Path) -> None:
    """Write to `path` until nothing more continues its disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        os.close(descriptor)


class Scenarios:
    """Runs the scenarios and writes a row for each.

    Attributes:
        chosen: the options.
        table: the rows.
    """

    def __init__(self, chosen: argparse.Namespace, corpus: Path) -> None:
        self.chosen, self.corpus = chosen, corpus
        self.chance = random.Random(chosen.seed)
        columns = ("scenario", "ranks", "ends", "committed checkpoints lost", "last words", "weights at the end")
        self.table = Table("ended the hard way, resumed to the end", columns)
        self.straight = {ranks: self.run(f"straight-{ranks}", ranks).finish() for ranks in (1, 2)}

    def run(self, name: str, ranks: int, place: Path | None = None) -> Run:
        """A run that has not started."""
        out = (place or self.chosen.work) / name
        shutil.rmtree(out, ignore_errors=True)
        often = {"log-every": 1, "validate-every": 50, "checkpoint-every": 10, "window": 64, "batch-size": 8}
        words = often | {"depth": self.chosen.depth, "steps": self.chosen.steps, "dropout": 0.1}
        return Run(out, self.corpus, ranks, [word for key, value in words.items() for word in (f"--{key}", str(value))])

    def add(self, name: str, run: Run, found: Found) -> None:
        """Finish the run and write its row."""
        assert run.process is not None
        weights = run.weights() if run.process.returncode == 0 else run.finish()
        same = "as unbroken, bit for bit" if weights == self.straight[run.ranks] else "DIFFERENT"
        self.table.add(name, run.ranks, found.num_ends, found.num_lost, "; ".join(sorted(found.said)), same)

    def all(self) -> None:
        """Every scenario."""
        for ranks, victims in ((1, "all"), (2, "one"), (2, "all")):
            for while_writing in (False, True):
                name = f"SIGKILL of {victims if ranks > 1 else 'the process'}"
                name += " while a checkpoint is written" if while_writing else ""
                run = self.run(name.replace(" ", "-") + f"-{ranks}", ranks)
                self.add(name, run, killed(run, victims, while_writing, self.chosen.kills, self.chance))
        for ranks in (1, 2):
            run = self.run(f"corpus-{ranks}", ranks)
            self.add("the corpus is deleted", run, without_corpus(run))
        if os.geteuid() == 0:
            for ranks in (1, 2):
                with small_disk(self.chosen.work / "disk", 64) as disk:
                    run = self.run(f"full-{ranks}", ranks, disk)
                    self.add("the disk is full", run, on_a_full_disk(run, disk))


def main() -> None:
    chosen = options()
    chosen.work = chosen.work.resolve()
    steps, data, corpus = Steps(chosen.work), chosen.work / "data", chosen.work / "corpus"
    steps.run("simulate", data, "data", "simulate", data, "--patients", 8, "--minutes", 5, "--seed", 1)
    steps.run("tokenize", corpus, "tokenize", data, "--tokenizer", "rhythm", "--out", corpus)
    scenarios = Scenarios(chosen, corpus)
    scenarios.all()
    scenarios.table.close()
    about = {"steps": chosen.steps, "depth": chosen.depth, "checkpoint every": 10, "seed": chosen.seed}
    write_results("kills", "Kill tests", [scenarios.table], about)


if __name__ == "__main__":
    main()
