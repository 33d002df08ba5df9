"""WFDB headers: parse signals, signal files and segments.

A header has a record line, followed by one line per signal, or per segment in a multi-segment record. Fields at the end
of a line may be missing. Comments (`#`) may occur anywhere.

Format: header(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/header-5.htm; of signal
files signal(5) there.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.formats.plausible import check_rate
from heartlm.formats.text_bytes import is_gzip, unpacked
from heartlm.kernels.library import kernel
from heartlm.storage.foreign import HEADER_BYTES, first_bytes, is_there, open_file, read_bytes, size_of, stays_inside

NO_FILE = "~"
"""File name of a signal, or name of a segment, without samples."""

# header(5): the rate of a record, and the adu per unit of a signal, that state none; a gain of 0 is none, too.
_DEFAULT_RATE_HZ = 250.0
_DEFAULT_GAIN = 200.0

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COUNT = r"\d{1,18}"
_MOST_SAMPLES_PER_FRAME = 1 << 16
_OPTIONAL_INTEGER = r"(?:\s+([-+]?\d{1,18})(?!\S))?"
_LAYOUT = rf"(\d+)(?:x({_COUNT}))?(?::({_COUNT}))?(?:\+({_COUNT}))?"
_CALIBRATION = rf"({_NUMBER})?(?:\(({_NUMBER})\))?(?:/(\S+))?(?!\S)"
# The third field is a calibration if it starts like one; otherwise it begins the description.
_SIGNAL = re.compile(
    rf"(\S+)\s+{_LAYOUT}(?:\s+(?=[-+.(/\d]){_CALIBRATION}|(?!\S)(?!\s+[-+.(/\d])){_OPTIONAL_INTEGER * 5}\s*(.*)"
)
_RECORD = re.compile(
    rf"\S*?(?:/({_COUNT}))?\s+({_COUNT})(?:\s+({_NUMBER})(?:[/(]\S*)?(?!\S))?(?:\s+({_COUNT})(?!\S)(.*))?"
)
_BASE_TIME = re.compile(r"\s+(\d{1,2}:\d{1,2}:\d{1,2}(?:\.\d{1,6})?)(?:\s+(\d{1,2}/\d{1,2}/\d{4}))?(?!\S).*")
_SEGMENT = re.compile(rf"(\S+)\s+({_COUNT})(?!\S).*")


DECODED: dict[str, tuple[int, ...]] = {
    "212": (0, 2, 3), "16": (0, 2), "61": (0, 2), "80": (0, 1), "24": (0, 3), "32": (0, 4),
}  # fmt: skip
"""Sizes in bytes of 0, 1, ... samples up to a full group, for each format that the kernel decodes."""

# Of a sample; the lowest that they hold marks a missing value.
_NUM_BITS = {"212": 12, "16": 16, "61": 16, "80": 8, "24": 24, "32": 32}

MAX_WIDTH = 2047
"""Samples a frame that the kernel takes: its blocks of 4,096 samples hold one sample to skip and two frames."""

GROUP: dict[str, tuple[int, ...]] = DECODED | {"8": (0, 1), "160": (0, 2), "310": (0, 2, 4, 4), "311": (0, 2, 3, 4)}
"""Sizes in bytes of 0, 1, ... samples up to a full group, for each format whose length follows from the file size."""

FLAC = ("508", "516", "524")
"""Compressed formats, which the package `wfdb` decodes."""

_CHUNK_BYTES = 1 << 20


def num_bytes(group: tuple[int, ...], num_samples: int) -> int:
    """Bytes that `num_samples` take in a format with that `GROUP`."""
    groups, rest = divmod(num_samples, len(group) - 1)
    return groups * group[-1] + group[rest]


def adu_type(fmt: str) -> type[np.int16] | type[np.int32]:
    """The type of the samples of a format; of 80 int16 too, for fewer types."""
    return np.int16 if _NUM_BITS[fmt] <= 16 else np.int32


def decode(
    content: NDArray[np.uint8],
    fmt: str,
    width: int,
    columns: Sequence[int],
    out: NDArray[Any],
    skip: int = 0,
    calibration: NDArray[np.float64] | None = None,
    sums: NDArray[np.uint16] | None = None,
) -> None:
    """Decode some columns of frames of `width` samples, as many frames as `out` has samples.

    Args:
        content: bytes of the file, from the start of a group of its format.
        fmt: a key of `DECODED`.
        width: samples a frame.
        columns: which samples of a frame are wanted, `[num_columns]`.
        out: `[num_columns, num_frames]`, contiguous along frames: of `adu_type` of the format for adu, float32 for
            physical values, NaN where the sample marks a missing one.
        skip: samples of the first group that come before the first frame.
        calibration: baseline, gain and a factor of each column, `[num_columns, 3]`: physical is
            `(adu - baseline) / gain * factor`, in float64 and rounded once. None for adu.
        sums: `[num_columns]`; the sum of each column's adu is added, modulo 65536.
    """
    num_frames = out.shape[1]
    assert (
        width <= MAX_WIDTH
        and out.shape[0] == len(columns)
        and out.dtype == (adu_type(fmt) if calibration is None else np.float32)
    )
    assert len(content) >= num_bytes(DECODED[fmt], skip + num_frames * width) and all(
        0 <= column < width for column in columns
    )
    assert out.strides[1] == out.itemsize or num_frames < 2
    kernel("wfdb_decode")(
        *(content, int(fmt), skip, num_frames, width, np.array(columns, np.int64), len(columns)),
        *(calibration, out.ctypes.data, out.strides[0] // out.itemsize, sums),
    )


class Signal(NamedTuple):
    """One signal line.

    Attributes:
        file_name: name of the file with the samples; `~` if there is none.
        format: format of the samples, for example `"212"`.
        samples_per_frame: samples per frame; more than 1 if the signal has a multiple of the record's rate.
        skew: number of frames by which the samples are late in the file.
        byte_offset: number of bytes before the first sample.
        gain: adu per unit; 200 if the header states 0 or no gain.
        baseline: adu of physical zero.
        unit: physical unit.
        calibrated: whether the header states a gain.
        checksum: 16-bit sum of all samples; None if not stated.
        name: description of the signal; empty if not stated.
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


