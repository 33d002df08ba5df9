"""The rules of one lead: from judged beats and seconds to the kinds of alarms that hold in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from heartlm.monitor.alarms import KEPT_BEATS, AlarmRules
from heartlm.training.waveform import ASYSTOLE, CLASSES, NOISE, VF, VT

LOST_S, _FOUND_S = 5, 2
"""Seconds without valid samples after which a signal is lost, and seconds with them after which it is found."""
_KEPT_S = 8
"""Seconds that a rule looks back on windows, heights and valid samples."""
_QUIET = 0.35
"""Share of a beat's usual range below which a second holds no beat, whatever else it holds."""
_SAME_BEAT_S = 0.15
"""Leads show a beat at most so far apart (the window of ANSI/AAMI EC57)."""
_LATE_S = 0.7
"""A beat is known so long after its peak: 0.51 s for the decision, and the end of the second."""
_VF_KNOWN_S, _VF_ENDS_S, _AFTER_VF_S = 7, 4, 8
"""Three windows of four seconds reach 6 s back, and the first one has to show VF for about half of its time. The other
two are the seconds from the last one that showed VF until VF ends, and until beats count again."""
_ENDED_S = 2
"""A silence that a beat ended is alarmed of for so long: its beats are not known in all leads in one second."""
_CLEAR = 0.25
"""Mean probability of noise and VF of the last four seconds, summed, from which on a lead denies nothing."""
_BEFORE_NOISE_S = 2
"""A slow rhythm that began longer before noise than this may lack the beats that the noise hides."""
_VALID, _WHOLE = 0.5, 0.9
"""Share of valid samples from which on a second can be judged, and from which on no beat can hide in its gaps."""
_SOME_V = 0.35
"""VT by the waveform needs this mean probability of ventricular beats: other tachycardias show less."""


class JudgedBeat(NamedTuple):
    """A beat that was judged.

    Attributes:
        sample: its position.
        symbol: its AAMI class.
        probability: of that class.
        ventricular: probability of the class V.
        faint: whether it is much lower than the beats before and unlike them: the detector finds such in silence.
    """

    sample: int
    symbol: str
    probability: float
    ventricular: float
    faint: bool = False


class LeadSecond(NamedTuple):
    """What one second of one lead shows.

    Attributes:
        beats: that can be judged since the second before, in order.
        wave: probabilities of the waveform classes in the last four seconds, five; None where unknown.
        valid: share of valid samples in the second.
        height: range of the second over the usual range of a beat; NaN where unknown.
    """

    beats: Sequence[JudgedBeat]
    wave: list[float] | None
    valid: float
    height: float


class LeadJudgement(NamedTuple):
    """What the rules find in one lead.

    Attributes:
        found: kinds that hold: where each began, and its confidence.
        clear: whether it is good enough to deny what another lead finds.
        has_beats: whether what the detector finds in it are heartbeats, and neither noise nor VF.
    """

    found: dict[str, tuple[int, float]]
    clear: bool
    has_beats: bool


