"""The signal files of a WFDB record: how many samples they hold, and their bytes piece by piece.

Format: signal(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/signal-5.htm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import open_file
from heartlm.errors import HeartlmError
from heartlm.kernels.wfdb import GROUP as DECODED
from heartlm.kernels.wfdb import num_bytes

GROUP: dict[str, tuple[int, ...]] = DECODED | {"8": (0, 1), "160": (0, 2), "310": (0, 2, 4, 4), "311": (0, 2, 3, 4)}
"""Bytes that 0, 1, ... samples take, up to those that fill a group, in every format whose size tells its length."""

_CHUNK_BYTES = 1 << 20


@dataclass
class SignalFile:
    """A file of samples as a header describes it.

    Attributes:
        path: where it lies.
        format: of its samples.
        byte_offset: bytes before the first sample.
        samples_per_frame: of all signals in the file together.
        columns: of each signal with one sample a frame: its place in the header, and that of its sample in a frame.
    """

    path: Path
    format: str
    byte_offset: int
    samples_per_frame: int = 0
    columns: dict[int, int] = field(default_factory=dict)

    def add(self, place: int, samples_per_frame: int) -> None:
        """Let the next sample(s) of a frame be those of the signal at `place` of the header."""
        if samples_per_frame == 1:
            self.columns[place] = self.samples_per_frame
        self.samples_per_frame += samples_per_frame

    @property
    def is_decoded(self) -> bool:
        """Whether the compiled kernels decode its format."""
        return self.format in DECODED

    def num_bytes(self, num_frames: int) -> int:
        """How many bytes `num_frames` take, with those before the first sample."""
        return self.byte_offset + num_bytes(GROUP[self.format], num_frames * self.samples_per_frame)

    def num_frames_in(self, size_bytes: int) -> int:
        """How many frames a file of that size holds; 0 where its format does not let the size tell."""
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
            HeartlmError: the file cannot be read, or ends before `stop`.
        """
        group = GROUP[self.format]
        per_piece = max(1, _CHUNK_BYTES // group[-1] * (len(group) - 1) // self.samples_per_frame)
        longest = num_bytes(group, min(per_piece, stop - start) * self.samples_per_frame) + group[-1]
        buffer = np.empty(longest, np.uint8)
        try:
            with open_file(self.path) as stream:
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
