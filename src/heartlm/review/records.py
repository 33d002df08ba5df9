"""The recordings that a review offers: their names, what is known of them, and how one is opened."""

from __future__ import annotations

import contextlib
import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from heartlm.databases.database import Database, locate, open_database
from heartlm.databases.index import holds_recordings
from heartlm.errors import HeartlmError
from heartlm.review.review import Review
from heartlm.review.stored import ENDING, read_stored, recording_of
from heartlm.storage.reading import read_json
from heartlm.system.parent import end_with_parent


class Records:
    """Recordings to review.

    Args:
        path: recording, folder of recordings, or what an earlier review stored: RECORD.analysis.safetensors, or the
            folder of such files, which then is `out`.
        out: folder of the results.
        reviewer: name that the journals get.
        queue: whether those come first in which most wrong beats are expected; what was not analysed comes last.

    Attributes:
        title: what the list of recordings is called.
        names: names of the recordings.

    Raises:
        HeartlmError: there is no recording, or `out` cannot be written.
    """

    def __init__(self, path: Path, out: Path, reviewer: str, queue: bool = False) -> None:
        analyses = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path] if path.name.endswith(ENDING) else []
        if analyses:
            out, recordings = path if path.is_dir() else path.parent, [recording_of(each) for each in analyses]
            self._of = {name: database for database, name in map(locate, recordings)}
            self.title = str(path)
        elif holds_recordings(path):
            database = open_database(path)
            self._of, self.title = dict.fromkeys(database.record_ids, database), str(path)
        else:
            database, name = locate(path)
            self._of, self.title = {name: database}, name
        self.names = list(self._of)
        self.out, self._reviewer = out, reviewer
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HeartlmError(f"out: {out}: {error.strerror}, a folder that can be written expected") from None
        self._analyses = set[SpawnProcess]()
        self._expected = {name: self._expected_wrong(name) for name in self.names} if queue else {}
        self.names.sort(key=lambda name: -self._expected.get(name, 0))

    def _expected_wrong(self, name: str) -> float:
        """Return the number of wrong beats that is expected in a recording; -1 if it has no analysis to read."""
        with contextlib.suppress(HeartlmError):
            path = self.out / f"{name}{ENDING}"
            if path.is_file():
                stored, _ = read_stored(path, self._of[name].recording(name))
                return float(Review(stored, self.out).doubt().sum())
        return -1.0

    def about(self, name: str) -> str:
        """Return a line about a recording from its results, empty without."""
        known, expected = "", self._expected.get(name, -1)
        with contextlib.suppress(HeartlmError, KeyError, TypeError):
            known = read_json(self.out / f"{name}.json", dict)["summary"]["reading"]
            known = f"{'Reviewed. ' if (self.out / f'{name}.review.jsonl').is_file() else ''}{known}"
        return f"About {expected:,.0f} wrong beats. {known}".strip() if expected >= 0 else known

    def analyse(self, name: str) -> None:
        """Analyse a recording that was not analysed yet, in a process of its own, which gives its memory back.

        Raises:
            HeartlmError: it cannot be analysed.
        """
        if (self.out / f"{name}{ENDING}").is_file():
            return
        context = get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_analyse, args=(os.getpid(), self._of[name], name, self.out, sender))
        process.start()
        self._analyses.add(process)
        sender.close()
        try:
            problem = receiver.recv()
        except EOFError:
            problem = f"{name}: the analysis was ended; open it again"
        process.join()
        self._analyses.discard(process)
        if problem:
            raise HeartlmError(problem)

    def open(self, name: str) -> Review:
        """Return the review of a recording.

        Raises:
            HeartlmError: it cannot be read, or its journal is damaged or of another one.
        """
        return Review.open(self._of[name].recording(name), self.out, reviewer=self._reviewer)

    def close(self) -> None:
        """End the analyses that are under way."""
        for process in list(self._analyses):
            process.terminate()


def _analyse(parent: int, database: Database, name: str, out: Path, sender: Connection) -> None:
    from heartlm.system.cores import limit_threads

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends it
    end_with_parent(parent)
    limit_threads(1)
    try:
        Review.open(database.recording(name), out)
    except HeartlmError as error:
        sender.send(str(error))
    else:
        sender.send("")
