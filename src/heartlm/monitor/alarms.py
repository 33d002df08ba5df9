"""From judged beats and seconds to alarms: the rules of a monitor.

The definitions of lethal alarms are those of the PhysioNet/CinC Challenge 2015 (Clifford et al.). A rule is evaluated
once a second of stream time, from the seconds before, so alarms are a function of the stream alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError, require
from heartlm.files import read_yaml
from heartlm.training.waveform import ASYSTOLE, NOISE, VF, VT
from heartlm.typed import typed

LETHAL, WARNING, TECHNICAL = "lethal", "warning", "technical"
SEVERITIES = {
    "VF": LETHAL,
    "asystole": LETHAL,
    "VT": LETHAL,
    "extreme tachycardia": LETHAL,
    "extreme bradycardia": LETHAL,
    "run": WARNING,
    "pause": WARNING,
    "AF": WARNING,
    "signal lost": TECHNICAL,
}
"""Kinds of alarms, the most urgent first. A lethal alarm stays until it is acknowledged."""

_QUIET = 0.35
"""Share of a beat's usual range below which a second holds no beat, whatever else it holds."""
_SLOWER = 0.7
"""A lead denies a tachycardia only if it shows a rate below this share of the limit: leads miss some of the beats."""
_KEPT_BEATS, _KEPT_S = 32, 8
_LOST_S, _FOUND_S = 5, 2
"""Seconds without valid samples after which a signal is lost, and seconds with them after which it is found."""
_SAME_BEAT_S = 0.15
"""Leads show a beat at most so far apart (the window of ANSI/AAMI EC57)."""
_LATE_S = 0.7
"""A beat is known so long after its peak: 0.51 s for the decision, and the end of the second."""
_VF_KNOWN_S, _VF_ENDS_S, _AFTER_VF_S = 7, 4, 8
"""Three windows of four seconds reach 6 s back, and the first one has to show VF for about half of its time. The other
two are the seconds from the last one that showed VF until VF ends, and until beats count again."""
_ENDED_S = 2
"""A silence that a beat ended is alarmed of for so long: its beats are not known in all leads in one second."""
_TRACE_OF_VT, _SOME_V = 0.06, 0.35
"""VT by the classes of beats needs this probability of VT or VF in a window of any lead: noise that looks like V beats
shows less. VT by the waveform needs this mean probability of ventricular beats: other tachycardias show less."""
_CLEAR = 0.25
"""Mean probability of noise and VF of the last four seconds, summed, from which on a lead denies nothing."""
_BEFORE_NOISE_S = 2
"""A slow rhythm that began longer before noise than this may lack the beats that the noise hides."""
_VALID, _WHOLE = 0.5, 0.9
"""Share of valid samples from which on a second can be judged, and from which on no beat can hide in its gaps."""


