"""Rules of one lead: from judged beats and seconds to the kinds of alarms that hold in this lead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from heartlm.monitor.alarms import MAX_RULE_BEATS, AlarmRules
from heartlm.monitor.state import Stateful
from heartlm.training.waveform import ASYSTOLE, NOISE, VF, VT, WINDOW_S

LOST_S, _FOUND_S = 5, 2
"""A signal is lost after this number of seconds without valid samples, and found again after this number with them."""
_KEPT_S = 8
"""Number of last seconds of which windows, heights and valid samples are kept."""
_QUIET_HEIGHT = 0.35
"""A second whose range is below this fraction of a usual beat's range contains no beat."""
_SILENT_HEIGHT = 0.05
"""A beat is no heartbeat if the seconds around it have a range below this fraction of a usual beat's range."""
_SAME_BEAT_S = 0.15
"""Largest difference between the positions of one beat in two leads (the window of ANSI/AAMI EC57)."""
_BEAT_DELAY_S = 0.7
"""Time from the peak of a beat until it is known: 0.51 s for the detector, and the rest of the second."""
_VF_ONSET_S, _VF_END_S, _AFTER_VF_S = 7, 4, 8
"""VF began this long before it is called: three windows of four seconds reach 6 s back, and the first of them must show
VF for about half of its time. VF ends, and beats count again, this long after the last window that showed it."""
_ASYSTOLE_ENDED_S = 2
"""An asystole that a beat has ended can still be raised for this time, as leads report that beat in different
seconds."""
_CLEAR = 0.25
"""A lead may veto alarms of other leads if its mean probability of noise and VF in the last four windows is below."""
_SURE, _SURE_BEATS, _SURE_S = 0.9, 3, 5
"""So may a lead that is not noise and has this number of N beats of this probability in the last seconds."""
_START_WINDOWS = 5
"""Until a usual beat's height is known, VF needs its mean probability over this number of windows: an electrode that
settles sways."""
_SLOW_WINDOWS, _SLOW_SHARE = 6, 5 / 6
"""VF may be less probable if it lasts: over this number of windows, this fraction of its probability is enough."""
_BEFORE_NOISE_S = 2
"""A slow rhythm that began more than this time before noise may lack beats that the noise hides."""
_VALID, COMPLETE = 0.5, 0.9
"""Fraction of valid samples above which a second can be judged, and above which its gaps cannot hide a beat."""
_LOW_HEIGHT = 0.7
"""Bradycardia and asystole need a second whose range is below this fraction of a usual beat's range: after an artefact,
the detector may miss beats of usual height."""
_EMPTY_RR_S = 1.5
"""Mean interval between beats above which some second has none. The default limit, 40/min, is this interval."""
_NOT_VENTRICULAR, _MAX_OTHER_BEATS = 0.1, 1
"""VT may have this number of beats whose probability of being ventricular is below. Bigeminy has more."""
_PERHAPS_VENTRICULAR = 0.3
"""`vt_measures` counts beats whose probability of being ventricular is above."""
_VT_WEIGHTS, _VT_BIAS = (3.71, 1.17, 3.87, -9.48, 3.14, -4.14), -9.19
"""Logistic regression of VT on `vt_measures`, fitted by benchmarks/vt.py."""
_MIN_VT_AT_START = 0.5
"""Until a usual beat's height is known, VT needs this mean probability in the waveform."""
_MIN_ASYSTOLE = 0.5
"""Until a usual beat's height is known, asystole needs this mean probability in the waveform: at the start of a
recording, an electrode that settles hides beats."""
_AF_DRIFT, _AF_CLIP, _AF_EXCESS = 1.0, 3.0, 6.4
"""The onset of AF is found by a CUSUM (Page, Biometrika 41:100, 1954): the sum, never below 0, of the log odds of the
beats, each the mean over the leads that have the beat, limited to ±`_AF_CLIP` and reduced by `_AF_DRIFT`. With the sum
`_AF_EXCESS`, AF is as probable as not."""
_AF_HEAD_START = 5.5
"""The sum at the start of a stream, which may begin in AF (Lucas and Crosier, Technometrics 24:199, 1982)."""
_BEATS_NEAR = 4
"""Last beats of a lead among which those of another lead are looked for."""
_MAX_AF_SUM = 20.0
"""The sum does not exceed this value, so that it falls to 0 once AF has ended."""
_NEVER = -(10**9)


