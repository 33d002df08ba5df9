"""The rules of alarms in plain Python: what monitor/c/live_rules.c decides for a stream, slower.

A stream has leads. Each second, a lead takes in its beats and its window of four seconds, and finds the kinds of alarms
that hold in it. The stream joins what its leads find, and other leads may veto it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace

from heartlm.ecg.definitions import ALARMS
from heartlm.monitor.alarms import MAX_RULE_BEATS, Alarm, AlarmRules
from heartlm.monitor.rules import LIMITS, OUTRANKED_BY, JudgedBeat, LeadSecond
from heartlm.tasks.waveform import ASYSTOLE, NOISE, VF, VT

KEPT_SECONDS = 8
"""Last seconds of a lead that the rules look at."""
LONG_AGO = -1e9
"""Sample of what has not happened yet."""


@dataclass(frozen=True)
class Found:
    """A kind of alarm that holds since sample `start`."""

    start: int
    confidence: float


class Limits(SimpleNamespace):
    """`AlarmRules` and `LIMITS` of a stream, and its sampling rate."""

    def samples(self, seconds: float) -> float:
        return float(seconds * self.rate_hz)

    def whole(self, seconds: float) -> int:
        return round(seconds * self.rate_hz)


class ReferenceLead:
    """One lead.

    Attributes:
        seconds: the last ones, the newest last.
        waves: probabilities of their windows, None where unknown.
        beats: the last ones since the last gap, the newest last.
        new_beats: those of the last second.
        begin: end of the last gap.
        last_vf: when a window last showed VF; `last_noise` likewise.
        last_vt: when the probability `vt` of VT was last computed, from the measures `vt_measures`.
        af_sum: CUSUM of the log odds of AF since `af_onset`; AF of this sum was raised before if `af_told`.
        lost: whether the signal is lost.
        found: what holds now, by kind.
        has_beats: whether rules of beats were judged now.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.num_seconds = limits, 0
        self.seconds = deque[LeadSecond](maxlen=KEPT_SECONDS)
        self.waves = deque[list[float] | None](maxlen=KEPT_SECONDS)
        self.beats = deque[JudgedBeat](maxlen=MAX_RULE_BEATS)
        self.new_beats = list[JudgedBeat]()
        self.begin, self.last_vf, self.last_noise, self.last_vt, self.vt = 0, LONG_AGO, LONG_AGO, LONG_AGO, 0.0
        self.vt_measures: list[float] | None = None
        self.af_sum, self.af_onset, self.af_told = float(limits.af_head_start), 0, False
        self.lost = self.has_beats = False
        self.found = dict[str, Found]()

    # --- a second is taken in ---

    def take(self, now: int, second: LeadSecond) -> None:
        limits, self.new_beats = self.limits, []
        self.seconds.append(second)
        self.waves.append(second.wave)
        self.num_seconds += 1
        for beat in second.beats:
            if not (beat.faint or beat.sample < self.begin or self.is_silent_around(beat.sample, now)):
                self.beats.append(beat)
                self.new_beats.append(beat)
        if second.valid < limits.complete:
            self.forget_beats()
            self.begin, self.af_sum = now, 0.0
        valid = [each.valid >= limits.valid for each in self.seconds]
        if not self.lost:
            self.lost = len(valid) >= limits.lost_s and not any(valid[-limits.lost_s :])
        elif all(valid[-limits.found_s :]):
            self.lost = False
            self.forget_beats()
            self.waves = deque([None] * len(self.waves), KEPT_SECONDS)
            self.begin = max(self.begin, now - limits.found_s * limits.whole(1))

    def forget_beats(self) -> None:
        self.beats.clear()
        self.new_beats = []

    def is_silent_around(self, sample: int, now: int) -> bool:
        """Whether the second of a sample and those next to it, as far as they are kept, have almost no range."""
        last, its = len(self.seconds) - 1, len(self.seconds) - 1 - int((now - 1 - sample) // self.limits.rate_hz)
        around = [self.seconds[each].height for each in (its - 1, its, its + 1) if 0 <= each <= last]
        return bool(around) and all(height < self.limits.silent for height in around)

    def add_af(self, leads: Sequence[ReferenceLead]) -> None:
        """Add the log odds of AF of the new beats to the sum."""
        limits = self.limits
        for beat in self.new_beats:
            if self.af_sum == 0:
                self.af_onset, self.af_told = beat.sample, False
            if beat.af == 0:
                continue
            others = [lead.af_near(beat.sample) for lead in leads if lead is not self]
            odds = fmean([beat.af, *(each for each in others if each)])
            odds = min(max(odds, -limits.af_clip), 0.0 if self.is_in_noise(beat.sample) else limits.af_clip)
            self.af_sum = min(max(self.af_sum + odds - limits.af_drift, 0.0), limits.most_af)

    def af_near(self, sample: int) -> float:
        """Log odds of AF of this lead's beat at a sample, 0 if it has none, or none that can be believed."""
        for beat in list(self.beats)[-self.limits.beats_near :]:
            if abs(beat.sample - sample) < self.limits.samples(self.limits.same_beat_s):
                return 0.0 if self.is_in_noise(beat.sample) else beat.af
        return 0.0

    def is_in_noise(self, sample: int) -> bool:
        return sample < self.last_noise + self.limits.samples(self.limits.window_s)

    # --- measures of the last seconds and beats ---

    def heights(self, num: int) -> list[float]:
        return [second.height for second in self.seconds][-num:]

    def is_readable(self) -> bool:
        return all(second.valid >= self.limits.valid for second in list(self.seconds)[-4:])

    def is_quiet(self) -> bool:
        return all(height < self.limits.quiet for height in self.heights(4))

    def is_low_somewhere(self, num: int) -> bool:
        return any(height < self.limits.low for height in self.heights(num))

    def mean(self, wave: int, num: int) -> float:
        """Mean probability of a class in the last windows, of which those that are unknown or missing count as 0."""
        return sum(each[wave] for each in list(self.waves)[-num:] if each) / num

    def mean_of_known(self, num: int, *waves: int) -> float | None:
        """Mean probability of some classes in the last windows that are known, None if none is."""
        known = [sum(each[wave] for wave in waves) for each in self.waves if each][-num:]
        return fmean(known) if known else None

    def rr_s(self, num: int) -> list[float]:
        """The last intervals, at most this number."""
        samples = [beat.sample for beat in self.beats][-num - 1 :]
        return [(b - a) / self.limits.rate_hz for a, b in pairwise(samples)]

    def mean_rr_s(self, num: int) -> float:
        """Mean of this number of last intervals, NaN if there are fewer."""
        if len(self.beats) <= num:
            return math.nan
        return (self.beats[-1].sample - self.beats[-num - 1].sample) / (num * self.limits.rate_hz)

    def rate_since(self, start: float) -> float:
        """Mean rate of the beats from a sample on in beats per minute, 0 with fewer than two."""
        samples = [beat.sample for beat in self.beats if beat.sample >= start]
        if len(samples) < 2:
            return 0.0
        return float(60 * self.limits.rate_hz * (len(samples) - 1) / (samples[-1] - samples[0]))

    def ventricular_since(self, start: float) -> float:
        """Mean probability that beats from a sample on are ventricular, 0 without any."""
        since = start - self.limits.samples(self.limits.same_beat_s)
        own = [beat.ventricular for beat in self.beats if beat.sample >= since]
        return fmean(own) if own else 0.0

    def can_veto(self, now: int) -> bool:
        """Whether the signal is good enough to veto alarms of another lead."""
        limits, disturbed = self.limits, self.mean_of_known(4, NOISE, VF)
        if self.lost or not self.is_readable():
            return False
        if disturbed is None or disturbed < limits.veto_noise:
            return True
        sure = [beat for beat in self.beats if beat.symbol == "N" and beat.probability > limits.sure]
        recent = [beat for beat in sure if now - beat.sample < limits.samples(limits.sure_s)]
        return not self.is_noisy(4) and len(recent) >= limits.sure_beats

    def is_noisy(self, num: int) -> bool:
        noise = self.mean_of_known(num, NOISE)
        return noise is not None and noise >= self.limits.noise_probability

    def is_surely_without_v(self) -> bool:
        last = list(self.beats)[-self.limits.vt_veto_beats :]
        is_low = all(beat.ventricular < self.limits.vt_veto_below for beat in last)
        return len(last) == self.limits.vt_veto_beats and is_low

    # --- rules of one lead ---

    def judge(self, now: int, held: set[str]) -> None:
        """Set `found` and `has_beats`; the kinds of `held` held in the stream a second before."""
        self.found, self.has_beats, self.vt_measures = {}, False, None
        if self.lost:
            return
        limits, noisy, usual_known = self.limits, self.is_noisy(4), not math.isnan(self.seconds[-1].height)
        if self.is_noisy(2) and not self.is_quiet():
            self.last_noise = now
        self.judge_vf(now, usual_known, held)
        since_beat_s = (now - (self.beats[-1].sample if self.beats else self.begin)) / limits.rate_hz
        if "VF" not in self.found and (not noisy or self.is_quiet()):
            self.judge_asystole(now, since_beat_s, usual_known)
        self.has_beats = not noisy and now - self.last_vf >= limits.samples(limits.after_vf_s)
        if not self.has_beats:
            return
        if self.mean_rr_s(1) >= limits.pause_s > since_beat_s:
            self.found["pause"] = Found(self.beats[-2].sample, 1.0)
        self.judge_vt_of_waveform(now)
        if since_beat_s >= limits.asystole_s:
            return
        num = limits.tachycardia_beats - 1
        fraction = 1 - limits.rate_margin if "extreme tachycardia" in held else 1.0
        if self.mean_rr_s(num) < 60 / (fraction * limits.tachycardia_bpm):
            self.found["extreme tachycardia"] = Found(self.beats[-num - 1].sample, 1.0)
        if usual_known:
            if "AF" in held:
                self.judge_bradycardia(now, limits.bradycardia_beats, 1 - limits.af_margin)
            num = limits.bradycardia_in_af_beats if "AF" in held else limits.bradycardia_beats
            fraction = 1 + limits.rate_margin if "extreme bradycardia" in held else 1.0
            self.judge_bradycardia(now, num, fraction)
        self.judge_ventricular_beats(now, usual_known, held)

    def judge_vf(self, now: int, usual_known: bool, held: set[str]) -> None:
        limits = self.limits
        vf, enough_if_slow = self.mean(VF, 3), limits.slow_share * limits.vf_probability
        lasts = False
        if usual_known:
            # It must still be there: in three windows, its mean may be farther below 1, but at most twice as far.
            lasts = self.mean(VF, limits.slow_windows) >= enough_if_slow and vf >= 2 * enough_if_slow - 1
            first = now - limits.whole(limits.window_s)
            num_in_window = sum(beat.sample >= first for beat in self.beats)
            if num_in_window >= limits.vf_beats and self.ventricular_since(first) >= limits.vf_beats_mean:
                vf = max(vf, self.mean(VF, 2))
        else:
            vf = min(vf, self.mean(VF, limits.start_windows))
        regular = sum(second.regular for second in list(self.seconds)[-3:])
        if vf >= limits.vf_probability or lasts:
            if regular >= limits.regular_windows:
                self.found["VT"] = Found(now - limits.whole(limits.vf_onset_s), vf)
            else:
                self.last_vf = now
        still_vf = "VF" in held and vf >= limits.vf_margin * limits.vf_probability
        if still_vf or now - self.last_vf < limits.samples(limits.vf_end_s):
            self.found["VF"] = Found(now - limits.whole(limits.vf_onset_s), vf)

    def judge_asystole(self, now: int, since_beat_s: float, usual_known: bool) -> None:
        limits, still = self.limits, self.mean(ASYSTOLE, 3)
        lasts = since_beat_s >= limits.asystole_s + limits.beat_delay_s
        has_ended = self.mean_rr_s(1) >= limits.asystole_s and since_beat_s < limits.asystole_ended_s
        possible = self.is_low_somewhere(4) if usual_known else still >= limits.least_asystole
        if not self.is_readable() or not possible:
            return
        confidence = max(still, 1 - self.mean(NOISE, 3))
        if lasts:
            self.found["asystole"] = Found(now - round(since_beat_s * limits.rate_hz), confidence)
        elif has_ended and self.beats[-2].sample >= self.last_noise:  # noqa: SIM102
            # The beat that ended it is high: lower ones may have been missed before.
            if any(height >= limits.quiet for height in self.heights(3)):
                self.found["asystole"] = Found(self.beats[-2].sample, confidence)

    def judge_vt_of_waveform(self, now: int) -> None:
        limits = self.limits
        first, probability = now - limits.whole(limits.vt_s), self.mean(VT, limits.vt_windows)
        without_beats = not self.beats or self.beats[-1].sample < first
        agree = without_beats or self.ventricular_since(first) >= limits.vt_mean
        if probability >= limits.vt_waveform_probability and agree:
            self.found["VT"] = Found(first, probability)

    def judge_bradycardia(self, now: int, num_beats: int, fraction: float) -> None:
        """Look at the last intervals, and at those of which the last one has not ended."""
        limits, num = self.limits, num_beats - 1
        ends = [(num + 1, self.beats[-1].sample if self.beats else math.nan)]
        ends.append((num, now - limits.samples(limits.beat_delay_s)))
        for place, end in ends:
            if len(self.beats) < place:
                continue
            first = self.beats[-place].sample
            rr_s = (end - first) / (num * limits.rate_hz)
            before_noise = first < self.last_noise - limits.samples(limits.before_noise_s)
            must_have_pause = rr_s >= limits.empty_rr_s
            possible = not must_have_pause or self.is_low_somewhere(KEPT_SECONDS)
            if rr_s > 60 / (fraction * limits.bradycardia_bpm) and not before_noise and possible:
                self.found["extreme bradycardia"] = Found(first, 1.0)

    def judge_ventricular_beats(self, now: int, usual_known: bool, held: set[str]) -> None:
        limits, beats = self.limits, list(self.beats)
        num_v = next((num for num, beat in enumerate(reversed(beats)) if beat.symbol != "V"), len(beats))
        if num_v >= limits.run_beats:
            confidence = fmean(beat.probability for beat in beats[-num_v:])
            self.found["run"] = Found(beats[-num_v].sample, confidence)
        if not self.mean_rr_s(limits.vt_beats - 1) <= 60 / limits.vt_bpm:
            return
        last = beats[-limits.vt_beats :]
        if sum(beat.ventricular < limits.other for beat in last) > limits.most_others:
            return
        if not usual_known and self.mean(VT, 3) < limits.least_vt_at_start:
            return
        before = self.vt if now - self.last_vt < limits.samples(1.5) else 0.0
        self.vt_measures = self.measure_vt(last)
        weighted = sum(weight * own for weight, own in zip(limits.vt_weights, self.vt_measures, strict=True))
        self.vt, self.last_vt = 1 / (1 + math.exp(-limits.vt_bias - weighted)), now
        in_two_seconds = min(self.vt, before) >= limits.vt_probability
        least = limits.vt_margin * limits.vt_probability if "VT" in held else limits.vt_probability_at_once
        if self.vt >= least or in_two_seconds:
            self.found["VT"] = Found(beats[-max(num_v, limits.vt_beats)].sample, self.vt)

    def measure_vt(self, beats: Sequence[JudgedBeat]) -> list[float]:
        """Measures of `LIMITS["vt_weights"]`."""
        rr_s = self.rr_s(len(beats) - 1)
        mean_s = fmean(rr_s)
        deviation_s = math.sqrt(sum((each - mean_s) ** 2 for each in rr_s) / len(rr_s))
        ventricular = fmean(beat.ventricular for beat in beats)
        above = fmean(beat.ventricular > self.limits.perhaps for beat in beats)
        return [ventricular, above, self.mean(VT, 3), self.mean(NOISE, 3), 1 / mean_s, deviation_s / mean_s]


class ReferenceStream:
    """The rules of one stream: takes what `Rules` takes and returns the same alarms.

    Attributes:
        active: alarms that last, by kind.
        held: kinds whose condition held in the last second.
        absent: since when it does not, of the other kinds whose alarm lasts.
        lost: whether the signals of all leads are lost.
        lead_in_use: the first lead whose beats were judged, when last any were.
        af: probability of AF, which began at `af_onset`.
    """

    def __init__(
        self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1
    ) -> None:
        self.stream, self.begin_s = stream, begin_s
        self.limits = Limits(**LIMITS | vars(rules) | {"rate_hz": rate_hz})
        self.leads = [ReferenceLead(self.limits) for _ in range(num_leads)]
        self.active, self.held, self.absent = dict[str, Alarm](), set[str](), dict[str, int]()
        self.lost, self.lead_in_use, self.af, self.af_onset = False, 0, 0.0, 0

    def update(self, now: int, seconds: Sequence[LeadSecond], af: tuple[float, int] | None) -> list[Alarm]:
        """As `Rules.update`."""
        limits, was_lost = self.limits, self.lost
        for lead, second in zip(self.leads, seconds, strict=True):
            lead.take(now, second)
        for lead in self.leads:
            lead.add_af(self.leads)
        if af is not None:
            self.af, self.af_onset = af
        self.lost = all(lead.lost for lead in self.leads)
        holding: dict[str, Found | None]
        if self.lost:
            self.af = 0.0 if not was_lost else self.af
            holding = {"signal lost": Found(now - limits.lost_s * limits.whole(1), 1.0)}
        else:
            holding = self.judge(now)
        holding = {kind: found for kind, found in holding.items() if kind not in limits.off}
        self.held = set(holding)
        return [*self.ended(now), *self.repeated(now), *self.raised(now, holding)]

    def ended(self, now: int) -> list[Alarm]:
        """The alarms whose condition has been absent long enough."""
        for kind in self.active.keys() - self.held:
            self.absent.setdefault(kind, now)
        delay_s = dict(zip(ALARMS, self.limits.off_delay_s, strict=True))
        over = [kind for kind, since in self.absent.items() if kind not in self.held]
        over = [kind for kind in over if now - self.absent[kind] >= self.limits.samples(delay_s[kind])]
        return [replace(self.active.pop(kind), stop=self.absent.pop(kind)) for kind in in_order(over)]

    def repeated(self, now: int) -> list[Alarm]:
        """The alarms that last and whose condition holds again, if it was absent long enough."""
        back = {kind: self.absent.pop(kind) for kind in self.absent.keys() & self.held}
        again = in_order(
            kind for kind, since in back.items() if now - since >= self.limits.samples(self.limits.repeat_s)
        )
        self.active |= {kind: replace(self.active[kind], count=self.active[kind].count + 1) for kind in again}
        return [self.active[kind] for kind in again]

    def raised(self, now: int, holding: dict[str, Found | None]) -> list[Alarm]:
        """The new alarms."""
        limits, changes = self.limits, list[Alarm]()
        lasting = self.active.keys() | holding.keys()
        for kind in in_order(holding.keys() - self.active.keys()):
            graver, found = set(OUTRANKED_BY.get(kind, ())), holding[kind]
            if lasting & graver or (graver and found is None):  # an end that cannot be seen is no beginning
                continue
            assert found is not None, "only what held before holds without being found"
            start, confidence = max(0, found.start), found.confidence
            self.active[kind] = Alarm(self.stream, kind, start, now, None, confidence, limits.rate_hz, self.begin_s)
            changes.append(self.active[kind])
        return changes

    def judge(self, now: int) -> dict[str, Found | None]:
        """Return the kinds that hold in the stream; None for an alarm whose end cannot be seen."""
        for lead in self.leads:
            lead.judge(now, self.held)
        holding = dict[str, Found | None]()
        for kind in in_order({kind for lead in self.leads for kind in lead.found}):
            found = [lead.found[kind] for lead in self.leads if kind in lead.found]
            start = min(each.start for each in found)
            if not self.is_vetoed(kind, start, now):
                holding[kind] = Found(start, min(each.confidence for each in found))
        with_beats = [index for index, lead in enumerate(self.leads) if lead.has_beats]
        if not with_beats:
            lasting = self.held - {"VF", "asystole", "signal lost"}
            return holding | {kind: None for kind in lasting if kind not in holding}
        self.lead_in_use = with_beats[0]
        self.judge_af(holding)
        return holding

    def judge_af(self, holding: dict[str, Found | None]) -> None:
        limits, lead = self.limits, self.leads[self.lead_in_use]
        started = 1 / (1 + math.exp(limits.af_excess - lead.af_sum))
        if started >= limits.af_probability and not lead.af_told:
            self.af, self.af_onset = started, lead.af_onset
        if self.af >= limits.af_probability / (2 if "AF" in self.held else 1):
            holding["AF"] = Found(self.af_onset, self.af)
            for each in self.leads:  # so that the same beats do not raise it again, once it has ended
                each.af_told = True

    def is_vetoed(self, kind: str, start: int, now: int) -> bool:
        """Whether a lead that can be believed since the alarm began denies it."""
        limits = self.limits
        clear = [lead for lead in self.leads if lead.can_veto(now) and lead.begin <= start]
        if kind in ("VF", "asystole"):
            return any(kind not in lead.found for lead in clear)
        clear_has_it = any(kind in lead.found for lead in clear)
        clear = [lead for lead in clear if lead.has_beats and "asystole" not in lead.found]
        without = [lead for lead in clear if kind not in lead.found]
        if kind == "extreme tachycardia":
            fraction = limits.veto_rate if clear_has_it else limits.clear_veto_rate
            first = now - limits.whole(60 / limits.tachycardia_bpm * limits.tachycardia_beats)
            return any(lead.rate_since(first) < fraction * limits.tachycardia_bpm for lead in clear)
        if kind not in ("VT", "run"):
            return bool(without)
        ventricular = [(lead.ventricular_since(start), lead) for lead in clear]
        # VT may be found where no beats are: such a lead has no say about them.
        means = [mean for mean, lead in ventricular if mean > 0 or kind not in lead.found]
        least = limits.veto_vt if kind == "VT" else limits.v_probability
        if means and fmean(means) < least:
            return True
        too_slow = limits.veto_rate * limits.vt_bpm
        denied = [lead.rate_since(start) < too_slow or lead.is_surely_without_v() for lead in without]
        return kind == "VT" and any(denied)


def in_order(kinds: Iterable[str]) -> list[str]:
    """The kinds in the order of `ALARMS`."""
    own = set(kinds)
    return [kind for kind in ALARMS if kind in own]
