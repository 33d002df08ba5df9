"""Heart rate and ectopic beats of a stream, minute by minute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heartlm.monitor.state import Stateful

NUM_MINUTES = 8 * 60
"""Minutes that are kept: one shift."""
# A longer time between two beats does not count as an interval.
_MAX_RR_S = 3.0
_INTERVALS, _SECONDS, _S, _V = range(4)


class Trend(Stateful):
    """Counts the beats of a stream in each minute.

    Attributes:
        first: minute of the first beat, counted from the start of the stream; −1 before it.
        last: minute of the last beat.
    """

    STATE = ("first", "last", "_previous_s", "_minutes")

    def __init__(self) -> None:
        self.first = self.last = -1
        self._previous_s = -math.inf
        self._minutes = np.zeros((0, 4), np.float32)  # from the first beat on, minute m in row m % NUM_MINUTES

    def add(self, time_s: float, symbol: str) -> None:
        """Count a beat.

        Args:
            time_s: from the start of the stream.
            symbol: its class as in annotations.
        """
        minute = int(time_s // 60)
        if not len(self._minutes):
            self._minutes = np.zeros((NUM_MINUTES, 4), np.float32)
        if minute > self.last:
            new = np.arange(max(self.last + 1, minute - NUM_MINUTES + 1), minute + 1)
            self._minutes[new % NUM_MINUTES] = 0
            self.first, self.last = minute if self.first < 0 else self.first, minute
        elif minute <= self.last - NUM_MINUTES:
            return
        row = self._minutes[minute % NUM_MINUTES]
        if 0 < time_s - self._previous_s <= _MAX_RR_S:
            row[_INTERVALS] += 1
            row[_SECONDS] += time_s - self._previous_s
        self._previous_s = time_s
        if symbol in "SV":
            row[_S if symbol == "S" else _V] += 1

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes."""
        self._minutes = np.zeros((NUM_MINUTES if len(state["_minutes"]) else 0, 4), np.float32)
        super().restore(state)

    def interrupt(self) -> None:
        """Count no interval from the last beat to the next: samples between them are lost."""
        self._previous_s = -math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the minutes that are kept.

        Returns:
            `first`, the number of the first minute; and for each minute `bpm`, the mean heart rate or None without
            intervals, and `s` and `v`, the number of beats of these classes.
        """
        first = max(self.first, self.last - NUM_MINUTES + 1, 0)
        rows = self._minutes[np.arange(first, self.last + 1) % NUM_MINUTES].tolist()
        bpm = [round(60 * row[_INTERVALS] / row[_SECONDS], 1) if row[_INTERVALS] else None for row in rows]
        return {"first": first, "bpm": bpm, "s": [int(row[_S]) for row in rows], "v": [int(row[_V]) for row in rows]}
