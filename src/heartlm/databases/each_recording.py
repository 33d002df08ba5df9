"""Work on recordings: one, several, those of folders. A repeated command keeps the results that it would write again.

task ─► recordings ─► workers ─► files of each recording, RECORD.json last ─► summaries, in order
             └─ with a RECORD.json of the same files, settings and build ─► its summary
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

import heartlm
from heartlm.databases.database import Database, locate, open_database, stream_database
from heartlm.databases.discovery import RecordFiles
from heartlm.databases.index import holds_recordings
from heartlm.ecg.recording import Recording, Repaired
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import sha256_of, write_json
from heartlm.storage.foreign import RemotePath
from heartlm.storage.reading import read_json
from heartlm.system.engine import PartOptions
from heartlm.system.processes import Lost, run_each, within_limit
from heartlm.system.progress import say, track

PACKAGE = Path(heartlm.__file__).parent
Summary = dict[str, Any]
Watch = Callable[[Sequence[tuple[int, int]]], Iterable[tuple[int, int]]]
"""Function that yields the blocks of a recording unchanged, (start, stop) in samples, for example to show progress."""


@cache
def build() -> dict[str, str]:
    """Return the version of heartlm, and a digest of its tables and weights, which change between builds."""
    files = sorted(path for kind in ("json", "safetensors") for path in PACKAGE.glob(f"*/*.{kind}"))
    digest = hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    return {"heartlm": heartlm.__version__, "tables and weights": digest[:16]}


def source_digest(database: Database, record_id: str) -> str:
    """Return a digest of the names, sizes and times of a recording's files, and of what the user states of them."""
    return hashlib.sha256(database.source(record_id).encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class FolderTask(ABC):
    """What is done with recordings, and where the results go.

    Attributes:
        paths: recordings, folders of recordings, and patterns such as `ward/*.edf`.
        out: folder of the results. Complete results of the same files, settings and build are kept.
        repaired: treatment of recordings whose files must be repaired to be read.
        verb, done: what the command does, and what was done, for progress and errors.
    """

    paths: tuple[Path, ...]
    out: Path
    repaired: Repaired = field(default="warn", kw_only=True)
    verb: ClassVar[str]
    done: ClassVar[str]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: models stay in their process, also when a Dask worker hands the task to another one."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def is_single(self) -> bool:
        """Whether one recording is named: its errors are errors of the command, and there is no table of all."""
        return len(self.paths) == 1 and not holds_recordings(self.paths[0]) and not _is_pattern(self.paths[0])

    @property
    @abstractmethod
    def made(self) -> dict[str, Any]:
        """What decides the results in addition to the recording's files; computed once in each process, as models are.

        Raises:
            HeartlmError: a model cannot be read.
        """


@dataclass(frozen=True)
class RecordingTask(FolderTask):
    """A task whose results are files of each recording."""

    @property
    @abstractmethod
    def endings(self) -> tuple[str, ...]:
        """Endings of the files that complete results have."""

    @abstractmethod
    def write(self, recording: Recording, path: Path, watch: Watch) -> tuple[Summary, dict[str, Any]]:
        """Write the files of a recording except `path`, its RECORD.json.

        Returns:
            The summary, and what else RECORD.json holds.

        Raises:
            HeartlmError: the recording cannot be used, or a file cannot be read or written.
        """

    def of(self, database: Database, record_id: str, watch: Watch = iter) -> Summary:
        """Return the summary of a recording, from its results if they are complete; otherwise write them.

        RECORD.json is written last: if it exists, the other files are complete.

        Args:
            database: database of the recording.
            record_id: name of the recording.
            watch: function that wraps the sequence of blocks.

        Raises:
            HeartlmError: see `made` and `write`.
        """
        made, path = self.made | {"source": source_digest(database, record_id)}, self.out / f"{record_id}.json"
        is_complete = all(path.with_suffix(ending).is_file() for ending in (".json", *self.endings))
        paths = {each.resolve() for each in database.signal_paths(record_id)}
        # A file of the recording; with `made_by` it holds results of an earlier command.
        if path.is_file() and path.resolve() in paths and "made_by" not in read_json(path, dict[str, Any]):
            raise HeartlmError(f"{path}: belongs to the recording and would be replaced; choose another folder")
        known = read_json(path, dict[str, Any]) if is_complete else {}
        if made.items() <= known.items():
            return dict(known["summary"])
        summary, content = self.write(database.recording(record_id), path, watch)
        write_json(path, made | {"summary": summary} | content)
        return summary


def each_recording(
    task: RecordingTask, options: PartOptions, processes: int
) -> tuple[tuple[Summary, ...], tuple[str, ...]]:
    """Do the task for each of its recordings, or for those of a part, by an engine.

    Args:
        task: the task.
        options: the engine.
        processes: number of processes if the options do not give one.

    Returns:
        Summaries in the order of the recordings; and those that were left out, with the reason, one line each.

    Raises:
        HeartlmError: a path has no recordings, two recordings have one name, a model cannot be read, nothing could be
            done for any recording, or a scheduler was lost.
    """
    databases, places, others = recordings_of(task.paths, task.repaired)
    index, num_parts = options.part_of
    places = places[index::num_parts]
    processes = options.processes_for(len(places), processes)
    with closing(run_each(_Work(task, databases), places, options, processes)) as done:
        outcomes = [
            f"{record_id}: {outcome.reason}" if isinstance(outcome, Lost) else outcome
            for (_, record_id), outcome in zip(places, track(done, len(places), task.verb), strict=True)
        ]
    left_out = (*others, *(each for each in outcomes if isinstance(each, str)))
    summaries = tuple(each for each in outcomes if not isinstance(each, str))
    if not summaries and places:
        for line in left_out:
            say(f"left out: {line}")
        where = task.paths[0] if len(task.paths) == 1 else f"{len(task.paths)} paths"
        raise HeartlmError(f"{where}: none of {len(places)} recordings could be {task.done}")
    return summaries, left_out


Place = tuple[int, str]
"""Index of a database, and name of a recording in it."""


def recordings_of(paths: Sequence[Path], repaired: Repaired) -> tuple[list[Database], list[Place], list[str]]:
    """Find the recordings of all paths, each once, in the order of the paths; their results are files of their names.

    Args:
        paths: recordings, folders and patterns.
        repaired: treatment of recordings whose files must be repaired to be read.

    Returns:
        Databases, recordings in them, and files that a pattern matches and that are no recordings, one line each.

    Raises:
        HeartlmError: a path has no recordings, or two recordings have one name.
    """
    databases, others, taken = list[Database](), list[str](), dict[str, Path]()
    sources = list[list[str]]()
    for path in paths:
        if holds_recordings(path):
            databases.append(open_database(path, repaired=repaired))
            sources.append(list(databases[-1].record_ids))
        else:
            for database, record_id in _located(path, repaired, others):
                databases.append(database)
                sources.append([record_id])
    places = [
        (number, record_id)
        for number, record_ids in enumerate(sources)
        for record_id in record_ids
        if _is_first(record_id, databases[number].files(record_id), taken)
    ]
    return databases, places, others


def stream_recordings(
    paths: Sequence[Path], repaired: Repaired
) -> tuple[list[Database], Iterator[tuple[Place, RecordFiles]], list[str]]:
    """Find the recordings of all paths as `recordings_of`, but yield them with their files while they are listed.

    Their results are rows that name the database too. `Database.with_files` gives a database with some of them.

    Raises:
        HeartlmError: a path has no recordings; two recordings of databases of one name have one name, which the stream
            raises.
    """
    databases, others, sources = list[Database](), list[str](), list[Iterable[tuple[str, RecordFiles]]]()
    for path in paths:
        if holds_recordings(path):
            database, records = stream_database(path, repaired=repaired)
            databases.append(database)
            sources.append(records)
        else:
            for database, record_id in _located(path, repaired, others):
                databases.append(database)
                sources.append([(record_id, database.files(record_id))])
    num_of_name = Counter(database.name for database in databases)

    def each() -> Iterator[tuple[Place, RecordFiles]]:
        taken = dict[str, Path]()
        for number, (database, records) in enumerate(zip(databases, sources, strict=True)):
            for record_id, files in records:
                # within a database ids are unique: those of all are remembered only where two have its name
                if num_of_name[database.name] == 1 or _is_first(f"{database.name}/{record_id}", files, taken):
                    yield (number, record_id), files

    return databases, each(), others


def _located(path: Path, repaired: Repaired, others: list[str]) -> Iterator[tuple[Database, str]]:
    """Yield database and name of a recording, or of each that a pattern matches; other files are added to `others`."""
    if not _is_pattern(path):
        yield locate(path, repaired=repaired)
        return
    for file in _matching(path):
        try:
            located = locate(file, repaired=repaired)
        except HeartlmError as error:
            others.append(str(error))
        else:
            yield located


def _is_first(name: str, files: RecordFiles, taken: dict[str, Path]) -> bool:
    """Return whether no recording has the name so far; the same recording may, which is given twice.

    Raises:
        HeartlmError: another recording has it.
    """
    file = files.signal or files.stem
    other = taken.setdefault(name, file)
    if other is not file and other.resolve() != file.resolve():
        raise HeartlmError(
            f"{file}: its results would have the name of those of {other}: give the two in commands of their own, each "
            "with an --out"
        )
    return other is file


def _is_pattern(path: Path) -> bool:
    return any(character in str(path) for character in "*?[") and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    """Return the files that a pattern of the shell matches, ascending.

    Raises:
        HeartlmError: there is none.
    """
    if isinstance(pattern, RemotePath):
        found: list[Path] = sorted(pattern.files_matching())
    else:
        names = sorted(glob(str(pattern), recursive=True))  # noqa: PTH207, `Path.glob` refuses absolute patterns
        found = [path for path in map(Path, names) if path.is_file()]
    if not found:
        raise HeartlmError(f"{pattern}: no file has such a name")
    return found


@dataclass(frozen=True)
class _Work:
    """The task for one recording; returns its summary, or the reason why there is none."""

    task: RecordingTask
    databases: Sequence[Database]

    def __call__(self, place: Place) -> Summary | str:
        _ = self.task.made  # outside of `try`: an error of the models concerns all recordings
        number, record_id = place
        try:
            with within_limit():
                return self.task.of(self.databases[number], record_id)
        except HeartlmError as error:
            return f"{record_id}: {error}"
