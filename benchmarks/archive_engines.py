"""Recordings per second by the engines of archive work, and what an engine adds to each recording.

    python -m benchmarks.archive_engines --source FOLDER --work FOLDER
    python -m benchmarks.archive_engines --source FOLDER --work FOLDER --links 50000 --leads II
    python -m benchmarks.archive_engines --source FOLDER --work FOLDER --names 10000000

The work is the delineation of 10-s recordings of twelve leads, as `heartlm delineate --tables parquet` does it. Turns
of processes and of Dask, whose workers are processes of this machine too, follow each other. The start of workers is
not timed. The overhead is the time of an item whose work is nothing. With `--links`, as many links to the recordings
are delineated once, by the leads given if any, and the client's memory and the time of each tenth are in the table.
With `--names`, the client goes through as many names without files, of an index and a file RECORDS, and of a bucket and
a folder whose listings are made up, in the groups that workers would get for tables and for a corpus; then it finishes
and opens a corpus of as many leads without tokens.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from heartlm.corpus.corpus import _read_records
from heartlm.corpus.journal import Journal
from heartlm.corpus.manifest import finish_corpus
from heartlm.corpus.plan import PART_RECORDS, _fingerprint, listed, make_plan
from heartlm.corpus.rows import RecordTable
from heartlm.corpus.schema import FILES
from heartlm.databases import database, discovery
from heartlm.databases.each_recording import recordings_of, source_digest, stream_recordings
from heartlm.databases.index import METADATA, ROWS, VERSION, schema
from heartlm.databases.part_files import SUMMARIES, _groups, _rows_of, write_tables
from heartlm.databases.tables import PTB_XL
from heartlm.delineation.recordings import DelineationTask
from heartlm.formats.stated import Stated
from heartlm.sources import store
from heartlm.sources.address import source_path
from heartlm.storage.foreign import is_there
from heartlm.system.engine import EngineOptions, PartOptions
from heartlm.system.processes import run_each
from heartlm.tokenizers.rhythm import RhythmTokenizer
from lab.measure import Spread, Table, kilobytes
from lab.output import write_results
from lab.places import options

ITEMS = 1_000


class Nothing:
    """No work."""

    def __call__(self, item: object) -> object:
        return item


class Delineate:
    """Delineation of one recording, whose rows stay in the worker."""

    def __init__(self, task: DelineationTask, databases: Sequence[Any]) -> None:
        self.task, self.databases = task, dict(enumerate(databases))

    def __call__(self, place: tuple[int, str]) -> int:
        database = self.databases[place[0]]
        return len(_rows_of(self.task, database, place[1], source_digest(database, place[1]))[SUMMARIES])  # type: ignore[index]


def per_second(work: Any, items: Sequence[Any], engine: EngineOptions, processes: int) -> float:
    """Items per second after the first tenth, in which workers start."""
    results = run_each(work, items, engine, processes)
    skipped = max(len(items) // 10, 1)
    for _ in islice(results, skipped):
        pass
    begin_s = time.perf_counter()
    done = sum(1 for _ in results)
    return done / (time.perf_counter() - begin_s)


@contextmanager
def dask(processes: int) -> Iterator[EngineOptions]:
    """Dask workers that run for several turns."""
    from dask import config
    from distributed import LocalCluster

    # without the profiler of each worker, as the command starts them
    with config.set({"distributed.worker.profile.enabled": False}):
        cluster: Any = LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None)  # type: ignore[no-untyped-call]
    with cluster:
        yield EngineOptions(engine="dask", scheduler=cluster.scheduler_address)


def linked(source: Path, folder: Path, number: int) -> Path:
    """A folder of links to the recordings of `source`, each as often as needed."""
    headers = sorted(source.rglob("*.hea"))
    shutil.rmtree(folder, ignore_errors=True)
    for count in range(number):
        header = headers[count % len(headers)]
        place = folder / f"{count // 1000:05d}" / f"{header.stem}-{count // len(headers):03d}.hea"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(header.resolve())
        signal = place.parent / f"{header.stem}.dat"
        if not signal.exists():
            signal.symlink_to(header.with_suffix(".dat").resolve())
    return folder


def study_engines(source: Path, rounds: int, most: int) -> list[Table]:
    databases, places, _ = recordings_of([source], "warn")
    places = places[:most]
    task = DelineationTask((source,), Path())
    rates = Table("Recordings of 10 s and 12 leads per second", ("engine", "workers", "recordings/s", "of processes"))
    overhead = Table("Time of an item without work", ("engine", "workers", "ms"))
    for processes in (1, 2):
        found: dict[str, list[float]] = {"processes": [], "dask": []}
        empty: dict[str, list[float]] = {"processes": [], "dask": []}
        with dask(processes) as by_dask:
            # one process on purpose: a single one would work in this process, without an engine
            engines = {"processes": EngineOptions(), "dask": by_dask}
            for _ in range(rounds):
                for name, engine in engines.items():
                    if not (name == "processes" and processes == 1):
                        empty[name].append(1e3 / per_second(Nothing(), range(ITEMS), engine, processes))
                    found[name].append(per_second(Delineate(task, databases), places, engine, processes))
        for name in engines:
            ratios = [one / other for one, other in zip(found[name], found["processes"], strict=True)]
            rates.add(name, processes, Spread.of(found[name]), Spread.of(ratios) if name == "dask" else 1)
            if empty[name]:
                overhead.add(name, processes, Spread.of(empty[name]))
    rates.close()
    overhead.close()
    return [rates, overhead]


def study_links(source: Path, work: Path, number: int) -> Table:
    """The client's memory and the time of each tenth of an archive, from the times of the part files."""
    folder, out = linked(source, work / "links", number), work / "tables"
    shutil.rmtree(out, ignore_errors=True)
    table = Table(f"{number:,} links to recordings", ("what", "value"))
    begin_s = time.time()
    done = write_tables(DelineationTask((folder,), out), PartOptions(), 2)
    files = sorted((out / SUMMARIES).iterdir())
    begun_s = min(path.stat().st_mtime for path in files) - begin_s
    ends, counts = [path.stat().st_mtime for path in files], [rows_in(path) for path in files]
    table.add("recordings", done.num_recordings)
    table.add("first part file after, s", begun_s)
    for tenth in (0, 4, 9):
        chosen = range(len(files) * tenth // 10, len(files) * (tenth + 1) // 10)
        taken = ends[chosen[-1]] - ends[chosen[0]]
        table.add(f"ms a recording, tenth {tenth + 1}", 1e3 * taken / max(sum(counts[each] for each in chosen[1:]), 1))
    table.add("largest memory of the client, MB", kilobytes("VmHWM") / 1024)
    table.close()
    return table


def study_names(work: Path, number: int) -> Table:
    """The client's memory, and the time to the first group and to all, of sources of names."""
    work.mkdir(parents=True, exist_ok=True)
    table = Table(
        f"{number:,} names", ("source", "first group after, s", "all after, s", "memory before, MB", "most, MB")
    )
    write_names(work / "names.parquet", number)
    for through in (groups_of_tables, parts_of_corpus):
        for kind in ("index", "bucket", "folder", "RECORDS"):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                table.add(f"{kind}, {through.__name__}", *pool.apply(go_through, (kind, work, number, through)))
    table.close()
    return table


def study_rows(work: Path, number: int) -> Table:
    """Memory and time to finish a corpus of as many leads, and to open its rows."""
    table = Table(f"A corpus of {number:,} leads", ("step", "s", "memory before, MB", "most, MB", "held, MB"))
    folder = work / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    for step in (write_journal, finish, open_rows):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measured, (step, folder, number))
        if step is not write_journal:
            table.add(step.__name__, *row)
    table.close()
    return table


