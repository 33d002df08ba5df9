"""Headers of EDF, EDF+, BDF and BDF+ files: where the samples of each signal are, and what its digits stand for.

    256 bytes: patient, recording, start, number and duration of the data records
    256 bytes a signal: label, unit, range of physical values and of digits, samples a data record

Formats: see `heartlm.formats.edf`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from heartlm.ecg.recording import SEXES, Patient
from heartlm.errors import HeartlmError
from heartlm.formats.plausible import to_millivolts
from heartlm.storage.foreign import first_bytes, size_of

FIXED_BYTES = 8, 80, 80, 8, 8, 8, 44, 8, 8, 4
"""Sizes of the first fields: version, patient, recording, date and time of the start, size of the header, reserved,
number and duration of the data records, number of signals."""
SIGNAL_BYTES = 16, 80, 8, 8, 8, 8, 8, 80, 8, 32
"""Sizes of the fields of a signal, each for all signals: label, transducer, unit, physical minimum and maximum,
digital minimum and maximum, filter, samples a record, reserved."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d{1,3})?")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_PLACEHOLDER = date(1985, 1, 1)
"""Start date of EDF+ files without a known date; `00.00.00` is written too."""

# Relative distance from a whole rate that is taken as the rounding of the record's duration to 8 characters.
_NEAR_WHOLE = 2e-6

EQUIPMENT = "heartlm"
"""Recorder in the header of files that heartlm writes."""
INVALID_TEXT = "Invalid samples"
"""Begin of the annotations of invalid samples in these files, whose digit the header states too."""
COMMENT, MORE_COMMENT = "# ", "#+"
"""Begin of the annotations at the start of these files that are comments, and of their further parts."""
# The reserved field of a signal in these files: the digit of invalid samples if there are any, and the length of the
# recording.
_OWN = re.compile(r"(?:invalid (-\d{1,8}) of|valid) (\d{1,12})")


class Channel(NamedTuple):
    """A signal of the file.

    Attributes:
        name: label.
        unit: unit of the physical values, mV for voltages.
        gain: unit per digit; NaN if the file states no range.
        zero: digit of the physical value 0.
        samples: samples a data record.
        offset: bytes of a data record before its samples.
        invalid: digit that marks an invalid sample; None if there is none.
    """

    name: str
    unit: str
    gain: float
    zero: float
    samples: int
    offset: int
    invalid: int | None = None


