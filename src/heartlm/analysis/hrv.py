"""Heart rate variability of a recording from intervals between normal beats.

SDNN, RMSSD and pNN50 are of the whole recording. SDANN, the SDNN index, LF and HF are defined on pieces of five minutes
(Task Force of the ESC and NASPE, Circulation 93:1043-1065, 1996). LF and HF are those of `hrv_frequency` of NeuroKit2
0.2.13 at 4 Hz: quadratic splines through the intervals, Welch's method with Hann windows of half the length.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Findings, crossed

PIECE_S = 300.0
NN_RANGE_S = (0.3, 2.0)
"""Range of NN intervals in seconds. Others are not sinus rhythm, or a beat was missed."""

FEWEST_INTERVALS = 200
FEWEST_PIECES = 3
FULL_PIECE, HALF_PIECE = 0.9, 0.5
"""Minimum fraction of a piece covered by normal intervals, and of pieces of recordings that have too few such ones.

Where they cover 69 % (17 % of the beats taken out, 18 normal recordings of nsrdb) splines through what is left give
1.24 times the LF and 0.92 times the HF of all intervals, the Lomb-Scargle periodogram 1.46 and 3.1 times
(docs/log/signals.md)."""

MEASURES = ("sdnn_ms", "sdann_ms", "sdnn_index_ms", "rmssd_ms", "pnn50_pct", "lf_ms2", "hf_ms2", "lf_hf")
"""SDNN, SDANN, SDNN index, RMSSD, pNN50, LF, HF and LF/HF of the Task Force, with units."""

MOST_SPECTRA = 24
"""Maximum number of pieces for the medians of LF and HF, evenly spaced over the recording."""

INTERPOLATION_HZ = 4.0
"""Rate at which intervals are interpolated: the Nyquist frequency is five times the upper limit of HF."""

BANDS_HZ = {"lf_ms2": (0.04, 0.15), "hf_ms2": (0.15, 0.4)}
"""Frequency bands of the Task Force, with the lower limit and without the upper one."""

LEAST_HF_MS2 = 0.01
"""Minimum of HF for LF/HF; beat positions rounded to a millisecond alone give more. Paced rhythms may have none."""


def normal_intervals(findings: Findings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the NN intervals and the time of the end of each, both in seconds, float64 `[num_intervals]`.

    Both beats are N, the stretch is readable and not in atrial fibrillation, and the length lies within `NN_RANGE_S`.
    """
    ends = findings.sample[1:] / findings.recording.rate_hz
    rr_s = np.diff(findings.sample) / findings.recording.rate_hz
    normal = findings.symbol == "N"
    kept = normal[1:] & normal[:-1] & findings.readable() & (rr_s >= NN_RANGE_S[0]) & (rr_s <= NN_RANGE_S[1])
    kept &= ~crossed([*findings.of_kind("flutter"), *findings.of_kind("AF")], findings.sample)
    return rr_s[kept], ends[kept]


