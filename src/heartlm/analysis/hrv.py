"""Heart rate variability of a recording by NeuroKit2, on the intervals between normal beats.

SDNN, RMSSD and pNN50 are of the whole recording; SDANN, the SDNN index, LF and HF are defined on pieces of five minutes
(Task Force of the ESC and NASPE, Circulation 93:1043-1065, 1996).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Findings
from heartlm.errors import needs

PIECE_S = 300.0
NN_RANGE_S = (0.3, 2.0)
"""Shorter and longer intervals are no sinus rhythm, or a beat was missed."""

FEWEST_INTERVALS = 200
FEWEST_PIECES = 3
FULL_PIECE = 0.9
"""Part of a piece that normal intervals must cover for it to count."""

MOST_SPECTRA = 24
"""LF and HF are medians over at most so many pieces, spread evenly over the recording."""


def normal_intervals(findings: Findings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the NN intervals and when each ends, both in seconds, float64 `[num_intervals]`.

    Both beats are N, the stretch is readable and not in atrial fibrillation, and the length lies within `NN_RANGE_S`.
    """
    ends = findings.sample[1:] / findings.recording.rate_hz
    rr_s = np.diff(findings.sample) / findings.recording.rate_hz
    normal = findings.symbol == "N"
    kept = normal[1:] & normal[:-1] & findings.readable() & (rr_s >= NN_RANGE_S[0]) & (rr_s <= NN_RANGE_S[1])
    for event in findings.of_kind("AF"):
        first, last = np.searchsorted(findings.sample, [event.start, event.stop])
        kept[max(0, first - 1) : last] = False
    return rr_s[kept], ends[kept]


def variability(findings: Findings) -> dict[str, float]:
    """Return heart rate variability: times in ms, pNN50 in per cent, powers in ms²; empty with too few intervals.

    `sdann_ms` and `sdnn_index_ms` need `FEWEST_PIECES` full pieces of five minutes, `lf_ms2` and `hf_ms2` one.

    Raises:
        HeartlmError: NeuroKit2 is not installed.
    """
    nn_s, ends_s = normal_intervals(findings)
    if len(nn_s) < FEWEST_INTERVALS:
        return {}
    try:
        import neurokit2
    except ModuleNotFoundError:
        raise needs("analyze", "neurokit2") from None

    def of(place: NDArray[np.bool_] | slice, compute: Any, **options: Any) -> dict[str, float]:
        # NeuroKit2 counts differences of neighbours only, for which it needs the times
        table = compute({"RRI": nn_s[place] * 1000, "RRI_Time": ends_s[place]}, **options)
        return {str(name).removeprefix("HRV_"): float(table[name].iloc[0]) for name in table}

    piece = (ends_s // PIECE_S).astype(np.int64)
    covered = np.bincount(piece, nn_s)
    full = np.flatnonzero(covered >= FULL_PIECE * PIECE_S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bands for which a piece is too short, which are not used
        whole = of(slice(None), neurokit2.hrv_time)
        found = {name: whole[key] for name, key in (("sdnn_ms", "SDNN"), ("rmssd_ms", "RMSSD"), ("pnn50_pct", "pNN50"))}
        if len(full) >= FEWEST_PIECES:
            # not NeuroKit2's: its pieces are of the time in normal intervals, which gaps make longer than five minutes
            pieces = [nn_s[piece == place] * 1000 for place in full]
            found["sdann_ms"] = float(np.std([part.mean() for part in pieces], ddof=1))
            found["sdnn_index_ms"] = float(np.mean([part.std(ddof=1) for part in pieces]))
        spread = full[np.unique(np.linspace(0, len(full) - 1, min(len(full), MOST_SPECTRA)).astype(int))]
        options = {"normalize": False, "interpolation_rate": 4, "silent": True}
        spectra = [of(piece == place, neurokit2.hrv_frequency, **options) for place in spread]
    for name, key in (("lf_ms2", "LF"), ("hf_ms2", "HF"), ("lf_hf", "LFHF")):
        if spectra:
            found[name] = float(np.median([spectrum[key] for spectrum in spectra]))
    return found | {"num_intervals": len(nn_s), "num_pieces": len(full), "num_spectra": len(spectra)}
