"""Units of samples and of times, as names of columns, headers and options write them."""

from __future__ import annotations

import re
from typing import NamedTuple

from heartlm.formats.plausible import to_millivolts
from heartlm.formats.words import OTHER_UNITS, RAW_UNITS, SECONDS_PER_UNIT, VOLTAGES

RAW = "adu"
"""Unit of the steps of a converter whose size is unknown."""


class Unit(NamedTuple):
    """A unit, and how the values of a file become values in it: `(value - baseline) * factor`."""

    name: str
    factor: float = 1.0
    baseline: float = 0.0


_UNITS = dict.fromkeys(RAW_UNITS, Unit(RAW)) | {word: Unit(*to_millivolts(name)) for word, name in VOLTAGES.items()}
_GAIN = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?:\(\s*([+-]?\d+(?:\.\d+)?)\s*\))?\s*/\s*(\w+)", re.IGNORECASE)


def parse_unit(text: str) -> Unit | None:
    """Return the unit that `text` names; None if it is no voltage and no step of a converter, with or without gain."""
    text = text.strip()
    if (unit := _UNITS.get(text.casefold())) is not None:
        return unit
    if (match := _GAIN.fullmatch(text)) and (voltage := VOLTAGES.get(match[3].casefold())) and float(match[1]) > 0:
        name, factor = to_millivolts(voltage)
        return Unit(name, factor / float(match[1]), float(match[2] or 0))
    return None


def is_unit_text(text: str) -> bool:
    """Return whether a field of a table's header is a unit and no name."""
    bare = text.strip().strip("[](){}'\"*")
    lowered = bare.casefold()
    return (
        parse_unit(bare) is not None
        or lowered in SECONDS_PER_UNIT
        or lowered in OTHER_UNITS
        or re.fullmatch(r"[ymdhs:/.\- t0]{6,}", lowered) is not None  # yyyy/mm/dd hh:mm:ss.000
    )


# Characters of a name that are looked at: the expressions take the square of their number.
_LONGEST_NAME = 200
_BRACKETED = re.compile(r"(.*?)[\s_,/-]*[\[({<]\s*([^\[\](){}<>]*?)\s*[\])}>]\s*", re.DOTALL)
_CAMEL = re.compile(r"(.*[a-z\d])([mu\u00b5\u03bc]V)|(.*[a-z\d])In(Ms|Us|Ns|S|Sec|Seconds|Millis|Micros|Nanos|Mv|Uv)")


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a column into its name and its unit, which is empty if the name has none.

    The unit is in brackets (`ecg [uV]`), the last word (`ecg_uV`, `ECG mV`, `time_ms`), or at the end of a name in
    camel case (`MeasEcgmV`, `timeInMs`).
    """
    name = " ".join(name.replace("\ufeff", "").strip().strip("'\"").split())[:_LONGEST_NAME]
    if (match := _BRACKETED.fullmatch(name)) and match[2]:
        return match[1].strip() or match[2], match[2]
    if match := re.fullmatch(r"(.*?)[\s_,/.;|-]+(?:in\s+)?([^\s_,/.;|-]+)", name):
        lowered = match[2].casefold()
        # V is a lead too: "lead V"
        if lowered in SECONDS_PER_UNIT or (lowered in VOLTAGES and lowered != "v") or lowered in RAW_UNITS:
            return match[1], match[2]
    if match := _CAMEL.fullmatch(name):
        return match[1] or match[3], match[2] or match[4]
    return name, ""
