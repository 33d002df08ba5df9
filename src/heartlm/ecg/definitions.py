"""Clinical definitions: what findings and alarms are called, by which limits, and how urgent they are.

`analyze` and pages, `alarms` and the monitor, and the options of the commands read these tables.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Limit(NamedTuple):
    """A limit that a user may set.

    Attributes:
        meaning: what is limited.
        report: default in the findings of a recording.
        live: default of a monitor.
        reason: why the two differ.
    """

    meaning: str
    report: float
    live: float
    reason: str = ""


_CALL = "a report names what is not usual, an alarm calls a person (PhysioNet/CinC Challenge 2015, Clifford et al.)"

LIMITS: dict[str, Limit] = {
    "pause_s": Limit("seconds between two beats of a pause", 2.0, 2.0),
    "asystole_s": Limit("seconds between two beats of an asystole", 4.0, 4.0),
    "bradycardia_bpm": Limit("bradycardia is a mean rate below this value", 50.0, 40.0, _CALL),
    "bradycardia_beats": Limit("number of beats of bradycardia", 5, 5),
    "tachycardia_bpm": Limit("tachycardia is a mean rate above this value", 100.0, 140.0, _CALL),
    "tachycardia_beats": Limit("number of beats of tachycardia", 16, 17, _CALL),
    "vt_bpm": Limit("least rate of ventricular tachycardia", 100.0, 100.0),
    "run_beats": Limit("number of ventricular beats in a row of a run, which is VT if it is fast", 3, 3),
}
"""Limits by the names of options and fields. Names end with their unit: seconds, beats per minute, or beats."""

REPORT = {name: limit.report for name, limit in LIMITS.items()}
LIVE = {name: limit.live for name, limit in LIMITS.items()}

LETHAL, WARNING, TECHNICAL = "lethal", "warning", "technical"


class Kind(NamedTuple):
    """A kind of event in the findings of a recording.

    Attributes:
        definition: in words, with limits in braces.
        rhythm: WFDB rhythm of the event; empty if it is none.
        worst: which event of the kind a page shows first: the longest, the fastest or the slowest.
        colour: class of its bars in the style sheet of pages.
        period: for a pattern, of how many beats one is ventricular; else 0.
        of_recording: whether it describes the recording and not a moment of it, so that its strips do not name it.
    """

    definition: str
    rhythm: str = ""
    worst: Literal["longest", "fastest", "slowest"] = "longest"
    colour: str = "grey-1"
    period: int = 0
    of_recording: bool = False


_TOGETHER = "; in a minute or less of eight leads or more as all of them together state"

KINDS: dict[str, Kind] = {
    "VF": Kind("ventricular fibrillation or flutter for 4 s or more", "VFIB", colour="class-V"),
    "asystole": Kind("no heartbeat for {asystole_s:g} s or more", "ASYS", colour="class-V"),
    "VT": Kind(
        "ventricular tachycardia: {run_beats} or more ventricular beats in a row at {vt_bpm:g}/min or faster, or its "
        "wave for 4 s",
        "VT",
        "fastest",
        "class-V",
    ),
    "AV block III": Kind(
        "AV block of third degree: a regular rhythm below 60/min, and P waves that are independent of it, over 7 beats "
        "or more"
    ),
    "IVR": Kind(
        "slow ventricular run: {run_beats} or more ventricular beats in a row below {vt_bpm:g}/min",
        "IVR",
        "fastest",
        "class-V",
    ),
    "SVT": Kind(
        "supraventricular tachycardia: {run_beats} or more supraventricular ectopic beats in a row at {vt_bpm:g}/min "
        "or faster",
        "SVTA",
        "fastest",
        "class-S",
    ),
    "flutter": Kind(
        "atrial flutter: a steady wave, 231 to 351 a minute, between the QRS complexes, for 10 s or more" + _TOGETHER,
        "AFL",
        colour="accent",
    ),
    "AF": Kind(
        "atrial fibrillation, or flutter whose wave is not seen, for 30 s or more, or in all beats if they last less"
        + _TOGETHER,
        "AFIB",
        colour="accent",
    ),
    "AV block II": Kind(
        "AV block of second degree, 2:1 or of Mobitz type II: P waves on time without a QRS complex, 2 or more, at "
        "most 30 s apart, at a constant PR interval",
        "BII",
    ),
    "Wenckebach": Kind("AV block of second degree, Mobitz type I: the same, with a growing PR interval", "BII"),
    "junctional": Kind(
        "junctional rhythm: normal beats without a P wave at regular intervals, 35 to 60/min, 6 or more; others of "
        "the recording have P waves, or eight leads show none"
    ),
    "pause": Kind("{pause_s:g} s or more between two beats"),
    "bradycardia": Kind("below {bradycardia_bpm:g}/min over {bradycardia_beats} beats or more", worst="slowest"),
    "tachycardia": Kind("above {tachycardia_bpm:g}/min over {tachycardia_beats} beats or more", worst="fastest"),
    "bigeminy": Kind("every second beat ventricular, 3 times or more", "B", colour="class-V", period=2),
    "trigeminy": Kind("every third beat ventricular, 3 times or more", "T", colour="class-V", period=3),
    "quadrigeminy": Kind("every fourth beat ventricular, 3 times or more", colour="class-V", period=4),
    "couplet": Kind("two ventricular beats in a row", "", "fastest", "class-V"),
    "AV block I": Kind(
        "AV block of first degree: median PR interval of normal beats above 200 ms" + _TOGETHER, of_recording=True
    ),
    "LBBB": Kind(
        "left bundle branch block: QRS of 130 ms or more, in men 140, its end negative in V1, positive in I or V6"
        + _TOGETHER,
        of_recording=True,
    ),
    "RBBB": Kind(
        "right bundle branch block: QRS of 120 ms or more, its end positive in V1, negative in I or V6" + _TOGETHER,
        of_recording=True,
    ),
    "wide QRS": Kind(
        "median QRS of normal beats 120 ms or more without the signs of a bundle branch block, or without V1",
        of_recording=True,
    ),
    "long QT": Kind(
        "median QTc (Framingham) of normal beats 490 ms or more, in men 480, at 100/min or slower, outside of AF and "
        "wide QRS",
        of_recording=True,
    ),
    "unreadable": Kind(
        "no lead can be read for 4 s or more, or the signal of all is lost for 1 s or more", "NOISE", colour="grey-2"
    ),
}
"""Kinds of events, the most dangerous first; where rhythms overlap, the first is the rhythm of the annotations."""
PATTERNS = {name: kind.period for name, kind in KINDS.items() if kind.period}

ALARMS: dict[str, str] = {
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
"""Severity of each kind of alarm, the most urgent first. A lethal alarm stays open until it is acknowledged. Lethal
alarms are defined as in the PhysioNet/CinC Challenge 2015 (Clifford et al.)."""


def definitions(limits: dict[str, float]) -> dict[str, str]:
    """Return the definition of each of `KINDS` by some limits."""
    return {name: kind.definition.format(**limits) for name, kind in KINDS.items()}
