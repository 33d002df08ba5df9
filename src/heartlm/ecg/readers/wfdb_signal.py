"""WFDB records: a header beside signal files, read through the `wfdb` package.

The header is compared with what lies on the disk before a sample is believed: a signal file that is missing, shorter
or longer than the header says, or a gain of 0, is an error when the signal is first read; annotations need none of it.
CinC challenge `.mat` files are WFDB signal files behind a prefix of 24 bytes, and are read here too.

Format: header(5) and signal(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/header-5.htm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.units import to_millivolts
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError

_BYTES_PER_SAMPLE = {"8": 1, "16": 2, "24": 3, "32": 4, "61": 2, "80": 1, "160": 2}
_BYTES_OF_REST = {"212": (0, 2), "310": (0, 2, 4), "311": (0, 2, 3)}
"""Packed formats: bytes that 0, 1, 2 samples take which do not fill a group (of 3, 4 and 4 bytes)."""
_GROUP_BYTES = {"212": 3, "310": 4, "311": 4}
_FLAC_FORMATS = ("508", "516", "524")
_DIFFERENCE_FORMAT = "8"
_NO_FILE = "~"
_UNKNOWN_LENGTH = 0

_Result = TypeVar("_Result")


def read_wfdb(path: Path, *, accept_uncalibrated: bool = False) -> Recording:
    """Open the record whose header is `path`; samples are read when asked for.

    Args:
        path: the `.hea` file.
        accept_uncalibrated: read leads of gain 0 with the 200 adu/mV that the WFDB library assumes, not refuse them.

    Raises:
        HeartlmError: the header is missing, malformed or contradicts itself.
    """
    header = load_header(path)
    leads = header.leads
    units, factors = zip(*map(to_millivolts, leads.units), strict=True) if leads.units else ((), ())
    return Recording(
        record_id=path.stem,
        patient_id=path.stem,
        database="",
        rate_hz=header.rate_hz,
        num_samples=header.num_samples,
        lead_names=leads.names,
        units=units,
        gain=leads.gain / np.array(factors, np.float64),
        baseline=leads.baseline,
        path=path,
        comments=header.comments,
        samples=_Samples(header, np.array(factors, np.float64), accept_uncalibrated) if leads.names else None,
    )


@dataclass(frozen=True)
class Leads:
    """The signals of a header, in its order."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    gain: NDArray[np.float64]
    baseline: NDArray[np.float64]


@dataclass(frozen=True)
class Header:
    """A header and, where it has several segments, theirs; `record` is what the `wfdb` package made of it."""

    path: Path
    record: Any

    @property
    def rate_hz(self) -> float:
        """Frames a second."""
        return float(self.record.fs)

    @property
    def comments(self) -> tuple[str, ...]:
        """Free text, one entry a line."""
        return tuple(self.record.comments)

    @property
    def has_segments(self) -> bool:
        """Whether the record is pieced together from several."""
        return hasattr(self.record, "segments")

    @cached_property
    def segments(self) -> tuple[Any, ...]:
        """The single-segment records that hold signal files: the record itself, or its parts."""
        if not self.has_segments:
            return (self.record,)
        return tuple(part for part in self.record.segments if part is not None and part.sig_len)

    def part_headers(self) -> tuple[Header, ...]:
        """Headers of the segments, each by itself; of a record without segments its own."""
        if not self.has_segments:
            return (self,)
        return tuple(Header(self.path.parent / f"{part.record_name}.hea", part) for part in self.segments)

    @cached_property
    def leads(self) -> Leads:
        """The signals, as the header or the (first, or layout) segment names them."""
        described = next(part for part in self.record.segments if part) if self.has_segments else self.record
        if not described.n_sig:
            return Leads((), (), np.zeros(0), np.zeros(0))
        names = tuple(name or f"lead {place}" for place, name in enumerate(described.sig_name, 1))
        micro = {} if self.has_segments else _micro_units(self.path)
        units = tuple(micro.get(place, unit) for place, unit in enumerate(described.units))
        return Leads(names, units, np.array(described.adc_gain, np.float64), np.array(described.baseline, np.float64))

    @cached_property
    def num_samples(self) -> int:
        """Frames: as stated, else as many as the first signal file holds; 0 where neither is there."""
        if self.record.sig_len is not None:
            return int(self.record.sig_len)
        if self.has_segments:
            return int(sum(self.record.seg_len))
        file = next(signal_files(self.path.parent, self.record), None)
        return _UNKNOWN_LENGTH if file is None or not file.path.is_file() else file.num_frames_held


