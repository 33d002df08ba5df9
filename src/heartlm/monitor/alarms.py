"""Alarms: what kinds there are, when they are raised, and one alarm.

The definitions of lethal alarms are those of the PhysioNet/CinC Challenge 2015 (Clifford et al.).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError, require
from heartlm.files import read_yaml
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

KEPT_BEATS = 32
"""A rule looks at no more than the last beats."""


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
        require(self, lambda value: 2 <= value <= KEPT_BEATS, f"2 to {KEPT_BEATS}", *beats)
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
