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
from heartlm.training.waveform import ASYSTOLE, NOISE, VF
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

_KEPT_BEATS, _KEPT_S = 32, 8
_LOST_S, _FOUND_S = 5, 2
"""Seconds without valid samples after which a signal is lost, and seconds with them after which it is found."""
_LATE_S = 0.7
"""A beat is known so long after its peak: 0.51 s for the decision, and the end of the second."""
_VF_KNOWN_S, _VF_ENDS_S, _AFTER_VF_S = 7, 4, 8
"""Three windows of four seconds reach 6 s back, and the first one has to show VF for about half of its time. The other
two are the seconds from the last one that showed VF until VF ends, and until beats count again."""
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
        vf_share: mean probability of VF in the last three seconds from which on VF is called.
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
    vf_share: float = 0.8
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
        require(self, lambda value: 0 < value <= 1, "above 0 and at most 1", "vf_share", "af_share", "noise_share")
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
    """A beat with its AAMI class and the probability of that class."""

    sample: int
    symbol: str
    probability: float


class Rules:
    """The rules of one stream, and what they remember.

    Args:
        stream: its name.
        rules: when alarms are raised.
        rate_hz: samples a second.
        begin_s: where in the stream sample 0 lies.
    """

    def __init__(self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0) -> None:
        self.stream, self.rules, self.rate_hz, self.begin_s = stream, rules, rate_hz, begin_s
        self.beats = list[JudgedBeat]()
        self.waves = np.empty((0, 5), np.float32)
        self.valid = np.empty(0)
        self.lost = False
        self.af = 0.0
        self.begin = 0
        """Where the last gap ended, or the stream began."""
        self.vf = -(10**9)
        """When VF was last found."""
        self.active = dict[str, Alarm]()

    def second(
        self,
        now: int,
        beats: Sequence[JudgedBeat],
        wave: NDArray[np.float32] | None,
        valid: float,
        af: float | None,
    ) -> list[Alarm]:
        """Take in what was found in one more second.

        Args:
            now: samples that came so far.
            beats: that can be judged since the second before, in order.
            wave: probabilities of the waveform classes in the last four seconds, `[5]`; None where unknown.
            valid: share of valid samples in the second.
            af: probability of AF, None where it was not judged now.

        Returns:
            Alarms that were raised, and those that ended with their `stop`.
        """
        self.beats = [*self.beats, *beats][-_KEPT_BEATS:]
        own = np.full((1, 5), np.nan, np.float32) if wave is None else wave[None]
        self.waves = np.concatenate([self.waves, own])[-_KEPT_S:]
        self.valid = np.append(self.valid, valid)[-_KEPT_S:]
        self.af = self.af if af is None else af
        if valid < _WHOLE:  # a beat may be missing here: what comes after has no interval to what was before
            self.begin = now
        changes = self._signal(now)
        if self.lost:
            return changes
        found = self._found(now)
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
            "sample": np.array([beat.sample for beat in self.beats], np.int64),
            "symbol": np.array([beat.symbol for beat in self.beats], "<U1"),
            "probability": np.array([beat.probability for beat in self.beats]),
            **{name: getattr(self, name) for name in ("waves", "valid", "lost", "af", "begin", "vf")},
            "active": {
                kind: {"start": alarm.start, "raised": alarm.raised, "confidence": alarm.confidence}
                for kind, alarm in self.active.items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same stream and rate."""
        columns = (state[name].tolist() for name in ("sample", "symbol", "probability"))
        self.beats = [JudgedBeat(*values) for values in zip(*columns, strict=True)]
        for name in ("waves", "valid", "lost", "af", "begin", "vf"):
            setattr(self, name, state[name])
        self.active = {
            kind: Alarm(self.stream, kind, stop=None, rate_hz=self.rate_hz, begin_s=self.begin_s, **alarm)
            for kind, alarm in state["active"].items()
        }

    def _signal(self, now: int) -> list[Alarm]:
        second = round(self.rate_hz)
        if not self.lost and len(self.valid) >= _LOST_S and (self.valid[-_LOST_S:] < _VALID).all():
            self.lost = True
            ended = [self._ended(kind, now) for kind in list(self.active)]
            if "signal lost" in self.rules.off:
                return ended
            return [*ended, self._raised("signal lost", now - _LOST_S * second, now, 1.0)]
        if self.lost and (self.valid[-_FOUND_S:] >= _VALID).all():
            self.lost = False
            self.beats, self.af, self.begin = [], 0.0, max(self.begin, now - _FOUND_S * second)
            self.waves = self.waves[:0]
            return [self._ended("signal lost", now)] if "signal lost" in self.active else []
        return []

    def _raised(self, kind: str, start: int, now: int, confidence: float) -> Alarm:
        alarm = Alarm(self.stream, kind, max(0, start), now, None, confidence, self.rate_hz, self.begin_s)
        self.active[kind] = alarm
        return alarm

    def _ended(self, kind: str, now: int) -> Alarm:
        return replace(self.active.pop(kind), stop=now)

    def _found(self, now: int) -> dict[str, tuple[int, float]]:
        """Kinds that hold now: where each began, and its confidence."""
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
        if readable and not noisy and "VF" not in found and quiet_s >= rules.asystole_s + _LATE_S:
            found["asystole"] = now - round(quiet_s * rate_hz), float(max(shares[ASYSTOLE], 1 - shares[NOISE]))
        if noisy or self.vf > now - _AFTER_VF_S * rate_hz:  # what the detector finds here are no heartbeats
            return found | {kind: (0, 0.0) for kind in self.active if kind not in ("VF", "asystole", "signal lost")}
        rr_s = np.diff([beat.sample for beat in beats]) / rate_hz
        if quiet_s < rules.asystole_s:
            for kind, num, slow, limit in (
                ("extreme bradycardia", rules.bradycardia_beats, True, 60 / rules.bradycardia_bpm),
                ("extreme tachycardia", rules.tachycardia_beats, False, 60 / rules.tachycardia_bpm),
            ):
                own = rr_s[1 - num :]
                if len(own) == num - 1 and (own.mean() > limit if slow else own.mean() < limit):
                    found[kind] = beats[-num].sample, 1.0
            num_v = 0
            while num_v < len(beats) and beats[-1 - num_v].symbol == "V":
                num_v += 1
            if num_v >= rules.run_beats:
                own, of_run = rr_s[len(rr_s) - num_v + 1 :], beats[-num_v:]
                mean = float(np.mean([beat.probability for beat in of_run]))
                found["run"] = of_run[0].sample, mean
                if num_v >= rules.vt_beats and own.mean() <= 60 / rules.vt_bpm:
                    found["VT"] = of_run[0].sample, mean
        if len(rr_s) and rr_s[-1] >= rules.pause_s and quiet_s < rules.pause_s:
            found["pause"] = beats[-2].sample, 1.0
        if self.af >= (rules.af_share if "AF" not in self.active else rules.af_share / 2):
            found["AF"] = now, self.af
        return found
