"""Limits of the rules for events, which a user may set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from heartlm.ecg.definitions import REPORT
from heartlm.errors import require


@dataclass(frozen=True)
class Limits:
    """Limits of the rules, with the names of those of the monitor (`heartlm.monitor.alarms.AlarmRules`).

    Attributes:
        pause_s: seconds between two beats.
        asystole_s: seconds between two beats from which on a pause is an asystole.
        bradycardia_bpm: bradycardia is a mean rate below this value ...
        bradycardia_beats: ... over this number of beats.
        tachycardia_bpm: tachycardia is a mean rate above this value ...
        tachycardia_beats: ... over this number of beats.
        vt_bpm: ventricular and supraventricular tachycardia have at least this rate ...
        run_beats: ... over this number of ventricular or supraventricular beats in a row.
    """

    pause_s: float = REPORT["pause_s"]
    asystole_s: float = REPORT["asystole_s"]
    bradycardia_bpm: float = REPORT["bradycardia_bpm"]
    bradycardia_beats: int = int(REPORT["bradycardia_beats"])
    tachycardia_bpm: float = REPORT["tachycardia_bpm"]
    tachycardia_beats: int = int(REPORT["tachycardia_beats"])
    vt_bpm: float = REPORT["vt_bpm"]
    run_beats: int = int(REPORT["run_beats"])

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            HeartlmError: a value is out of range.
        """
        times = "pause_s", "asystole_s", "bradycardia_bpm", "tachycardia_bpm", "vt_bpm"
        require(self, lambda value: 0 < value < math.inf, "a positive number", *times)
        numbers = "bradycardia_beats", "tachycardia_beats", "run_beats"
        require(self, lambda value: isinstance(value, Integral), "a whole number", *numbers)
        require(self, lambda value: value >= 2, "2 or more", "bradycardia_beats", "tachycardia_beats")
        require(self, lambda value: value >= 3, "3 or more", "run_beats")