def variability(findings: Findings) -> dict[str, Any]:
    """Return heart rate variability: `MEASURES`, None where there is too little, and how they were computed.

    `num_intervals`, `num_pieces` of five minutes that measures of pieces use, `num_spectra`, `covered`, the mean
    fraction of a piece that normal intervals cover, and `notes`: what is doubtful or missing, and why.
    """
    nn_s, ends_s = normal_intervals(findings)
    notes = list[str]()
    measures: dict[str, float | None] = dict.fromkeys(MEASURES)
    counts: dict[str, float | None] = {"num_intervals": len(nn_s), "num_pieces": 0, "num_spectra": 0, "covered": None}
    if len(nn_s) < FEWEST_INTERVALS:
        notes.append(f"not computed: {len(nn_s)} normal intervals outside of AF, {FEWEST_INTERVALS} needed")
        return measures | counts | {"notes": notes}
    nn_ms = 1000 * nn_s
    # only differences of adjacent intervals
    changes = np.diff(nn_ms)[np.abs(np.diff(ends_s) - nn_s[1:]) < 1e-6]
    measures["sdnn_ms"] = float(nn_ms.std(ddof=1))
    if len(changes):
        measures["rmssd_ms"] = math.sqrt(float(np.mean(changes**2)))
        measures["pnn50_pct"] = 100 * float(np.mean(np.abs(changes) > 50))
    piece = (ends_s // PIECE_S).astype(np.int64)
    covered = np.bincount(piece, nn_s) / PIECE_S
    used = np.flatnonzero(covered >= FULL_PIECE)
    if len(used) < FEWEST_PIECES:
        used = np.flatnonzero(covered >= HALF_PIECE)
    edges = np.searchsorted(piece, [used, used + 1]).T
    if len(used) >= FEWEST_PIECES:
        pieces = [nn_ms[first:last] for first, last in edges]
        measures["sdann_ms"] = float(np.std([part.mean() for part in pieces], ddof=1))
        measures["sdnn_index_ms"] = float(np.mean([part.std(ddof=1) for part in pieces]))
    else:
        names = "SDANN and SDNN index" if len(used) else "SDANN, SDNN index, LF and HF"
        few = f"{len(used)} pieces of five minutes are half covered by normal intervals"
        notes.append(f"{names} are missing: {few}, {FEWEST_PIECES if len(used) else 1} needed")
    spectrum_pieces = np.unique(np.linspace(0, len(used) - 1, min(len(used), MOST_SPECTRA)).astype(int))
    spectra = [band_powers(nn_ms[slice(*edges[index])], ends_s[slice(*edges[index])]) for index in spectrum_pieces]
    for name in BANDS_HZ:
        if spectra:
            measures[name] = float(np.median([powers[name] for powers in spectra]))
    if ratios := [powers["lf_ms2"] / powers["hf_ms2"] for powers in spectra if powers["hf_ms2"] >= LEAST_HF_MS2]:
        measures["lf_hf"] = float(np.median(ratios))
    if len(used):
        counts |= {
            "num_pieces": len(used),
            "num_spectra": len(spectra),
            "covered": round(float(covered[used].mean()), 3),
        }
        if covered[used].min() < FULL_PIECE:
            notes.append(
                f"normal intervals cover {100 * covered[used].mean():.0f} % of the pieces: LF is too high and HF too "
                "low, at 70 % by a quarter and a tenth"
            )
    rounded = {name: None if value is None else round(value, 3) for name, value in measures.items()}
    return rounded | counts | {"notes": notes}


def band_powers(nn_ms: NDArray[np.float64], ends_s: NDArray[np.float64]) -> dict[str, float]:
    """Return the power of a stretch of intervals in each of `BANDS_HZ`, in ms².

    Args:
        nn_ms: at least three intervals in milliseconds, `[num_intervals]`.
        ends_s: time of the end of each interval in seconds, ascending.
    """
    from scipy.integrate import trapezoid
    from scipy.interpolate import make_interp_spline
    from scipy.signal import welch

    # One sample at or after the last interval, with its value: without it, some pieces have a Welch window less.
    times_s = np.arange(ends_s[0], ends_s[-1] + 1 / INTERPOLATION_HZ, 1 / INTERPOLATION_HZ).clip(max=ends_s[-1])
    intervals = make_interp_spline(ends_s, nn_ms, k=2)(times_s)
    num = len(intervals) // 2
    hz, density = welch(intervals - intervals.mean(), INTERPOLATION_HZ, "hann", num, nfft=2 * num, detrend=False)
    bands = {name: (hz >= low) & (hz < high) for name, (low, high) in BANDS_HZ.items()}
    # The trapezoidal rule from the first to the last frequency of a band, as NeuroKit2.
    return {name: float(trapezoid(density[band], hz[band])) for name, band in bands.items()}