@dataclass(frozen=True)
class AlarmRules:
    """When alarms are raised. The defaults are the definitions of the Challenge 2015, as far as it has them.

    Attributes:
        asystole_s: seconds without a heartbeat.
        bradycardia_bpm: extreme bradycardia is a mean rate below this
        bradycardia_beats: over this number of beats.
        tachycardia_bpm: extreme tachycardia is a mean rate above this
        tachycardia_beats: over this number of beats.
        vt_bpm: ventricular tachycardia is at least this fast
        vt_beats: over this number of ventricular beats in a row.
        v_share: probability of ventricular beats, mean over the leads, from which on beats that are ventricular in one
            lead are a run or VT.
        vf_share: mean probability of VF in the last three seconds from which on VF is called.
        vt_share: mean probability of VT in the last three windows from which on VT is called at a rate of VT, if the
            beats are perhaps ventricular.
        run_beats: a run has at least this number of ventricular beats in a row.
        pause_s: seconds between two beats.
        af_share: probability of AF from which on AF is called; it ends below half of it.
        noise_share: mean probability of noise of the last four seconds from which on no alarm of rhythm begins.
        off: kinds that are not raised.
    """

    asystole_s: float = 4.0
    bradycardia_bpm: float = 40.0
    bradycardia_beats: int = 5
    tachycardia_bpm: float = 140.0
    tachycardia_beats: int = 17
    vt_bpm: float = 100.0
    vt_beats: int = 5
    v_share: float = 0.5
    vf_share: float = 0.8
    vt_share: float = 0.8
    run_beats: int = 3
    pause_s: float = 2.0
    af_share: float = 0.83
    noise_share: float = 0.5
    off: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, which may come from a file.

        Raises:
            HeartlmError: a value that no rule can use.
        """
        beats = "bradycardia_beats", "tachycardia_beats", "vt_beats", "run_beats"
        require(self, lambda value: 2 <= value <= _KEPT_BEATS, f"2 to {_KEPT_BEATS}", *beats)
        shares = "v_share", "vf_share", "vt_share", "af_share", "noise_share"
        require(self, lambda value: 0 < value <= 1, "above 0 and at most 1", *shares)
        positive = "asystole_s", "bradycardia_bpm", "tachycardia_bpm", "vt_bpm", "pause_s"
        require(self, lambda value: 0 < value < math.inf, "a positive number", *positive)
        if unknown := sorted(set(self.off) - set(SEVERITIES)):
            raise HeartlmError(f"off: {unknown[0]!r} found, one of {', '.join(SEVERITIES)} expected")


def read_rules(path: Path | None) -> tuple[AlarmRules, dict[str, AlarmRules]]:
    """Rules of all patients and of single ones, from YAML: fields of `AlarmRules`, and `patients` with the same.

    Raises:
        HeartlmError: an unreadable file, an unknown field or an impossible value; the text names the field.
    """
    if path is None:
        return AlarmRules(), {}
    content = typed(dict[str, Any], read_yaml(path, "alarm rules"), path)
    patients = typed(dict[str, dict[str, Any]], content.pop("patients", {}), f"{path}: patients")
    common = typed(AlarmRules, content, path)
    return common, {
        name: typed(AlarmRules, asdict(common) | own, f"{path}: patients: {name}") for name, own in patients.items()
    }


@dataclass(frozen=True)
class Alarm:
    """One alarm of one stream; times are counted in samples of the stream.

    Attributes:
        stream: whose.
        kind: one of `SEVERITIES`.
        start: where what it warns of began.
        raised: how many samples had come when it was raised.
        stop: where it ended, None while it lasts.
        confidence: probability that models give to it, 0 to 1; 1 for what is counted alone.
        rate_hz: samples a second.
        begin_s: where in the stream sample 0 lies: above 0 once its rate has changed.
    """

    stream: str
    kind: str
    start: int
    raised: int
    stop: int | None
    confidence: float
    rate_hz: float
    begin_s: float = 0.0

    @property
    def severity(self) -> str:
        """How urgent it is."""
        return SEVERITIES[self.kind]

    @property
    def key(self) -> str:
        """The same for the same alarm, however often it is computed: stream, kind and second in which it was raised."""
        return f"{self.stream}/{self.kind}/{self.seconds(self.raised):.3f}"

    def seconds(self, sample: int) -> float:
        """Where a sample lies in the stream, in seconds."""
        return self.begin_s + sample / self.rate_hz

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON has them; times in seconds of the stream."""
        return {
            "key": self.key,
            "stream": self.stream,
            "kind": self.kind,
            "severity": self.severity,
            "start_s": round(self.seconds(self.start), 3),
            "raised_s": round(self.seconds(self.raised), 3),
            "stop_s": None if self.stop is None else round(self.seconds(self.stop), 3),
            "confidence": round(self.confidence, 3),
        }


@dataclass(frozen=True)
class JudgedBeat:
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


@dataclass(frozen=True)
class LeadSecond:
    """What one second of one lead shows.

    Attributes:
        beats: that can be judged since the second before, in order.
        wave: probabilities of the waveform classes in the last four seconds, `[5]`; None where unknown.
        valid: share of valid samples in the second.
        height: range of the second over the usual range of a beat; NaN where unknown.
    """

    beats: Sequence[JudgedBeat]
    wave: NDArray[np.float32] | None
    valid: float
    height: float


