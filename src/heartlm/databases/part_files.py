"""Results of many recordings as Parquet datasets: each worker writes part files, and the client adds up totals.

    recordings ─► groups ─► workers ─► TABLE/part-000007.parquet, those of `summaries` last ─► totals of the group
                                └─ with part files of the same files, settings and build ─► their totals

A group is what one worker does at a time; recordings are listed while others are done. Groups depend on the recordings
alone, so the files are the same for any engine and any number of workers or parts. No row passes through the client.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from heartlm.databases.database import Database
from heartlm.databases.discovery import RecordFiles, beginning_of
from heartlm.databases.each_recording import FolderTask, Place, source_digest, stream_recordings
from heartlm.databases.index import readable
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_file, write_json, write_text
from heartlm.system.engine import PartOptions
from heartlm.system.processes import Lost, run_each, within_limit
from heartlm.system.progress import say, track

SUMMARIES = "summaries"
"""Table with one row for each recording."""

FIRST_GROUP, GROUPS_OF_A_SIZE, LARGEST_GROUP = 4, 256, 512
"""Recordings of a group: few at first, so that all workers begin; the size doubles after each 256 groups."""

Rows = list[dict[str, Any]]
Schemas = Mapping[str, Mapping[str, str]]
"""Type of each column of each table, as Arrow calls it: string, int64, double, bool, or list<float>."""


@dataclass(frozen=True)
class TablesTask(FolderTask):
    """A task whose results are tables of all recordings."""

    @property
    @abstractmethod
    def schemas(self) -> Schemas:
        """Tables and their columns; one is `summaries`."""

    @abstractmethod
    def rows(self, recording: Recording, path: Path, source: str) -> dict[str, Rows]:
        """Return the rows of a recording by table, without `database` and `record`, which all tables begin with.

        Args:
            recording: the recording.
            path: path of its RECORD.json, which it may have next to other files of its own.
            source: digest of its files.

        Raises:
            HeartlmError: the recording cannot be used, or a file cannot be written.
        """

    def takes(self, database: Database, record_id: str) -> bool:
        """Return whether a recording belongs into the tables: by default each does."""
        return True

    @abstractmethod
    def totals(self, summary: Mapping[str, Any]) -> Mapping[str, float]:
        """Return what a row of `summaries` adds to the totals."""


@dataclass
class Tables:
    """Results of many recordings.

    Attributes:
        folder: folder of the tables.
        num_recordings: number of recordings with results.
        totals: sums over the recordings, see `TablesTask.totals`.
        left_out: recordings without results, with the reason, one line each.
    """

    folder: Path
    num_recordings: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)

    def write_totals(self, left_out: Sequence[str]) -> Path:
        """Write `totals.json`, and `left_out.txt` with the lines given; return the former.

        Raises:
            HeartlmError: a file cannot be written.
        """
        content = {"num_recordings": self.num_recordings, "num_left_out": len(self.left_out)}
        path = self.folder / "totals.json"
        write_json(path, content | {"totals": dict(sorted(self.totals.items()))})
        write_text(self.folder / "left_out.txt", "".join(f"{line}\n" for line in left_out))
        return path


@dataclass(frozen=True)
class _Group:
    """Recordings of one part file with their files, and those whose worker ended twice, with the reason."""

    index: int
    records: dict[Place, RecordFiles]
    lost: dict[Place, str] = field(default_factory=dict)

    def opened(self, databases: Sequence[Database]) -> dict[int, Database]:
        """Return the databases with the recordings of the group, by their numbers."""
        files: dict[int, dict[str, RecordFiles]] = {}
        for (number, record_id), each in self.records.items():
            files.setdefault(number, {})[record_id] = each
        return {number: databases[number].with_files(own) for number, own in files.items()}


def write_tables(task: TablesTask, options: PartOptions, processes: int) -> Tables:
    """Do a task for its recordings, or for a part of their groups, by an engine, and write its tables.

    Raises:
        HeartlmError: there are no recordings, a model cannot be read, a file cannot be written, nothing could be done
            for any recording, or a scheduler was lost.
    """
    databases, records, others = stream_recordings(task.paths, task.repaired)
    index, num_parts = options.part_of
    first, are_all = beginning_of(records)
    num_first = sum(1 for _ in islice(_groups(first), index, None, num_parts))
    num_groups = num_first if are_all else None  # not known before all are listed
    groups = islice(_groups(chain(first, records)), index, None, num_parts)
    del first
    for table in task.schemas:
        (task.out / table).mkdir(parents=True, exist_ok=True)
    tables, work = Tables(task.out, left_out=list(others)), _GroupWork(task, databases)
    processes, num_places, last = options.processes_for(num_first, processes), 0, -1
    under_way = deque[_Group]()

    def noted() -> Iterator[_Group]:
        for group in groups:
            under_way.append(group)
            yield group

    with closing(run_each(work, noted(), options, processes)) as outcomes:
        for outcome in track(outcomes, num_groups, task.verb):
            group = under_way.popleft()
            num_places, last = num_places + len(group.records), group.index
            if isinstance(outcome, Lost):
                outcome = _without_lost(task, databases, group, options)
            tables.num_recordings += outcome["num_recordings"]
            tables.totals.update(outcome["totals"])
            tables.left_out += outcome["left_out"]
    if options.part is None:  # an earlier command had more recordings
        for path in [path for table in task.schemas for path in (task.out / table).glob("part-*.parquet")]:
            if int(path.stem.removeprefix("part-")) > last:
                path.unlink()
    if not tables.num_recordings and num_places:
        for line in tables.left_out:
            say(f"left out: {line}")
        raise HeartlmError(f"{task.paths[0]}: none of {num_places} recordings could be {task.done}")
    return tables


def _without_lost(
    task: TablesTask, databases: Sequence[Database], group: _Group, options: PartOptions
) -> dict[str, Any]:
    """Find the recordings whose workers end, one by one, and do the others of the group."""
    alone = [replace(group, records={place: files}) for place, files in group.records.items()]
    tries = run_each(_TryWork(task, databases), alone, options, 2)
    lost = {place: each.reason for place, each in zip(group.records, tries, strict=True) if isinstance(each, Lost)}
    # Where each alone is done and all together are not, for example in the memory there is, all are left out.
    reason = "its process ended without a result, with those of its group"
    for lost_ones in (lost, dict.fromkeys(group.records, reason)):
        others = [replace(group, lost=lost_ones)]
        with closing(run_each(_GroupWork(task, databases), others, options, 2)) as again:
            if not isinstance(outcome := next(again), Lost):
                return outcome
    raise HeartlmError(f"{task.out}: the tables of part {group.index} cannot be written: its process ends each time")


def _groups(records: Iterable[tuple[Place, RecordFiles]]) -> Iterator[_Group]:
    left = iter(records)
    for index in count():
        size = min(FIRST_GROUP << index // GROUPS_OF_A_SIZE, LARGEST_GROUP)
        if not (own := dict(islice(left, size))):
            return
        yield _Group(index, own)


@dataclass(frozen=True)
class _TryWork:
    """The task for one recording without its result, to find those that end a worker."""

    task: TablesTask
    databases: Sequence[Database]

    def __call__(self, group: _Group) -> None:
        databases = group.opened(self.databases)
        for place in group.records:
            _rows_of(self.task, databases[place[0]], place[1], source_digest(databases[place[0]], place[1]))


def _rows_of(task: TablesTask, database: Database, record_id: str, source: str) -> dict[str, Rows] | str:
    _ = task.made  # outside of `try`: an error of the models concerns all recordings
    try:
        with within_limit():
            if not task.takes(database, record_id):
                return {table: [] for table in task.schemas}
            whose = {"database": database.name, "record": record_id}
            rows = task.rows(database.recording(record_id), task.out / f"{record_id}.json", source)
    except HeartlmError as error:
        return str(error)
    return {table: [whose | row for row in own] for table, own in rows.items()}


@dataclass(frozen=True)
class _GroupWork:
    """The task for a group; returns the number of its recordings, totals, and those left out."""

    task: TablesTask
    databases: Sequence[Database]

    def __call__(self, group: _Group) -> dict[str, Any]:
        import pyarrow
        from pyarrow import parquet

        task, name = self.task, f"part-{group.index:06d}.parquet"
        databases = group.opened(self.databases)
        sources = {place: source_digest(databases[place[0]], place[1]) for place in group.records}
        lost = [[*place, reason] for place, reason in group.lost.items()]
        described = json.dumps([task.made, [[*place, source] for place, source in sources.items()]], sort_keys=True)
        digest = hashlib.sha256(described.encode()).hexdigest()
        last = task.out / SUMMARIES / name
        if last.is_file():
            noted = parquet.read_metadata(readable(last)).metadata or {}
            about = json.loads(noted.get(b"heartlm", b"{}"))
            if about.get("made") == digest:
                return dict(about["outcome"])
        tables: dict[str, Rows] = {table: [] for table in task.schemas}
        totals, left_out = Counter[str](), [f"{record_id}: {reason}" for _, record_id, reason in lost]
        for place, source in sources.items():
            if place in group.lost:
                continue
            rows = _rows_of(task, databases[place[0]], place[1], source)
            if isinstance(rows, str):
                left_out.append(f"{place[1]}: {rows}")
                continue
            for table, own in rows.items():
                tables[table] += own
            for summary in rows[SUMMARIES]:
                totals.update({key: value for key, value in task.totals(summary).items() if value})
        outcome = {"num_recordings": len(tables[SUMMARIES]), "totals": dict(totals), "left_out": left_out}
        about = {"made": "" if lost else digest, "outcome": outcome}  # a repeated command tries those that were lost
        for table in sorted(task.schemas, key=lambda table: table == SUMMARIES):
            columns = {"database": "string", "record": "string", **task.schemas[table]}
            schema = pyarrow.schema([(column, _arrow_type(kind)) for column, kind in columns.items()])
            if table == SUMMARIES:
                schema = schema.with_metadata({"heartlm": json.dumps(about)})
            with atomic_file(task.out / table / name, "wb") as stream:
                parquet.write_table(pyarrow.Table.from_pylist(tables[table], schema), stream)
        return outcome


def _arrow_type(kind: str) -> Any:
    import pyarrow

    return pyarrow.list_(pyarrow.float32()) if kind == "list<float>" else pyarrow.type_for_alias(kind)
