"""WFDB headers: text in, signals and segments out.

A header is a record line, then a line for each signal, or for each segment of a record pieced together from several.
Fields at the end of a line may be missing; comments (`#`) may stand anywhere.

Format: header(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/header-5.htm.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from heartlm.errors import HeartlmError

NO_FILE = "~"
"""The file name of a signal, or the name of a segment, without samples."""

_DEFAULT_RATE_HZ = 250.0
_DEFAULT_GAIN = 200.0

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_COUNT = r"\d{1,18}"
_OPTIONAL_INTEGER = r"(?:\s+([-+]?\d{1,18})(?!\S))?"
_RECORD = re.compile(rf"\S*?(?:/({_COUNT}))?\s+({_COUNT})(?:\s+({_NUMBER})\S*)?(?:\s+({_COUNT})(?!\S).*)?")
_SEGMENT = re.compile(rf"(\S+)\s+({_COUNT})(?!\S).*")
_SIGNAL = re.compile(rf"(\S+)\s+(\S+)(?:\s+([-+.(/\d]\S*))?{_OPTIONAL_INTEGER * 5}\s*(.*)")
_LAYOUT = re.compile(rf"(\d+)(?:x({_COUNT}))?(?::({_COUNT}))?(?:\+({_COUNT}))?")
_CALIBRATION = re.compile(rf"({_NUMBER})?(?:\(({_NUMBER})\))?(?:/(\S+))?")


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
        name: the description, or `lead N`.
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


class Segment(NamedTuple):
    """One segment line: the name of a record, `~` for a gap, and its length in frames."""

    name: str
    num_samples: int


@dataclass(frozen=True)
class Header:
    """A header as it stands in its file.

    Attributes:
        path: the file.
        rate_hz: frames a second.
        stated_samples: frames; None where not stated.
        signals: of a record with segments none.
        segment_lines: empty where the record is one piece.
        comments: free text, one entry a line.
    """

    path: Path
    rate_hz: float
    stated_samples: int | None
    signals: tuple[Signal, ...]
    segment_lines: tuple[Segment, ...]
    comments: tuple[str, ...]

    @cached_property
    def segments(self) -> tuple[Header, ...]:
        """Headers of all segments but gaps; where the leads vary, the first has no samples and lays them out.

        Raises:
            HeartlmError: one is missing or malformed.
        """
        names = (line.name for line in self.segment_lines if line.name != NO_FILE)
        segments = tuple(read_header(self.path.parent / f"{name}.hea") for name in names)
        for segment in segments:
            if segment.segment_lines:
                _refuse(segment.path, f"it has segments and is itself one of {self.path.name}")
        return segments

    @cached_property
    def parts(self) -> tuple[Header, ...]:
        """The headers whose signals have samples: of the segments, or the header itself."""
        return tuple(part for part in self.segments if part.stated_samples) if self.segment_lines else (self,)

    @property
    def leads(self) -> tuple[Signal, ...]:
        """The signals of the whole record, as the header or its first segment names them."""
        return self.segments[0].signals if self.segment_lines else self.signals


def read_header(path: Path) -> Header:
    """Read and check the header at `path`, but not those of its segments.

    Raises:
        HeartlmError: missing, malformed, or it contradicts itself.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise HeartlmError(f"{path}: no such header file") from None
    except OSError as error:
        raise HeartlmError(f"{path}: cannot read it ({error.strerror})") from error
    lines: list[str] = []
    comments: list[str] = []
    for line in map(str.strip, _text(content).splitlines()):
        if line.startswith("#"):
            comments.append(line.strip(" \t#"))
        elif line:
            lines.append(line)
    if not lines:
        _refuse(path, "it is empty")
    return _parse(path, lines, tuple(comments))


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise HeartlmError(f"{path}: not readable as a WFDB record ({reason})")


def _parse(path: Path, lines: list[str], comments: tuple[str, ...]) -> Header:
    found = _RECORD.fullmatch(lines[0])
    if found is None:
        _refuse(path, f"its first line is {lines[0]!r}, expected: name, number of signals, sampling rate, length")
    num_segments, num_signals, rate, length = found.groups()
    rate_hz = _DEFAULT_RATE_HZ if rate is None else float(rate)
    if not 0 < rate_hz < math.inf:
        raise HeartlmError(f"{path}: sampling rate {rate_hz:g} Hz, expected more than 0; correct the header")
    num_samples = None if length is None else int(length)
    if num_segments is None:
        signals = tuple(_signal(path, place, line) for place, line in enumerate(lines[1:], 1))
        _check_count(path, int(num_signals), len(signals), "signals")
        return Header(path, rate_hz, num_samples, signals, (), comments)
    segments = tuple(_segment(path, line) for line in lines[1:])
    _check_count(path, int(num_segments), len(segments), "segments")
    if all(segment.name == NO_FILE for segment in segments):
        raise HeartlmError(f"{path}: every segment is empty; there is nothing to read")
    return Header(path, rate_hz, num_samples, (), segments, comments)


def _check_count(path: Path, announced: int, described: int, what: str) -> None:
    if announced != described:
        raise HeartlmError(f"{path}: {announced} {what} announced, {described} described; correct the header")


def _segment(path: Path, line: str) -> Segment:
    found = _SEGMENT.fullmatch(line)
    if found is None:
        _refuse(path, f"a line is {line!r}, expected the name and the length of a segment")
    return Segment(found[1], int(found[2]))


def _signal(path: Path, place: int, line: str) -> Signal:
    found = _SIGNAL.fullmatch(line)
    layout = found and _layout(found[2])
    if found is None or layout is None:
        _refuse(path, f"signal {place} is {line!r}, expected: file name, format, gain(baseline)/unit, ...")
    file_name, _, calibration, _, adc_zero, _, checksum, _, name = found.groups()
    stated = _calibration(calibration or "")
    if stated is None:
        _refuse(path, f"signal {place} is calibrated by {calibration!r}, expected gain(baseline)/unit")
    gain, baseline, unit = stated
    fmt, samples_per_frame, skew, byte_offset = layout
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
        name or f"lead {place}",
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
