"""One signal of a WFDB header: where its samples stand, what they mean, what they sum to.

Fields at the end of the line may be missing.

Format: header(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/header-5.htm.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

_DEFAULT_GAIN = 200.0

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
COUNT = r"\d{1,18}"
_MOST_SAMPLES_PER_FRAME = 1 << 16
_OPTIONAL_INTEGER = r"(?:\s+([-+]?\d{1,18})(?!\S))?"
_LINE = re.compile(rf"(\S+)\s+(\S+)(?:\s+([-+.(/\d]\S*))?{_OPTIONAL_INTEGER * 5}\s*(.*)")
_LAYOUT = re.compile(rf"(\d+)(?:x({COUNT}))?(?::({COUNT}))?(?:\+({COUNT}))?")
_CALIBRATION = re.compile(rf"({NUMBER})?(?:\(({NUMBER})\))?(?:/(\S+))?")


class Signal(NamedTuple):
    """One signal line.

    Attributes:
        file_name: the file with its samples; `~` where there is none.
        format: of the samples, for example `"212"`.
        samples_per_frame: more than 1 where the signal has a multiple of the record's rate.
        skew: frames by which its samples stand too late in the file.
        byte_offset: bytes before the first sample.
        gain: adu per unit; 200 where the header states none, or 0.
        baseline: adu of physical zero.
        unit: physical unit.
        calibrated: whether a gain is stated.
        checksum: 16-bit sum of all samples; None where not stated.
        name: its description; empty where not stated.
    """

    file_name: str
    format: str
    samples_per_frame: int
    skew: int
    byte_offset: int
    gain: float
    baseline: float
    unit: str
    calibrated: bool
    checksum: int | None
    name: str


def parse_signal(line: str) -> Signal:
    """Parse a signal line.

    Raises:
        ValueError: what it is instead and what was expected, to follow the number of the signal.
    """
    found = _LINE.fullmatch(line)
    layout = found and _layout(found[2])
    if found is None or layout is None:
        raise ValueError(f"is {line!r}, expected: file name, format, gain(baseline)/unit, ...")
    file_name, _, calibration, _, adc_zero, _, checksum, _, name = found.groups()
    stated = _calibration(calibration or "")
    if stated is None:
        raise ValueError(f"is calibrated by {calibration!r}, expected gain(baseline)/unit")
    fmt, samples_per_frame, skew, byte_offset = layout
    if samples_per_frame > _MOST_SAMPLES_PER_FRAME:
        raise ValueError(f"has {samples_per_frame} samples a frame, expected at most {_MOST_SAMPLES_PER_FRAME}")
    gain, baseline, unit = stated
    return Signal(
        file_name,
        fmt,
        samples_per_frame,
        skew,
        byte_offset,
        gain or _DEFAULT_GAIN,
        float(adc_zero or 0) if baseline is None else baseline,
        unit,
        gain != 0,
        None if checksum is None else int(checksum) & 0xFFFF,
        name,
    )


@lru_cache(maxsize=256)
def _layout(text: str) -> tuple[str, int, int, int] | None:
    """Format, samples a frame, skew and byte offset."""
    found = _LAYOUT.fullmatch(text)
    return None if found is None else (found[1], int(found[2] or 1) or 1, int(found[3] or 0), int(found[4] or 0))


@lru_cache(maxsize=1024)
def _calibration(text: str) -> tuple[float, float | None, str] | None:
    """Gain (0 where not stated), baseline and unit."""
    found = _CALIBRATION.fullmatch(text)
    if found is None:
        return None
    gain, baseline = float(found[1] or 0), None if found[2] is None else float(found[2])
    return (gain, baseline, found[3] or "mV") if math.isfinite(gain) and math.isfinite(baseline or 0) else None
