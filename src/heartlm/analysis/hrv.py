"""Heart rate variability of a recording from intervals between normal beats.

SDNN, RMSSD and pNN50 are of the whole recording. SDANN, the SDNN index, LF and HF are defined on pieces of five minutes
(Task Force of the ESC and NASPE, Circulation 93:1043-1065, 1996). LF and HF are those of `hrv_frequency` of NeuroKit2
0.2.13 at 4 Hz: quadratic splines through the intervals, Welch's method with Hann windows of half the length.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Findings, crossed

PIECE_S = 300.0
NN_RANGE_S = (0.3, 2.0)
"""Range of NN intervals in seconds. Others are not sinus rhythm, or a beat was missed."""

FEWEST_INTERVALS = 200
FEWEST_PIECES = 3
FULL_PIECE = 0.9
"""Minimum fraction of a piece covered by normal intervals."""

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


def variability(findings: Findings) -> dict[str, float]:
    """Return heart rate variability: times in ms, pNN50 in per cent, powers in ms²; empty with too few intervals.

    `sdann_ms` and `sdnn_index_ms` need `FEWEST_PIECES` full pieces of five minutes; `lf_ms2` and `hf_ms2` need one.
    """
    nn_s, ends_s = normal_intervals(findings)
    if len(nn_s) < FEWEST_INTERVALS:
        return {}
    nn_ms = 1000 * nn_s
    # only differences of adjacent intervals
    changes = np.diff(nn_ms)[np.abs(np.diff(ends_s) - nn_s[1:]) < 1e-6]
    measures = {"sdnn_ms": float(nn_ms.std(ddof=1))}
    if len(changes):
        measures["rmssd_ms"] = math.sqrt(float(np.mean(changes**2)))
        measures["pnn50_pct"] = 100 * float(np.mean(np.abs(changes) > 50))
    piece = (ends_s // PIECE_S).astype(np.int64)
    full = np.flatnonzero(np.bincount(piece, nn_s) >= FULL_PIECE * PIECE_S)
    edges = np.searchsorted(piece, [full, full + 1]).T
    if len(full) >= FEWEST_PIECES:
        pieces = [nn_ms[first:last] for first, last in edges]
        measures["sdann_ms"] = float(np.std([part.mean() for part in pieces], ddof=1))
        measures["sdnn_index_ms"] = float(np.mean([part.std(ddof=1) for part in pieces]))
    spectrum_pieces = np.unique(np.linspace(0, len(full) - 1, min(len(full), MOST_SPECTRA)).astype(int))
    spectra = [band_powers(nn_ms[slice(*edges[index])], ends_s[slice(*edges[index])]) for index in spectrum_pieces]
    for name in BANDS_HZ:
        if spectra:
            measures[name] = float(np.median([powers[name] for powers in spectra]))
    if ratios := [powers["lf_ms2"] / powers["hf_ms2"] for powers in spectra if powers["hf_ms2"] >= LEAST_HF_MS2]:
        measures["lf_hf"] = float(np.median(ratios))
    return measures | {"num_intervals": len(nn_s), "num_pieces": len(full), "num_spectra": len(spectra)}


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
