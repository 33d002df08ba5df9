"""EDF, EDF+, BDF and BDF+ files, read through a memory map: a slice costs only the pages that hold it.

    header ─► channels ─► leads at one rate; ECG leads of other rates are resampled
    times of the data records (EDF+, BDF+) ─► blocks of records without a gap ─► samples, NaN between the blocks

Recorders lose power, and programs write headers that the format does not allow. What can be read is read; every repair
is listed in `Recording.repairs`.

A file may contain signals of several rates (for example a polysomnogram). A `Recording` has the rate of the ECG: other
signals at other rates are left out, and the recording's comments name them.

Format: Kemp et al., Electroencephalogr. Clin. Neurophysiol. 82:391-393, 1992; https://www.edfplus.info/specs. BDF, with
24 bits a sample: https://www.biosemi.com/faq/file_format.htm.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.lead_kinds import is_ecg_name
from heartlm.ecg.readers.annotation_file import OUTSIDE
from heartlm.ecg.readers.foreign import check_calibration, check_rate, first_bytes, size_of, to_millivolts
from heartlm.ecg.recording import (
    CLASS_OF_SYMBOL,
    SEXES,
    Annotations,
    Note,
    Patient,
    Recording,
    RhythmSpan,
    rhythm_named,
)
from heartlm.errors import HeartlmError

_FIELD_BYTES = 16, 80, 8, 8, 8, 8, 8, 80, 8, 32
"""Sizes of the fields of a channel, each for all channels: label, transducer, unit, physical minimum and maximum,
digital minimum and maximum, filter, samples a record, reserved."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d{1,3})?")
_SECONDS = rb"\d{1,12}(?:[.,]\d{0,24})?"
"""A time; programs write sums of floats with all of their decimals."""
_TIME = re.compile(rb"([+-]%b)\x14\x14" % _SECONDS)
"""The first annotation of a data record: its time since the start of the file, in seconds."""
_ANNOTATION = re.compile(rb"([+-]%b)(?:\x15(%b))?\x14([^\0]*)\x14\0" % (_SECONDS, _SECONDS))
"""Onset and duration in seconds, and texts separated by `\\x14`."""

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_PLACEHOLDER = date(1985, 1, 1)
"""Start date of EDF+ files without a known date; `00.00.00` is written too."""

_JITTER_S, _DRIFT_S, _LONGEST_GAP_S = 0.01, 0.5, 31 * 86400.0
"""A record begins a block if it begins this much later than the record before it ends: the first in a file that is
marked as discontinuous, the second in others, whose times may only drift. Longer than the last is a damaged time."""

_NEAR_WHOLE = 2e-6
"""Relative distance from a whole rate that is taken as the rounding of the record's duration to 8 characters."""
_PIECE = 1 << 16
"""Samples of a lead that are converted at once."""
_ZEROS = 8
"""Zeros of the interpolating function on each side."""
_FEWEST_BEATS_PER_MIN = 20.0


class _Channel(NamedTuple):
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
class _Header:
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
    channels: list[_Channel] = field(default_factory=list)
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
        """Return the rate of a signal with `samples` a data record."""
        rate_hz = _rate(samples, self.duration_s)
        own = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]\d+)?)_Hz", self.recording.split()[-1]) if self.is_own else None
        # a duration of 8 characters states most rates that are not whole only nearly
        return float(own[1]) if own and abs(float(own[1]) - rate_hz) < _NEAR_WHOLE * rate_hz else rate_hz


EQUIPMENT = "heartlm"
"""Recorder in the header of files that heartlm writes."""
INVALID_TEXT = "Invalid samples"
"""Begin of the annotations of invalid samples in these files, whose digit the header states too."""
COMMENT, MORE_COMMENT = "# ", "#+"
"""Begin of the annotations at the start of these files that are comments, and of their further parts."""
_OWN = re.compile(r"(?:invalid (-\d{1,8}) of|valid) (\d{1,12})")
"""The reserved field of a signal in these files: the digit of invalid samples if there are any, and the length of the
recording."""


