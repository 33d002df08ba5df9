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
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import is_ecg_name
from heartlm.ecg.recording import CLASS_OF_SYMBOL, Annotations, Note, Recording, RhythmSpan, rhythm_named
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import OUTSIDE
from heartlm.formats.edf_header import (
    COMMENT,
    INVALID_TEXT,
    MORE_COMMENT,
    Channel,
    EdfHeader,
    patient_of,
    printable_text,
    read_header,
)
from heartlm.formats.interpolate import interpolate
from heartlm.formats.mapped import ByteView, byte_view
from heartlm.formats.plausible import check_calibration, check_rate
from heartlm.storage.limits import check_samples

# A time; programs write sums of floats with all of their decimals.
_SECONDS = rb"\d{1,12}(?:[.,]\d{0,24})?"
# The first annotation of a data record: its time since the start of the file, in seconds.
_TIME = re.compile(rb"([+-]%b)\x14\x14" % _SECONDS)
_ONSET = re.compile(rb"([+-]%b)(?:\x15(%b))?\x14" % (_SECONDS, _SECONDS))
"""Onset and duration in seconds; texts separated by `\\x14` follow, and the annotation ends with `\\x14\\0`."""

# A record begins a block if it begins this much later than the record before it ends: the first in a file that is
# marked as discontinuous, the second in others, whose times may only drift. Longer than the last is a damaged time.
_JITTER_S, _DRIFT_S, _LONGEST_GAP_S = 0.01, 0.5, 31 * 86400.0

# Samples of a lead that are converted at once.
_PIECE = 1 << 16
_FEWEST_BEATS_PER_MIN = 20.0


def read_edf(path: Path) -> Recording:
    """Open an EDF or BDF file; samples and annotations are read lazily.

    Raises:
        HeartlmError: the file is neither EDF nor BDF, or its header does not tell where the samples are, or it holds no
            samples.
    """
    header = read_header(path)
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
        own_hz = header.rate_hz(lead.samples)
        header.repairs.append(f"lead {lead.name}: resampled from {own_hz:g} Hz to {rate_hz:g} Hz")
    comments = header.left_out + [
        f"left out: {each.name} at {header.rate_hz(each.samples):g} Hz, not the ECG's {rate_hz:g} Hz"
        for each in header.channels
        if each not in leads
    ]
    names, units = tuple(lead.name for lead in leads), tuple(lead.unit for lead in leads)
    gain, zero = np.array([lead.gain for lead in leads]), np.array([lead.zero for lead in leads])
    with np.errstate(over="ignore"):
        check_calibration(path, names, units, 1 / gain, zero, inverted=True)
    first_record, first_sample, begin_s = _blocks(path, header, samples, rate_hz)
    read = _Samples(path, header, tuple(leads), samples, first_record, first_sample)
    check_samples(path, len(leads) * read.num_samples)
    return Recording(
        rate_hz=rate_hz,
        num_samples=read.num_samples,
        lead_names=names,
        units=units,
        path=path,
        comments=(*_comments(path, header, begin_s), *comments),
        start=header.start(begin_s),
        patient=patient_of(header.patient),
        repairs=tuple(header.repairs),
        samples=read,
        read_annotations=partial(_annotations, path, header, begin_s) if header.annotations else None,
        steps=tuple(None if lead in resampled else (1 / lead.gain, lead.zero) for lead in leads),
    )


