"""One second of each of many leads in one call of C; its tests have the same in NumPy.

What a lead remembers is one block of memory, which a snapshot holds as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.detect import Settings, plan_detector
from heartlm.kernels.library import kernel, struct_fields

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_WINDOW, _MOST_BEATS = 400, 320


class _Seconds(ctypes.Structure):
    """`struct seconds` of c/live_seconds.c, which says what each field is."""

    _fields_ = struct_fields("seconds")


@dataclass(frozen=True)
class SecondsOfLeads:
    """What the seconds of some leads give; leads in the order in which they were given.

    Attributes:
        windows: codes of the last four seconds, uint16 `[num_leads, 400]`,
        has_window: valid where this is true, `[num_leads]`.
        valid: share of valid samples, `[num_leads]`.
        range_mv: range without the slow average, NaN where unknown, `[num_leads]`.
        of_lead: whose each beat is, ascending, `[num_beats]`.
        beats: their samples, `[num_beats]`.
        waves: float32 `[num_beats, num_points]`.
    """

    windows: NDArray[np.uint16]
    has_window: NDArray[np.bool_]
    valid: Doubles
    range_mv: Doubles
    of_lead: NDArray[np.int64]
    beats: NDArray[np.int64]
    waves: Floats


class SecondsKernel:
    """Takes in seconds of leads of one rate.

    Args:
        rate_hz: samples a second.
        settings: of the detector.
        tables: arrays of `struct seconds` by name.
        numbers: its other fields, except the rate, the detector's and the lengths of tables.
    """

    def __init__(
        self,
        rate_hz: float,
        settings: Settings,
        tables: dict[str, NDArray[np.floating]],
        numbers: dict[str, float],
    ) -> None:
        self.rate_hz = rate_hz
        self._plan, filters = plan_detector(rate_hz, settings)
        self._taps = np.concatenate([filters.even, filters.odd, filters.smooth, filters.fine])
        self._tables = {
            name: np.ascontiguousarray(table, np.float32 if name == "levels" else np.float64)
            for name, table in tables.items()
        }
        plan = ctypes.addressof(self._plan)
        self._seconds = _Seconds(
            plan=plan,
            taps=self._taps.ctypes.data,
            detector_bytes=kernel("detect_bytes")(plan),
            num_points=len(tables["offsets"]),
            num_weights=len(tables["weights"]),
            num_grid_weights=len(tables["grid_weights"]),
            num_levels=len(tables["levels"]),
            rate_hz=rate_hz,
            **{name: table.ctypes.data for name, table in self._tables.items()},
            **numbers,
        )
        self._run = kernel("live_seconds")
        self.num_bytes: int = kernel("live_seconds_bytes")(ctypes.addressof(self._seconds))
        own = self._seconds
        third = own.kept + own.raw_kept + own.num_weights + own.num_grid_weights + 256
        self._scratch = np.empty(3 * third, np.float32)

    def take(self, leads: NDArray[np.int64], samples: Sequence[Floats]) -> SecondsOfLeads:
        """Take in the next second of each lead.

        Args:
            leads: address of the memory of each, `num_bytes` that began as zeros, `[num_leads]`.
            samples: all of the second, float32, contiguous, NaN where invalid.
        """
        num, done, most = len(leads), 0, _MOST_BEATS + 8 * len(leads)
        addresses = np.array([each.ctypes.data for each in samples])
        counts = np.array([len(each) for each in samples])
        windows, has_window = np.empty((num, _WINDOW), np.uint16), np.empty(num, np.uint8)
        numbers, parts = np.empty((2, num)), list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]()
        while done < num:
            of_lead, beats, num_beats = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(1, np.int64)
            waves = np.empty((most, self._seconds.num_points), np.float32)
            done = self._run(
                *(ctypes.addressof(self._seconds), leads, addresses, counts, done, num, windows, has_window, *numbers),
                *(num_beats, most, of_lead, beats, waves, self._scratch, len(self._scratch)),
            )
            parts.append((of_lead[: num_beats[0]], beats[: num_beats[0]], waves[: num_beats[0]]))
        of_lead, beats, waves = (np.concatenate(each) for each in zip(*parts, strict=True))
        return SecondsOfLeads(windows, has_window.view(np.bool_), numbers[0], numbers[1], of_lead, beats, waves)
