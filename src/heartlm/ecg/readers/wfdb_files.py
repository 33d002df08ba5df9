"""The signal files of a WFDB record: which they are, how many samples they hold, and whether the header fits them.

Format: signal(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/signal-5.htm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.wfdb_header import NO_FILE, Header
from heartlm.errors import HeartlmError
from heartlm.kernels.wfdb import GROUP as DECODED
from heartlm.kernels.wfdb import num_bytes

GROUP: dict[str, tuple[int, ...]] = DECODED | {"8": (0, 1), "160": (0, 2), "310": (0, 2, 4, 4), "311": (0, 2, 3, 4)}
"""Bytes that 0, 1, ... samples take, up to those that fill a group, in every format whose size tells its length."""

_CHUNK_BYTES = 1 << 19
UNKNOWN_LENGTH = 0


@dataclass(frozen=True)
class SignalFile:
    """A file of samples as a header describes it.

    Attributes:
        path: where it lies.
        format: of its samples.
        columns: of each signal with one sample a frame: its place in the header, and that of its sample in a frame.
        samples_per_frame: of all signals in the file together.
        byte_offset: bytes before the first sample.
    """

    path: Path
    format: str
    columns: dict[int, int]
    samples_per_frame: int
    byte_offset: int

    def num_bytes(self, num_frames: int) -> int:
        """How many bytes `num_frames` take, with those before the first sample."""
        return self.byte_offset + num_bytes(GROUP[self.format], num_frames * self.samples_per_frame)

    def num_frames_in(self, size_bytes: int) -> int:
        """How many frames a file of that size holds; 0 where its format does not let the size tell."""
        if self.format not in GROUP:
            return UNKNOWN_LENGTH
        *parts, whole = GROUP[self.format]
        groups, left = divmod(size_bytes - self.byte_offset, whole)
        extra = max(index for index, size in enumerate(parts) if size <= left)
        return max(0, groups * len(parts) + extra) // self.samples_per_frame

    def frames(self, start: int, stop: int) -> Iterator[tuple[int, int, NDArray[np.uint8], int]]:
        """Read frames `start` to `stop` in pieces: first and last frame, bytes from a group's start, samples to skip.

        The bytes are overwritten by the next piece.

        Raises:
            HeartlmError: the file cannot be read, or ends before `stop`.
        """
        group = GROUP[self.format]
        per_piece = max(1, _CHUNK_BYTES // group[-1] * (len(group) - 1) // self.samples_per_frame)
        longest = num_bytes(group, min(per_piece, stop - start) * self.samples_per_frame) + group[-1]
        buffer = np.empty(longest, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as stream:
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


def signal_files(header: Header) -> list[SignalFile]:
    """The distinct signal files that the signals of a header without segments name, in order."""
    files = []
    for name in dict.fromkeys(signal.file_name for signal in header.signals):
        if name == NO_FILE:
            continue
        columns, width = {}, 0
        own = [place for place, signal in enumerate(header.signals) if signal.file_name == name]
        for place in own:
            if header.signals[place].samples_per_frame == 1:
                columns[place] = width
            width += header.signals[place].samples_per_frame
        first = header.signals[own[0]]
        files.append(SignalFile(header.path.parent / name, first.format, columns, width, first.byte_offset))
    return files


def num_samples(header: Header) -> int:
    """Frames: as stated, else as many as the first signal file holds; 0 where neither tells.

    Raises:
        HeartlmError: a header of segments is malformed.
    """
    if header.stated_samples is not None:
        return header.stated_samples
    if header.segment_lines:
        return sum(segment.num_samples for segment in header.segment_lines)
    file = next(iter(signal_files(header)), None)
    return UNKNOWN_LENGTH if file is None or not file.path.is_file() else file.num_frames_in(file.path.stat().st_size)
