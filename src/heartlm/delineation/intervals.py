"""Intervals, amplitudes, ST levels and the frontal axis of delineated beats.

QT is corrected for the interval RR before the beat, in seconds: by Bazett (1920) QT / RR^(1/2), Fridericia (1920)
QT / RR^(1/3), Framingham (Sagie 1992) QT + 154 ms (1 - RR), Hodges (1983) QT + 1.75 ms (60 / RR - 60). Amplitudes and
ST levels are relative to the 20 ms before the QRS complex. The axis is atan2(2 / sqrt(3) aVF, I) of the net QRS
amplitude: augmented leads are weaker by this factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.delineate import OFFSET, ONSET, PEAK, QRS, Delineation, P, T
from heartlm.delineation.median_beats import MedianBeat, median_beats
from heartlm.system.frames import pandas

Doubles = NDArray[np.float64]

LONGEST_RR_S = 3.0
"""A longer interval between beats is a pause or lost signal: it corrects no QT."""
_LONGEST_QRS_S, _BASELINE_S, _SMOOTH_S = 0.3, 0.02, 0.004
ST_S = {"st60_mv": 0.06, "st80_mv": 0.08}
"""Seconds after the end of the QRS complex at which ST levels are measured."""
AMPLITUDES = ("p_mv", "q_mv", "r_mv", "s_mv", "t_mv", *ST_S)
INTERVALS = (
    *("rr_ms", "pr_ms", "p_ms", "qrs_ms", "qt_ms"),
    *("qtc_bazett_ms", "qtc_fridericia_ms", "qtc_framingham_ms", "qtc_hodges_ms"),
)
LEAD_COLUMNS = {
    "beat_sample": "int64",
    "lead": "string",
    **{f"{wave}_{point}": "int64" for wave in ("p", "qrs", "t") for point in ("onset", "peak", "offset")},
    **dict.fromkeys(AMPLITUDES, "double"),
}
"""Columns of `Intervals.lead_rows`, and their types in tables."""
_BEATS_AT_ONCE = 2_000


@dataclass(frozen=True)
class Intervals:
    """Measurements of the beats of a delineation; NaN where a wave is absent.

    Attributes:
        delineation: the waves.
        intervals: `INTERVALS` of all leads together, in ms, each float64 `[num_beats]`.
        amplitudes: `AMPLITUDES` in mV, each float64 `[num_beats, num_leads]`.
    """

    delineation: Delineation
    intervals: Mapping[str, Doubles]
    amplitudes: Mapping[str, Doubles]

    def __repr__(self) -> str:
        medians = {name: _spread(self.intervals[name])["median"] for name in ("pr_ms", "qrs_ms", "qt_ms")}
        shown = [f"{name[:-3].upper()} {value:.0f}" for name, value in medians.items() if value is not None]
        beats = f"{self.delineation.num_beats:,} beats in {', '.join(self.delineation.lead_names)}"
        return f"<Intervals of {beats}; {', '.join(shown) + ' ms' if shown else 'no waves'}>"

    def beat_rows(self) -> list[dict[str, Any]]:
        """Return one row for each beat: sample, time in s, intervals in ms (None where absent) and confidences."""
        return _rows(self._beat_columns())

    def _beat_columns(self) -> dict[str, list[Any]]:
        delineation = self.delineation
        rate_hz = delineation.recording.rate_hz
        columns = {"sample": delineation.beats.tolist(), "time_s": (delineation.beats / rate_hz).tolist()}
        columns |= {name: _plain(values) for name, values in self.intervals.items()}
        for wave, name in ((P, "p"), (QRS, "qrs"), (T, "t")):
            columns[f"{name}_confidence"] = delineation.all_confidence[:, wave].astype(float).tolist()
        return columns

    def lead_rows(self) -> list[dict[str, Any]]:
        """Return one row for each beat and lead: samples of the waves (None where absent), and amplitudes in mV."""
        return _rows(self._lead_columns())

    def _lead_columns(self) -> dict[str, list[Any]]:
        delineation = self.delineation
        columns: dict[str, list[Any]] = {
            "beat_sample": np.repeat(delineation.beats, len(delineation.leads)).tolist(),
            "lead": delineation.lead_names * delineation.num_beats,
        }
        for wave, name in ((P, "p"), (QRS, "qrs"), (T, "t")):
            for point, what in ((ONSET, "onset"), (PEAK, "peak"), (OFFSET, "offset")):
                places = delineation.waves[:, :, wave, point].ravel().tolist()
                columns[f"{name}_{what}"] = [None if place < 0 else place for place in places]
        return columns | {name: _plain(values.ravel()) for name, values in self.amplitudes.items()}

    def hour_rows(self) -> list[dict[str, Any]]:
        """Return one row for each hour: number of beats, and medians of the intervals and of each lead's ST and T."""
        delineation = self.delineation
        hour = (delineation.beats / delineation.recording.rate_hz // 3600).astype(np.int64)
        rows = []
        for hour_index in np.unique(hour).tolist():
            of_hour = hour == hour_index
            row: dict[str, Any] = {"hour": hour_index, "beats": int(of_hour.sum())}
            row |= {name: _median(values[of_hour]) for name, values in self.intervals.items()}
            for column, lead in enumerate(delineation.lead_names):
                row |= {f"{lead}_{name}": _median(self.amplitudes[name][of_hour, column]) for name in ("t_mv", *ST_S)}
            rows.append(row)
        return rows

    def to_frame(self) -> Any:
        """Return `beat_rows` as a pandas data frame; intervals are float64, NaN where absent.

        Raises:
            HeartlmError: pandas is not installed.
        """
        return pandas().DataFrame(self._beat_columns()).astype(dict.fromkeys(self.intervals, "float64"))

    def leads_frame(self) -> Any:
        """Return `lead_rows` as a pandas data frame; positions are Int64, NA where absent, amplitudes float64.

        Raises:
            HeartlmError: pandas is not installed.
        """
        frame = pandas().DataFrame(self._lead_columns())
        positions = [name for name in frame if name.endswith(("_onset", "_peak", "_offset"))]
        return frame.astype(dict.fromkeys(positions, "Int64") | dict.fromkeys(self.amplitudes, "float64"))

    def of_beats(self, chosen: NDArray[np.bool_]) -> Intervals:
        """Return the measurements of the chosen beats alone, bool `[num_beats]`, for example of the normal ones."""
        whole = self.delineation
        names = ("beats", "waves", "confidence", "all_leads", "all_confidence")
        part = replace(whole, **{name: getattr(whole, name)[chosen] for name in names})
        of_part = ({name: values[chosen] for name, values in of.items()} for of in (self.intervals, self.amplitudes))
        return Intervals(part, *of_part)

    def summary(self) -> dict[str, Any]:
        """Return the medians of the recording with their spread (lower and upper quartile).

        Returns:
            `num_beats`; `p_share`, the fraction of beats with a P wave; of each interval in ms `median`, `quartiles`
            and `beats`, the number of beats that have it; of each lead the same of each amplitude in mV;
            `axis_degrees`.
        """
        delineation = self.delineation
        share = float(np.mean(delineation.has_p)) if delineation.num_beats else None
        return {
            "num_beats": delineation.num_beats,
            "p_share": share,
            "axis_degrees": self.axis_degrees(),
            "intervals": {name: _spread(values) for name, values in self.intervals.items()},
            "leads": {
                lead: {name: _spread(values[:, column]) for name, values in self.amplitudes.items()}
                for column, lead in enumerate(delineation.lead_names)
            },
        }

    def median_beats(self) -> list[MedianBeat]:
        """Return the median beat of each lead that shows QRS complexes, of at most 100 evenly chosen ones.

        `findings.normal_waves().median_beats()` has those of the normal beats.

        Raises:
            HeartlmError: the signal cannot be read.
        """
        return median_beats(self.delineation, np.ones(self.delineation.num_beats, np.bool_))

    def axis_degrees(self) -> float | None:
        """Return the frontal axis of the QRS complex, -180 to 180 degrees; None without leads I and aVF (or II)."""
        net = np.sum([np.nan_to_num(self.amplitudes[name]) for name in ("q_mv", "r_mv", "s_mv")], axis=0)
        has_qrs = self.delineation.waves[:, :, QRS, PEAK] >= 0
        medians = {
            name.lower(): float(np.median(net[has_qrs[:, column], column]))
            for column, name in enumerate(self.delineation.lead_names)
            if has_qrs[:, column].any()
        }
        if "i" not in medians or not {"avf", "ii"} & set(medians):
            return None
        foot = medians["avf"] if "avf" in medians else medians["ii"] - medians["i"] / 2
        return float(np.degrees(np.arctan2(2 / np.sqrt(3) * foot, medians["i"])))


def measure(delineation: Delineation) -> Intervals:
    """Measure intervals, amplitudes and ST levels.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    return Intervals(delineation, _intervals(delineation), _amplitudes(delineation))


def _intervals(delineation: Delineation) -> dict[str, Doubles]:
    points = np.where(delineation.all_leads >= 0, delineation.all_leads, np.nan) * 1000 / delineation.recording.rate_hz
    rr = np.diff(delineation.beats, prepend=np.nan) * 1000 / delineation.recording.rate_hz
    with np.errstate(invalid="ignore"):
        rr_s = np.where(rr <= 1000 * LONGEST_RR_S, rr, np.nan) / 1000
        qt = points[:, T, OFFSET] - points[:, QRS, ONSET]
        return {
            "rr_ms": rr,
            "pr_ms": points[:, QRS, ONSET] - points[:, P, ONSET],
            "p_ms": points[:, P, OFFSET] - points[:, P, ONSET],
            "qrs_ms": points[:, QRS, OFFSET] - points[:, QRS, ONSET],
            "qt_ms": qt,
            "qtc_bazett_ms": qt / np.sqrt(rr_s),
            "qtc_fridericia_ms": qt / np.cbrt(rr_s),
            "qtc_framingham_ms": qt + 154 * (1 - rr_s),
            "qtc_hodges_ms": qt + 1.75 * (60 / rr_s - 60),
        }


def _amplitudes(delineation: Delineation) -> dict[str, Doubles]:
    table = {name: np.full((delineation.num_beats, len(delineation.leads)), np.nan) for name in AMPLITUDES}
    recording = delineation.recording
    reach = round(1.5 * recording.rate_hz)
    for begin in range(0, delineation.num_beats, _BEATS_AT_ONCE):
        end = min(begin + _BEATS_AT_ONCE, delineation.num_beats)
        # Beats are divided at long gaps, whose signal would be read in vain: given beats may be a few of a whole day.
        gaps = begin + 1 + np.flatnonzero(np.diff(delineation.beats[begin:end]) > 4 * reach)
        for first, last in pairwise([begin, *gaps.tolist(), end]):
            start = max(0, int(delineation.beats[first]) - reach)
            stop = min(recording.num_samples, int(delineation.beats[last - 1]) + reach)
            signals = recording.signal(start, stop, delineation.leads)
            signals = np.where(np.isfinite(signals), signals, np.float32(np.nan))
            for lead, signal in enumerate(signals):
                waves = delineation.waves[first:last, lead]
                waves = np.where(waves < 0, waves, waves - start)
                for name, values in _of_lead(signal, waves, recording.rate_hz).items():
                    table[name][first:last, lead] = values
    return table


def _of_lead(signal: NDArray[np.float32], waves: NDArray[np.int64], rate_hz: float) -> dict[str, Doubles]:
    """Return the amplitudes of the beats of a lead; `waves` `[num_beats, 3, 3]` are positions in `signal`."""
    num = len(signal)
    has_qrs = (waves[:, QRS] >= 0).all(axis=1)
    onset, offset = waves[:, QRS, ONSET], waves[:, QRS, OFFSET]
    level = _mean_of(signal, onset - max(1, round(_BASELINE_S * rate_hz)), onset)
    level[~has_qrs] = np.nan
    near = max(1, round(_SMOOTH_S * rate_hz))
    amplitudes = {}
    for wave, name in ((P, "p_mv"), (T, "t_mv")):
        peak = waves[:, wave, PEAK]
        amplitudes[name] = np.where(peak >= 0, _mean_of(signal, peak - near // 2, peak + near // 2 + 1) - level, np.nan)
    for name, after_s in ST_S.items():
        at = offset + round(after_s * rate_hz)
        inside = has_qrs & (at + near < num)
        amplitudes[name] = np.where(inside, _mean_of(signal, at - near, at + near + 1) - level, np.nan)
    # Q, R and S: the highest value within the complex, and the lowest ones before and after it. [num_beats, width]
    width = min(int(_LONGEST_QRS_S * rate_hz), int((offset - onset)[has_qrs].max(initial=0))) + 1
    places = onset[:, None] + np.arange(width)
    values = signal[places.clip(0, num - 1)] - level[:, None]
    outside = (places > offset[:, None]) | np.isnan(values)
    highest = np.where(outside, -np.inf, values).argmax(axis=1)
    r = np.take_along_axis(values, highest[:, None], 1)[:, 0]
    before, after = np.arange(width) < highest[:, None], np.arange(width) > highest[:, None]
    # without a positive deflection the complex is QS: its lowest value counts as Q
    none = ~(r > 0)
    q = np.where(outside | ~(before | none[:, None]), 0, values).min(axis=1)
    s = np.where(outside | ~after | none[:, None], 0, values).min(axis=1)
    amplitudes["r_mv"] = np.where(has_qrs & ~none, r, np.where(has_qrs & ~np.isnan(r), 0.0, np.nan))
    for name, lowest in (("q_mv", q), ("s_mv", s)):
        amplitudes[name] = np.where(has_qrs & ~np.isnan(level), lowest, np.nan)
    return amplitudes


def _mean_of(signal: NDArray[np.float32], start: NDArray[np.int64], stop: NDArray[np.int64]) -> Doubles:
    """Return the mean of the samples `start` to `stop` around each beat, cut at the ends of the signal."""
    length = int((stop - start).max(initial=1))
    places = (start[:, None] + np.arange(length)).clip(0, len(signal) - 1)
    return np.asarray(signal[places].mean(axis=1, dtype=np.float64))


def _plain(values: Doubles) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _rows(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _median(values: Doubles) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _spread(values: Doubles) -> dict[str, Any]:
    known = values[~np.isnan(values)]
    quartiles = np.percentile(known, [25, 50, 75]).tolist() if len(known) else [None] * 3
    return {"median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]], "beats": len(known)}