def vt_measures(ventricular: Sequence[float], rr_s: Sequence[float], vt: float, noise: float) -> tuple[float, ...]:
    """Return the measures of VT that `_VT_WEIGHTS` weights.

    Args:
        ventricular: probability of each of the last beats that it is ventricular.
        rr_s: intervals between these beats.
        vt: mean probability of VT in the last windows of the waveform.
        noise: likewise of noise.
    """
    perhaps = sum(each > _PERHAPS_VENTRICULAR for each in ventricular) / len(ventricular)
    mean_rr_s = fmean(rr_s)
    return fmean(ventricular), perhaps, vt, noise, 1 / mean_rr_s, pstdev(rr_s) / mean_rr_s


def _vt_probability(measures: tuple[float, ...]) -> float:
    score = _VT_BIAS + sum(weight * measure for weight, measure in zip(_VT_WEIGHTS, measures, strict=True))
    return 1 / (1 + math.exp(-score))


class JudgedBeat(NamedTuple):
    """A beat with its class.

    Attributes:
        sample: position of the beat.
        symbol: AAMI class.
        probability: probability of that class.
        ventricular: probability of the class V.
        faint: much lower than the previous beats and of another shape, as detections in a silent signal are.
        af: log odds of AF, see `heartlm.monitor.af_onset`; 0 if unknown.
    """

    sample: int
    symbol: str
    probability: float
    ventricular: float
    faint: bool = False
    af: float = 0.0


class LeadSecond(NamedTuple):
    """Results of one second of one lead.

    Attributes:
        beats: beats that became known in this second, in order.
        wave: probabilities of the five waveform classes in the last four seconds; None if unknown.
        valid: fraction of valid samples in the second.
        height: range of the second divided by the usual range of a beat; NaN if unknown.
    """

    beats: Sequence[JudgedBeat]
    wave: list[float] | None
    valid: float
    height: float


