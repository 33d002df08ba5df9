"""Delineate a recording: the P wave, QRS complex and T wave of each beat in each lead.

    recording ─► blocks of ten minutes ─► waves of each lead and of all together ─► beats ─► waves of each beat

A P wave belongs to the beat whose QRS complex follows it, a T wave to the beat before it. Further P waves before a QRS
complex, as in AV block and flutter, belong to no beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.network import CLASSES, Network, Waves, find_waves
from heartlm.ecg.leads import ecg_leads, no_ecg_lead
from heartlm.ecg.recording import Recording
from heartlm.ecg.spans import inside_of
from heartlm.errors import HeartlmError

Positions = NDArray[np.int64]
Floats = NDArray[np.float32]

WAVES = CLASSES[1:]
P, QRS, T = range(3)
ONSET, PEAK, OFFSET = range(3)
ABSENT = -1
"""Position of a wave that a beat does not have."""

LOWEST_RATE_HZ = 100.0
_BLOCK_S, _MARGIN_S = 300 * 2.048, 5 * 2.048
"""Length of a block and of what is read on both sides of it: whole windows of c/delineate_prepare.c."""
# Greatest distance of a QRS complex from a beat, and of the peaks of P and T from it.
_SAME_BEAT_S, _LONGEST_PR_S, _LONGEST_QT_S = 0.15, 0.5, 0.8
# Least confidence of a P wave that no QRS complex follows.
_SURE = 0.8
# The onset of a wave in all leads is this quantile of its onsets, its offset one minus this quantile of its offsets:
# a single lead of twelve does not decide.
_QUANTILE = 1 / 6
FEWEST_LEADS = 3
"""Leads that it takes: which of two is an outlier cannot be told, so that their mean has the edges."""
# Fraction of the leads (three or more) whose P peaks lie within this time of their median, that shows a P wave of all
# leads if their mean confidence is this; chosen on the odd folds of PTB-XL, so that AF gets no more P waves.
_P_LEADS, _P_TOGETHER_S, _P_SURE = 1 / 3, 0.03, 0.75


@dataclass(frozen=True)
class Delineation:
    """Waves of the beats of a recording; positions are samples, `ABSENT` (-1) where a beat has no such wave.

    A wave that the recording cuts has a peak, and -1 for the edge that lies outside.

    Attributes:
        recording: the recording.
        leads: index of each delineated lead.
        beats: position of each beat, int64 `[num_beats]`, ascending.
        waves: onset, peak and offset of P, QRS and T, int64 `[num_beats, num_leads, 3, 3]`; the last but one axis is
            the wave, the last one the point.
        confidence: mean probability of each wave, 0 if absent, float32 `[num_beats, num_leads, 3]`.
        all_leads: the same positions for all leads together, int64 `[num_beats, 3, 3]`: a wave that the leads show
            together, from the earliest to the latest of its edges in the leads without outliers (quantiles of 1/6 and
            5/6; of two leads, the edges in their mean), with its peak in the first lead; or a P wave that only a third
            of the leads (three or more) show clearly, with its median peak.
        all_confidence: its confidence, float32 `[num_beats, 3]`.
        other_p: P waves of each lead that belong to no beat.
    """

    recording: Recording
    leads: tuple[int, ...]
    beats: Positions
    waves: Positions
    confidence: Floats
    all_leads: Positions
    all_confidence: Floats
    other_p: tuple[Waves, ...]

    @property
    def num_beats(self) -> int:
        """Number of beats, the first axis of the arrays."""
        return len(self.beats)

    @property
    def has_p(self) -> NDArray[np.bool_]:
        """Whether the leads together show a P wave of each beat, bool `[num_beats]`."""
        return np.asarray(self.all_leads[:, P, PEAK] >= 0)

    def tracks(self) -> NDArray[np.uint8]:
        """Return the wave at each sample of each lead, uint8 `[num_leads, num_samples]`.

        0 is none, 1 a P wave, 2 a QRS complex, 3 a T wave; P waves that belong to no beat are 1, too. Waves without
        both edges are left out.
        """
        tracks = np.zeros((len(self.leads), self.recording.num_samples), np.uint8)
        for lead, (track, others) in enumerate(zip(tracks, self.other_p, strict=True)):
            edges = [self.waves[:, lead, wave][:, [ONSET, OFFSET]] for wave in (P, T, QRS)]
            edges[0] = np.concatenate([edges[0], np.stack([others.onset, others.offset], axis=1)])
            for label, pairs in zip((P + 1, T + 1, QRS + 1), edges, strict=True):
                track[inside_of(pairs, len(track))] = label
        return tracks

    @property
    def lead_names(self) -> list[str]:
        """Names of the leads; a later lead of the same name with its number in the recording, as `ECG (2)`."""
        names = [self.recording.lead_names[lead] for lead in self.leads]
        return [f"{name} ({self.leads[at] + 1})" if name in names[:at] else name for at, name in enumerate(names)]


def delineate(
    recording: Recording,
    beats: Positions | None = None,
    leads: Sequence[int | str] | None = None,
    network: Network | None = None,
) -> Delineation:
    """Find onset, peak and offset of P, QRS and T of every beat.

    Args:
        recording: recording with a signal of 100 Hz or more.
        beats: positions of the beats in samples, ascending. By default they are the QRS complexes that the leads show
            together.
        leads: leads to delineate, by index or name; by default all ECG leads, the preferred one first. They are read
            together: what most of them show counts in each.
        network: network to use; by default the shipped one.

    Raises:
        HeartlmError: there is no signal or no such lead, the rate is too low, the beats are not ascending positions
            within the recording, or a file cannot be read.
    """
    if not recording.has_signal or recording.num_samples == 0:
        raise HeartlmError(f"{recording.path}: no signal, so there is nothing to delineate")
    if recording.rate_hz < LOWEST_RATE_HZ:
        raise HeartlmError(
            f"{recording.path}: {recording.rate_hz:g} Hz found, waves can be delineated from {LOWEST_RATE_HZ:g} Hz on"
        )
    chosen = ecg_leads(recording) if leads is None else tuple(map(recording.lead_index, leads))
    if not chosen:
        raise HeartlmError(f"{recording.path}: {no_ecg_lead(recording)}, so there is nothing to delineate")
    checked = None if beats is None else _checked(recording, beats)
    blocks = list(_blocks(recording, chosen, network))
    waves_by_lead = [Waves.joined([block[lead] for block in blocks]) for lead in range(len(chosen) + 1)]
    for each in waves_by_lead:
        each.onset[each.onset <= 0] = each.offset[each.offset >= recording.num_samples - 1] = ABSENT
    together = waves_by_lead.pop()
    positions = together.peak[together.kind == QRS + 1] if checked is None else checked
    assigned = [_assign(waves, positions, recording.rate_hz) for waves in waves_by_lead]
    waves = np.stack([each[0] for each in assigned], axis=1)
    confidence = np.stack([each[1] for each in assigned], axis=1)
    common, common_confidence, _ = _assign(together, positions, recording.rate_hz)
    add_p_of_some_leads(waves, confidence, common, common_confidence, recording.rate_hz)
    all_leads, other_p = _of_all_leads(waves, common), tuple(each[2] for each in assigned)
    return Delineation(recording, chosen, positions, waves, confidence, all_leads, common_confidence, other_p)


def _checked(recording: Recording, beats: Positions) -> Positions:
    """Return the beats as int64, or raise an error."""
    given = np.asarray(beats)
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise HeartlmError(f"beats: {given.dtype} {given.shape} found, a list of whole sample positions expected")
    given = given.astype(np.int64)
    if given.size and not (given[0] >= 0 and given[-1] < recording.num_samples and np.all(np.diff(given) > 0)):
        raise HeartlmError(
            f"beats: ascending positions from 0 to {recording.num_samples - 1} expected, for {recording.path}"
        )
    return given


def _blocks(recording: Recording, leads: tuple[int, ...], network: Network | None) -> Iterator[list[Waves]]:
    """Yield the waves of each block, of each lead and then of all together."""
    rate_hz, total = recording.rate_hz, recording.num_samples
    length, margin = round(_BLOCK_S * rate_hz), round(_MARGIN_S * rate_hz)
    starts = list(range(0, max(total - length // 4, 1), length))  # a short remainder belongs to the block before
    for start, stop in pairwise([*starts, total]):
        first = max(0, start - margin)
        signals = recording.signal(first, min(total, stop + margin), leads)
        of_leads, together = find_waves(signals, rate_hz, network)
        shifted = [waves.shifted(first) for waves in (*of_leads, together)]
        yield [waves[(waves.peak >= start) & (waves.peak < stop)] for waves in shifted]


def _assign(waves: Waves, beats: Positions, rate_hz: float) -> tuple[Positions, Floats, Waves]:
    """Assign the waves of a lead to beats.

    Returns:
        Positions `[num_beats, 3, 3]` and confidence `[num_beats, 3]`; and the P waves that belong to no beat.
    """
    table = np.full((len(beats), 3, 3), ABSENT, np.int64)
    confidence = np.zeros((len(beats), 3), np.float32)
    is_sure_p = (waves.kind == P + 1) & (waves.confidence >= _SURE)
    if not len(beats):
        return table, confidence, waves[is_sure_p]
    after = np.searchsorted(beats, waves.peak)  # [num_waves], as `before` and `nearest`: index of a beat
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(beats) - 1)
    nearest = np.where(waves.peak - beats[before] <= beats[after] - waves.peak, before, after)
    distance = {
        P: (after, beats[after] - waves.peak, _LONGEST_PR_S),
        QRS: (nearest, np.abs(beats[nearest] - waves.peak), _SAME_BEAT_S),
        T: (before, waves.peak - beats[before], _LONGEST_QT_S),
    }
    for wave, (beat, away, furthest) in distance.items():
        chosen = np.flatnonzero((waves.kind == wave + 1) & (away >= 0) & (away <= furthest * rate_hz))
        chosen = chosen[np.argsort(-away[chosen], kind="stable")]  # of several the nearest, which is written last
        # `away` is negative where there is no beat on that side. NumPy keeps the last of several values of a row.
        table[beat[chosen], wave] = np.stack([waves.onset, waves.peak, waves.offset], axis=1)[chosen]
        confidence[beat[chosen], wave] = waves.confidence[chosen]
    return table, confidence, waves[is_sure_p & ~np.isin(waves.peak, table[:, P, PEAK])]


def add_p_of_some_leads(
    waves: Positions, confidence: Floats, common: Positions, common_confidence: Floats, rate_hz: float
) -> None:
    """Add to `common` the P waves that some leads show at the same time: leads without a visible P weaken the mean.

    Args:
        waves, confidence: of the leads, `[num_beats, num_leads, 3, 3]` and `[num_beats, num_leads, 3]`.
        common, common_confidence: of all leads together, `[num_beats, 3, 3]` and `[num_beats, 3]`, changed in place.
        rate_hz: sampling rate in Hz.
    """
    least = max(FEWEST_LEADS, round(_P_LEADS * waves.shape[1]))
    rows = np.flatnonzero((common[:, P, PEAK] < 0) & ((waves[:, :, P, PEAK] >= 0).sum(axis=1) >= least))
    for row in rows.tolist():
        p_waves = waves[row, :, P]
        shown = p_waves[:, PEAK] >= 0
        shown &= np.abs(p_waves[:, PEAK] - np.median(p_waves[shown, PEAK])) <= _P_TOGETHER_S * rate_hz
        if shown.sum() >= least and (sure := confidence[row, shown, P].mean()) >= _P_SURE:
            common[row, P], common_confidence[row, P] = np.median(p_waves[shown], axis=0), sure


def _of_all_leads(waves: Positions, common: Positions) -> Positions:
    """Return the edges over all leads of the waves in `common` `[num_beats, 3, 3]`, in which the peaks are kept."""
    table, far = common.copy(), np.iinfo(np.int64).max
    if waves.shape[1] < FEWEST_LEADS:
        return table
    for point, sign in ((ONSET, 1), (OFFSET, -1)):
        present = (waves[..., point] >= 0) & (common[:, None, :, point] >= 0)  # [num_beats, num_leads, 3]
        num = present.sum(axis=1)
        rank = np.rint((num - 1) * _QUANTILE).astype(np.int64).clip(0)
        # With the sign of offsets turned, the outermost edge is the smallest of both; absent ones come last.
        edges = np.sort(np.where(present, sign * waves[..., point], far), axis=1)
        quantile = np.take_along_axis(edges, rank[:, None], axis=1)[:, 0]
        outermost = sign * np.minimum(quantile, sign * common[..., PEAK])  # the peak is that of the first lead
        table[..., point] = np.where(num > 0, outermost, common[..., point])
    return table
