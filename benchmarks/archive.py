"""Analysis and tokens of recordings in a bucket, compared with the same recordings on the local disk.

    python -m benchmarks.archive --ptb-xl FOLDER --work FOLDER

`--work` gets links to records of PTB-XL, ten seconds with 12 leads at 500 Hz, and one simulated record of hours with
three leads at 250 Hz. A bucket of an S3 server on this machine (moto) has the same files; a proxy adds a round trip of
0 or 20 ms to each request. Before each turn the cache is empty, and s3fs is loaded. One process of heartlm; the server
takes another core. Packages: those of the extra `test`. About ten minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from heartlm.analysis.analyze import Analyst
from heartlm.api import tokenize
from heartlm.corpus.config import TokenizeConfig
from heartlm.databases.database import open_database
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from heartlm.simulate.write import write_record
from heartlm.sources.address import source_path
from heartlm.sources.cache import FOLDER, start_again
from lab.measure import Table, interleaved, pin, rates
from lab.output import write_results
from lab.places import database_of, options

ROUND_TRIP_S = 0.02


def in_training(headers: Sequence[Path], folder: Path) -> Path:
    """A database of records in the training split, so that all of their leads are tokenised."""
    files = [path for header in headers for path in (header, header.with_suffix(".dat"))]
    return database_of(files, folder, splits={header.stem: "train" for header in headers})


def ptb_xl_records(ptb_xl: Path, number: int) -> list[Path]:
    """Headers of records of PTB-XL."""
    headers = sorted(ptb_xl.glob("records500/*/*.hea"))[:number]
    assert len(headers) == number, f"{len(headers)} records found"
    return headers


def generate(ptb_xl: Path, work: Path, num_short: int, hours: float) -> tuple[Path, Path]:
    """The folders of short records and of the long one."""
    short, long = work / f"ten-seconds-{num_short}", work / f"hours-{hours:g}"
    in_training(ptb_xl_records(ptb_xl, num_short), short)
    if not (long / "long.hea").is_file():
        long.mkdir(parents=True, exist_ok=True)
        config = SimulationConfig(1, 60 * hours, 250, ("II", "V1", "V5"))
        signal, annotations = simulate_recording(config, 0, 0)
        write_record(long, "long", signal, config.leads, 250, annotations, [])
    return short, long


@contextmanager
def served(*folders: Path) -> Iterator[Callable[[float], None]]:
    """Serve folders in a process of its own; yields a function that sets the round trip in seconds."""
    words = [sys.executable, "-m", "lab.bucket", *map(str, folders)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        os.environ.update(json.loads(server.stdout.readline()))

        def set_round_trip(seconds: float) -> None:
            assert server.stdin is not None and server.stdout is not None
            print(seconds, file=server.stdin, flush=True)
            server.stdout.readline()

        try:
            yield set_round_trip
        finally:
            server.stdin.close()


def analyse(analyst: Analyst, source: Path) -> None:
    """Find beats, rhythms, events and waves in each recording."""
    database = open_database(source)
    for record_id in database.record_ids:
        analyst.analyze(database.recording(record_id)).summary()


def tokens(source: Path, out: Path) -> None:
    """Write a corpus of beat tokens of all leads."""
    shutil.rmtree(out, ignore_errors=True)
    tokenize(source, out, TokenizeConfig(processes=1, tokenizer="beat", training_leads="all"))


def main() -> None:
    """Measure and write the tables."""
    given = options(__doc__, "ptb-xl", "work", records=120, hours=6.0, rounds=3).parse_args()
    folders = generate(given.ptb_xl, given.work, given.records, given.hours)
    pin(0)
    analyst = Analyst.load(Path("beats"), Path("af"), Path("waveform"))
    cached, corpus, tables = given.work / "cache", given.work / "corpus", list[Table]()
    os.environ[FOLDER] = str(cached)
    works: dict[str, Callable[[Path], None]] = {
        "analysed": partial(analyse, analyst),
        "tokenised": partial(tokens, out=corpus),
    }
    with served(*folders) as set_round_trip:
        open_database(source_path(f"s3://ward/{folders[1].name}"))  # loads s3fs, which takes a second of the processor

        def from_bucket(work: Callable[[Path], None], folder: Path, round_trip_s: float) -> None:
            shutil.rmtree(cached, ignore_errors=True)
            start_again()
            set_round_trip(round_trip_s)
            work(source_path(f"s3://ward/{folder.name}"))

        for folder in folders:
            database = open_database(folder)
            recordings = [database.recording(each) for each in database.record_ids]
            samples = sum(each.num_samples * each.num_leads for each in recordings)
            what = f"{len(recordings)} records, {samples / 1e6:.1f} M samples"
            for done, work in works.items():
                ways: dict[str, Callable[[], object]] = {
                    "disk": partial(work, folder),
                    "S3 on this machine": partial(from_bucket, work, folder, 0.0),
                    "S3, round trip of 20 ms": partial(from_bucket, work, folder, ROUND_TRIP_S),
                }
                times = interleaved(ways, given.rounds, warm_up=False)
                table = Table(
                    f"{what}, {done} (median of {given.rounds})",
                    ("source", "records/s", "M samples/s", "times disk, median of rounds"),
                )
                print(table.title)
                for name, taken in times.items():
                    ratio = median(disk / own for disk, own in zip(times["disk"], taken, strict=True))
                    table.add(name, rates(taken, len(recordings)), rates(taken, samples / 1e6), ratio)
                tables.append(table.close())
    write_results("archive", "Recordings in a bucket", tables)


if __name__ == "__main__":
    main()
