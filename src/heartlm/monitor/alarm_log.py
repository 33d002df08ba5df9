"""The alarms of a monitor by key, and the file that keeps them, `alarms.jsonl`: a line for each change."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from heartlm.ecg.definitions import ALARMS, LETHAL
from heartlm.storage.atomic import explained
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import is_number
from heartlm.system.progress import plural

# Alarms in memory. Above this, the oldest closed ones are removed; the file keeps them.
_MAX_ALARMS = 10_000


class AlarmLog:
    """The alarms of a monitor, in memory and in a file.

    Attributes:
        entries: alarms by key, as JSON values.
        waiting: the end of the file that is not on the disk.
        file: the file, open for further lines; None keeps the alarms in memory alone.
    """

    def __init__(self) -> None:
        self.entries = dict[str, dict[str, Any]]()
        self.waiting = bytearray()
        self.file: IO[bytes] | None = None

    @property
    def num_waiting(self) -> int:
        """Number of lines that are not on the disk."""
        return self.waiting.count(b"\n")

    def open(self, path: Path, log: Callable[[str], None]) -> None:
        """Read a file line by line, because it grows for years, and leave it open; `log` gets what is no alarm.

        Raises:
            OSError: the file cannot be read or written.
        """
        self.file, line, num_others = path.open("a+b"), b"\n", 0
        self.file.seek(0)
        for line in self.file:
            if (entry := _alarm_of(line)) is not None:
                self._keep(entry)
            else:
                num_others += 1
        if num_others:
            log(f"{path}: {plural(num_others, 'line')} without an alarm left out")
        if not line.endswith(b"\n"):
            self.file.write(b"\n")  # otherwise the next alarm would be a part of this line, and be lost
            self.file.flush()

    def add(self, entry: dict[str, Any]) -> None:
        """Add or replace an alarm.

        Raises:
            HeartlmError: the disk is full or cannot be written; the line waits.
        """
        self._keep(entry)
        if self.file is not None:
            self.waiting += json.dumps(entry).encode() + b"\n"
            self.write()

    def write(self) -> None:
        """Write the lines that wait. One that was written in part is continued.

        Raises:
            HeartlmError: the disk is full or cannot be written.
        """
        if self.file is None:
            return
        try:
            while self.waiting:
                del self.waiting[: os.write(self.file.fileno(), self.waiting)]
        except OSError as error:
            raise explained(Path(self.file.name), error) from error

    def remove(self, streams: Iterable[str]) -> None:
        """Remove the alarms of these streams from memory."""
        removed = set(streams)
        self.entries = {key: entry for key, entry in self.entries.items() if entry["stream"] not in removed}

    def still_open(self) -> list[dict[str, Any]]:
        """Return the alarms that have not ended, and the lethal ones that are not acknowledged."""
        return [entry for entry in self.entries.values() if _is_open(entry)]

    def history(self) -> Iterator[dict[str, Any]]:
        """Return all alarms of the file and in memory in the order in which they were raised, each as it is now.

        The iterator may be used by another thread: what it reads of the file is not in memory at the same time.

        Raises:
            OSError: the file cannot be read; raised by the iterator.
        """
        return self._history(None if self.file is None else Path(self.file.name), dict(self.entries))

    @staticmethod
    def _history(path: Path | None, newest: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the alarms of the file, in memory or by their last line there, and then those in memory alone."""
        with path.open("rb") if path is not None else BytesIO() as file:
            last, place = dict[str, int](), 0  # where the last line of each alarm begins; a key keeps its first place
            for line in file:
                if (entry := _alarm_of(line)) is not None:
                    last[entry["key"]] = place
                place += len(line)
            for key, place in last.items():
                if (entry := newest.pop(key, None)) is None:
                    file.seek(place)
                    entry = _alarm_of(file.readline())
                if entry is not None:
                    yield entry
        yield from newest.values()

    def _keep(self, entry: dict[str, Any]) -> None:
        """Keep an alarm in memory. If there are too many, the oldest closed one goes."""
        self.entries[entry["key"]] = entry
        if len(self.entries) > _MAX_ALARMS:
            closed = (key for key, alarm in self.entries.items() if not _is_open(alarm))
            if (oldest := next(closed, None)) is not None:
                del self.entries[oldest]


def _alarm_of(line: bytes) -> dict[str, Any] | None:
    """Return the alarm of a line of the file; None if there is none."""
    with suppress(ValueError):  # a killed process may leave an incomplete line
        entry = parse_json(line, finite=False)
        if _is_alarm(entry):
            return dict(entry)
    return None


def _is_alarm(entry: Any) -> bool:
    """Whether a line has all fields that the monitor and the page read."""
    if not isinstance(entry, dict):
        return False
    strip, acknowledged = entry.get("strip"), entry.get("acknowledged")
    return (
        all(isinstance(entry.get(name), str) for name in ("key", "stream", "severity", "time"))
        and str(entry.get("kind")) in ALARMS
        and all(is_number(entry.get(name)) for name in ("start_s", "raised_s", "confidence"))
        and (entry.get("stop_s", "") is None or is_number(entry.get("stop_s")))
        and (strip is None or (isinstance(strip, str) and re.fullmatch(r"strip_\d+", strip) is not None))
        and (acknowledged is None or isinstance(acknowledged, dict))
    )


def _is_open(entry: dict[str, Any]) -> bool:
    return entry["stop_s"] is None or (entry["severity"] == LETHAL and entry["acknowledged"] is None)