def _blocks(
    path: Path, header: EdfHeader, samples: int, rate_hz: float
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
    (offset, size), content = header.annotations[0], byte_view(path)

    def begin(record: int) -> float:
        # a sign, 12 digits, a point, 24 decimals and two marks, as `_TIME` allows
        at = header.data_at + record * header.record_bytes + offset
        stated = _TIME.match(content[at : at + min(size, 40)].tobytes())
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
    header: EdfHeader
    leads: tuple[Channel, ...]
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
                lead_begin, lead_length = self._lead_samples(block, lead)
                first, last = max(start, begin), min(stop, begin + self._length(lead_length, lead))
                if first < last:
                    part = row[first - start : last - start]
                    if lead.samples == self.per_record:
                        self._read(lead, lead_begin + first - begin, part)
                    else:

                        def read(low: int, values: NDArray[np.float32]) -> None:
                            self._read(lead, lead_begin + low, values)  # noqa: B023

                        interpolate(read, (lead.samples, lead_length, self.per_record), first - begin, part)
            block += 1
        return rows

    @property
    def num_samples(self) -> int:
        """Samples of the recording; the lead that reaches furthest into an incomplete last record decides."""
        last = len(self.first_sample) - 1
        lengths = (self._length(self._lead_samples(last, lead)[1], lead) for lead in self.leads)
        held = int(self.first_sample[last]) + max(lengths)
        # only the last data record may be filled up
        stated = self.header.length or held
        return stated if held - self.per_record < stated <= held else held

    def _lead_samples(self, block: int, lead: Channel) -> tuple[int, int]:
        """Return the first sample of a block at the own rate, counted from the first record, and their number."""
        first, last = int(self.first_record[block]), self.header.num_records
        if block + 1 < len(self.first_record):
            return first * lead.samples, (int(self.first_record[block + 1]) - first) * lead.samples
        partial = (self.header.partial_bytes - lead.offset) // self.header.sample_bytes
        return first * lead.samples, (last - first) * lead.samples + min(max(partial, 0), lead.samples)

    def _length(self, lead_length: int, lead: Channel) -> int:
        """Return the samples of the recording that samples of a lead at its own rate fill, rounded up."""
        return -(-lead_length * self.per_record // lead.samples)

    @cached_property
    def _data(self) -> NDArray[np.uint8] | ByteView:
        return byte_view(self.path)

    def _read(self, lead: Channel, first: int, out: NDArray[Any]) -> None:
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
            end = begin + (shape[0] - 1) * strides[0] + shape[1] * size
            # contiguous and aligned first: NumPy converts that twice as fast
            digits = np.ascontiguousarray(
                np.ndarray(shape, kind, self._data[begin - before : end], 0, strides)
            ).reshape(-1)
            digits = digits if size == 2 else digits >> 8
            physical = digits - lead.zero
            physical *= lead.gain
            if lead.invalid is not None:
                physical[digits == lead.invalid] = np.nan
            out[done : done + len(physical)] = physical
            done += len(physical)


def _annotations(path: Path, header: EdfHeader, begin_s: float, recording: Recording) -> Annotations | None:
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


def _comments(path: Path, header: EdfHeader, begin_s: float) -> list[str]:
    """Return the comments of a file that heartlm wrote, which are annotations at its start."""
    comments = list[str]()
    for onset_s, _, text in _texts(path, header, is_dense=True) if header.is_own else ():
        if onset_s > begin_s:
            break
        if text.startswith(COMMENT):
            comments.append(text.removeprefix(COMMENT))
        elif text.startswith(MORE_COMMENT) and comments:
            comments[-1] += text.removeprefix(MORE_COMMENT)
    return comments


def _texts(path: Path, header: EdfHeader, is_dense: bool = False) -> Iterator[tuple[float, float | None, str]]:
    """Yield onset, duration (None if not stated) and text of each annotation of a file, in its order.

    With `is_dense`, no data record is read after one without a text, as in files that heartlm wrote.
    """
    size = header.num_records * header.record_bytes
    if not size:
        return
    num_records = 1 if is_dense else max(1, _PIECE // header.record_bytes)
    content, step = byte_view(path), num_records * header.record_bytes
    for first in range(header.data_at, header.data_at + size, step):
        is_last = is_dense
        part = content[first : min(first + step, header.data_at + size)].reshape(-1, header.record_bytes)
        for offset, width in header.annotations:
            for annotation in part[:, offset : offset + width].tobytes().split(b"\0")[:-1]:
                begin = _ONSET.search(annotation[:-1]) if annotation.endswith(b"\x14") else None
                if begin is None:
                    continue
                onset, lasting = begin.groups()
                for text in filter(None, map(printable_text, annotation[begin.end() : -1].split(b"\x14"))):
                    is_last = False
                    yield _seconds(onset), _seconds(lasting) if lasting else None, text
        if is_last:
            return


def _seconds(text: bytes) -> float:
    """Return a time of EDF+, also with a decimal comma."""
    return float(text.replace(b",", b"."))
