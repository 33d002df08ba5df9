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
from heartlm.kernels.library import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_WINDOW, _MOST_BEATS = 400, 320
_COUNTS = (
    *("detector_bytes", "kept", "raw_kept", "longest_gap", "step_length", "flat_length", "ahead"),
    *("num_points", "num_weights", "num_grid_weights", "num_levels"),
)
_TABLES = "offsets", "weights", "grid_weights", "power", "levels"
_NUMBERS = "rate_hz", "shortest", "quick", "furthest", "step"


class _Seconds(ctypes.Structure):
    """`struct seconds` of c/live_seconds.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("plan", "taps")),
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_void_p) for name in _TABLES),
        *((name, ctypes.c_double) for name in _NUMBERS),
    ]


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
        counts: those of `_COUNTS` by name, but for lengths of tables and `detector_bytes`.
        tables: those of `_TABLES` by name.
        numbers: those of `_NUMBERS` by name, but for the rate.
        variant: of the kernel; by default the best.
    """

    def __init__(
        self,
        rate_hz: float,
        settings: Settings,
        counts: dict[str, int],
        tables: dict[str, NDArray[np.floating]],
        numbers: dict[str, float],
        variant: str | None = None,
    ) -> None:
        self.rate_hz = rate_hz
        self._plan, filters = plan_detector(rate_hz, settings)
        self._taps = np.concatenate([filters.even, filters.odd, filters.smooth, filters.fine])
        self._tables = [np.ascontiguousarray(tables[name], np.float64) for name in _TABLES[:-1]]
        self._tables.append(np.ascontiguousarray(tables["levels"], np.float32))
        num_bytes = kernel("detect_bytes", variant)
        size = kernel("live_seconds_bytes", variant)
        lengths = zip(("num_points", "num_weights", "num_grid_weights", "", "num_levels"), self._tables, strict=True)
        counts = counts | {name: len(each) for name, each in lengths}
        counts["detector_bytes"] = num_bytes(ctypes.addressof(self._plan))
        self._seconds = _Seconds(
            *(ctypes.addressof(self._plan), self._taps.ctypes.data),
            *(counts[name] for name in _COUNTS),
            *(each.ctypes.data for each in self._tables),
            *((numbers | {"rate_hz": rate_hz})[name] for name in _NUMBERS),
        )
        self._run, self._num_points = kernel("live_seconds", variant), counts["num_points"]
        self.num_bytes: int = size(ctypes.addressof(self._seconds))
        third = counts["kept"] + counts["raw_kept"] + counts["num_weights"] + counts["num_grid_weights"] + 256
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
            waves = np.empty((most, self._num_points), np.float32)
            done = self._run(
                *(ctypes.addressof(self._seconds), leads, addresses, counts, done, num, windows, has_window, *numbers),
                *(num_beats, most, of_lead, beats, waves, self._scratch, len(self._scratch)),
            )
            parts.append((of_lead[: num_beats[0]], beats[: num_beats[0]], waves[: num_beats[0]]))
        of_lead, beats, waves = (np.concatenate(each) for each in zip(*parts, strict=True))
        return SecondsOfLeads(windows, has_window.view(np.bool_), numbers[0], numbers[1], of_lead, beats, waves)
