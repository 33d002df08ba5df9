"""End-to-end tokenising (read, detect beats, make tokens, write the corpus), compared with typical scripts.

    python -m benchmarks.tokenizing --data FOLDER --work FOLDER

`--data` contains mitdb. `--work` (1.5 GB, kept for the next run) gets a day of 12 leads at 500 Hz (see reading.py), its
first hour, tokenizers fitted on mitdb, and corpora. Beats are always detected, because large archives have no
annotations. Rates count the samples of the tokenised leads. In the comparison with typical scripts,
heartlm does the same work as the scripts, without the facets that compare a beat with the others of its recording.
Before the timing, the script must give heartlm's tokens for heartlm's beats. Files are in the page cache unless a row
says otherwise. About three minutes.

Typical scripts, with wfdb's XQRS and gqrs and with sleepecg, are timed on the first minutes of a record, heartlm on the
whole record. All are linear in its length.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.reading import LEADS, RATE_HZ, first_hour, generate, plain, uncached
from benchmarks.usual_script import detectors, differing_codes, tokenise_record
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import open_corpus
from heartlm.databases.database import open_database
from heartlm.tokenizers.base import KINDS, Tokenizer, load_tokenizer, tokenizer_class
from heartlm.tokenizers.beat import BeatTokenizer
from lab.measure import Spread, Table, cores, interleaved, per, pin, rates
from lab.output import write_results
from lab.places import database_of, link, options

ARCHIVE_SAMPLES, ARCHIVE_BYTES = 136e9, 272e9
NODE_CORES = 64
"""Physical cores of a socket of a MeluXina node."""
USUAL_S = 300
"""Seconds of a record that the usual script is timed on."""


class Bench:
    """Databases, fitted tokenizers and a place for corpora."""

    def __init__(self, data: Path, work: Path) -> None:
        self.mitdb, self.work, self.fitted = data / "mitdb", work / "tokenizing", set[Path]()
        self.work.mkdir(parents=True, exist_ok=True)
        day = generate(work)[1]
        hour = work / "hour" / "hour.hea"
        if not hour.is_file():
            first_hour(day, hour.parent)
        self.day, self.hour = self._training(day), self._training(hour)

    def _training(self, header: Path) -> Path:
        """A database of one record, in the training split, so that all of its leads can be tokenised."""
        files = header, header.with_suffix(".dat")
        return database_of(files, self.work / header.stem, splits={header.stem: "train"})

    def copies(self, times: int) -> Path:
        """A database of several copies of mitdb, each record of one patient wherever it lies."""
        copies = self.work / f"copies-{times}"
        files = [path for path in self.mitdb.iterdir() if path.suffix in (".hea", ".dat", ".atr")]
        for number in range(times):
            link(files, copies / str(number))
        patients = {f"{number}/{path.stem}": path.stem for number in range(times) for path in files}
        return database_of((), copies, patients=patients)

    def tokenizer(self, kind: str, **settings: Any) -> Tokenizer:
        """The tokenizer of a kind, fitted on mitdb once a run for each of `settings`."""
        out = self.work / "-".join(["fitted", kind, *settings])
        if out not in self.fitted:
            shutil.rmtree(out, ignore_errors=True)  # what another version left
            self.fitted.add(out)
            build_corpus([self.mitdb], tokenizer_class(kind)(**settings), out, TokenizeConfig(processes=1))
        return load_tokenizer(out / "tokenizer")

    def build(self, folder: Path, tokenizer: Tokenizer, out: str = "corpus", **settings: Any) -> dict[str, Any]:
        """Make a corpus of `folder` where there was none, by one process unless told otherwise."""
        place = self.work / out
        shutil.rmtree(place, ignore_errors=True)
        usual: dict[str, Any] = {"beats": "detected", "processes": 1}
        return build_corpus([folder], tokenizer, place, TokenizeConfig(**usual | settings), fit=False)

    def num_samples(self, out: str = "corpus") -> int:
        """Samples of all leads of a corpus."""
        return sum(row.num_samples for row in open_corpus(self.work / out).records.rows)

    def num_bytes(self, out: str = "corpus") -> int:
        """Bytes of the tokens of a corpus, and of what is told of them."""
        return sum(path.stat().st_size for path in (self.work / out).glob("*.bin"))

    def rate(self, build: Callable[[], object], rounds: int) -> Spread:
        """M samples a second of a build."""
        return rates(interleaved({"": build}, rounds)[""], self.num_samples() / 1e6)


def end_to_end(bench: Bench, rounds: int) -> Table:
    """One core, one lead and all leads, against usual scripts."""
    tokenizer = bench.tokenizer("beat", compare=False)  # as usual scripts compare nothing
    assert isinstance(tokenizer, BeatTokenizer)
    differing = "{} of {:,}".format(*differing_codes(open_database(bench.mitdb), "200", tokenizer))
    title = f"Beat tokens end to end, one core (median of {rounds}; on the same beats {differing} codes differ)"
    table = Table(title, ("recordings", "leads", "way", "M samples/s", "heartlm is faster by"))
    for name, folder, record, lead, rate_hz in (
        ("mitdb", bench.mitdb, "100", 0, 360),
        (f"a day, {len(LEADS)} leads, {RATE_HZ} Hz", bench.day, "day", LEADS.index("II"), RATE_HZ),
    ):
        some = USUAL_S * rate_hz
        script = partial(tokenise_record, str(folder / record), [lead], tokenizer, bench.work, some)
        ways: dict[str, Callable[[], object]] = {
            "heartlm": partial(bench.build, folder, tokenizer),
            "heartlm, with comparisons": partial(bench.build, folder, bench.tokenizer("beat")),
        }
        ways |= {f"usual script, {peer}": partial(script, find=find) for peer, find in detectors().items()}
        times = interleaved(ways, rounds)
        found = {
            way: rates(taken, (bench.num_samples() if way.startswith("heartlm") else some) / 1e6)
            for way, taken in times.items()
        }
        for way, rate in found.items():
            table.add(name, "one", way, rate, found["heartlm"].median / rate.median)
    for name, folder, leads, settings in (
        ("mitdb, annotated beats", bench.mitdb, "one", {"beats": "annotated"}),
        ("the first hour of the day", bench.hour, f"all {len(LEADS)}", {"training_leads": "all"}),
    ):
        fast = bench.rate(partial(bench.build, folder, tokenizer, **settings), rounds)
        table.add(name, leads, "heartlm", fast, None)
    return table.close()


def processes(bench: Bench, rounds: int) -> Table:
    """Two processes against one, and against two builds side by side, which is what the machine gives at most.

    Two builds also start and end side by side; the last row says how long that takes in one.
    """
    copies, record = bench.copies(8), bench.work / "one-record"
    link((bench.mitdb / "100.hea", bench.mitdb / "100.dat"), record)
    tokenizer = bench.work / "fitted-beat"
    words = ["--tokenizer-from", str(tokenizer), "--beats", "detected", "--out"]
    two = cores()[:2]

    def run(*builds: tuple[str, int, Sequence[int]], folder: Path = copies) -> None:
        started = []
        for out, number, where in builds:
            shutil.rmtree(bench.work / out, ignore_errors=True)
            command = ["taskset", "-c", ",".join(map(str, where)), sys.executable, "-m", "heartlm"]
            command += ["tokenize", str(folder), *words, str(bench.work / out), "--processes", str(number)]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        assert all(process.wait() == 0 for process in started)

    times = interleaved(
        {
            "1 process": lambda: run(("one", 1, two[:1])),
            "2 processes": lambda: run(("two", 2, two)),
            "2 builds side by side": lambda: run(("left", 1, two[:1]), ("right", 1, two[1:])),
            "start and end: a build of one record": lambda: run(("short", 1, two[:1]), folder=record),
        },
        rounds,
    )
    for file in ("codes.bin", "sample.bin", "labels.bin", "scale.bin", "records.parquet"):
        assert len({(bench.work / name / file).read_bytes() for name in ("one", "two")}) == 1, f"{file} differs"
    samples = bench.num_samples("one")
    title = f"The command, its start included, on {samples / 1e6:.0f} M samples (median of {rounds}); the same bytes"
    table = Table(title, ("", "seconds", "M samples/s", "times one"))
    alone = statistics.median(times["1 process"])
    for name, taken in times.items():
        typical = statistics.median(taken)
        work = 2 * samples if "side" in name else bench.num_samples("short") if "start" in name else samples
        table.add(name, per(taken), rates(taken, work / 1e6), f"{work / samples * alone / typical:.2f}")
    return table.close()


def archive(bench: Bench, rounds: int) -> Table:
    """How long 272 GB take, from rates measured here."""
    disk = disk_rate(bench.day / "day.dat")
    table = Table(
        f"{ARCHIVE_BYTES / 1e9:.0f} GB, {ARCHIVE_SAMPLES / 1e9:.0f}e9 samples, all leads (median of {rounds}). "
        f"Hours follow from the slower of the two rates; a node is {NODE_CORES} times a core, which is an assumption, "
        "and reads and writes no faster than this disk reads",
        ("tokenizer", "mitdb, M samples/s", "12 leads, M samples/s", "corpus, GB", "hours, one core", "hours, node"),
    )
    for kind in KINDS:
        tokenizer, found, density = bench.tokenizer(kind), list[Spread](), 0.0
        for folder, leads in ((bench.mitdb, "first"), (bench.hour, "all")):
            found.append(bench.rate(partial(bench.build, folder, tokenizer, training_leads=leads), rounds))
            density = max(density, bench.num_bytes() / bench.num_samples())
        slowest = 1e6 * min(rate.median for rate in found)
        corpus, core_h = density * ARCHIVE_SAMPLES, ARCHIVE_SAMPLES / slowest / 3600
        node_h = max(core_h / NODE_CORES, (ARCHIVE_BYTES + corpus) / disk / 3600)
        table.add(kind, *found, f"{corpus / 1e9:.0f}", f"{core_h:.2f}", f"{node_h:.2f}")
    reading_h = f"{ARCHIVE_BYTES / disk / 3600:.2f}"
    table.add(f"reading alone, {disk / 1e6:.0f} MB/s", "", "", "", reading_h, reading_h)
    return table.close()


def disk_rate(path: Path) -> float:
    """Bytes a second of reading a file from end to end that is not in the page cache; the median of three."""
    return rates(uncached(path, partial(plain, path), 3), path.stat().st_size).median


def main() -> None:
    given = options(__doc__, "work", data="mitdb", rounds=3).parse_args()
    allowed = os.sched_getaffinity(0)
    pin(0)
    bench = Bench(given.data, given.work)
    tables = [end_to_end(bench, given.rounds), archive(bench, given.rounds)]
    os.sched_setaffinity(0, allowed)
    tables.append(processes(bench, given.rounds))
    write_results("tokenizing", "Tokenising end to end", tables)


if __name__ == "__main__":
    main()