def read_edf(path: Path) -> Recording:
    """Open an EDF or BDF file; samples and annotations are read lazily.

    Raises:
        HeartlmError: the file is neither EDF nor BDF, or its header does not tell where the samples are, or it holds no
            samples.
    """
    header = _read_header(path)
    if not header.channels:
        raise HeartlmError(f"{path}: holds no signals, only annotations" + "".join(f"; {s}" for s in header.left_out))
    if not header.duration_s > 0:
        raise HeartlmError(f"{path}: states no duration of a data record, so the rate is unknown; correct its header")
    if not header.num_records and not header.partial_bytes:
        raise HeartlmError(f"{path}: ends with its header; the samples are missing, fetch it again")
    named = [channel for channel in header.channels if is_ecg_name(channel.name)]
    volts = [each for each in header.channels if each.unit == "mV" and is_ecg_name(each.name) is not False]
    candidates = named or volts or header.channels
    # the most common rate of the ECG leads, and the highest of equals
    counts = Counter(channel.samples for channel in candidates)
    samples = max(counts, key=lambda number: (counts[number], number))
    rate_hz = check_rate(path, header.rate_hz(samples))
    resampled = [each for each in named or volts if each.samples != samples]
    leads = [channel for channel in header.channels if channel.samples == samples or channel in resampled]
    for lead in resampled:
        own_hz = _rate(lead.samples, header.duration_s)
        header.repairs.append(f"lead {lead.name}: resampled from {own_hz:g} Hz to {rate_hz:g} Hz")
    comments = header.left_out + [
        f"left out: {each.name} at {_rate(each.samples, header.duration_s):g} Hz, not the ECG's {rate_hz:g} Hz"
        for each in header.channels
        if each not in leads
    ]
    names, units = tuple(lead.name for lead in leads), tuple(lead.unit for lead in leads)
    gain, zero = np.array([lead.gain for lead in leads]), np.array([lead.zero for lead in leads])
    with np.errstate(over="ignore"):
        check_calibration(path, names, units, 1 / gain, zero, inverted=True)
    first_record, first_sample, begin_s = _blocks(path, header, samples, rate_hz)
    read = _Samples(path, header, tuple(leads), samples, first_record, first_sample)
    return Recording(
        rate_hz=rate_hz,
        num_samples=read.num_samples,
        lead_names=names,
        units=units,
        path=path,
        comments=(*_comments(path, header, begin_s), *comments),
        start=_start(header, begin_s),
        patient=_patient(header.patient),
        repairs=tuple(header.repairs),
        samples=read,
        read_annotations=partial(_annotations, path, header, begin_s) if header.annotations else None,
        steps=tuple(None if lead in resampled else (1 / lead.gain, lead.zero) for lead in leads),
    )


def _read_header(path: Path) -> _Header:
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

    texts = [_text(fixed[a:b]) for a, b in ((8, 88), (88, 168), (168, 176), (176, 184), (184, 192), (192, 236))]
    patient, recording, day, clock, header_bytes, reserved = texts
    records, duration, channels = (_text(fixed[a:b]) for a, b in ((236, 244), (244, 252), (252, 256)))
    num_channels = count(channels) or 0
    data_at = 256 * (1 + num_channels)
    content = (first_bytes(path, data_at) or b"")[256:]
    if num_channels < 1 or len(content) < data_at - 256:
        raise HeartlmError(
            f"{path}: not readable as an EDF file (a header of {channels or 'no'} signals in "
            f"{len(fixed) + len(content)} bytes); fetch it again"
        )
    header = _Header(
        patient, recording, day, clock, reserved[3:5].upper() == "+D", number(duration), 2 + (version != b"0"), data_at
    )
    columns, first = [], 0
    for size in _FIELD_BYTES:
        columns.append([_text(content[first + size * n : first + size * (n + 1)]) for n in range(num_channels)])
        first += size * num_channels
    labels, _, units, *limits, _, counts, marks = columns
    signals = zip(labels, units, *limits, counts, marks, strict=True)
    for place, (label, unit, *ranges, samples_text, mark) in enumerate(signals, 1):
        name, samples = label or f"lead {place}", count(samples_text)
        if samples is None or samples < 0:
            raise HeartlmError(
                f"{path}: signal {place} ({name}) has {samples_text!r} samples a data record, expected a number; fetch "
                "the file again or correct its header"
            )
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
                _Channel(name, unit, gain, zero, samples, offset, int(own[1]) if own and own[1] else None)
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