@dataclass(frozen=True)
class SignalFile:
    """A file of samples as a header describes it."""

    path: Path
    format: str
    samples_per_frame: int
    byte_offset: int

    def num_bytes(self, num_frames: int) -> int:
        """How many bytes `num_frames` take, with those before the first sample."""
        num_samples = num_frames * self.samples_per_frame
        if self.format in _BYTES_PER_SAMPLE:
            return self.byte_offset + num_samples * _BYTES_PER_SAMPLE[self.format]
        rest = _BYTES_OF_REST[self.format]
        groups, left = divmod(num_samples, len(rest))
        return self.byte_offset + groups * _GROUP_BYTES[self.format] + rest[left]

    @property
    def num_frames_held(self) -> int:
        """How many frames the file on the disk is long enough for; 0 where its format does not let its size tell."""
        if self.format not in _BYTES_PER_SAMPLE | _BYTES_OF_REST:
            return _UNKNOWN_LENGTH
        num_bytes = self.path.stat().st_size - self.byte_offset
        if self.format in _BYTES_PER_SAMPLE:
            return num_bytes // (_BYTES_PER_SAMPLE[self.format] * self.samples_per_frame)
        rest = _BYTES_OF_REST[self.format]
        groups, left = divmod(num_bytes, _GROUP_BYTES[self.format])
        extra = max(index for index, size in enumerate(rest) if size <= left)
        return (groups * len(rest) + extra) // self.samples_per_frame


def signal_files(folder: Path, record: Any) -> Iterator[SignalFile]:
    """The distinct signal files of a single-segment record in `folder`, in order."""
    for name in dict.fromkeys(record.file_name or ()):
        if name == _NO_FILE:
            continue
        own = [place for place, other in enumerate(record.file_name) if other == name]
        per_frame = sum(record.samps_per_frame[place] or 1 for place in own)
        yield SignalFile(folder / name, record.fmt[own[0]], per_frame, record.byte_offset[own[0]] or 0)


def load_header(path: Path) -> Header:
    """Read and check a header and those of its segments.

    Raises:
        HeartlmError: missing, malformed, or it contradicts itself.
    """
    import wfdb

    if not path.is_file():
        raise HeartlmError(f"{path}: no such header file")
    record = _wfdb_call(path, lambda: wfdb.rdheader(str(path.with_suffix("")), rd_segments=True))
    header = Header(path, record)
    if not header.rate_hz > 0:
        raise HeartlmError(f"{path}: sampling rate {header.rate_hz:g} Hz, expected more than 0; correct the header")
    parts = [part for part in record.segments if part] if header.has_segments else [record]
    if not parts:
        raise HeartlmError(f"{path}: every segment is empty; there is nothing to read")
    for part in parts:
        num_lines = len(part.file_name or ())
        if num_lines != part.n_sig:
            raise HeartlmError(
                f"{path.parent / part.record_name}.hea: {part.n_sig} signals announced, {num_lines} described; "
                "correct the header"
            )
    return header


