"""WFDB headers: text in, signals and segments out.

A header is a record line, then a line for each signal, or for each segment of a record pieced together from several.
Fields at the end of a line may be missing; comments (`#`) may stand anywhere.

Format: header(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/header-5.htm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

from heartlm.ecg.readers.foreign import HEADER_BYTES, read_bytes, stays_inside
from heartlm.ecg.readers.plausible import check_rate
from heartlm.ecg.readers.wfdb_files import SignalFile
from heartlm.ecg.readers.wfdb_signal_line import COUNT, NUMBER, Signal, parse_signal
from heartlm.errors import HeartlmError

NO_FILE = "~"
"""The file name of a signal, or the name of a segment, without samples."""

_DEFAULT_RATE_HZ = 250.0
_UNKNOWN_LENGTH = 0

_RECORD = re.compile(rf"\S*?(?:/({COUNT}))?\s+({COUNT})(?:\s+({NUMBER})(?:[/(]\S*)?(?!\S))?(?:\s+({COUNT})(?!\S).*)?")
_SEGMENT = re.compile(rf"(\S+)\s+({COUNT})(?!\S).*")


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

    @cached_property
    def files(self) -> list[SignalFile]:
        """The distinct signal files that the signals name, in order; of a record with segments none."""
        files: dict[str, SignalFile] = {}
        for place, signal in enumerate(self.signals):
            if signal.file_name == NO_FILE:
                continue
            if signal.file_name not in files:
                path = self.path.parent / signal.file_name
                files[signal.file_name] = SignalFile(path, signal.format, signal.byte_offset)
            files[signal.file_name].add(place, signal.samples_per_frame)
        return list(files.values())

    @cached_property
    def num_samples(self) -> int:
        """Frames: as stated, else as many as the first signal file holds; 0 where neither tells."""
        if self.stated_samples is not None:
            return self.stated_samples
        if self.segment_lines:
            return sum(segment.num_samples for segment in self.segment_lines)
        file = next(iter(self.files), None)
        return (
            _UNKNOWN_LENGTH if file is None or not file.path.is_file() else file.num_frames_in(file.path.stat().st_size)
        )

    @property
    def leads(self) -> tuple[Signal, ...]:
        """The signals of the whole record, as the header or its first segment names them."""
        return self.segments[0].signals if self.segment_lines else self.signals


def read_header(path: Path) -> Header:
    """Read and check the header at `path`, but not those of its segments.

    Raises:
        HeartlmError: missing, malformed, or it contradicts itself.
    """
    lines: list[str] = []
    comments: list[str] = []
    for line in map(str.strip, _text(read_bytes(path, HEADER_BYTES)).splitlines()):
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
    rate_hz = check_rate(path, _DEFAULT_RATE_HZ if rate is None else float(rate))
    num_samples = None if length is None else int(length)
    if num_segments is None:
        signals = tuple(_signals(path, lines[1:]))
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
    _check_inside(path, found[1])
    return Segment(found[1], int(found[2]))


def _check_inside(path: Path, name: str) -> None:
    if not stays_inside(name):
        raise HeartlmError(
            f"{path}: names the file {name!r}, expected one in the folder of the header or below; correct the header"
        )


def _signals(path: Path, lines: list[str]) -> Iterator[Signal]:
    for number, line in enumerate(lines, 1):
        try:
            signal = parse_signal(line)
        except ValueError as error:
            _refuse(path, f"signal {number} {error}")
        _check_inside(path, signal.file_name)
        yield signal if signal.name else signal._replace(name=f"lead {number}")