class LeadRules(Stateful):
    """Rules of one lead with their state.

    The state is lists of a few numbers. They are read every second for thousands of streams; arrays of this size would
    take several times as long.

    Args:
        rules: thresholds.
        rate_hz: samples per second.

    Attributes:
        beats: last beats since `begin`.
        waves: `LeadSecond.wave` of the last seconds; likewise `valid` and `heights`.
        lost: the signal is lost.
        begin: end of the last gap, or start of the stream.
        last_vf: when VF was last found.
        last_noise: when a window was last noise, in which beats are missed.
        af_sum: sum of the log odds of AF.
        af_onset: the beat before which it was last 0.
        af_told: AF has been found since then.
        found: kinds of alarms that hold, with the sample at which each began and its confidence; see `judge`.
        has_beats: detections in this lead are heartbeats, neither noise nor VF; likewise.
    """

    STATE = (
        "beats",
        "waves",
        "valid",
        "heights",
        "lost",
        "begin",
        "last_vf",
        "last_noise",
        "af_sum",
        "af_onset",
        "af_told",
    )

    def __init__(self, rules: AlarmRules, rate_hz: float) -> None:
        self.rules, self.rate_hz = rules, rate_hz
        self.beats = list[JudgedBeat]()
        self.waves = list[list[float] | None]()
        self.valid = list[float]()
        self.heights = list[float]()
        self.lost = False
        self.begin = 0
        self.last_vf = self.last_noise = _NEVER
        self.af_sum, self.af_onset, self.af_told = _AF_HEAD_START, 0, False
        self.found = dict[str, tuple[int, float]]()
        self.has_beats = False

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes."""
        super().restore(state)
        self.beats = [JudgedBeat(*beat) for beat in state["beats"]]

    def add(self, now: int, second: LeadSecond) -> list[JudgedBeat]:
        """Add the results of the next second, which ends at sample `now`; return its heartbeats, for `add_af`."""
        added = list[JudgedBeat]()
        self.heights.append(second.height)
        self.waves.append(second.wave)
        self.valid.append(second.valid)
        del self.heights[:-_KEPT_S], self.waves[:-_KEPT_S], self.valid[:-_KEPT_S]
        for beat in second.beats:
            # The QRS complex may reach into the seconds next to that of its peak, which is this one or an earlier one.
            place = len(self.heights) - 1 - int((now - 1 - beat.sample) // self.rate_hz)
            near = self.heights[max(0, place - 1) : place + 2]
            silent = len(near) > 0 and max(near) < _SILENT_HEIGHT
            if not (beat.faint or silent) and beat.sample >= self.begin:
                self.beats.append(beat)
                del self.beats[:-MAX_RULE_BEATS]
                added.append(beat)
        if second.valid < COMPLETE:  # a beat may be missing here, so no interval reaches across
            self.begin = now
            self.beats, self.af_sum, added = [], 0.0, []
        if not self.lost:
            self.lost = second.valid < _VALID and len(self.valid) >= LOST_S and max(self.valid[-LOST_S:]) < _VALID
        elif min(self.valid[-_FOUND_S:]) >= _VALID:
            self.lost = False
            self.beats, self.waves = [], []
            self.begin = max(self.begin, now - _FOUND_S * round(self.rate_hz))
        return added

    def _in_noise(self, sample: int) -> bool:
        """Whether a beat may be wrong because of noise."""
        return sample < self.last_noise + WINDOW_S * self.rate_hz

    def af_near(self, sample: int) -> float:
        """Return the log odds of AF of the beat of another lead at a sample, 0 if unknown or in noise."""
        for beat in self.beats[-_BEATS_NEAR:]:
            if abs(beat.sample - sample) < _SAME_BEAT_S * self.rate_hz:
                return 0.0 if self._in_noise(beat.sample) else beat.af
        return 0.0

    def add_af(self, beat: JudgedBeat, others: Sequence[float]) -> None:
        """Add the log odds of AF of a beat that `add` returned, and those of other leads, 0 if unknown, to the sum."""
        if self.af_sum == 0:
            self.af_onset, self.af_told = beat.sample, False
        if beat.af == 0:  # it has too few intervals before it
            return
        known = [beat.af, *(each for each in others if each != 0)]
        gain = min(max(sum(known) / len(known), -_AF_CLIP), 0.0 if self._in_noise(beat.sample) else _AF_CLIP)
        self.af_sum = min(max(self.af_sum + gain - _AF_DRIFT, 0.0), _MAX_AF_SUM)

    def _is_quiet(self) -> bool:
        """Whether the signal of the last four seconds is too low for a beat."""
        return all(height < _QUIET_HEIGHT for height in self.heights[-4:])

    def _has_sure_beats(self, now: int) -> bool:
        last = [beat for beat in self.beats if now - beat.sample < _SURE_S * self.rate_hz]
        return sum(beat.symbol == "N" and beat.probability > _SURE for beat in last) >= _SURE_BEATS

    def rate_since(self, start: int) -> float:
        """Return the mean rate since a sample in beats per minute, 0 with fewer than two beats."""
        samples = [beat.sample for beat in self.beats if beat.sample >= start]
        return 60 * self.rate_hz * (len(samples) - 1) / (samples[-1] - samples[0]) if len(samples) > 1 else 0.0

    @property
    def af_probability(self) -> float:
        """Probability that AF started, from the last beats."""
        return 1 / (1 + math.exp(_AF_EXCESS - self.af_sum))

    def ventricular_since(self, start: int) -> float:
        """Return the mean probability that beats since a sample are ventricular."""
        since = start - _SAME_BEAT_S * self.rate_hz
        probabilities = [beat.ventricular for beat in self.beats if beat.sample >= since]
        return fmean(probabilities) if probabilities else 0.0

    def _rr_s(self, last: int) -> float:
        """Return the mean of this number of last intervals in seconds, NaN with fewer."""
        if len(self.beats) <= last:
            return math.nan
        return (self.beats[-1].sample - self.beats[-1 - last].sample) / (last * self.rate_hz)

    def is_clear(self, now: int) -> bool:
        """Return whether the signal is good enough to veto alarms of another lead."""
        if min(self.valid[-4:]) < _VALID:
            return False
        known = self._known_waves()
        if not known or sum([wave[NOISE] + wave[VF] for wave in known]) / len(known) < _CLEAR:
            return True
        noise = sum([wave[NOISE] for wave in known]) / len(known)
        return noise < self.rules.noise_probability and self._has_sure_beats(now)

    def _known_waves(self) -> list[list[float]]:
        return [wave for wave in self.waves if wave is not None][-4:]

    def _mean(self, kind: int, num_windows: int = 3) -> float:
        """Return the mean probability of a waveform class in the last windows, of which unknown ones count as 0."""
        return sum([wave[kind] for wave in self.waves[-num_windows:] if wave is not None]) / num_windows

    def judge(self, now: int) -> dict[str, tuple[int, float]]:
        """Set `found` and `has_beats` for sample `now`, and return `found`."""
        rules, rate_hz = self.rules, self.rate_hz
        self.found = found = dict[str, tuple[int, float]]()
        noises = [wave[NOISE] for wave in self._known_waves()]
        noisy = len(noises) > 0 and sum(noises) / len(noises) >= rules.noise_probability
        if noises and sum(noises[-2:]) >= rules.noise_probability * len(noises[-2:]) and not self._is_quiet():
            self.last_noise = now  # in a quiet lead, noise hides no beat
        usual_known, mean_vf = not math.isnan(self.heights[-1]), self._mean(VF)
        if not usual_known:
            mean_vf = min(mean_vf, self._mean(VF, _START_WINDOWS))
        slow_vf = _SLOW_SHARE * rules.vf_probability
        may_last = usual_known and mean_vf >= 2 * slow_vf - 1  # else six windows cannot reach it
        lasting = may_last and self._mean(VF, _SLOW_WINDOWS) >= slow_vf
        if mean_vf >= rules.vf_probability or lasting:
            self.last_vf = now
        if self.last_vf > now - _VF_END_S * rate_hz:
            found["VF"] = now - round(_VF_ONSET_S * rate_hz), mean_vf
        beats, last_rr_s = self.beats, self._rr_s(1)
        since_beat_s = (now - (beats[-1].sample if beats else self.begin)) / rate_hz
        stands_still = since_beat_s >= rules.asystole_s + _BEAT_DELAY_S
        stood_still = last_rr_s >= rules.asystole_s and since_beat_s < _ASYSTOLE_ENDED_S
        if (stands_still or stood_still) and "VF" not in found and (not noisy or self._is_quiet()):
            mean_asystole = self._mean(ASYSTOLE)
            if usual_known:
                may_stand_still = any(height < _LOW_HEIGHT for height in self.heights[-4:])
            else:
                may_stand_still = mean_asystole >= _MIN_ASYSTOLE
            if min(self.valid[-4:]) >= _VALID and may_stand_still:
                confidence = max(mean_asystole, 1 - self._mean(NOISE))
                if stands_still:
                    found["asystole"] = now - round(since_beat_s * rate_hz), confidence
                elif (  # a beat has just ended it, and it is high: lower ones may have been missed before
                    beats[-2].sample >= self.last_noise and any(height >= _QUIET_HEIGHT for height in self.heights[-3:])
                ):
                    found["asystole"] = beats[-2].sample, confidence
        self.has_beats = not noisy and self.last_vf <= now - _AFTER_VF_S * rate_hz
        if not self.has_beats:
            return found
        if since_beat_s < rules.asystole_s:
            needed = rules.tachycardia_beats - 1
            if self._rr_s(needed) < 60 / rules.tachycardia_bpm:
                found["extreme tachycardia"] = beats[-needed - 1].sample, 1.0
            needed, longest_s = rules.bradycardia_beats - 1, 60 / rules.bradycardia_bpm
            for unended in (0, 1):  # the last interval has ended, or has not
                if len(beats) <= needed - unended:
                    continue
                first = beats[unended - needed - 1].sample
                until = now - _BEAT_DELAY_S * rate_hz if unended else beats[-1].sample
                if (mean_rr_s := (until - first) / (needed * rate_hz)) > longest_s:
                    unhidden = first >= self.last_noise - _BEFORE_NOISE_S * rate_hz
                    has_low_second = mean_rr_s < _EMPTY_RR_S or any(height < _LOW_HEIGHT for height in self.heights)
                    if usual_known and unhidden and has_low_second:
                        found["extreme bradycardia"] = first, 1.0
            num_v = 0
            while num_v < len(beats) and beats[-1 - num_v].symbol == "V":
                num_v += 1
            if num_v >= rules.run_beats:
                confidence = fmean(beat.probability for beat in beats[-num_v:])
                found["run"] = beats[-num_v].sample, confidence
            if self._rr_s(rules.vt_beats - 1) <= 60 / rules.vt_bpm:
                last = beats[-rules.vt_beats :]
                ventricular = [beat.ventricular for beat in last]
                few_others = sum(each < _NOT_VENTRICULAR for each in ventricular) <= _MAX_OTHER_BEATS
                if few_others and (usual_known or self._mean(VT) >= _MIN_VT_AT_START):
                    rr_s = [(beat.sample - before.sample) / rate_hz for before, beat in pairwise(last)]
                    measures = vt_measures(ventricular, rr_s, self._mean(VT), self._mean(NOISE))
                    probability = _vt_probability(measures)
                    if probability >= rules.vt_probability:
                        found["VT"] = beats[-max(num_v, rules.vt_beats)].sample, probability
        if last_rr_s >= rules.pause_s and since_beat_s < rules.pause_s:
            found["pause"] = beats[-2].sample, 1.0
        return found