def calibration_of(physical_low: float, physical_high: float, low: float, high: float) -> tuple[float, float]:
    """Return the unit per digit, NaN or 0 if the range is none, and the digit of the physical value 0."""
    gain = (physical_high - physical_low) / (high - low) if high != low else math.nan
    zero = low - physical_low / gain if gain else math.nan
    nearest = round(2 * zero) / 2 if math.isfinite(zero) else zero
    # most ranges put 0 on a digit or between two, so that digit is 0 exactly
    return gain, nearest if abs(zero - nearest) < 1e-7 * max(1.0, abs(low), abs(high)) else zero


def _text(content: bytes) -> str:
    """Return a field of the header as printable text without the blanks around it."""
    content = content.strip(b" \0")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return "".join(character if character.isprintable() else "?" for character in text)


def _rate(samples: int, duration_s: float) -> float:
    """Return samples a second, a whole number if the duration is rounded."""
    rate_hz = samples / duration_s
    return round(rate_hz) if abs(rate_hz - round(rate_hz)) < _NEAR_WHOLE * rate_hz else rate_hz


def _blocks(
    path: Path, header: _Header, samples: int, rate_hz: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    """Find the data records after a gap, by the times that EDF+ states for each.

    Args:
        path: path of the file.
        header: header of the file; gaps and times out of order are added to its repairs.
        samples: samples a data record at the recording's rate.
        rate_hz: rate of the recording.

    Returns:
        Of each block without a gap the first data record and the first sample, int64 `[num_blocks]`; and the time of
        the first sample since the start that the header states.
    """
    whole = np.zeros(1, np.int64)
    if not header.annotations or header.num_records == 0:
        if header.is_discontinuous:
            header.repairs.append("marked as discontinuous without the times of its records, which are read as one")
        return whole, whole, 0.0
    duration_s, last = header.duration_s, header.num_records - 1
    tolerance_s = max(_JITTER_S if header.is_discontinuous else _DRIFT_S, 1 / rate_hz)
    with path.open("rb", buffering=0) as stream:
        offset, size = header.annotations[0]

        def begin(record: int) -> float:
            content = os.pread(stream.fileno(), min(size, 40), header.data_at + record * header.record_bytes + offset)
            stated = _TIME.match(content)
            return math.nan if stated is None else _seconds(stated[1])

        begin_s = begin(0)
        if abs(begin(last) - begin_s - last * duration_s) < tolerance_s:
            return whole, whole, begin_s  # times ascend, so there is no gap between these two
        begins_s = np.array([begin(record) for record in range(last + 1)])
    late_s = begins_s - np.arange(last + 1) * duration_s  # constant without a gap
    stated = np.isfinite(late_s)
    if not stated.any():
        header.repairs.append("the times of its data records are not readable; they are read as one")
        return whole, whole, 0.0
    late_s = late_s[np.maximum.accumulate(np.where(stated, np.arange(last + 1), stated.argmax()))]
    kept_s = late_s.copy()
    # A single time that does not fit between its neighbours is damaged.
    before_s, after_s = late_s[:-2], late_s[2:]
    is_alone = (before_s <= after_s + tolerance_s) & (
        (late_s[1:-1] > after_s + tolerance_s) | (late_s[1:-1] < before_s - tolerance_s)
    )
    kept_s[1:-1][is_alone] = before_s[is_alone]
    steps_s = np.diff(np.maximum.accumulate(kept_s), prepend=kept_s[0])
    steps_s[steps_s > _LONGEST_GAP_S] = 0
    kept_s = kept_s[0] + np.cumsum(steps_s)
    if wrong := int((~stated | (np.abs(late_s - kept_s) > tolerance_s)).sum()):
        what = "state no time or one out of order; each follows the record before it"
        header.repairs.append(f"{wrong} of {last + 1} data records {what}")
    first_record, first_sample, present_s = [0], [0], float(kept_s[0])
    # candidates only: steps of a clock that drifts add up to a gap
    for record in np.flatnonzero(np.diff(kept_s) > 0).tolist():
        if kept_s[record + 1] - present_s >= tolerance_s:
            present_s = float(kept_s[record + 1])
            first_record.append(record + 1)
            first_sample.append((record + 1) * samples + round((present_s - float(kept_s[0])) * rate_hz))
    if num_gaps := len(first_record) - 1:
        gaps = f"gaps between its data records ({num_gaps}, {present_s - float(kept_s[0]):g} s in all)"
        header.repairs.append(f"{gaps} are read as invalid samples")
    return np.array(first_record), np.array(first_sample), float(kept_s[0])


@dataclass(frozen=True)
class _Samples:
    """Read slices of samples.

    Attributes:
        path: path of the file.
        header: header of the file.
        leads: leads of the recording.
        per_record: samples a data record at the recording's rate.
        first_record: first data record of each block without a gap, int64 `[num_blocks]`.
        first_sample: its first sample in the recording, int64 `[num_blocks]`.
    """

    path: Path
    header: _Header
    leads: tuple[_Channel, ...]
    per_record: int
    first_record: NDArray[np.int64]
    first_sample: NDArray[np.int64]

    def __call__(self, start: int, stop: int, chosen: Sequence[int]) -> NDArray[np.float32]:
        rows = np.full((len(chosen), stop - start), np.nan, np.float32)
        block = max(0, int(np.searchsorted(self.first_sample, start, side="right")) - 1)
        while block < len(self.first_sample) and self.first_sample[block] < stop:
            begin = int(self.first_sample[block])
            for row, index in zip(rows, chosen, strict=True):
                lead = self.leads[index]
                own_begin, own = self._own_samples(block, lead)
                first, last = max(start, begin), min(stop, begin + self._length(own, lead))
                if first < last:
                    part = row[first - start : last - start]
                    if lead.samples == self.per_record:
                        self._read(lead, own_begin + first - begin, part)
                    else:
                        self._interpolate(lead, own_begin, own, first - begin, part)
            block += 1
        return rows

    @property
    def num_samples(self) -> int:
        """Samples of the recording; the lead that reaches furthest into an incomplete last record decides."""
        last = len(self.first_sample) - 1
        lengths = (self._length(self._own_samples(last, lead)[1], lead) for lead in self.leads)
        held = int(self.first_sample[last]) + max(lengths)
        # only the last data record may be filled up
        stated = self.header.length or held
        return stated if held - self.per_record < stated <= held else held

    def _own_samples(self, block: int, lead: _Channel) -> tuple[int, int]:
        """Return the first sample of a block at the own rate, counted from the first record, and their number."""
        first, last = int(self.first_record[block]), self.header.num_records
        if block + 1 < len(self.first_record):
            return first * lead.samples, (int(self.first_record[block + 1]) - first) * lead.samples
        partial = (self.header.partial_bytes - lead.offset) // self.header.sample_bytes
        return first * lead.samples, (last - first) * lead.samples + min(max(partial, 0), lead.samples)

    def _length(self, own: int, lead: _Channel) -> int:
        return -(-own * self.per_record // lead.samples)

    @cached_property
    def _data(self) -> NDArray[np.uint8]:
        return np.memmap(self.path, np.uint8, "r")

    def _read(self, lead: _Channel, first: int, out: NDArray[Any]) -> None:
        """Fill `out` with samples of a lead at its own rate, from `first`, counted from the first record."""
        per_record, size, done = lead.samples, self.header.sample_bytes, 0
        while done < len(out):
            record, inside = divmod(first + done, per_record)
            num_records = min((len(out) - done) // per_record, _PIECE // per_record)
            if inside or num_records == 0:
                shape = 1, min(len(out) - done, per_record - inside, _PIECE)
            else:
                shape = num_records, per_record
            begin = self.header.data_at + record * self.header.record_bytes + lead.offset + inside * size
            # A sample of 24 bits is read with the byte before it, which is shifted out.
            kind, before = ("<i2", 0) if size == 2 else ("<i4", 1)
            strides = self.header.record_bytes, size
            # contiguous and aligned first: NumPy converts that twice as fast
            digits = np.ascontiguousarray(np.ndarray(shape, kind, self._data, begin - before, strides)).reshape(-1)
            digits = digits if size == 2 else digits >> 8
            physical = digits - lead.zero
            physical *= lead.gain
            if lead.invalid is not None:
                physical[digits == lead.invalid] = np.nan
            out[done : done + len(physical)] = physical
            done += len(physical)

    def _interpolate(self, lead: _Channel, own_begin: int, own: int, first: int, out: NDArray[np.float32]) -> None:
        """Fill `out` with a lead at the recording's rate, from sample `first` of a block.

        Band-limited interpolation: a windowed sinc, which has its first zero at the lower of the two rates. Beyond the
        ends of the block, the first and the last sample are repeated.
        """
        ratio = lead.samples / self.per_record  # own samples a sample of the recording
        width = max(1.0, ratio)
        reach = math.ceil(_ZEROS * width)
        common = math.gcd(lead.samples, self.per_record)
        num_phases = self.per_record // common
        taps = np.arange(1 - reach, reach + 1)
        for piece in range(0, len(out), _PIECE // (2 * reach) + 1):
            place = np.arange(first + piece, first + min(piece + _PIECE // (2 * reach) + 1, len(out)))
            near, phase = divmod(place * (lead.samples // common), num_phases)
            phases, which = np.unique(phase, return_inverse=True)
            distance = (taps - phases[:, np.newaxis] / num_phases) / width
            weights = np.sinc(distance) * np.sinc(distance / _ZEROS) * (np.abs(distance) < _ZEROS)
            weights /= weights.sum(axis=1, keepdims=True)
            low, high = max(int(near[0]) + 1 - reach, 0), min(int(near[-1]) + reach, own - 1)
            values = np.empty(high + 1 - low)
            self._read(lead, own_begin + low, values)
            around = values[(near[:, np.newaxis] + taps).clip(low, high) - low]
            out[piece : piece + len(place)] = np.einsum("ij,ij->i", around, weights[which])


def _annotations(path: Path, header: _Header, begin_s: float, recording: Recording) -> Annotations | None:
    """Return the annotations of EDF+ and BDF+: rhythms that last, beats if there are enough, and notes.

    A rhythm is an annotation with a duration, or a rhythm change of WFDB as `(AFIB`, which lasts until the next one. A
    text that is `QRS` or a beat code of WFDB is a beat if there are `_FEWEST_BEATS_PER_MIN`; a few single letters are
    marks of another kind.

    Args:
        path: path of the file.
        header: header of the file.
        begin_s: time of the first sample.
        recording: recording of the file.

    Returns:
        None if the file has no annotation with a text.
    """
    rate_hz, length = recording.rate_hz, recording.num_samples
    entries = sorted(
        ((round((onset_s - begin_s) * rate_hz), lasting_s, text) for onset_s, lasting_s, text in _texts(path, header)),
        key=lambda entry: entry[0],
    )
    if header.is_own:  # its samples are invalid already, and comments are those of the recording
        no_notes = INVALID_TEXT, COMMENT, MORE_COMMENT
        entries = [entry for entry in entries if not entry[2].startswith(no_notes)]
    if not entries:
        return None
    early, late = sum(start < 0 for start, _, _ in entries), sum(start >= length for start, _, _ in entries)
    entries = entries[early : len(entries) - late]
    is_beat = [lasting_s is None and (text == "QRS" or text in CLASS_OF_SYMBOL) for _, lasting_s, text in entries]
    if not header.is_own and 60 * sum(is_beat) < _FEWEST_BEATS_PER_MIN * recording.duration_s:
        is_beat = [False] * len(entries)
    beats = {start: text for (start, _, text), is_one in zip(entries, is_beat, strict=True) if is_one}
    rhythms, notes = list[tuple[int, int | None, str]](), list[Note]()
    for (start, lasting_s, text), is_one in zip(entries, is_beat, strict=True):
        stop = None if lasting_s is None else min(start + round(lasting_s * rate_hz), length)
        name = rhythm_named(text)
        if name is not None and (text.startswith("(") if stop is None else stop > start):
            rhythms.append((start, stop, name))
        elif not is_one:
            notes.append(Note(start, stop or start, text))
    nexts = [start for start, _, _ in rhythms[1:]] + [length]
    spans = (
        RhythmSpan(start, after if stop is None else min(stop, after), name)
        for (start, stop, name), after in zip(rhythms, nexts, strict=False)
    )
    return Annotations(
        rate_hz,
        np.array(list(beats), np.int64),
        np.array(["N" if text == "QRS" else text for text in beats.values()], "<U1"),
        tuple(span for span in spans if span.start < span.stop),
        beats_labelled=any(text != "QRS" for text in beats.values()),
        source=path.name,
        ignored={reason: number for reason, number in zip(OUTSIDE, (early, late), strict=True) if number},
        notes=tuple(notes),
    )


def _comments(path: Path, header: _Header, begin_s: float) -> list[str]:
    """Return the comments of a file that heartlm wrote, which are annotations at its start."""
    comments = list[str]()
    for onset_s, _, text in _texts(path, header) if header.is_own else ():
        if onset_s > begin_s:
            break
        if text.startswith(COMMENT):
            comments.append(text.removeprefix(COMMENT))
        elif text.startswith(MORE_COMMENT) and comments:
            comments[-1] += text.removeprefix(MORE_COMMENT)
    return comments


def _texts(path: Path, header: _Header) -> Iterator[tuple[float, float | None, str]]:
    """Yield onset, duration (None if not stated) and text of each annotation of a file, in its order."""
    size = header.num_records * header.record_bytes
    if not size:
        return
    records = np.memmap(path, np.uint8, "r", offset=header.data_at, shape=(size,)).reshape(-1, header.record_bytes)
    step = max(1, _PIECE // header.record_bytes)
    for first in range(0, header.num_records, step):
        part = records[first : first + step]
        for offset, width in header.annotations:
            for onset, lasting, texts in _ANNOTATION.findall(part[:, offset : offset + width].tobytes()):
                for text in filter(None, map(_text, texts.split(b"\x14"))):
                    yield _seconds(onset), _seconds(lasting) if lasting else None, text


def _seconds(text: bytes) -> float:
    """Return a time of EDF+, also with a decimal comma."""
    return float(text.replace(b",", b"."))


def _start(header: _Header, begin_s: float) -> datetime | time | None:
    """Return the time of the first sample; None if it is not stated, the time of day if the date is not."""
    hour = re.fullmatch(r"(\d{1,2})\D(\d{1,2})\D(\d{1,2})", header.clock)
    two_digits = re.fullmatch(r"(\d{1,2})\D(\d{1,2})\D(\d\d)", header.day)
    words, day = header.recording.split(), None
    if words[:1] == ["Startdate"]:
        day = _date(words[1] if len(words) > 1 else "X")
    elif two_digits is not None:
        with suppress(ValueError):  # the years are 1985 to 2084
            year = int(two_digits[3]) + (1900 if int(two_digits[3]) >= 85 else 2000)
            day = date(year, int(two_digits[2]), int(two_digits[1]))
    is_known = day is not None and day != _PLACEHOLDER
    with suppress(ValueError, TypeError, OverflowError):
        clock = time.fromisoformat(":".join(part.zfill(2) for part in hour.groups()) if hour else "")
        if is_known or clock != time():  # anonymised files have the placeholder and midnight
            start = datetime.combine(day if day and is_known else date(2000, 1, 1), clock) + timedelta(seconds=begin_s)
            return start if is_known else start.time()
    return None


def _patient(text: str) -> Patient:
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