def measured(step: Callable[[Path, int], object], folder: Path, number: int) -> tuple[float, float, float, float]:
    """Seconds of a step, and memory of this process before, at most, and after."""
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401

    before, begin_s = kilobytes("VmHWM") / 1024, time.perf_counter()
    kept = step(folder, number)
    seconds, held = time.perf_counter() - begin_s, kilobytes("VmRSS") / 1024
    del kept
    return seconds, before, kilobytes("VmHWM") / 1024, held


def write_journal(folder: Path, number: int) -> None:
    """The journal of a corpus whose recordings have a lead of twelve beats each; three recordings for each patient."""
    whole = {"sha256": dict.fromkeys(FILES, hashlib.sha256().hexdigest()), "database": "archive", "num_unreadable": 0}
    same = {"database": "archive", "lead": "II", "lead_index": 1, "rate_hz": 500.0, "num_samples": 5000}
    with (folder / "journal.jsonl").open("w") as stream:
        stream.write("{}\n")
        for first in range(0, number, PART_RECORDS):
            places = range(first, min(first + PART_RECORDS, number))
            rows = [
                same
                | {"record_id": name(place), "patient_id": f"archive/{place // 3}", "num_tokens": 12}
                | {"split": ("train", "train", "validation", "test")[place // 3 % 4], "statements": "{}"}
                | {"source": f"/archive/{name(place)}.hea"}
                for place in places
            ]
            digests = [hashlib.blake2b(name(place).encode(), digest_size=16).hexdigest() for place in places]
            entry = whole | {"bytes": {}, "num_records": len(rows), "rows": rows, "digests": digests}
            entry |= {"dropped": [], "damaged": [], "beats": {"train": {"N": 12 * len(rows)}}, "rhythms": {}}
            stream.write(json.dumps(entry) + "\n")


def finish(folder: Path, number: int) -> None:
    """Rows and manifest from the journal."""
    assert finish_corpus(folder, {"": Journal(folder)}, RhythmTokenizer(), None)["num_leads"] == number


def open_rows(folder: Path, number: int) -> RecordTable:
    """The rows as a training opens them."""
    return _read_records(folder / "records.parquet", [12 * number])


def name(place: int) -> str:
    """A thousand recordings in each folder."""
    return f"p{place // 1000:06d}/s{place:09d}"


def write_names(path: Path, number: int) -> None:
    """An index of names."""
    import pyarrow
    from pyarrow import parquet

    about = {"unique_names": True, "version": VERSION, "source": str(path.parent.absolute())}
    with parquet.ParquetWriter(path, schema(), compression="zstd") as writer:
        for first in range(0, number, ROWS):
            names = [name(place) for place in range(first, min(first + ROWS, number))]
            columns: dict[str, Any] = {"record": names, "path": [f"{each}.hea" for each in names]}
            missing: list[Any] = [None] * len(names)
            arrays = [pyarrow.array(columns.get(of.name, missing), of.type) for of in schema()]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema()))
        writer.add_key_value_metadata({METADATA.decode(): json.dumps(about)})


