"""What a monitor writes so that it can be killed: every message, and now and then all that it remembers.

    folder/messages-000007.log    messages since snapshot 7: length, checksum, name of the stream, bytes
    folder/snapshot-000007.state  all streams as they were before the first of them

A monitor that starts again reads the last snapshot and the messages after it, and so stands where it stood, to the
last bit. A message that was being written when the power went is cut off.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file
from heartlm.monitor.link import MOST_BYTES, MOST_NAME

_HEADER = struct.Struct("<II")
_LONGEST = MOST_BYTES + 4 * MOST_NAME + 1
Received = tuple[bytes, str | None]
"""A message, and the name of its stream where the channel told it."""
_SCHEMA = 6
"""Of snapshots; another number says that streams remember something else."""
_KEPT = 2
"""Snapshots that are kept: one, should the last be damaged, more."""


class MessageJournal:
    """The messages and snapshots of one monitor.

    Args:
        folder: made if it is not there, readable by its owner alone.

    Raises:
        HeartlmError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise HeartlmError(f"{folder}: cannot be made a folder ({error.strerror})") from None
        self.folder = folder
        self._number = max(self._numbers("snapshot"), default=0)
        self._log: IO[bytes] | None = None

    def _numbers(self, kind: str) -> list[int]:
        found = (re.fullmatch(rf"{kind}-(\d{{6}})\.\w+", path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06d}.{'state' if kind == 'snapshot' else 'log'}"

    def recover(self) -> tuple[dict[str, Any] | None, Iterator[Received]]:
        """The last snapshot that can be read, None without any, and the messages since.

        Raises:
            HeartlmError: another version of heartlm wrote it.
        """
        other = HeartlmError(f"{self.folder}: written by another version of heartlm: choose another --out")
        for number in [*reversed(self._numbers("snapshot")), 0]:
            try:
                state = unpacked(self._path("snapshot", number).read_bytes()) if number else None
            except FileNotFoundError:  # its name ends otherwise
                raise other from None
            except (OSError, ValueError):
                continue
            if state is None:
                return None, self._messages(number)
            if state.get("schema") != _SCHEMA:
                raise other
            return state["streams"], self._messages(number)
        return None, iter(())

    def _messages(self, first: int) -> Iterator[Received]:
        for number in self._numbers("messages"):
            if number < first:
                continue
            path = self._path("messages", number)
            with path.open("r+b") as log:
                whole = 0
                while len(header := log.read(_HEADER.size)) == _HEADER.size:
                    length, checksum = _HEADER.unpack(header)
                    if length > _LONGEST:
                        break
                    record = log.read(length)
                    if len(record) < length or zlib.crc32(record) != checksum:
                        break
                    whole = log.tell()
                    name, _, message = record.partition(b"\n")
                    yield message, name.decode() or None
                log.truncate(whole)

    def append(self, message: bytes, stream: str | None = None) -> None:
        """Write a message, and the name of its stream where the channel tells it; `flush` makes sure of the disk."""
        if self._log is None:
            self._log = self._path("messages", self._number).open("ab")
        record = (stream or "").encode() + b"\n" + message
        self._log.write(_HEADER.pack(len(record), zlib.crc32(record)) + record)

    def flush(self, to_disk: bool = True) -> None:
        """Give what was written to the system and, with `to_disk`, wait until it is on disk."""
        if self._log is not None:
            self._log.flush()
            if to_disk:
                os.fsync(self._log.fileno())

    def snapshot(self, state: dict[str, Any]) -> None:
        """Write all that the monitor remembers after the messages so far; older messages go."""
        self.close()
        number = self._number + 1
        with atomic_file(self._path("snapshot", number), "wb") as file:
            file.write(packed({"schema": _SCHEMA, "streams": state}))
        self._number = number
        for kind in ("snapshot", "messages"):
            for old in self._numbers(kind):
                if old <= number - _KEPT:
                    self._path(kind, old).unlink()

    def close(self) -> None:
        """End the file of messages."""
        if self._log is not None:
            self.flush()
            self._log.close()
            self._log = None


def packed(state: dict[str, Any]) -> bytes:
    """Numbers, texts, arrays, None and dictionaries of them as bytes: sizes and checksum, JSON, then all arrays."""
    arrays = list[NDArray[Any]]()

    def described(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: described(inner) for name, inner in value.items()}
        if isinstance(value, np.ndarray | np.generic):  # a NumPy number keeps its type, on which rounding depends
            arrays.append(np.asarray(value))
            return [arrays[-1].dtype.str, *value.shape]
        return value

    text = json.dumps(described(state)).encode()
    content = b"".join([text, *(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in arrays)])
    return _HEADER.pack(len(text), zlib.crc32(content)) + content


def unpacked(content: bytes) -> dict[str, Any]:
    """What `packed` packed.

    Raises:
        ValueError: damaged.
    """
    if len(content) < _HEADER.size:
        raise ValueError("too short")
    length, checksum = _HEADER.unpack_from(content)
    at = _HEADER.size + length
    if zlib.crc32(memoryview(content)[_HEADER.size :]) != checksum:
        raise ValueError("wrong checksum")

    def restored(value: Any) -> Any:
        nonlocal at
        if isinstance(value, dict):
            return {name: restored(inner) for name, inner in value.items()}
        if isinstance(value, list):
            dtype, *shape = value
            array = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape).copy()
            at += array.nbytes
            return array if shape else array[()]
        return value

    state: dict[str, Any] = restored(json.loads(content[_HEADER.size : at]))
    return state
