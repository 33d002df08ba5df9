"""Alarms: the thresholds of the rules that raise them, and one alarm."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from heartlm.ecg.definitions import ALARMS, LIVE
from heartlm.errors import HeartlmError, require
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed

MAX_RULE_BEATS = 32
"""Number of last beats that rules can use."""


@dataclass(frozen=True)
class AlarmRules:
    """Thresholds of the rules. Lethal alarms have the defaults of the Challenge 2015 where it defines them.

    Attributes:
        asystole_s: seconds without a heartbeat.
        bradycardia_bpm: extreme bradycardia is a mean rate below this value ...
        bradycardia_beats: ... over this number of beats ...
        bradycardia_in_af_beats: ... or over this one during AF, whose intervals differ.
        tachycardia_bpm: extreme tachycardia is a mean rate above this value ...
        tachycardia_beats: ... over this number of beats.
        vt_bpm: ventricular tachycardia has at least this rate ...
        vt_beats: ... over this number of consecutive ventricular beats.
        v_probability: beats that are ventricular in one lead are a run if their probability of being ventricular,
            averaged over the leads, reaches this value.
        vf_probability: VF needs this mean probability of VF in the last three windows, in the last two if beats are
            found there that are ventricular, or five sixths of it in the last six.
        vt_probability: VT needs this probability in two seconds in a row ...
        vt_probability_at_once: ... or this one in a single second. A logistic regression computes it from the last
            `vt_beats` beats and the waveform.
        vt_waveform_probability: so is a mean probability of VT in the waveform of the last four windows, if the beats
            of the last seconds are ventricular or none was detected.
        vt_veto_below: VT is vetoed by a readable lead whose last eight beats are all ventricular with a probability
            below this value; 0 for no such veto.
        veto_noise: a lead may veto alarms of others if its mean probability of noise and VF in the last four windows
            is below this value.
        run_beats: a run has at least this number of consecutive ventricular beats.
        pause_s: seconds between two beats.
        af_probability: AF begins at this probability of AF, and ends below half of it.
        noise_probability: no alarm of a rhythm begins if the mean probability of noise in the last four windows
            reaches this value.
        off: kinds of alarms that are not raised.
    """

    asystole_s: float = LIVE["asystole_s"]
    bradycardia_bpm: float = LIVE["bradycardia_bpm"]
    bradycardia_beats: int = int(LIVE["bradycardia_beats"])
    bradycardia_in_af_beats: int = 16
    tachycardia_bpm: float = LIVE["tachycardia_bpm"]
    tachycardia_beats: int = int(LIVE["tachycardia_beats"])
    vt_bpm: float = LIVE["vt_bpm"]
    vt_beats: int = 5
    v_probability: float = 0.5
    vf_probability: float = 0.85
    vt_probability: float = 0.75
    vt_probability_at_once: float = 0.9
    vt_waveform_probability: float = 0.8
    vt_veto_below: float = 0.02
    veto_noise: float = 0.35
    run_beats: int = int(LIVE["run_beats"])
    pause_s: float = LIVE["pause_s"]
    af_probability: float = 0.83
    noise_probability: float = 0.5
    off: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, which may come from a file.

        Raises:
            HeartlmError: a value is out of range.
        """
        beats = [each for each in vars(self) if each.endswith("_beats")]
        require(self, lambda value: isinstance(value, Integral), "a whole number", *beats)
        require(self, lambda value: 2 <= value <= MAX_RULE_BEATS, f"2 to {MAX_RULE_BEATS}", *beats)
        probabilities = [each for each in vars(self) if "probability" in each]
        require(self, lambda value: 0 < value <= 1, "above 0 and at most 1", *probabilities)
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "vt_veto_below", "veto_noise")
        positive = [each for each in vars(self) if each.endswith(("_s", "_bpm"))]
        require(self, lambda value: 0 < value < math.inf, "a positive number", *positive)
        if unknown := sorted(set(self.off) - set(ALARMS)):
            raise HeartlmError(f"off: {unknown[0]!r} found, one of {', '.join(ALARMS)} expected")


SECOND_OPINION = AlarmRules(
    asystole_s=3.5,
    bradycardia_bpm=43,
    bradycardia_beats=4,
    tachycardia_bpm=130,
    tachycardia_beats=12,
    vt_probability=0.15,
    vt_probability_at_once=0.25,
    vt_veto_below=0.0,
    veto_noise=0.1,
    noise_probability=0.7,
)
"""Rules that judge the alarm of another monitor, which is far more often true than any second of a stream."""
PRESETS = {"second-opinion": SECOND_OPINION}
"""Rules by the names that `read_rules` takes instead of a file."""


def read_rules(path: Path | None) -> tuple[AlarmRules, dict[str, AlarmRules]]:
    """Read the rules for all patients and those for single patients from a YAML file, or return one of `PRESETS`.

    The file has fields of `AlarmRules`, and under `patients` the same fields for each named stream.

    Raises:
        HeartlmError: the file is unreadable, or a field is unknown or out of range; the text names the field.
    """
    if path is None:
        return AlarmRules(), {}
    if str(path) in PRESETS:
        return PRESETS[str(path)], {}
    content = typed(dict[str, Any], read_yaml(path, "alarm rules"), path)
    patients = typed(dict[str, dict[str, Any]], content.pop("patients", {}), f"{path}: patients")
    common = typed(AlarmRules, content, path)
    return common, {
        name: typed(AlarmRules, asdict(common) | own, f"{path}: patients: {name}") for name, own in patients.items()
    }


ALARM_FIELDS = ("key", "stream", "kind", "severity", "start_s", "raised_s", "stop_s", "confidence", "count")
"""Fields of an alarm in tables and messages, see `Alarm.to_json`."""


@dataclass(frozen=True)
class Alarm:
    """One alarm of one stream. Times are sample numbers of the stream.

    Attributes:
        stream: name of the stream.
        kind: one of `ALARMS`.
        start: where the rhythm or fault began.
        raised: number of samples that had been judged when it was raised.
        stop: from where on its condition was absent, None while it lasts: until the condition has been absent for a
            while (`OFF_DELAY_S` of `heartlm.monitor.rules`), because it may hold again.
        confidence: probability from the models, 0 to 1; 1 for rules that only count beats.
        rate_hz: samples per second.
        begin_s: time of sample 0 in the stream; above 0 after its sampling rate or number of leads changed.
        count: how often the condition began while the alarm lasted.
    """

    stream: str
    kind: str
    start: int
    raised: int
    stop: int | None
    confidence: float
    rate_hz: float
    begin_s: float = 0.0
    count: int = 1

    @property
    def severity(self) -> str:
        """One of lethal, warning and technical."""
        return ALARMS[self.kind]

    @property
    def key(self) -> str:
        """Identifies the alarm by its stream, kind and time; the same if the alarm is computed again."""
        return f"{self.stream}/{self.kind}/{self.seconds(self.raised):.3f}"

    def seconds(self, sample: int) -> float:
        """Time of a sample in the stream, in seconds."""
        return self.begin_s + sample / self.rate_hz

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with times in seconds of the stream."""
        return {
            "key": self.key,
            "stream": self.stream,
            "kind": self.kind,
            "severity": self.severity,
            "start_s": round(self.seconds(self.start), 3),
            "raised_s": round(self.seconds(self.raised), 3),
            "stop_s": None if self.stop is None else round(self.seconds(self.stop), 3),
            "confidence": round(self.confidence, 3),
            "count": self.count,
        }