def groups_of_tables(path: Path) -> Iterator[tuple[int, object]]:
    """Number of recordings of each group, and the group."""
    _, records, _ = stream_recordings([path], "warn")
    yield from ((len(group.records), group) for group in _groups(records))


def parts_of_corpus(path: Path) -> Iterator[tuple[int, object]]:
    """Number of recordings of each part, and the part, after what decides whether a build continues."""
    opened, records = listed(path, "warn")
    plan = make_plan([records])
    _fingerprint([opened], plan)
    yield from ((len(part.record_ids), part) for part in plan)


Groups = Callable[[Path], Iterator[tuple[int, object]]]


def go_through(kind: str, work: Path, number: int, through: Groups) -> tuple[float, float, float, float]:
    """Seconds to the first group and to the last, and memory of this process before and at most."""
    import pyarrow.parquet  # noqa: F401, a part of the memory before

    def folders(folder: str) -> Iterator[tuple[str, list[str]]]:
        for first in range(0, number, 1000):
            own = [name(place) for place in range(first, min(first + 1000, number))]
            yield (
                f"{folder}/{own[0].partition('/')[0]}",
                [f"{each.partition('/')[2]}.{ending}" for each in own for ending in ("dat", "hea")],
            )

    def keys(folder: PurePath) -> Iterator[tuple[str, store.Entry]]:
        for place in range(number):
            for ending in ("dat", "hea"):
                yield f"{folder}/{name(place)}.{ending}", store.Entry(1000, '"0123456789abcdef0123456789abcdef"')

    bucket = source_path("s3://names/all")
    absent = {f"{bucket}/{name}": None for name in ("RECORDS", "database.json", PTB_XL)}
    store.remember({str(bucket): store._FOLDER, **absent}, [])
    setattr(database, "forget", id)  # noqa: B010, what is known above is kept
    setattr(discovery, "_walk", folders)  # noqa: B010
    setattr(store, "each_file", keys)  # noqa: B010
    listed_folder = work / "listed"
    if kind == "RECORDS":
        listed_folder.mkdir(exist_ok=True)
        (listed_folder / "RECORDS").write_text("".join(f"{name(place)}\n" for place in range(number)))
        setattr(discovery, "is_there", lambda path: path.suffix == ".hea" or is_there(path))  # noqa: B010
    path = {"index": work / "names.parquet", "folder": work, "bucket": bucket, "RECORDS": listed_folder}[kind]
    before, begin_s, first_s, num_records = kilobytes("VmHWM") / 1024, time.perf_counter(), 0.0, 0
    for size, group in through(path):
        pickle.dumps(group)
        num_records += size
        first_s = first_s or time.perf_counter() - begin_s
    assert num_records == number
    return first_s, time.perf_counter() - begin_s, before, kilobytes("VmHWM") / 1024


def rows_in(path: Path) -> int:
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def main() -> None:
    parser = options(__doc__, "source", "work", rounds=3, links=0, names=0, recordings=150)
    parser.add_argument("--leads", type=str, help="comma-separated leads to delineate, by default all")
    settings = parser.parse_args()
    if settings.leads:
        Stated(None, (), tuple(settings.leads.split(","))).export()
    if settings.names:
        number = int(settings.names)
        tables = [study_names(settings.work, number), study_rows(settings.work, number)]
        write_results("archive-names", "Names of recordings", tables)
        return
    if settings.links:
        tables = [study_links(settings.source, settings.work, int(settings.links))]
        write_results("archive-links", "Links to recordings", tables)
        return
    tables = study_engines(settings.source, settings.rounds, int(settings.recordings))
    write_results("archive-engines", "Engines of archive work", tables)


if __name__ == "__main__":
    main()
