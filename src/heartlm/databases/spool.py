"""Names and files of more recordings than memory should hold, in the order in which they were listed."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from heartlm.databases.discovery import RecordFiles
from heartlm.sources.store import Entry

CHUNK = 4096
"""Recordings that are compressed together."""


class RecordSpool:
    """Recordings in a temporary file, as `Database.with_files` takes them.

    `spool[first:stop]` has some of them; a slice takes its content along to another process.

    Attributes:
        digest: SHA-256 of all names and paths, and of what a store states about the files.
    """

    def __init__(self, records: Iterable[tuple[str, RecordFiles]], path_of: type[Path]) -> None:
        """List recordings.

        Args:
            records: name and files of each.
            path_of: class of their paths.
        """
        digest, left = hashlib.sha256(), iter(records)
        self._path_of, self._first, self._stop = path_of, 0, 0
        self._chunks: _ChunkFile | Mapping[int, bytes] = (file := _ChunkFile())
        while chunk := list(islice(left, CHUNK)):
            text = json.dumps([_row(*record) for record in chunk]).encode()
            digest.update(text)
            file.append(zlib.compress(text, 1))
            self._stop += len(chunk)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return self._stop - self._first

    def __getitem__(self, places: slice) -> RecordSpool:
        chosen, other = range(self._first, self._stop)[places], copy(self)
        assert chosen.step == 1
        other._first, other._stop = chosen.start, chosen.stop
        return other

    def __iter__(self) -> Iterator[tuple[str, RecordFiles]]:
        for index in self._places():
            begin = index * CHUNK
            rows = json.loads(zlib.decompress(self._chunks[index]))
            for name, stem, signal, entries in rows[max(self._first - begin, 0) : self._stop - begin]:
                known = entries and {path: Entry(*entry) for path, entry in entries.items()}
                yield name, RecordFiles(self._path_of(stem), signal and self._path_of(signal), known)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_chunks": {index: self._chunks[index] for index in self._places()}}

    def _places(self) -> range:
        return range(self._first // CHUNK, -(-self._stop // CHUNK) if len(self) else 0)


def _row(name: str, files: RecordFiles) -> list[Any]:
    return [name, str(files.stem), files.signal and str(files.signal), files.entries and {**files.entries}]


class _ChunkFile:
    """Compressed chunks in a temporary file, which forked processes read too."""

    def __init__(self) -> None:
        self._file, self._ends = TemporaryFile(buffering=0), array("Q", [0])  # noqa: SIM115, closed with this object

    def append(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._ends.append(self._ends[-1] + len(chunk))

    def __getitem__(self, index: int) -> bytes:
        first, end = self._ends[index : index + 2]
        return os.pread(self._file.fileno(), end - first, first)