class LeadRules:
    """What the rules find in one lead, and what they remember of it.

    It remembers lists of a few numbers: each second of thousands of streams they are read, and arrays as short as these
    would take several times as long.

    Args:
        rules: when alarms are raised.
        rate_hz: samples a second.
    """

    def __init__(self, rules: AlarmRules, rate_hz: float) -> None:
        self.rules, self.rate_hz = rules, rate_hz
        self.beats = list[JudgedBeat]()
        """The last beats since `begin`."""
        self.rr_s = list[float]()
        """The intervals between them."""
        self.waves = list[list[float] | None]()
        """Of each of the last seconds what `LeadSecond.wave` says, and `valid` and `height` likewise."""
        self.valid = list[float]()
        self.heights = list[float]()
        self.lost = False
        self.begin = 0
        """Where the last gap ended, or the stream began."""
        self.vf = self.noise = -(10**9)
        """When VF was last found, and when a window last was noise, in which beats are missed."""

    def take(self, now: int, second: LeadSecond) -> None:
        """Take in one more second, the last of `now` samples."""
        for beat in second.beats:
            if not beat.faint and beat.sample >= self.begin:
                self._add(beat)
        self.heights = [*self.heights[1 - _KEPT_S :], second.height]
        self.waves = [*self.waves[1 - _KEPT_S :], second.wave]
        self.valid = [*self.valid[1 - _KEPT_S :], second.valid]
        if second.valid < _WHOLE:  # a beat may be missing here: what comes after has no interval to what was before
            self.begin = now
            self.beats, self.rr_s = [], []
        if not self.lost:
            self.lost = len(self.valid) >= LOST_S and max(self.valid[-LOST_S:]) < _VALID
        elif min(self.valid[-_FOUND_S:]) >= _VALID:
            self.lost = False
            self.beats, self.rr_s, self.waves = [], [], []
            self.begin = max(self.begin, now - _FOUND_S * round(self.rate_hz))

    def _add(self, beat: JudgedBeat) -> None:
        if self.beats:
            self.rr_s = [*self.rr_s[2 - KEPT_BEATS :], (beat.sample - self.beats[-1].sample) / self.rate_hz]
        self.beats = [*self.beats[1 - KEPT_BEATS :], beat]

    def _quiet(self) -> bool:
        """Whether the last seconds hold no beat, whatever else they hold."""
        return all(height < _QUIET for height in self.heights[-4:])

    def rate_since(self, start: int) -> float:
        """Beats a minute since then, 0 with less than two."""
        own = [beat.sample for beat in self.beats if beat.sample >= start]
        return 60 * self.rate_hz * (len(own) - 1) / (own[-1] - own[0]) if len(own) > 1 else 0.0

    def ventricular_since(self, start: int) -> float:
        """Mean probability that the beats since then are ventricular."""
        own = [beat.ventricular for beat in self.beats if beat.sample >= start - _SAME_BEAT_S * self.rate_hz]
        return fmean(own) if own else 0.0

    def wave_of_vt(self) -> float:
        """The most of VT and VF that a window of the last seconds shows, NaN where none is known."""
        return max((wave[VT] + wave[VF] for wave in self.waves[-4:] if wave is not None), default=math.nan)

    def judge(self, now: int) -> LeadJudgement:
        """What holds now."""
        rules, rate_hz, found = self.rules, self.rate_hz, dict[str, tuple[int, float]]()
        readable = min(self.valid[-4:]) >= _VALID
        of_vf = of_vt = of_asystole = of_noise = 0.0
        for wave in self.waves[-3:]:  # one window alone is not enough
            if wave is not None:
                of_vf += wave[VF] / 3
                of_vt += wave[VT] / 3
                of_asystole += wave[ASYSTOLE] / 3
                of_noise += wave[NOISE] / 3
        known = [wave for wave in self.waves if wave is not None][-4:]
        noises = [wave[NOISE] for wave in known]
        noise = sum(noises) / len(known) if known else 0.0
        fibrillation = sum([wave[VF] for wave in known]) / len(known) if known else 0.0
        noisy = len(known) > 0 and noise >= rules.noise_share
        if of_vf >= rules.vf_share:
            self.vf = now
        if self.vf > now - _VF_ENDS_S * rate_hz:
            found["VF"] = now - round(_VF_KNOWN_S * rate_hz), of_vf
        beats, rr_s = self.beats, self.rr_s
        quiet_s = (now - (beats[-1].sample if beats else self.begin)) / rate_hz
        if known and sum(noises[-2:]) >= rules.noise_share * len(noises[-2:]) and not self._quiet():
            self.noise = now  # what the network takes for noise in a quiet lead hides no beat
        if readable and (not noisy or self._quiet()) and "VF" not in found:
            confidence = max(of_asystole, 1 - of_noise)
            if quiet_s >= rules.asystole_s + _LATE_S:
                found["asystole"] = now - round(quiet_s * rate_hz), confidence
            elif (  # a beat ended it, which is no small one that was missed before, too
                rr_s
                and rr_s[-1] >= rules.asystole_s
                and quiet_s < _ENDED_S
                and beats[-2].sample >= self.noise
                and any(height >= _QUIET for height in self.heights[-3:])
            ):
                found["asystole"] = beats[-2].sample, confidence
        clear = readable and noise + fibrillation < _CLEAR
        if noisy or self.vf > now - _AFTER_VF_S * rate_hz:  # what the detector finds here are no heartbeats
            return LeadJudgement(found, clear, False)
        if quiet_s < rules.asystole_s:
            own = rr_s[1 - rules.tachycardia_beats :]
            if len(own) == rules.tachycardia_beats - 1 and sum(own) / len(own) < 60 / rules.tachycardia_bpm:
                found["extreme tachycardia"] = beats[-len(own) - 1].sample, 1.0
            num = rules.bradycardia_beats - 1
            unended = [*rr_s[len(rr_s) - num + 1 :], quiet_s - _LATE_S] if beats and len(rr_s) >= num - 1 else []
            for own, last in ((rr_s[-num:], 0), (unended, 1)):
                if len(own) == num and sum(own) / len(own) > 60 / rules.bradycardia_bpm:
                    start = beats[last - len(own) - 1].sample
                    if start >= self.noise - _BEFORE_NOISE_S * rate_hz:
                        found["extreme bradycardia"] = start, 1.0
            num_v = 0
            while num_v < len(beats) and beats[-1 - num_v].symbol == "V":
                num_v += 1
            if num_v >= rules.run_beats:
                own, of_run = rr_s[len(rr_s) - num_v + 1 :], beats[-num_v:]
                mean = fmean(beat.probability for beat in of_run)
                found["run"] = of_run[0].sample, mean
                if num_v >= rules.vt_beats and fmean(own) <= 60 / rules.vt_bpm:
                    found["VT"] = of_run[0].sample, mean
            own = rr_s[1 - rules.vt_beats :]
            if "VT" not in found and of_vt >= rules.vt_share and len(own) == rules.vt_beats - 1:
                of_v = fmean(beat.ventricular for beat in beats[-rules.vt_beats :])
                if fmean(own) <= 60 / rules.vt_bpm and of_v >= _SOME_V:
                    found["VT"] = beats[-rules.vt_beats].sample, of_vt
        if rr_s and rr_s[-1] >= rules.pause_s and quiet_s < rules.pause_s:
            found["pause"] = beats[-2].sample, 1.0
        return LeadJudgement(found, clear, True)

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers and arrays."""
        return {
            "sample": np.array([beat.sample for beat in self.beats], np.int64),
            "symbol": np.array([beat.symbol for beat in self.beats], "<U1"),
            **{name: np.array([getattr(beat, name) for beat in self.beats]) for name in ("probability", "ventricular")},
            "waves": np.array([wave or [math.nan] * len(CLASSES) for wave in self.waves]).reshape(-1, len(CLASSES)),
            **{name: np.array(getattr(self, name), np.float64) for name in ("valid", "heights")},
            **{name: getattr(self, name) for name in _REMEMBERED},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same rate."""
        columns = (state[name].tolist() for name in ("sample", "symbol", "probability", "ventricular"))
        for values in zip(*columns, strict=True):
            self._add(JudgedBeat(*values))
        self.waves = [None if math.isnan(wave[0]) else wave for wave in state["waves"].tolist()]
        self.valid, self.heights = state["valid"].tolist(), state["heights"].tolist()
        for name in _REMEMBERED:
            setattr(self, name, state[name])


_REMEMBERED = ("lost", "begin", "vf", "noise")
