"""What a monitor writes so that it can be killed: every message, and now and then all that it remembers.

    folder/messages-000007.log    messages since snapshot 7: length, checksum, name of the stream, bytes
    folder/snapshot-000007.npz    all streams as they were before the first of them

A monitor that starts again reads the last snapshot and the messages after it, and so stands where it stood, to the
last bit. A message that was being written when the power went is cut off.
"""

from __future__ import annotations

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
_SCHEMA = 3
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
        return self.folder / f"{kind}-{number:06d}.{'npz' if kind == 'snapshot' else 'log'}"

    def recover(self) -> tuple[dict[str, Any] | None, Iterator[Received]]:
        """The last snapshot that can be read, None without any, and the messages since.

        Raises:
            HeartlmError: another version of heartlm wrote it.
        """
        for number in [*reversed(self._numbers("snapshot")), 0]:
            try:
                state = read_state(self._path("snapshot", number)) if number else None
            except (OSError, ValueError, KeyError):
                continue
            if state is None:
                return None, self._messages(number)
            if state.get("schema") != _SCHEMA:
                raise HeartlmError(f"{self.folder}: written by another version of heartlm: choose another --out")
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
            write_state(file, {"schema": _SCHEMA, "streams": state})
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


def write_state(file: IO[bytes], state: dict[str, Any]) -> None:
    """Write numbers, texts, arrays, None and dictionaries of them, without pickling."""
    arrays = dict[str, NDArray[Any]]()

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            arrays[f"{prefix}\n{{}}"] = np.array(list(value), np.str_)
            for name, inner in value.items():
                add(f"{prefix}\n{name}", inner)
        elif value is None:
            arrays[f"{prefix}\nNone"] = np.empty(0)
        elif isinstance(value, np.ndarray | np.generic):  # a NumPy number keeps its type, on which rounding depends
            arrays[f"{prefix}\n[]"] = np.asarray(value)
        else:
            arrays[prefix] = np.array(value)

    add("", state)
    names = np.array(list(arrays), np.str_)
    np.savez(file, allow_pickle=False, names=names, **{f"a{place}": each for place, each in enumerate(arrays.values())})


def read_state(path: Path | IO[bytes]) -> dict[str, Any]:
    """What `write_state` wrote.

    Raises:
        OSError, ValueError, KeyError: damaged.
    """
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[f"a{place}"] for place, name in enumerate(content["names"].tolist())}

    def get(prefix: str) -> Any:
        if f"{prefix}\n{{}}" in arrays:
            return {name: get(f"{prefix}\n{name}") for name in arrays[f"{prefix}\n{{}}"].tolist()}
        if f"{prefix}\nNone" in arrays:
            return None
        if f"{prefix}\n[]" in arrays:
            array = arrays[f"{prefix}\n[]"]
            return array if array.ndim else array[()]
        return arrays[prefix][()].item()

    state = get("")
    if not isinstance(state, dict):
        raise ValueError("a dictionary of states expected")
    return state
