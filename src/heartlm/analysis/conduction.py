"""Findings from the intervals of normal beats: AV block of first degree, long QT, and wide QRS with its side.

Limits are those of the AHA/ACCF/HRS recommendations (Surawicz 2009, doi 10.1016/j.jacc.2008.12.013: QRS of 120 ms and
more, patterns of bundle branch block; Rautaharju 2009, doi 10.1016/j.jacc.2008.12.014: QT corrected by a linear
formula, and not judged in wide QRS), of Strauss, Selvester and Wagner 2011 (Am J Cardiol 107:927: left bundle branch
block from 140 ms on in men, 130 ms in women), and of common use (PR above 200 ms).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.av_block import BY_P_WAVES
from heartlm.analysis.findings import Event, crossed, readable_intervals
from heartlm.delineation.delineate import LOWEST_RATE_HZ, OFFSET, ONSET, QRS
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.recording import Recording

LONGEST_PR_MS, WIDE_QRS_MS = 200.0, 120.0
LONG_QTC_MS, LEFT_BLOCK_MS = {"male": 480.0}, {"male": 140.0}
OTHER_QTC_MS, OTHER_LEFT_BLOCK_MS = 490.0, 130.0
"""From this QTc on QT is long, and from this QRS on a block is left: in men, and in women or where sex is not known.
Guidelines measure QT to the tangent of T, which is 13 ms shorter here, and call 480 ms long without doubt (Zeppenfeld
2022, doi 10.1093/eurheartj/ehac262). At 450 and 460 ms two of 49 calls in PTB-XL (folds 1 to 8) are right, at these
limits two of four (docs/log/delineation.md)."""
FASTEST_QT_BPM = 100.0
"""QT of a faster rhythm is not judged: corrections differ."""
BLOCK_S = 300.0
"""Intervals are compared by their medians over this time, or over a shorter recording."""
FEWEST_BEATS = 5
"""Number of normal beats that a median needs."""
LEAST_P_SHARE = 0.5
"""Fraction of normal beats with a P wave, below which there is no PR interval: the P waves may be false ones."""
SPIKE_MV, SPIKE_LEADS, SPIKE_RATE_HZ = 0.4, 3, 400.0
"""Second difference in mV, in three leads around the onset of QRS, that only a pacing spike has, from this rate on. At
500 Hz wide QRS without a pacemaker have up to 0.33 in the odd folds of PTB-XL and 0.09 in 6 recordings of LUDB; most
paced ones have 0.46 to 3.1."""
END_OF_QRS = 1 / 3
"""Last part of the QRS complex, whose sign in V1 and in I or V6 tells the side of a bundle branch block."""

_FEW = f"fewer than {FEWEST_BEATS} normal beats in {BLOCK_S / 60:g} minutes have"
UNMEASURED = dict.fromkeys(("LBBB", "RBBB", "wide QRS"), f"{_FEW} a QRS complex with its ends")
UNMEASURED |= {"AV block I": "no P wave in half of the normal beats outside of AF, flutter and paced rhythm"}
UNMEASURED |= {"long QT": f"{_FEW} a QT interval outside of AF, flutter and wide QRS"}
"""Reason for each kind that no stretch can be examined for."""
BY_WAVES = (*UNMEASURED, *BY_P_WAVES)
"""Kinds that need P waves or QRS complexes with their ends."""
SIDE_LEADS = "the side of wide QRS complexes needs V1, and I or V6"


def conduction(
    recording: Recording, waves: Intervals | None, symbol: NDArray[np.str_], found: list[Event], lost: NDArray[np.int64]
) -> tuple[list[Event], dict[str, str]]:
    """Return stretches in which the median PR, QTc or QRS of normal beats is beyond its limit.

    Beats in atrial fibrillation or flutter, and next to what cannot be read, count for QRS alone; of wide beats that
    follow pacing spikes only the width is told. Confidence is the fraction of beats whose own interval is beyond the
    limit.

    Args:
        recording: recording with a signal.
        waves: its waves; None if they were not measured.
        symbol: class of each beat, `<U1` `[num_beats]`.
        found: events that were found before.
        lost: beats after which signal is lost before the next one, int64 `[num_lost]`.

    Returns:
        The events, and the kinds that no stretch could be examined for, each with the reason.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    if waves is None:
        slow = f"{recording.rate_hz:g} Hz, {LOWEST_RATE_HZ:g} Hz needed" if recording.rate_hz < LOWEST_RATE_HZ else ""
        return [], dict.fromkeys(BY_WAVES, slow or "no beats")
    beats = waves.delineation.beats
    normal = symbol == "N"
    irregular = crossed((event for event in found if event.kind in ("AF", "flutter", "VF")), beats)
    regular = normal & ~np.append(irregular, False) & ~np.append(False, irregular)
    readable = np.append(False, readable_intervals(found, beats, lost))
    has_p = waves.delineation.has_p
    pr, qtc, qrs = (waves.intervals[name] for name in ("pr_ms", "qtc_framingham_ms", "qrs_ms"))
    with np.errstate(invalid="ignore"):
        not_fast = waves.intervals["rr_ms"] >= 60_000 / FASTEST_QT_BPM
    num_blocks = max(1, round(recording.duration_s / BLOCK_S))
    block = np.minimum(beats * num_blocks // max(1, recording.num_samples), num_blocks - 1)
    sex = recording.patient.sex
    long_qtc, left_block = LONG_QTC_MS.get(sex, OTHER_QTC_MS), LEFT_BLOCK_MS.get(sex, OTHER_LEFT_BLOCK_MS)
    kinds_by_block: list[list[tuple[str, float, float]]] = []
    examined, has_side = set[str](), _has_side_leads(waves)
    for block_index in range(num_blocks):
        in_block, block_kinds = block == block_index, list[tuple[str, float, float]]()
        width, is_paced = _median(qrs, in_block & normal), False
        if not np.isnan(width):
            examined |= {"wide QRS", "LBBB", "RBBB"}
        if width >= WIDE_QRS_MS:
            share = float(np.mean(qrs[in_block & normal & ~np.isnan(qrs)] >= WIDE_QRS_MS))
            side, is_paced = _side(waves, in_block & normal)
            kind = "wide QRS" if is_paced or (side == "LBBB" and width < left_block) else side
            block_kinds.append((kind, width, share))
        # QTc is not judged in wide QRS (Rautaharju 2009), nor after an interval that cannot be read, which corrects it.
        elif not np.isnan(value := _median(qtc, in_block & regular & readable & not_fast)):
            examined.add("long QT")
            if value >= long_qtc:
                known = in_block & regular & readable & not_fast & ~np.isnan(qtc)
                block_kinds.append(("long QT", value, float(np.mean(qtc[known] >= long_qtc))))
        conducted = in_block & regular
        has_pr = conducted.any() and has_p[conducted].mean() >= LEAST_P_SHARE and not is_paced
        if has_pr and not np.isnan(value := _median(pr, conducted)):
            examined.add("AV block I")
            if value > LONGEST_PR_MS:
                share = float(np.mean(pr[conducted & ~np.isnan(pr)] > LONGEST_PR_MS))
                block_kinds.append(("AV block I", value, share))
        kinds_by_block.append(block_kinds)
    events = sorted(_joined(kinds_by_block, block, beats, recording.rate_hz), key=lambda event: event.start)
    unexamined = {kind: reason for kind, reason in UNMEASURED.items() if kind not in examined}
    if not has_side and any(event.kind == "wide QRS" for event in events):
        unexamined |= dict.fromkeys(("LBBB", "RBBB"), SIDE_LEADS)
    return events, unexamined


def _joined(
    kinds: list[list[tuple[str, float, float]]], block: NDArray[np.int64], beats: NDArray[np.int64], rate_hz: float
) -> Iterator[Event]:
    """Yield one event for each run of blocks with a kind: from its first beat to its last, with the means of blocks."""
    for name in sorted({each[0] for kind in kinds for each in kind}):
        having = [next((each for each in kind if each[0] == name), None) for kind in kinds]
        for _, run in groupby(enumerate(having), key=lambda pair: pair[1] is not None):
            members = [(number, each) for number, each in run if each is not None]
            if not members:
                continue
            first, stop = np.searchsorted(block, [members[0][0], members[-1][0] + 1]).tolist()
            seconds = (beats[stop - 1] - beats[first]) / rate_hz
            yield Event(
                name,
                int(beats[first]),
                int(beats[stop - 1]) + 1,
                confidence=float(np.mean([each[2] for _, each in members])),
                num_beats=stop - first,
                rate_bpm=60 * (stop - first - 1) / seconds if seconds > 0 else float("nan"),
                interval_ms=float(np.median([each[1] for _, each in members])),
            )


def _median(values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> float:
    known = values[chosen & ~np.isnan(values)]
    return float(np.median(known)) if len(known) >= FEWEST_BEATS else float("nan")


def _has_side_leads(waves: Intervals) -> bool:
    names = {name.lower() for name in waves.delineation.lead_names}
    return "v1" in names and bool(names & {"i", "v6"})


def _side(waves: Intervals, chosen: NDArray[np.bool_]) -> tuple[str, bool]:
    """Return LBBB, RBBB or wide QRS, by the end of QRS in V1 and in I or V6, and whether pacing spikes precede it."""
    delineation = waves.delineation
    rate_hz = delineation.recording.rate_hz
    whole = (delineation.all_leads[:, QRS][:, [ONSET, OFFSET]] >= 0).all(axis=1) & chosen
    index = np.flatnonzero(whole)
    index = index[np.unique(np.linspace(0, len(index) - 1, min(len(index), 30)).round().astype(np.int64))]
    levels, steepest = list[NDArray[np.float32]](), list[float]()
    for onset, offset in delineation.all_leads[index][:, QRS][:, [ONSET, OFFSET]].tolist():
        start, before = max(0, onset - round(0.06 * rate_hz)), max(1, round(0.02 * rate_hz))
        signal = np.nan_to_num(delineation.recording.signal(start, offset + 1, delineation.leads))
        last = round((offset - onset) * END_OF_QRS)
        begin = max(0, onset - before) - start
        levels.append(signal[:, -last:].mean(axis=1) - signal[:, begin : onset - start].mean(axis=1))
        jumps = np.abs(np.diff(signal[:, : onset - start + before + 2], 2, axis=1)).max(axis=1)
        steepest.append(float(np.sort(jumps)[-min(SPIKE_LEADS, len(jumps))]))
    is_paced = rate_hz >= SPIKE_RATE_HZ and float(np.median(steepest)) >= SPIKE_MV
    if not _has_side_leads(waves):
        return "wide QRS", is_paced
    ends = dict(zip(map(str.lower, delineation.lead_names), np.median(levels, axis=0).tolist(), strict=True))
    lateral = [ends[name] for name in ("i", "v6") if name in ends]
    if ends["v1"] > 0 > min(lateral):
        return "RBBB", is_paced
    return ("LBBB" if ends["v1"] < 0 < max(lateral) else "wide QRS"), is_paced
