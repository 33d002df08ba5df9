"""Formats of numbers in reports: counts, scores, intervals and durations.

Missing and non-finite values are written as an en dash, never as `nan` or `None`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from heartlm.storage.typed import is_number

MISSING = "–"


@dataclass(frozen=True)
class Score:
    """A score with its confidence interval; each part may be None."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, entry: Any) -> Score:
        """Read `{"value": .., "ci": [lo, hi]}`; other or non-finite parts count as missing."""
        if not isinstance(entry, dict):
            return cls()
        ci = entry.get("ci")
        parts = (entry.get("value"), *(ci if isinstance(ci, list) and len(ci) == 2 else (None, None)))
        return cls(*(float(part) if is_number(part) else None for part in parts))

    @property
    def text(self) -> str:
        """Return the value with three decimals."""
        return decimal(self.value, 3)

    @property
    def interval(self) -> str:
        """Return the interval as `0.901–0.932`, or an empty text without one."""
        return "" if self.low is None else f"{decimal(self.low, 3)}–{decimal(self.high, 3)}"


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval; there is no interval for a single repeat."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Interval:
        """Return the value and the interval multiplied by a positive `factor`."""
        low, high = (None if each is None else each * factor for each in (self.low, self.high))
        return Interval(self.value * factor, low, high)


def decimal(value: Any, places: int = 2) -> str:
    """Format a number with a fixed number of decimals and thin spaces between thousands."""
    return f"{float(value):,.{places}f}".translate(_SPACED) if is_number(value) else MISSING


def count(value: Any) -> str:
    """Format a whole number with thin spaces between thousands."""
    return decimal(value, 0)


def significant(value: Any, digits: int = 3) -> str:
    """Format a number with `digits` significant digits; very small values are in scientific notation."""
    if not is_number(value):
        return MISSING
    number = float(value)
    if number == 0 or abs(number) >= 1e-3:
        exponent = math.floor(math.log10(abs(number))) if number else 0
        return decimal(number, max(0, digits - 1 - exponent))
    mantissa, power = f"{number:.{digits - 1}e}".split("e")
    return f"{mantissa} × 10{str(int(power)).translate(_SUPERSCRIPT)}"


def percent(value: Any, places: int = 1) -> str:
    """Format a fraction, 0 to 1, as a percentage."""
    return f"{100 * float(value):.{places}f}\u202f%" if is_number(value) else MISSING


def duration(seconds: Any) -> str:
    """Format a duration with its two leading units: `1 h 12 min`, `3 min 20 s`, `4.2 s`."""
    if not is_number(seconds) or seconds < 0:
        return MISSING
    if round(seconds, 1) < 60:  # 59.97 s is 1 min 0 s, not 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def elapsed(seconds: float, decimals: int = 0) -> str:
    """Format a time since the start of a recording: `+3:07`, `+25:03:07`, `+3:07.25`; a clock time has no sign."""
    # round before splitting, otherwise 59.99 s becomes 0:60
    minutes, rest = divmod(round(seconds * 10**decimals), 60 * 10**decimals)
    width = 2 if decimals == 0 else 3 + decimals
    words = f"{rest / 10**decimals:0{width}.{decimals}f}"
    return f"+{minutes // 60}:{minutes % 60:02d}:{words}" if minutes >= 60 else f"+{minutes}:{words}"


def rates(rate_hz: object) -> str:
    """Format one sampling rate or several."""
    several = rate_hz if isinstance(rate_hz, list) else [rate_hz]
    return ", ".join(f"{rate:g}" for rate in several if is_number(rate)) or MISSING


_SPACED = str.maketrans(",-", "\u202f−")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