@dataclass
class EdfHeader:
    """Content of the header, and the size of what follows.

    Attributes:
        patient, recording: the two fields of free or structured text.
        day, clock: date and time of the start as they stand there.
        is_discontinuous: whether the file is marked EDF+D or BDF+D.
        duration_s: duration of a data record in seconds; NaN if not stated.
        sample_bytes: 2 (EDF) or 3 (BDF).
        data_at: first byte of the data records.
        num_records: whole data records.
        partial_bytes: bytes of a last, incomplete data record.
        channels: signals with samples.
        annotations: byte offset and size of each annotation signal in a data record.
        record_bytes: size of a data record.
        left_out: signals that cannot be read, one line each.
        repairs: what was repaired, one line each.
        length: samples of each lead without those that fill the last data record; None if not stated.
    """

    patient: str
    recording: str
    day: str
    clock: str
    is_discontinuous: bool
    duration_s: float
    sample_bytes: int
    data_at: int
    num_records: int = 0
    partial_bytes: int = 0
    channels: list[Channel] = field(default_factory=list)
    annotations: list[tuple[int, int]] = field(default_factory=list)
    record_bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    length: int | None = None

    @property
    def is_own(self) -> bool:
        """Whether heartlm wrote the file, which has beats as annotations whatever their number."""
        return self.recording.split()[4:5] == [EQUIPMENT]

    def rate_hz(self, samples: int) -> float:
        """Return the rate of a signal with `samples` a data record, a whole number if the duration is rounded."""
        rate_hz = samples / self.duration_s
        rate_hz = round(rate_hz) if abs(rate_hz - round(rate_hz)) < _NEAR_WHOLE * rate_hz else rate_hz
        own = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]\d+)?)_Hz", self.recording.split()[-1]) if self.is_own else None
        # a duration of 8 characters states most rates that are not whole only nearly
        return float(own[1]) if own and abs(float(own[1]) - rate_hz) < _NEAR_WHOLE * rate_hz else rate_hz

    def start(self, begin_s: float) -> datetime | time | None:
        """Return the time of the first sample, `begin_s` after that of the file.

        Returns:
            The time of day if the date is not stated, None if neither is.
        """
        hour = re.fullmatch(r"(\d{1,2})\D(\d{1,2})\D(\d{1,2})", self.clock)
        two_digits = re.fullmatch(r"(\d{1,2})\D(\d{1,2})\D(\d\d)", self.day)
        words, day = self.recording.split(), None
        stated = (words[1] if len(words) > 1 else "X") if words[:1] == ["Startdate"] else ""
        if stated:
            day = _date(stated)
        if day is None and stated.upper() != "X" and two_digits is not None:
            with suppress(ValueError):  # of two digits: EDF+ has the years 1985 to 2084
                year = int(two_digits[3]) + (1900 if int(two_digits[3]) >= 85 else 2000)
                day = date(year, int(two_digits[2]), int(two_digits[1]))
        if stated and stated.upper() != "X" and _date(stated) is None:
            instead = f"that of the header, {day}, is read" if day and day != _PLACEHOLDER else "the date is unknown"
            self.repairs.append(f"states the start date {stated!r}, which is none; {instead}")
        is_known = day is not None and day != _PLACEHOLDER
        with suppress(ValueError, TypeError, OverflowError):
            clock = time.fromisoformat(":".join(part.zfill(2) for part in hour.groups()) if hour else "")
            if is_known or clock != time():  # anonymised files have the placeholder and midnight
                start = datetime.combine(day or _PLACEHOLDER, clock) + timedelta(seconds=begin_s)
                return start if is_known else start.time()
        return None


def read_header(path: Path) -> EdfHeader:
    """Read the header and compare the number of data records with the size of the file.

    Raises:
        HeartlmError: a field without which the samples cannot be found is missing or malformed.
    """
    fixed = first_bytes(path, 256) or b""
    version = fixed[:8].strip(b" \0")
    if version not in (b"0", b"\xffBIOSEMI") or len(fixed) < 256:
        raise HeartlmError(f"{path}: not readable as an EDF file (it begins with no header of one); fetch it again")
    has_comma = False

    def number(text: str) -> float:
        nonlocal has_comma
        if not _NUMBER.fullmatch(text):
            return math.nan
        has_comma |= "," in text
        value = float(text.replace(",", "."))
        return value if math.isfinite(value) else math.nan

    def count(text: str) -> int | None:
        value = number(text)
        return int(value) if value == value and value.is_integer() else None

    _, patient, recording, day, clock, header_bytes, reserved, records, duration, channels = _fields(fixed, FIXED_BYTES)
    num_channels = count(channels) or 0
    data_at = 256 * (1 + num_channels)  # not the stated size, which some writers get wrong
    content = (first_bytes(path, data_at) or b"")[256:]
    if num_channels < 1 or len(content) < data_at - 256:
        raise HeartlmError(
            f"{path}: not readable as an EDF file (a header of {channels or 'no'} signals in "
            f"{len(fixed) + len(content)} bytes); fetch it again"
        )
    header = EdfHeader(
        patient, recording, day, clock, reserved[3:5].upper() == "+D", number(duration), 2 + (version != b"0"), data_at
    )
    # field by field: the labels of all signals, then the transducers of all
    texts = _fields(content, [size for size in SIGNAL_BYTES for _ in range(num_channels)])
    for place in range(num_channels):
        label, _, unit, *ranges, _, samples_text, mark = texts[place::num_channels]
        name, samples = label or f"lead {place + 1}", count(samples_text)
        if samples is None or samples < 0:
            raise HeartlmError(
                f"{path}: signal {place + 1} ({name}) has {samples_text!r} samples a data record, expected a number; "
                "fetch the file again or correct its header"
            )
        # signals that are left out below still take their place in each data record
        offset = header.record_bytes
        header.record_bytes += samples * header.sample_bytes
        if label.upper() in ("EDF ANNOTATIONS", "BDF ANNOTATIONS"):
            header.annotations.append((offset, samples * header.sample_bytes))
            continue
        physical_low, physical_high = map(number, ranges[:2])
        low, high = (value if value.is_integer() else math.nan for value in map(number, ranges[2:]))
        unit, factor = to_millivolts(unit)
        gain, zero = calibration_of(factor * physical_low, factor * physical_high, low, high)
        if samples == 0:
            header.left_out.append(f"left out: {name}, without samples")
        elif math.isnan(gain) or gain == 0:
            header.left_out.append(f"left out: {name} states no physical or digital range, so its values are unknown")
            header.repairs.append(f"{name} states no physical or digital range and is left out")
        else:
            own = _OWN.fullmatch(mark)
            header.length = int(own[2]) if own else header.length
            header.channels.append(
                Channel(name, unit, gain, zero, samples, offset, int(own[1]) if own and own[1] else None)
            )
    if has_comma:
        header.repairs.append("numbers of the header have decimal commas, which are read as points")
    if header_bytes != str(data_at):
        header.repairs.append(f"states a header of {header_bytes or 'no'} bytes; {num_channels} signals have {data_at}")
    size, stated = size_of(path) - data_at, count(records)
    if header.record_bytes:
        header.num_records, rest = divmod(size, header.record_bytes)
        held = f"holds {header.num_records}" + (f" and {rest} bytes of another" if rest else "")
        if stated is None or stated < 1 or stated > header.num_records:
            header.partial_bytes = rest
            header.repairs.append(f"states {records or 'no'} data records and {held}, which are read")
        elif stated < header.num_records:
            header.repairs.append(f"states {stated} data records and {held}; whole ones are read")
        elif rest:
            header.repairs.append(f"{rest} bytes after the last data record are ignored")
    return header