@dataclass
class SignalFile:
    """A signal file as described by a header.

    Attributes:
        path: path of the file.
        format: format of the samples.
        byte_offset: number of bytes before the first sample.
        samples_per_frame: samples per frame, over all signals in the file.
        columns: position of the first sample in a frame by the signal's index in the header.
        own_samples: samples per frame by the signal's index in the header.
    """

    path: Path
    format: str
    byte_offset: int
    samples_per_frame: int = 0
    columns: dict[int, int] = field(default_factory=dict)
    own_samples: dict[int, int] = field(default_factory=dict)

    @cached_property
    def unpacked(self) -> bytes | None:
        """The content of a file that is compressed by gzip; None for another one, which is read in slices."""
        return unpacked(self.path) if is_gzip(self.path) else None

    def size_bytes(self) -> int:
        """Return the size of the file, unpacked."""
        return size_of(self.path) if self.unpacked is None else len(self.unpacked)

    def samples_of(self, signals: Sequence[int]) -> list[int]:
        """Return which samples of a frame are those of signals, one after the other."""
        return [self.columns[signal] + place for signal in signals for place in range(self.own_samples[signal])]

    @property
    def is_decoded(self) -> bool:
        """Whether the compiled kernels decode its frames."""
        return self.format in DECODED and self.samples_per_frame <= MAX_WIDTH

    def num_bytes(self, num_frames: int) -> int:
        """Return the size in bytes of `num_frames` frames, including the bytes before the first sample."""
        return self.byte_offset + num_bytes(GROUP[self.format], num_frames * self.samples_per_frame)

    def num_frames_in(self, size_bytes: int) -> int:
        """Return the number of frames in a file of this size; 0 if it does not follow from the format.

        FLAC files state it in their first block: samples a channel in 36 bits, after 3 bits of channels.
        """
        if self.format in FLAC:
            begin = (first_bytes(self.path, 26) or b"").ljust(26, b"\0")
            channels, samples = (begin[20] >> 1 & 7) + 1, int.from_bytes(begin[21:26], "big") & (1 << 36) - 1
            return samples * channels // self.samples_per_frame
        if self.format not in GROUP:
            return 0
        *parts, whole = GROUP[self.format]
        groups, left = divmod(size_bytes - self.byte_offset, whole)
        extra = max(index for index, size in enumerate(parts) if size <= left)
        return max(0, groups * len(parts) + extra) // self.samples_per_frame

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, int, NDArray[np.uint8], int]]:
        """Read frames `start` to `stop` in pieces: first and last frame, bytes from a group's start, samples to skip.

        The bytes are overwritten by the next piece.

        Raises:
            HeartlmError: the file cannot be read or ends before `stop`.
        """
        group = GROUP[self.format]
        per_piece = max(1, _CHUNK_BYTES // group[-1] * (len(group) - 1) // self.samples_per_frame)
        longest = num_bytes(group, min(per_piece, stop - start) * self.samples_per_frame) + group[-1]
        buffer = np.empty(longest, np.uint8)
        try:
            with open_file(self.path) if self.unpacked is None else io.BytesIO(self.unpacked) as stream:
                for first in range(start, stop, per_piece):
                    last = min(first + per_piece, stop)
                    groups, skip = divmod(first * self.samples_per_frame, len(group) - 1)
                    piece = buffer[: num_bytes(group, skip + (last - first) * self.samples_per_frame)]
                    stream.seek(self.byte_offset + groups * group[-1])
                    if stream.readinto(piece.data) != len(piece):
                        raise HeartlmError(f"{self.path}: ends before sample {last} of a lead; fetch it again")
                    yield first, last, piece, skip
        except OSError as error:
            raise HeartlmError(f"{self.path}: cannot read it ({error.strerror})") from error

    def read(
        self,
        start: int,
        signals: Sequence[int],
        calibration: NDArray[np.float64],
        out: NDArray[np.float32],
        sums: NDArray[np.uint16] | None = None,
    ) -> None:
        """Fill `out` with the physical values of signals with equal numbers of samples a frame; see `decode`.

        Args:
            start: first sample at the rate of these signals.
            signals: indices of the signals in the header.
            calibration: of each signal, `[num_signals, 3]`.
            out: `[num_signals, num_samples]`.
            sums: `[num_signals]`; only for samples of whole frames.

        Raises:
            HeartlmError: the file cannot be read or is too short.
        """
        per_frame, columns = self.own_samples[signals[0]], self.samples_of(signals)
        stop = start + out.shape[1]
        if per_frame == 1:
            for first, last, content, skip in self.frames(start, stop):
                part = out[:, first - start : last - start]
                decode(content, self.format, self.samples_per_frame, columns, part, skip, calibration, sums)
            return
        calibration = np.repeat(calibration, per_frame, axis=0)
        column_sums = None if sums is None else np.zeros(len(columns), np.uint16)
        for first, last, content, skip in self.frames(start // per_frame, -(-stop // per_frame)):
            rows = np.empty((len(columns), last - first), np.float32)
            decode(content, self.format, self.samples_per_frame, columns, rows, skip, calibration, column_sums)
            # [num_signals, per_frame, num_frames] ─► [num_signals, num_frames, per_frame]: in the order of time
            values = rows.reshape(len(signals), per_frame, -1).swapaxes(1, 2).reshape(len(signals), -1)
            begin, end = max(start, first * per_frame), min(stop, last * per_frame)
            out[:, begin - start : end - start] = values[:, begin - first * per_frame : end - first * per_frame]
        if sums is not None and column_sums is not None:
            sums += column_sums.reshape(len(signals), per_frame).sum(axis=1, dtype=np.uint16)


@dataclass(frozen=True)
class WfdbHeader:
    """Content of a header file.

    Attributes:
        path: path of the file.
        rate_hz: frame rate in Hz.
        stated_samples: number of frames; None if not stated.
        signals: signals of the record; empty for a multi-segment record.
        segment_lines: record name (`~` for a gap) and number of frames of each segment; empty without segments.
        comments: free text, one entry per line.
        start: base time with base date; the base time if the date is not stated, None if neither is.
    """

    path: Path
    rate_hz: float
    stated_samples: int | None
    signals: tuple[Signal, ...]
    segment_lines: tuple[tuple[str, int], ...]
    comments: tuple[str, ...]
    start: datetime | time | None

    @cached_property
    def segments(self) -> tuple[WfdbHeader, ...]:
        """Headers of all segments except gaps. If the leads vary, the first is a layout header without samples.

        Raises:
            HeartlmError: a header is missing or malformed.
        """
        names = [name for name, _ in self.segment_lines if name != NO_FILE]
        # each once, whatever number of lines names it
        headers = {name: read_header(self.path.parent / f"{name}.hea") for name in dict.fromkeys(names)}
        for segment in headers.values():
            if segment.segment_lines:
                _refuse(segment.path, f"it has segments and is itself one of {self.path.name}")
        return tuple(headers[name] for name in names)

    @cached_property
    def parts(self) -> tuple[WfdbHeader, ...]:
        """Headers of the signals with samples: those of the segments, or the header itself."""
        return tuple(part for part in self.segments if part.stated_samples) if self.segment_lines else (self,)

    @cached_property
    def files(self) -> list[SignalFile]:
        """Distinct files of the signals, in order; empty for a multi-segment record."""
        files: dict[str, SignalFile] = {}
        for place, signal in enumerate(self.signals):
            if signal.file_name == NO_FILE:
                continue
            if signal.file_name not in files:
                path = _stored(self.path.parent / signal.file_name)
                files[signal.file_name] = SignalFile(path, signal.format, signal.byte_offset)
            file = files[signal.file_name]
            file.columns[place], file.own_samples[place] = file.samples_per_frame, signal.samples_per_frame
            file.samples_per_frame += signal.samples_per_frame
        return list(files.values())

    @cached_property
    def num_samples(self) -> int:
        """Number of frames: as stated, else computed from the first signal file; 0 if unknown."""
        if self.stated_samples is not None:
            return self.stated_samples
        if self.segment_lines:
            return sum(num_samples for _, num_samples in self.segment_lines)
        file = next(iter(self.files), None)
        return 0 if file is None or not file.path.is_file() else file.num_frames_in(file.size_bytes())

    @property
    def leads(self) -> tuple[Signal, ...]:
        """Signals of the whole record, from the header or its first segment."""
        return self.segments[0].signals if self.segment_lines else self.signals


def _stored(path: Path) -> Path:
    """Return the path of a signal file, or of the same file that is compressed, or unpacked, in its place."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return other if not is_there(path) and is_there(other) else path


def read_header(path: Path) -> WfdbHeader:
    """Read and check the header at `path`, but not those of its segments.

    Raises:
        HeartlmError: the header is missing, malformed or contradictory.
    """
    lines: list[str] = []
    comments: list[str] = []
    content = read_bytes(path, HEADER_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            comments.append(line.strip(" \t#"))
        elif line:
            lines.append(line)
    if not lines:
        _refuse(path, "it is empty")
    match = _RECORD.fullmatch(lines[0])
    if match is None:
        _refuse(path, f"its first line is {lines[0]!r}, expected: name, number of signals, sampling rate, length")
    num_segments, num_signals, rate, length, base = match.groups()
    start = _start(base or "")
    rate_hz = check_rate(path, _DEFAULT_RATE_HZ if rate is None else float(rate))
    num_samples = int(length or 0) or None  # a length of 0 means that it is not stated, as header(5) says
    if num_segments is None:
        signals = []
        for number, line in enumerate(lines[1:], 1):
            try:
                signal = _parse_signal(line)
            except ValueError as error:
                _refuse(path, f"signal {number} {error}")
            _check_inside(path, signal.file_name)
            signals.append(signal if signal.name else signal._replace(name=f"lead {number}"))
        _check_count(path, int(num_signals), len(signals), "signals")
        if length is not None and all(signal.file_name == NO_FILE for signal in signals):
            num_samples = int(length)
        return WfdbHeader(path, rate_hz, num_samples, tuple(signals), (), tuple(comments), start)
    segments = []
    for line in lines[1:]:
        if (match := _SEGMENT.fullmatch(line)) is None:
            _refuse(path, f"a line is {line!r}, expected the name and the length of a segment")
        _check_inside(path, match[1])
        segments.append((match[1], int(match[2])))
    _check_count(path, int(num_segments), len(segments), "segments")
    if all(name == NO_FILE for name, _ in segments):
        raise HeartlmError(f"{path}: every segment is empty; there is nothing to read")
    return WfdbHeader(path, rate_hz, num_samples, (), tuple(segments), tuple(comments), start)


def _start(base: str) -> datetime | time | None:
    """Return the base time and date at the end of a record line; None if they are not stated, or no time and date."""
    if (stated := _BASE_TIME.fullmatch(base)) is None:
        return None
    seconds = "%S.%f" if "." in stated[1] else "%S"
    try:
        clock = datetime.strptime(stated[1], f"%H:%M:{seconds}").time()
    except ValueError:
        return None
    try:
        return datetime.combine(datetime.strptime(stated[2] or "", "%d/%m/%Y"), clock)
    except ValueError:
        # Programs write midnight for an unknown time, since it is the default of the WFDB library.
        return clock if clock != time() else None


def _refuse(path: Path, reason: str) -> NoReturn:
    raise HeartlmError(f"{path}: not readable as a WFDB record ({reason})")


def _check_count(path: Path, announced: int, described: int, what: str) -> None:
    if announced != described:
        raise HeartlmError(f"{path}: {announced} {what} announced, {described} described; correct the header")


def _check_inside(path: Path, name: str) -> None:
    if not stays_inside(name):
        raise HeartlmError(
            f"{path}: names the file {name!r}, expected one in the folder of the header or below; correct the header"
        )


def _parse_signal(line: str) -> Signal:
    """Parse a signal line.

    Raises:
        ValueError: the line is malformed. The message continues a sentence that starts with the signal's number.
    """
    match = _SIGNAL.fullmatch(line)
    if match is None:
        raise ValueError(f"is {line!r}, expected: file name, format, gain(baseline)/unit, ...")
    file_name, form, per_frame, skew, offset, gain, baseline, unit, _, adc_zero, _, checksum, _, name = match.groups()
    # header(5): without a baseline, the physical zero is the middle of the converter's range
    adu_per_unit, zero = float(gain or 0), float(baseline or adc_zero or 0)
    if not (math.isfinite(adu_per_unit) and math.isfinite(zero)):
        raise ValueError(f"is {line!r}, expected a finite gain and baseline")
    if int(per_frame or 1) > _MOST_SAMPLES_PER_FRAME:
        raise ValueError(f"has {per_frame} samples a frame, expected at most {_MOST_SAMPLES_PER_FRAME}")
    return Signal(
        file_name,
        form,
        int(per_frame or 1) or 1,
        int(skew or 0),
        int(offset or 0),
        adu_per_unit or _DEFAULT_GAIN,
        zero,
        unit or "mV",
        adu_per_unit != 0,
        None if checksum is None else int(checksum) & 0xFFFF,
        name,
    )