@dataclass(frozen=True)
class LeadJudgement:
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

    Args:
        rules: when alarms are raised.
        rate_hz: samples a second.
    """

    def __init__(self, rules: AlarmRules, rate_hz: float) -> None:
        self.rules, self.rate_hz = rules, rate_hz
        self.beats = list[JudgedBeat]()
        self.waves = np.empty((0, 5), np.float32)
        self.valid = np.empty(0)
        self.heights = np.empty(0)
        self.lost = False
        self.begin = 0
        """Where the last gap ended, or the stream began."""
        self.vf = self.noise = -(10**9)
        """When VF was last found, and when a window last was noise, in which beats are missed."""

    def take(self, now: int, second: LeadSecond) -> None:
        """Take in one more second, the last of `now` samples."""
        self.beats = [*self.beats, *(beat for beat in second.beats if not beat.faint)][-_KEPT_BEATS:]
        self.heights = np.append(self.heights, second.height)[-_KEPT_S:]
        own = np.full((1, 5), np.nan, np.float32) if second.wave is None else second.wave[None]
        self.waves = np.concatenate([self.waves, own])[-_KEPT_S:]
        self.valid = np.append(self.valid, second.valid)[-_KEPT_S:]
        if second.valid < _WHOLE:  # a beat may be missing here: what comes after has no interval to what was before
            self.begin = now
        if not self.lost:
            self.lost = len(self.valid) >= _LOST_S and bool((self.valid[-_LOST_S:] < _VALID).all())
        elif (self.valid[-_FOUND_S:] >= _VALID).all():
            self.lost = False
            self.beats, self.begin = [], max(self.begin, now - _FOUND_S * round(self.rate_hz))
            self.waves = self.waves[:0]

    def rate_since(self, start: int) -> float:
        """Beats a minute since then, 0 with less than two."""
        own = [beat.sample for beat in self.beats if beat.sample >= start]
        return 60 * self.rate_hz * (len(own) - 1) / (own[-1] - own[0]) if len(own) > 1 else 0.0

    def ventricular_since(self, start: int) -> float:
        """Mean probability that the beats since then are ventricular."""
        own = [beat.ventricular for beat in self.beats if beat.sample >= start - _SAME_BEAT_S * self.rate_hz]
        return float(np.mean(own)) if own else 0.0

    def wave_of_vt(self) -> float:
        """The most of VT and VF that a window of the last seconds shows, NaN where none is known."""
        known = self.waves[-4:][~np.isnan(self.waves[-4:, 0])]
        return float((known[:, VT] + known[:, VF]).max()) if len(known) else math.nan

    def judge(self, now: int) -> LeadJudgement:
        """What holds now."""
        rules, rate_hz, found = self.rules, self.rate_hz, dict[str, tuple[int, float]]()
        readable = bool((self.valid[-4:] >= _VALID).all())
        known = self.waves[~np.isnan(self.waves[:, 0])]
        shares = np.nan_to_num(self.waves[-3:]).sum(axis=0) / 3  # one window alone is not enough
        noisy = len(known) > 0 and float(known[-4:, NOISE].mean()) >= rules.noise_share
        if shares[VF] >= rules.vf_share:
            self.vf = now
        if self.vf > now - _VF_ENDS_S * rate_hz:
            found["VF"] = now - round(_VF_KNOWN_S * rate_hz), float(shares[VF])
        beats = [beat for beat in self.beats if beat.sample >= self.begin]
        quiet_s = (now - (beats[-1].sample if beats else self.begin)) / rate_hz
        quiet = bool((self.heights[-4:] < _QUIET).all())  # what the network takes for noise hides no beat
        if len(known) and known[-2:, NOISE].mean() >= rules.noise_share and not quiet:
            self.noise = now
        rr_s = np.diff([beat.sample for beat in beats]) / rate_hz
        if readable and (quiet or not noisy) and "VF" not in found:
            confidence = float(max(shares[ASYSTOLE], 1 - shares[NOISE]))
            if quiet_s >= rules.asystole_s + _LATE_S:
                found["asystole"] = now - round(quiet_s * rate_hz), confidence
            elif (  # a beat ended it, which is no small one that was missed before, too
                len(rr_s)
                and rr_s[-1] >= rules.asystole_s
                and quiet_s < _ENDED_S
                and beats[-2].sample >= self.noise
                and self.heights[-3:].max() >= _QUIET
            ):
                found["asystole"] = beats[-2].sample, confidence
        clear = readable and (len(known) == 0 or float(known[-4:, NOISE].mean() + known[-4:, VF].mean()) < _CLEAR)
        if noisy or self.vf > now - _AFTER_VF_S * rate_hz:  # what the detector finds here are no heartbeats
            return LeadJudgement(found, clear, False)
        if quiet_s < rules.asystole_s:
            own = rr_s[1 - rules.tachycardia_beats :]
            if len(own) == rules.tachycardia_beats - 1 and own.mean() < 60 / rules.tachycardia_bpm:
                found["extreme tachycardia"] = beats[-len(own) - 1].sample, 1.0
            for intervals, last in (
                (rr_s, 0),
                (np.append(rr_s, quiet_s - _LATE_S), 1),
            ):  # the last one may not have ended
                own = intervals[1 - rules.bradycardia_beats :]
                if len(own) == rules.bradycardia_beats - 1 and own.mean() > 60 / rules.bradycardia_bpm:
                    start = beats[last - len(own) - 1].sample
                    if start >= self.noise - _BEFORE_NOISE_S * rate_hz:
                        found["extreme bradycardia"] = start, 1.0
            num_v = 0
            while num_v < len(beats) and beats[-1 - num_v].symbol == "V":
                num_v += 1
            if num_v >= rules.run_beats:
                own, of_run = rr_s[len(rr_s) - num_v + 1 :], beats[-num_v:]
                mean = float(np.mean([beat.probability for beat in of_run]))
                found["run"] = of_run[0].sample, mean
                if num_v >= rules.vt_beats and own.mean() <= 60 / rules.vt_bpm:
                    found["VT"] = of_run[0].sample, mean
            own, shown = rr_s[1 - rules.vt_beats :], float(shares[VT])
            if "VT" not in found and shown >= rules.vt_share and len(own) == rules.vt_beats - 1:
                of_v = np.mean([beat.ventricular for beat in beats[-rules.vt_beats :]])
                if own.mean() <= 60 / rules.vt_bpm and of_v >= _SOME_V:
                    found["VT"] = beats[-rules.vt_beats].sample, shown
        if len(rr_s) and rr_s[-1] >= rules.pause_s and quiet_s < rules.pause_s:
            found["pause"] = beats[-2].sample, 1.0
        return LeadJudgement(found, clear, True)

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers and arrays."""
        return {
            "sample": np.array([beat.sample for beat in self.beats], np.int64),
            "symbol": np.array([beat.symbol for beat in self.beats], "<U1"),
            **{name: np.array([getattr(beat, name) for beat in self.beats]) for name in ("probability", "ventricular")},
            **{name: getattr(self, name) for name in _REMEMBERED},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same rate."""
        columns = (state[name].tolist() for name in ("sample", "symbol", "probability", "ventricular"))
        self.beats = [JudgedBeat(*values) for values in zip(*columns, strict=True)]
        for name in _REMEMBERED:
            setattr(self, name, state[name])


_REMEMBERED = ("waves", "valid", "heights", "lost", "begin", "vf", "noise")


class Rules:
    """The rules of one stream, and what they remember.

    With several leads an alarm that one finds can be denied by another that can be read, because noise, a loose
    electrode and a low QRS are mostly of one lead: VF, asystole, bradycardia and pauses by any that does not find them;
    VT and runs where the leads' mean probability of ventricular beats is low; a tachycardia by a far lower rate.

    Args:
        stream: its name.
        rules: when alarms are raised.
        rate_hz: samples a second.
        begin_s: where in the stream sample 0 lies.
        num_leads: leads of the stream.
    """

    def __init__(
        self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1
    ) -> None:
        self.stream, self.rules, self.rate_hz, self.begin_s = stream, rules, rate_hz, begin_s
        self.leads = [LeadRules(rules, rate_hz) for _ in range(num_leads)]
        self.lost = False
        self.af = 0.0
        self.lead_in_use = 0
        """The first lead whose beats counted when last any did."""
        self.active = dict[str, Alarm]()

    def second(self, now: int, leads: Sequence[LeadSecond], af: float | None) -> list[Alarm]:
        """Take in what was found in one more second.

        Args:
            now: samples of each lead that came so far.
            leads: what each of them shows.
            af: probability of AF, None where it was not judged now.

        Returns:
            Alarms that were raised, and those that ended with their `stop`.
        """
        for lead, own in zip(self.leads, leads, strict=True):
            lead.take(now, own)
        self.af = self.af if af is None else af
        was_lost, self.lost = self.lost, all(lead.lost for lead in self.leads)
        changes = list[Alarm]()
        if self.lost:
            if not was_lost:
                self.af = 0.0
                changes = [self._ended(kind, now) for kind in list(self.active)]
                if "signal lost" not in self.rules.off:
                    changes.append(self._raised("signal lost", now - _LOST_S * round(self.rate_hz), now, 1.0))
            return changes
        if "signal lost" in self.active:
            changes.append(self._ended("signal lost", now))
        found = self._agreed(now)
        for kind in SEVERITIES:
            if kind == "signal lost" or kind in self.rules.off:
                continue
            place = found.get(kind)
            if kind in self.active:
                if place is None:
                    changes.append(self._ended(kind, now))
            elif place is not None:
                changes.append(self._raised(kind, place[0], now, place[1]))
        return changes

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers, arrays, and dictionaries of them."""
        return {
            "leads": {str(place): lead.state() for place, lead in enumerate(self.leads)},
            "lost": self.lost,
            "af": self.af,
            "lead_in_use": self.lead_in_use,
            "active": {
                kind: {"start": alarm.start, "raised": alarm.raised, "confidence": alarm.confidence}
                for kind, alarm in self.active.items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same stream, rate and leads."""
        for place, lead in enumerate(self.leads):
            lead.restore(state["leads"][str(place)])
        self.lost, self.af, self.lead_in_use = state["lost"], state["af"], state["lead_in_use"]
        self.active = {
            kind: Alarm(self.stream, kind, stop=None, rate_hz=self.rate_hz, begin_s=self.begin_s, **alarm)
            for kind, alarm in state["active"].items()
        }

    def _raised(self, kind: str, start: int, now: int, confidence: float) -> Alarm:
        alarm = Alarm(self.stream, kind, max(0, start), now, None, confidence, self.rate_hz, self.begin_s)
        self.active[kind] = alarm
        return alarm

    def _ended(self, kind: str, now: int) -> Alarm:
        return replace(self.active.pop(kind), stop=now)

    def _agreed(self, now: int) -> dict[str, tuple[int, float]]:
        """Kinds that hold now, and no lead denies: where each began, and its confidence."""
        rules = self.rules
        judged = [(lead, lead.judge(now)) for lead in self.leads if not lead.lost]
        of_beats = [lead for lead, own in judged if own.has_beats]
        out = dict[str, tuple[int, float]]()
        for kind in SEVERITIES:
            places = [own.found[kind] for _, own in judged if kind in own.found]
            if not places:
                continue
            start = min(start for start, _ in places)
            able = [lead for lead, own in judged if own.has_beats and own.clear and lead.begin <= start]
            if kind in ("VF", "asystole"):
                denied = any(kind not in own.found for lead, own in judged if own.clear and lead.begin <= start)
            elif kind in ("VT", "run"):
                shares = [lead.ventricular_since(start) for lead in able]
                denied = bool(shares) and sum(shares) / len(shares) < rules.v_share
                if kind == "VT":  # two ways to see it: if one is sure, little of the other is enough
                    waves = [wave for lead, _ in judged if not math.isnan(wave := lead.wave_of_vt())]
                    if waves:
                        denied = max(waves) < _TRACE_OF_VT or (denied and sum(waves) / len(waves) < rules.vt_share)
            elif kind == "extreme tachycardia":
                first = now - round(60 / rules.tachycardia_bpm * rules.tachycardia_beats * self.rate_hz)
                denied = any(lead.rate_since(first) < _SLOWER * rules.tachycardia_bpm for lead in able)
            else:
                denied = any(kind not in own.found for lead, own in judged if lead in able)
            if not denied:
                out[kind] = start, min(confidence for _, confidence in places)
        if not of_beats:  # what lasts is not known to have ended
            return out | {kind: (0, 0.0) for kind in self.active if kind not in ("VF", "asystole")}
        self.lead_in_use = self.leads.index(of_beats[0])
        if self.af >= (rules.af_share if "AF" not in self.active else rules.af_share / 2):
            out["AF"] = now, self.af
        return out