def _fields(content: bytes, sizes: Sequence[int]) -> list[str]:
    """Return fields that follow each other, as texts."""
    return [printable_text(content[stop - size : stop]) for size, stop in zip(sizes, accumulate(sizes), strict=True)]


def calibration_of(physical_low: float, physical_high: float, low: float, high: float) -> tuple[float, float]:
    """Return the unit per digit, NaN or 0 if the range is none, and the digit of the physical value 0."""
    gain = (physical_high - physical_low) / (high - low) if high != low else math.nan
    zero = low - physical_low / gain if gain else math.nan
    nearest = round(2 * zero) / 2 if math.isfinite(zero) else zero
    # most ranges put 0 on a digit or between two, so that digit is 0 exactly
    return gain, nearest if abs(zero - nearest) < 1e-7 * max(1.0, abs(low), abs(high)) else zero


def printable_text(content: bytes) -> str:
    """Return a field of the header as printable text without the blanks around it."""
    content = content.strip(b" \0")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return "".join(character if character.isprintable() else "?" for character in text)


def patient_of(text: str) -> Patient:
    """Return the subfields of EDF+: code, sex, birth date and name, as heartlm writes it also `Age_71`.

    Other text is the identifier as a whole.
    """
    words = text.split()
    if set(words) <= {"X"}:
        return Patient()
    code, sex, born, name = ("" if word == "X" else word.replace("_", " ") for word in (words + [""] * 4)[:4])
    age = next((int(word[4:]) for word in words[4:] if re.fullmatch(r"Age_\d{1,3}", word)), None)
    if len(words) < 4 or sex not in ("F", "M", "") or (born and _date(born) is None):
        return Patient(identifier=text)
    return Patient(name, code, SEXES.get(sex.lower(), ""), _date(born), age)


def _date(text: str) -> date | None:
    """Return a date of EDF+ such as `02-MAY-1951`; None for other text."""
    with suppress(ValueError):
        day, month, year = text.split("-")
        return date(int(year), MONTHS.index(month.upper()) + 1, int(day))
    return None