def uncalibrated_leads(path: Path) -> tuple[int, ...]:
    """Which signals of a single-segment header state gain 0, or none: places from 0.

    The `wfdb` package hides the difference to a stated gain of 200, so the header's own text is looked at.
    """
    places = []
    for place, fields in enumerate(_signal_lines(path)):
        gain = re.match(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", fields[2]) if len(fields) > 2 else None
        if gain is None or float(gain[0]) == 0:
            places.append(place)
    return tuple(places)


def stored_checksums(header: Header) -> list[tuple[str, int | None, int]]:
    """For each lead of a single-segment record: name, 16-bit checksum as stated (None if not), and as computed."""
    import wfdb

    record = _wfdb_call(
        header.path,
        lambda: wfdb.rdrecord(
            str(header.path.with_suffix("")), physical=False, smooth_frames=False, ignore_skew=True, return_res=32
        ),
    )
    computed = [int(np.sum(signal, dtype=np.int64)) % 65536 for signal in record.e_d_signal]
    stated = [None if value is None else int(value) % 65536 for value in header.record.checksum]
    return list(zip(header.leads.names, stated, computed, strict=True))


@dataclass(frozen=True)
class _Samples:
    """Reads slices; the files are checked against the header once, before the first."""

    header: Header
    factors: NDArray[np.float64]
    accept_uncalibrated: bool

    def __call__(self, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        self._checked  # noqa: B018
        leads = list(leads)
        signal = np.full((len(leads), stop - start), np.nan, np.float32)
        skews = [self._skew[lead] for lead in leads]
        for skew in set(skews):
            rows = [row for row, lag in enumerate(skews) if lag == skew]
            last = min(stop + skew, self.header.num_samples)
            if start + skew < last:
                part = self._read(start + skew, last, [leads[row] for row in rows])
                signal[rows, : part.shape[1]] = part
        return signal

    @cached_property
    def _checked(self) -> bool:
        check_files(self.header)
        if not self.accept_uncalibrated:
            check_gains(self.header)
        return True

    @cached_property
    def _skew(self) -> list[int]:
        if self.header.has_segments:
            return [0] * len(self.header.leads.names)
        return [skew or 0 for skew in self.header.record.skew]

    def _read(self, start: int, stop: int, leads: list[int]) -> NDArray[np.float64]:
        """Physical values `[num_leads, stop - start]`.

        Format 8 keeps differences, so it is summed from the start; where the header states no length, the package can
        only read to the end.
        """
        import wfdb

        formats = {fmt for part in self.header.segments for fmt in part.fmt}
        first = 0 if _DIFFERENCE_FORMAT in formats else start
        last = stop if self.header.record.sig_len is not None else None
        distinct = sorted(set(leads))
        record = _wfdb_call(
            self.header.path,
            lambda: wfdb.rdrecord(
                str(self.header.path.with_suffix("")), first, last, channels=distinct, ignore_skew=True
            ),
        )
        rows = [distinct.index(lead) for lead in leads]
        signal: NDArray[np.float64] = record.p_signal[start - first : stop - first, rows].T
        return signal * self.factors[leads, np.newaxis]


def check_files(header: Header) -> None:
    """Compare every signal file with the header.

    Raises:
        HeartlmError: a file is missing, too short for the header, or more than a second longer than it says while the
            header's checksum does not vouch for the length.
    """
    for part in header.segments:
        num_frames = part.sig_len if header.has_segments else header.num_samples
        for file in signal_files(header.path.parent, part):
            _check_file(header, file, num_frames)
    if header.num_samples == _UNKNOWN_LENGTH and header.record.sig_len is None:
        raise HeartlmError(
            f"{header.path}: states no length, and its signal files do not tell it; add it to the header"
        )


def _check_file(header: Header, file: SignalFile, num_frames: int) -> None:
    if not file.path.is_file():
        raise HeartlmError(f"{file.path}: signal file named by {header.path.name} is missing; fetch it")
    if file.format in _FLAC_FORMATS:
        return  # its length shows when it is decoded
    if file.format not in _BYTES_PER_SAMPLE | _BYTES_OF_REST:
        raise HeartlmError(f"{header.path}: signal format {file.format} is not one that heartlm reads")
    held = file.num_frames_held
    lengths = f"{file.path}: holds {held} samples a lead, {header.path.name} says {num_frames}"
    if file.path.stat().st_size < file.num_bytes(num_frames):
        raise HeartlmError(f"{lengths}; the file is truncated or the header wrong, fetch both again")
    if not header.has_segments and held - num_frames > header.rate_hz and not _checksums_hold(header):
        raise HeartlmError(f"{lengths} and its checksum does not fit them; the header is wrong, fetch it again")


def _checksums_hold(header: Header) -> bool:
    return all(stated == computed for _, stated, computed in stored_checksums(header))


def check_gains(header: Header) -> None:
    """Refuse leads without calibration.

    Raises:
        HeartlmError: a lead's gain is 0 or missing, so its millivolts are unknown.
    """
    for part in header.part_headers():
        for place in uncalibrated_leads(part.path):
            raise HeartlmError(
                f"{part.path}: lead {part.leads.names[place]} has gain 0 (uncalibrated), so its millivolts are "
                'unknown; write its adu/mV into the header, or "uncalibrated": true into database.json to assume 200'
            )


def _signal_lines(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    stated = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return stated[1:]


def _micro_units(path: Path) -> dict[int, str]:
    """Places of leads in µV: the `wfdb` package drops the letter and would take them for volts."""
    return {
        place: "uV"
        for place, fields in enumerate(_signal_lines(path))
        if len(fields) > 2 and re.search(r"/[^\x00-\x7f]V$", fields[2])
    }


def _wfdb_call(path: Path, call: Callable[[], _Result]) -> _Result:
    """Run a function of the `wfdb` package; whatever it raises on a damaged file becomes one line."""
    try:
        return call()
    except FileNotFoundError as error:
        raise HeartlmError(f"{error.filename}: a file that {path.name} needs is missing; fetch it") from error
    except Exception as error:  # the package raises anything from IndexError to a codec's own exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeartlmError(f"{path}: not readable as a WFDB record ({reason})") from error
