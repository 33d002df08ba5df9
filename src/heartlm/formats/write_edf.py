"""Write EDF+ and BDF+ files: samples of 16 or 24 bits, with beats, rhythms and notes as annotations.

    leads ─► whole numbers ─► data records of about a second, each with its samples and the next annotations

EDF has no mark of an invalid sample. The lowest digit stands for it, outside of the range that the header states; the
reserved field of the signal names that digit and the length of the recording, which heartlm reads, and annotations name
the invalid stretches for other programs.

Format: https://www.edfplus.info/specs/edfplus.html.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heartlm.ecg.recording import CLASS_OF_SYMBOL, Annotations, Note, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.edf_header import (
    COMMENT,
    EQUIPMENT,
    FIXED_BYTES,
    INVALID_TEXT,
    MONTHS,
    MORE_COMMENT,
    SIGNAL_BYTES,
    calibration_of,
)
from heartlm.formats.whole_steps import LeadSteps, whole_numbers

# Longest text of an annotation; longer ones continue in the next, because all records have the size of the longest.
_TEXT_BYTES = 80
# Longest data record that states the rate exactly, and the most bytes that the standard recommends.
_LONGEST_S, _RECORD_BYTES = 10, 61_440
# Largest error of the header in steps, or relative to the largest value if that is more.
_MOST_STEPS, _MOST_RELATIVE = 0.5, 1e-5
_SCALES = {"mV": (("mV", 1.0), ("uV", 1e3), ("V", 1e-3))}


class WrittenEdf(NamedTuple):
    """Result of `write_edf`.

    Attributes:
        path: path of the file.
        steps: those that were given, with the error that the header adds.
        changes: what does not fit into the format, one line each.
    """

    path: Path
    steps: list[LeadSteps]
    changes: list[str]


class _Range(NamedTuple):
    """Fields of the header that convert digits to physical values."""

    unit: str
    low: str
    high: str
    digital_low: int
    digital_high: int
    error: float
    exact: bool


def write_edf(
    recording: Recording, folder: Path, name: str, steps: Sequence[LeadSteps], notes: Sequence[Note] = ()
) -> WrittenEdf:
    """Write `name.edf`, or `name.bdf` if a lead needs more than 16 bits, to an existing folder.

    Args:
        recording: recording with a signal.
        folder: an existing folder.
        name: name of the file without its ending.
        steps: how the leads are written as whole numbers, at most 24 bits.
        notes: further annotations.

    Raises:
        HeartlmError: the recording cannot be read.
        OSError: the file cannot be written.
    """
    changes, num_leads = list[str](), recording.num_leads
    # EDF has whole numbers of 16 bits, of which the lowest marks samples without a value; BDF has 24 bits
    lowest = -(1 << 15)
    is_edf = all(lowest + bool(each.num_invalid) <= each.low and each.high < -lowest for each in steps)
    width = 2 if is_edf else 3
    leads = zip(recording.lead_names, recording.units, steps, strict=True)
    ranges = [_range_of(lead, unit, lead_steps, 8 * width) for lead, unit, lead_steps in leads]
    named = zip(recording.lead_names, ranges, strict=True)
    changes += [f"lead {lead} has the unit {of.unit[:8]}, not {of.unit}" for lead, of in named if len(of.unit) > 8]
    per_record, duration = _record_of(recording.rate_hz, num_leads * width)
    rate_hz, rate_note = per_record / float(duration), ""
    if rate_hz != recording.rate_hz:
        changes.append(f"rate {recording.rate_hz!r} Hz is {rate_hz!r} Hz for other programs")
        rate_note = f" {recording.rate_hz!r}_Hz"
    num_records = -(-recording.num_samples // per_record)
    start_s = recording.start.microsecond / 1e6 if recording.start is not None else 0.0
    begins = [f"+{_decimal(start_s + number * float(duration))}\x14\x14\0".encode() for number in range(num_records)]
    records, record_bytes = _spread(list(_annotations(recording, steps, notes, start_s)), begins, width)
    labels = _labels(recording.lead_names, changes)
    path = folder / f"{name}.{'edf' if is_edf else 'bdf'}"
    invalid = -(1 << 8 * width - 1)
    marks = [f"{f'invalid {invalid} of' if each.num_invalid else 'valid'} {recording.num_samples}" for each in steps]
    kind = "EDF" if is_edf else "BDF"
    clock = recording.start if recording.start is not None else time()
    day = recording.start.date() if isinstance(recording.start, datetime) else None
    fixed = (
        _patient(recording, changes),
        f"Startdate {'X' if day is None else _day(day)} X X {EQUIPMENT}{rate_note}",
        f"{day:%d.%m.%y}" if day is not None and 1985 <= day.year < 2085 else "01.01.85",
        f"{clock:%H.%M.%S}",
        256 * (num_leads + 2),
        f"{kind}+C",
        num_records,
        duration,
        num_leads + 1,
    )
    signals: list[tuple[object, ...]] = [
        (label, "", of.unit, of.low, of.high, of.digital_low, of.digital_high, "", per_record, mark)
        for label, of, mark in zip(labels, ranges, marks, strict=True)
    ]
    signals.append((f"{kind} Annotations", "", "", -1, 1, invalid, -invalid - 1, "", record_bytes // width, ""))
    # each field is written for all signals before the next field
    texts = [*fixed, *(text for field in zip(*signals, strict=True) for text in field)]
    sizes = [*FIXED_BYTES[1:], *(size for size in SIGNAL_BYTES for _ in signals)]
    with path.open("wb") as stream:
        stream.write(b"0".ljust(8) if is_edf else b"\xffBIOSEMI")
        stream.write(b"".join(_ascii(str(text)).ljust(size)[:size] for text, size in zip(texts, sizes, strict=True)))
        number = 0
        for piece in whole_numbers(recording, steps, invalid, per_record):
            # [num_leads, num_samples] of whole data records -> [num_records, num_leads, per_record]
            block = np.moveaxis(piece.reshape(num_leads, -1, per_record), 0, 1)
            if is_edf:
                sample_bytes = block.astype("<i2").view(np.uint8)
            else:  # the lower three of four bytes
                sample_bytes = np.ascontiguousarray(block, "<i4").view(np.uint8).reshape(*block.shape, 4)[..., :3]
            annotations = np.frombuffer(b"".join(records[number : number + len(block)]), np.uint8)
            parts = [sample_bytes.reshape(len(block), -1), annotations.reshape(len(block), -1)]
            stream.write(np.concatenate(parts, axis=1).tobytes())
            number += len(block)
    pairs = zip(steps, ranges, strict=True)
    written = [each._replace(error=each.error + of.error, exact=each.exact and of.exact) for each, of in pairs]
    return WrittenEdf(path, written, changes)


def _record_of(rate_hz: float, bytes_per_sample: int) -> tuple[int, str]:
    """Return samples and duration of a data record, of about a second."""
    exact = Fraction(rate_hz).limit_denominator(_LONGEST_S)
    if float(exact) == rate_hz:
        samples, duration = exact.numerator, Fraction(exact.denominator)
        parts = (each for each in (1, 2, 4, 5, 10, 20, 50, 100) if samples % each == 0)
        part = next((each for each in parts if samples // each * bytes_per_sample <= _RECORD_BYTES), 1)
        return samples // part, _eight(float(duration / part))
    candidates = range(max(1, round(rate_hz)), max(1, round(rate_hz)) + 200)
    written = [(samples, _eight(samples / rate_hz)) for samples in candidates]
    return min(written, key=lambda each: abs(each[0] / float(each[1]) - rate_hz))


def _eight(value: float) -> str:
    """Return a number in at most 8 characters."""
    for digits in range(7, -1, -1):
        text = f"{value:.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        if len(text) <= 8:
            return text if text != "-0" else "0"
    return f"{value:.8g}"[:8]


def _range_of(lead: str, unit: str, steps: LeadSteps, bits: int) -> _Range:
    """Return the range of a lead whose 8 characters state its gain and zero best.

    Raises:
        HeartlmError: none is near the values.
    """
    lowest, ranges = -(1 << bits - 1), list[_Range]()
    whole = [(-(1 << size - 1) + shift, (1 << size - 1) - 1) for size in range(bits, 7, -1) for shift in (0, 1)]
    for low, high in whole + _round_ranges(unit, steps):
        if low < lowest or high >= -lowest:
            continue
        if low + (low == lowest and bool(steps.num_invalid)) > steps.low or high < steps.high:
            continue
        low += low == lowest and bool(steps.num_invalid)
        for name, factor in _SCALES.get(unit, ((unit, 1.0),)):
            texts = [_eight((digit - steps.zero) / steps.gain * factor) for digit in (low, high)]
            first, last = map(float, texts)
            if first >= last:
                continue
            digits = np.unique(np.linspace(steps.low, steps.high, 1000).round())
            gain, zero = calibration_of(first / factor, last / factor, low, high)
            written, values = (digits - zero) * gain, (digits - steps.zero) / steps.gain
            error = np.abs(written - values)
            exact = bool((error <= np.spacing(np.abs(values).astype(np.float32))).all())
            ranges.append(_Range(name, texts[0], texts[1], low, high, float(error.max()), exact))
    # the least error, and of nearly equal ones the shortest texts, which are probably those of the source
    best = min(ranges, key=lambda each: (round(1e6 * each.error * steps.gain), len(each.low + each.high)), default=None)
    least, most = ((number - steps.zero) / steps.gain for number in (steps.low, steps.high))
    if best is None or best.error > max(_MOST_STEPS / steps.gain, _MOST_RELATIVE * max(abs(least), abs(most))):
        raise HeartlmError(
            f"lead {lead}: {least:g} to {most:g} {unit} cannot be stated in the 8 characters of an EDF header; "
            "convert to wfdb or parquet"
        )
    return best


def _round_ranges(unit: str, steps: LeadSteps) -> list[tuple[int, int]]:
    """Return digital ranges that end at round physical values, the same below and above 0, and hold the numbers."""
    ranges = list[tuple[int, int]]()
    limits = np.concatenate([np.arange(1, 10_000) * 10.0**power for power in (-3, -1, 1)])
    for _, factor in _SCALES.get(unit, ((unit, 1.0),)):
        low, high = (steps.zero + sign * limits * steps.gain / factor for sign in (-1, 1))
        is_whole = np.abs(low - np.rint(low)) + np.abs(high - np.rint(high)) < 1e-6
        chosen = np.flatnonzero(is_whole & (low <= steps.low) & (high >= steps.high))[:3]
        ranges += zip(
            np.rint(low[chosen]).astype(int).tolist(), np.rint(high[chosen]).astype(int).tolist(), strict=True
        )
    return ranges


def _annotations(
    recording: Recording, steps: Sequence[LeadSteps], notes: Sequence[Note], start_s: float
) -> Iterator[tuple[float, bytes]]:
    """Yield onset and bytes of each annotation: beats, rhythms, notes, comments, and stretches of invalid samples."""
    rate_hz = recording.rate_hz

    def entry(start: int, stop: int | None, text: str, more: str = "") -> Iterator[tuple[float, bytes]]:
        lasting = "" if stop is None or stop <= start else f"\x15{_decimal((stop - start) / rate_hz)}"
        content = "".join(" " if character < " " else character for character in text).strip()
        content = re.sub(" {40,}", " ", content)  # a part of blanks alone would be empty, and the rest never shorter
        while content:
            part = content.encode("utf-8")[:_TEXT_BYTES].decode("utf-8", "ignore").rstrip()
            content = content[len(part) :] and more + content[len(part) :]
            onset_s = start / rate_hz
            yield onset_s, f"+{_decimal(start_s + onset_s)}{lasting}\x14{part}\x14\0".encode()

    annotations: Annotations | None = recording.annotations
    if annotations is not None:
        labelled = annotations.beats_labelled
        for place, symbol in zip(annotations.sample.tolist(), annotations.symbol.tolist(), strict=True):
            yield from entry(place, None, symbol if labelled else "QRS")
        for span in annotations.rhythms:
            yield from entry(span.start, span.stop, f"({span.name}")
    for note in (*(annotations.notes if annotations is not None else ()), *notes):
        is_code = note.text in CLASS_OF_SYMBOL or note.text == "QRS"
        yield from entry(note.start, note.stop, f"note {note.text}" if is_code else note.text)
    for comment in recording.comments:
        if not comment.startswith("left out: "):
            yield from entry(0, None, f"{COMMENT}{comment}", MORE_COMMENT)
    spans = [set(each.invalid) for each in steps]
    common = set.intersection(*spans) if spans else set()
    for start, stop in common:
        yield from entry(start, stop, INVALID_TEXT)
    for name, lead_spans in zip(recording.lead_names, spans, strict=True):
        for start, stop in lead_spans - common:
            yield from entry(start, stop, f"{INVALID_TEXT}: {name}")


def _spread(texts: list[tuple[float, bytes]], begins: list[bytes], width: int) -> tuple[list[bytes], int]:
    """Distribute annotations in the order of time over the data records, which have one size.

    Returns:
        The bytes of each record, and their number.
    """
    ordered = [content for _, content in sorted(texts, key=lambda each: each[0])]
    longest = max(map(len, ordered), default=0)
    size = max(map(len, begins)) + longest + -(-sum(map(len, ordered)) // len(begins))
    size += -size % (2 * width)
    records, place = list[bytes](), 0
    for begin in begins:
        content = begin
        while place < len(ordered) and len(content) + len(ordered[place]) <= size:
            content += ordered[place]
            place += 1
        records.append(content.ljust(size, b"\0"))
    assert place == len(ordered), "each record has room for its part and the longest text"
    return records, size


def _labels(names: Sequence[str], changes: list[str]) -> list[str]:
    labels = list[str]()
    for name in names:
        label = _ascii(" ".join(name.split()))[:16].decode().strip() or "lead"
        number = 1
        while label in labels:
            number += 1
            label = f"{label[: 15 - len(str(number))]} {number}"
        if label != name:
            changes.append(f"lead {name} is called {label}")
        labels.append(label)
    return labels


def _patient(recording: Recording, changes: list[str]) -> str:
    patient = recording.patient
    parts = [patient.identifier, {"female": "F", "male": "M"}.get(patient.sex, ""), "", patient.name]
    parts[2] = "" if patient.birth_date is None else _day(patient.birth_date)
    text = " ".join("_".join(part.split()) or "X" for part in parts)
    if len(text) > 80:
        changes.append("patient data longer than 80 characters are cut")
    if recording.age is not None and recording.patient.birth_date is None:
        age = f" Age_{recording.age}"
        text = text[: 80 - len(age)] + age
    return text


def _day(day: date) -> str:
    return f"{day.day:02d}-{MONTHS[day.month - 1]}-{day.year:04d}"


def _decimal(seconds: float) -> str:
    return f"{seconds:.7f}".rstrip("0").rstrip(".")


def _ascii(text: str) -> bytes:
    """Return text in the characters that EDF allows: without accents, others as `?`."""
    plain = unicodedata.normalize("NFKD", text.replace("µ", "u").replace("°", "deg").replace("ß", "ss"))
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    return "".join(each if " " <= each <= "~" else "?" for each in plain).encode()
