"""The journal of a monitor: all messages, and a snapshot of the state every few minutes.

    folder/messages-000007.log    messages since snapshot 7: length, checksum, name of the stream, bytes
    folder/snapshot-000007.state  state of all streams before the first of these messages: length, bytes of each; 0

An empty message means that the stream was forgotten.

A monitor that starts again restores the last snapshot and processes the messages after it, so its state is the same to
the last bit. A message that is incomplete, because the power failed while it was written, is cut off. After an error of
the disk no messages are written until a snapshot succeeds, as those behind an incomplete one would be lost.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from heartlm.errors import HeartlmError
from heartlm.monitor.link import MAX_BYTES, MAX_NAME_LENGTH
from heartlm.monitor.state import checked, packed, unpacked
from heartlm.storage.atomic import atomic_file, explained, fsync_folder

_HEADER = struct.Struct("<II")
# A snapshot begins with the magic number. Each part of it follows its length.
_MAGIC, _LENGTH = b"heartlm snapshot\n", struct.Struct("<Q")
# The name of a stream takes at most four bytes a character in UTF-8, and a line feed ends it.
_MAX_RECORD_BYTES = MAX_BYTES + 4 * MAX_NAME_LENGTH + 1
# Snapshots that are kept: the last one, and the one before in case the last is damaged.
_NUM_KEPT = 2


class MessageJournal:
    """Messages and snapshots of one monitor.

    Args:
        folder: created if it does not exist, readable by its owner only.

    Raises:
        HeartlmError: the folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise HeartlmError(f"{folder}: cannot be created ({error.strerror})") from None
        self.folder = folder
        self._number = max(self._numbers("snapshot"), default=0)
        self._log: IO[bytes] | None = None
        self._is_off = False

    def _numbers(self, kind: str) -> list[int]:
        matches = (re.fullmatch(rf"{kind}-(\d{{6,}})\.(state|log)", path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:06d}.{'state' if kind == 'snapshot' else 'log'}"

    def recover(self) -> tuple[Iterable[Any], Iterator[tuple[bytes, str | None]]]:
        """Return the parts of the last undamaged snapshot, none if there is none, and the messages after it.

        A message comes with the name of its stream if the channel gave it.

        Raises:
            HeartlmError: another version of heartlm wrote it.
        """
        for number in reversed(self._numbers("snapshot")):
            path = self._path("snapshot", number)
            try:
                for content in _parts(path):
                    checked(content)
                return map(unpacked, _parts(path)), self._messages(number)
            except HeartlmError as error:
                raise HeartlmError(f"{self.folder}: {error}: choose another --out") from None
            except (OSError, ValueError):
                continue
        return (), self._messages(0)

    def _messages(self, first: int) -> Iterator[tuple[bytes, str | None]]:
        for number in self._numbers("messages"):
            if number < first:
                continue
            with self._path("messages", number).open("r+b") as log:
                intact = 0
                while len(header := log.read(_HEADER.size)) == _HEADER.size:
                    length, checksum = _HEADER.unpack(header)
                    # After a power failure a file may end in zeros, which would be a record of length 0 with the
                    # CRC-32 of nothing, 0.
                    if not 0 < length <= _MAX_RECORD_BYTES:
                        break
                    record = log.read(length)
                    if len(record) < length or zlib.crc32(record) != checksum:
                        break
                    intact = log.tell()
                    name, _, message = record.partition(b"\n")
                    yield message, name.decode() or None
                log.truncate(intact)

    def append(self, message: bytes, stream: str | None = None) -> None:
        """Write a message, with the name of its stream if the channel gives it. `flush` passes it to the system.

        Raises:
            HeartlmError: the disk is full or cannot be written; likewise for `flush` and `snapshot`.
        """
        if self._is_off:
            return
        path = self._path("messages", self._number)
        try:
            if self._log is None:
                self._log = path.open("ab")
                fsync_folder(self.folder)  # fsync of a new file does not flush its name: fsync(2)
            record = (stream or "").encode() + b"\n" + message
            self._log.write(_HEADER.pack(len(record), zlib.crc32(record)) + record)
        except OSError as error:
            raise explained(path, error) from error

    def flush(self, to_disk: bool = True) -> None:
        """Pass written messages to the operating system; with `to_disk`, wait until they are on disk."""
        if self._log is None:
            return
        try:
            self._log.flush()
            if to_disk:
                os.fsync(self._log.fileno())
        except OSError as error:
            raise explained(Path(self._log.name), error) from error

    def snapshot(self, parts: Iterable[Any]) -> None:
        """Write the state after all messages so far, in parts, and delete files that are no longer needed."""
        self.close()
        number = self._number + 1
        with atomic_file(self._path("snapshot", number), "wb") as file:
            file.write(_MAGIC)
            for part in parts:
                content = packed(part)
                file.write(_LENGTH.pack(len(content)) + content)
            file.write(_LENGTH.pack(0))
        self._number, self._is_off = number, False
        for kind in ("snapshot", "messages"):
            for old in self._numbers(kind):
                if old <= number - _NUM_KEPT:
                    with suppress(OSError):  # the next snapshot tries again
                        self._path(kind, old).unlink()

    def turn_off(self) -> None:
        """Write nothing until the next snapshot, after an error of the disk."""
        self._is_off, log, self._log = True, self._log, None
        if log is not None:
            with suppress(OSError):  # what it has not written yet
                log.close()

    def close(self) -> None:
        """Close the file of messages."""
        if self._log is not None:
            self.flush()
            self._log.close()
            self._log = None


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the parts of a snapshot.

    Raises:
        ValueError: it is incomplete.
        HeartlmError: another version of heartlm wrote it.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            unpacked(path.read_bytes())  # earlier versions wrote a single part without the magic number
            raise ValueError("no snapshot")
        size = os.fstat(file.fileno()).st_size
        while len(header := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(header)
            if not length:
                return
            if length > size - file.tell():
                break
            yield file.read(length)
    raise ValueError("incomplete")
