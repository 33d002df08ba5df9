"""Work on a recording or on each one of a folder. A repeated command keeps the results that it would write again.

task ─► recordings ─► processes ─► files of each recording, RECORD.json last ─► summaries, in order
             └─ with a RECORD.json of the same files, settings and build ─► its summary
"""

from __future__ import annotations

import hashlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import heartlm
from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import Recording, Repaired
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import sha256_of, write_json
from heartlm.storage.reading import read_json
from heartlm.system.memory import keep_memory
from heartlm.system.parent import end_with_parent
from heartlm.system.processes import AHEAD, in_order
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
class RecordingTask(ABC):
    """What is done with a recording, or with each recording of a folder.

    Attributes:
        path: recording, or folder of recordings.
        out: folder of the results. Complete results of the same files, settings and build are kept.
        repaired: treatment of recordings whose files must be repaired to be read.
        verb, done: what the command does, and what was done, for progress and errors.
    """

    path: Path
    out: Path
    repaired: Repaired = field(default="warn", kw_only=True)
    verb: ClassVar[str]
    done: ClassVar[str]

    @property
    @abstractmethod
    def made(self) -> dict[str, Any]:
        """What decides the results in addition to the recording's files; computed once in each process, as models are.

        Raises:
            HeartlmError: a model cannot be read.
        """

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


def each_recording(task: RecordingTask, processes: int) -> tuple[tuple[Summary, ...], tuple[str, ...]]:
    """Do the task for each recording of its folder, in `processes` processes.

    Returns:
        Summaries in the order of the recordings; and those that were left out, with the reason, one line each.

    Raises:
        HeartlmError: a model cannot be read, nothing could be done for any recording, or a process was killed.
    """
    database = open_database(task.path, repaired=task.repaired)
    num_records = len(database.record_ids)
    outcomes = list(track(_outcomes(task, database, min(processes, num_records)), num_records, task.verb))
    left_out = tuple(each for each in outcomes if isinstance(each, str))
    summaries = tuple(each for each in outcomes if not isinstance(each, str))
    if not summaries:
        for line in left_out:
            say(f"left out: {line}")
        raise HeartlmError(f"{task.path}: none of {num_records} recordings could be {task.done}")
    return summaries, left_out


def _outcomes(task: RecordingTask, database: Database, processes: int) -> Iterator[Summary | str]:
    """Yield the summary of each recording, in order, or the reason why there is none."""
    if processes == 1:
        keep_memory()
        yield from (_try(task, database, record_id) for record_id in database.record_ids)
        return
    # Spawned, not forked: a forked process that computes with torch can hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (os.getpid(), task, database))
    yield from in_order(pool, _try_own, database.record_ids, AHEAD * processes, f"{task.verb}s")


# Task and database of a worker process, set by `_begin`.
_own: tuple[RecordingTask, Database]


def _begin(parent: int, task: RecordingTask, database: Database) -> None:
    global _own
    # An interrupt ends this process at once without a traceback, which is safe because writes are atomic.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(parent)
    keep_memory()
    _own = task, database


def _try_own(record_id: str) -> Summary | str:
    return _try(*_own, record_id)


def _try(task: RecordingTask, database: Database, record_id: str) -> Summary | str:
    _ = task.made  # outside of `try`: an error of the models concerns all recordings
    try:
        return task.of(database, record_id)
    except HeartlmError as error:
        return f"{record_id}: {error}"
