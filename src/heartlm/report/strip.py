"""Content of an ECG strip, and the position of each lead on the paper; `svg_strip` draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

ROW_S = 10.0
"""Row length in seconds; longer strips are split into rows."""

LEAD_IN_S = 0.4
"""Length in seconds of the paper before the signal, for the calibration pulse."""

PULSE_S, PULSE_MV = (0.08, 0.12, 0.12, 0.32, 0.32, 0.36), (0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
"""Corners of the calibration pulse of 1 mV, in seconds from the edge of the paper."""

_SQUARE_MV = 0.5  # a bold square, 5 mm high
_LABEL_ROOM_MV = 0.45
_LANE_ABOVE_MV = (1.3, 5.0)  # minimum and maximum height of the paper above a lead's median
_LANE_BELOW_MV = (0.5, 3.5)


@dataclass(frozen=True)
class Beats:
    """Marked heartbeats; each field has one entry per beat.

    Attributes:
        time_s: times on the strip's time axis in seconds, float64 `[num_beats]`.
        labels: texts above the beats.
        banded: whether a band through all leads marks the beat.
        notes: small texts below the labels; by default none.
        hovers: hover texts of beats on a page; by default none.
        answers: predictions of a model, written below the paper; banded beats are then wrong predictions.
    """

    time_s: NDArray[np.float64]
    labels: Sequence[str]
    banded: Sequence[bool]
    notes: Sequence[str] = ()
    hovers: Sequence[str] = ()
    answers: Sequence[str] = ()

    @classmethod
    def of_classes(cls, time_s: NDArray[np.float64], names: Sequence[str | None]) -> Beats:
        """Label beats by AAMI class, None for unlabelled; bands mark all labelled beats except N."""
        return cls(
            time_s,
            labels=[name or "•" for name in names],
            banded=[name not in (None, "N") for name in names],
        )


@dataclass(frozen=True)
class Rhythm:
    """Name of a rhythm and its interval on the strip's time axis."""

    start_s: float
    stop_s: float
    name: str


@dataclass(frozen=True)
class Strip:
    """Content of a strip.

    Attributes:
        signal_mv: signal in mV, float `[num_leads, num_samples]`, NaN where missing.
        rate_hz: sampling rate in Hz.
        lead_names: names of the leads.
        start_s: time of the first sample in seconds.
        beats: marked heartbeats; beats outside of the strip are ignored.
        rhythms: named intervals; they may extend beyond the strip.
    """

    signal_mv: NDArray[np.floating]
    rate_hz: float
    lead_names: Sequence[str]
    start_s: float = 0.0
    beats: Beats | None = None
    rhythms: Sequence[Rhythm] = ()

    @property
    def duration_s(self) -> float:
        """Duration of the signal in seconds."""
        return float(self.signal_mv.shape[1] / self.rate_hz)

    @property
    def stop_s(self) -> float:
        """Time of the end of the signal in seconds."""
        return self.start_s + self.duration_s

    def rows(self, row_s: float = ROW_S) -> list[Strip]:
        """Split into strips of at most `row_s` seconds."""
        step = round(row_s * self.rate_hz)
        return [
            replace(self, signal_mv=self.signal_mv[:, at : at + step], start_s=self.start_s + at / self.rate_hz)
            for at in range(0, self.signal_mv.shape[1], step)
        ]


@dataclass(frozen=True)
class Lane:
    """A lead and its position on the paper, in millivolts on axes whose bold grid lines are multiples of 0.5.

    The trace is shifted so that its median is at `zero`, as a recorder centres its pen on the lane.
    """

    name: str
    trace: NDArray[np.floating]
    zero: float
    bottom: float


def _squares(height_mv: float, limits: tuple[float, float]) -> float:
    """Round a height up to whole bold squares, within limits."""
    return math.ceil(min(max(height_mv, limits[0]), limits[1]) / _SQUARE_MV) * _SQUARE_MV


def lanes(strip: Strip) -> list[Lane]:
    """Stack the leads from top to bottom; the upper border of the first is at 0 mV."""
    stacked: list[Lane] = []
    top = 0.0
    for index, (name, signal) in enumerate(zip(strip.lead_names, strip.signal_mv, strict=True)):
        finite = signal[np.isfinite(signal)]
        trace = signal - np.median(finite) if len(finite) else signal
        highest, lowest = (np.nanmax(trace), np.nanmin(trace)) if len(finite) else (0.0, 0.0)
        room = _LABEL_ROOM_MV if index == 0 and strip.beats is not None else 0.1
        zero = top - _squares(float(highest) + room, _LANE_ABOVE_MV)
        bottom = zero - _squares(0.1 - float(lowest), _LANE_BELOW_MV)
        stacked.append(Lane(name, trace, zero, bottom))
        top = bottom
    return stacked
