"""The journal of a review: one JSON line for each change, appended and flushed to the disk before it counts.

    {"journal": 1, "record": "100", "analysis": "3f..."}                   the head: what the changes are made on
    {"revision": 1, "at": "...", "reviewer": "...", "change": {...}, "model": {...}, "effect": {...}}
    ...

A process that is killed while it writes leaves a torn last line, which the next one cuts off. Every writer holds a lock
on the file while it reads what others appended and appends its own line.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from heartlm.errors import HeartlmError
from heartlm.storage.atomic import explained, fsync_folder

JOURNAL_VERSION = 1


class ReviewJournal:
    """Lines of one journal, read and appended under a lock.

    Args:
        path: the file; it is created with the first line.
        head: what identifies recording and analysis; those of an existing journal must be the same.

    Attributes:
        notes: what was repaired, one line each.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self.notes = path, list[str]()
        self._head = {"journal": JOURNAL_VERSION, **head}
        self._end = 0  # bytes that were read
        self._num_lines = 0

    @contextmanager
    def locked(self) -> Iterator[list[dict[str, Any]]]:
        """Hold the lock of the journal; yield the changes that were appended since the last time.

        Raises:
            HeartlmError: the file cannot be read or written, is damaged, or is of another recording or analysis.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            stream = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise explained(self.path, error) from error
        with stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            self._stream = stream
            yield self._new_lines(stream)

    def _new_lines(self, stream: IO[bytes]) -> list[dict[str, Any]]:
        stream.seek(self._end)
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(self._end + whole)
            self.notes.append(f"{self.path}: the last line was not complete and is cut off; all changes before it stay")
        lines = content[:whole].splitlines()
        parsed = [self._parsed(line, self._num_lines + number) for number, line in enumerate(lines, 1)]
        if parsed and self._num_lines == 0:
            self._check(parsed[0])
            parsed = parsed[1:]
        self._end += whole
        self._num_lines += len(lines)
        return parsed

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise HeartlmError(
                f"{self.path}: line {number} is no JSON object; restore the file, or move it away to start again"
            )
        return value

    def _check(self, head: dict[str, Any]) -> None:
        for name, expected in self._head.items():
            if name not in head:
                raise HeartlmError(f"{self.path}: no journal of a review: {name} is missing in its first line")
            if head[name] != expected:
                raise HeartlmError(
                    f"{self.path}: {name} {head[name]!r} found, {expected!r} expected: a journal of another "
                    f"{'recording' if name == 'record' else 'version' if name == 'journal' else 'analysis'}; "
                    "move it away, or choose another folder"
                )

    def append(self, entry: dict[str, Any]) -> None:
        """Append a change and flush it to the disk; only while the lock is held.

        Raises:
            HeartlmError: the file cannot be written; what was there is untouched.
        """
        entries = [entry] if self._num_lines else [self._head, entry]
        lines = "".join(json.dumps(each, allow_nan=False, ensure_ascii=False) + "\n" for each in entries).encode()
        try:
            if self._stream.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._stream.fileno())
            if not self._num_lines:
                fsync_folder(self.path.parent)
        except OSError as error:
            self._stream.truncate(self._end)
            raise explained(self.path, error) from error
        self._end += len(lines)
        self._num_lines += len(entries)
