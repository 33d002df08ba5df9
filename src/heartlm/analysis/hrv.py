"""Heart rate variability of a recording from intervals between normal beats; spectra by NeuroKit2.

SDNN, RMSSD and pNN50 are of the whole recording. SDANN, the SDNN index, LF and HF are defined on pieces of five minutes
(Task Force of the ESC and NASPE, Circulation 93:1043-1065, 1996).
NeuroKit2's `hrv_time` gives the same time-domain measures, but its run time is quadratic in the length. Its pieces of
five minutes count only normal intervals, so gaps make them longer.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

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

    `sdann_ms` and `sdnn_index_ms` need `FEWEST_PIECES` full pieces of five minutes; `lf_ms2` and `hf_ms2` need one, and
    NeuroKit2.
    """
    nn_s, ends_s = normal_intervals(findings)
    if len(nn_s) < FEWEST_INTERVALS:
        return {}
    nn_ms = 1000 * nn_s
    # only differences of adjacent intervals
    changes = np.diff(nn_ms)[np.abs(np.diff(ends_s) - nn_s[1:]) < 1e-6]
    found = {"sdnn_ms": float(nn_ms.std(ddof=1))}
    if len(changes):
        found["rmssd_ms"] = math.sqrt(float(np.mean(changes**2)))
        found["pnn50_pct"] = 100 * float(np.mean(np.abs(changes) > 50))
    piece = (ends_s // PIECE_S).astype(np.int64)
    full = np.flatnonzero(np.bincount(piece, nn_s) >= FULL_PIECE * PIECE_S)
    edges = np.searchsorted(piece, [full, full + 1]).T
    if len(full) >= FEWEST_PIECES:
        pieces = [nn_ms[first:last] for first, last in edges]
        found["sdann_ms"] = float(np.std([part.mean() for part in pieces], ddof=1))
        found["sdnn_index_ms"] = float(np.mean([part.std(ddof=1) for part in pieces]))
    spectra = _spectra(nn_ms, ends_s, edges) if len(full) else []
    for name, key in (("lf_ms2", "LF"), ("hf_ms2", "HF"), ("lf_hf", "LFHF")):
        if spectra:
            found[name] = float(np.median([spectrum[f"HRV_{key}"].iloc[0] for spectrum in spectra]))
    return found | {"num_intervals": len(nn_s), "num_pieces": len(full), "num_spectra": len(spectra)}


def _spectra(nn_ms: NDArray[np.float64], ends_s: NDArray[np.float64], edges: NDArray[np.int64]) -> list[Any]:
    """Return NeuroKit2's tables of some of the pieces `edges` `[num_pieces, 2]`; none where it is not installed."""
    try:
        import neurokit2
    except ModuleNotFoundError:
        return []
    spectra = []
    for place in np.unique(np.linspace(0, len(edges) - 1, min(len(edges), MOST_SPECTRA)).astype(int)):
        of_piece = slice(*edges[place])
        intervals = {"RRI": nn_ms[of_piece], "RRI_Time": ends_s[of_piece]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bands that need longer pieces and are not used
            spectra.append(neurokit2.hrv_frequency(intervals, normalize=False, interpolation_rate=4, silent=True))
    return spectra
