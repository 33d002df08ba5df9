"""Pyramids of smallest and largest values, from which any zoom of a recording of any length is drawn at once.

    samples ─► level 1: 16 samples a bucket ─► level 2: 64 ─► ... ─► level 8: 262,144

Level 0 is the samples themselves, read from the recording. The levels above lie in a file without a name, which the
system removes with the process. They are built in the background and read by mapping the file, so memory does not grow
with the length of the recording.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import explained

UNIT_MV = 0.002
"""Step of the values; 16 bits reach 65 mV to both sides of the usual level of a lead."""
MISSING = -32768
"""Value where the signal is invalid, or not yet in the pyramid."""
FIRST, FACTOR, NUM_LEVELS = 16, 4, 8
BLOCK = FIRST * FACTOR ** (NUM_LEVELS - 1)
"""Samples that are put into the pyramid together: one bucket of the highest level."""
MOST_VALUES = 1 << 22
"""Most values of an answer."""
_MOST_AT_ONCE = 2 * BLOCK
# Places at which the usual level of a lead is measured, and seconds of each.
_NUM_PLACES, _PLACE_S = 16, 2.0

Values = NDArray[np.int16]


class Pyramid:
    """Smallest and largest values of a recording at each zoom.

    Args:
        recording: recording with a signal.
        folder: folder of the file; it needs about a fifth of the bytes of the samples at 16 bits.

    Attributes:
        level_mv: usual level of each lead in mV, which is 0 in the values, float32 `[num_leads]`.
        num_built: blocks that are in the file.

    Raises:
        HeartlmError: the file cannot be made, or the signal cannot be read.
    """

    def __init__(self, recording: Recording, folder: Path) -> None:
        self.recording, num_leads = recording, recording.num_leads
        self.num_blocks = -(-recording.num_samples // BLOCK)
        self._built, self._closed, self._lock = np.zeros(self.num_blocks, np.bool_), False, threading.Lock()
        self.level_mv = self._usual_levels()
        self._levels = list[np.memmap[tuple[int, ...], np.dtype[np.int16]]]()
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                for level in range(NUM_LEVELS):
                    shape = (num_leads, self.num_blocks * FACTOR ** (NUM_LEVELS - 1 - level), 2)
                    start = file.seek(0, 2)
                    file.truncate(start + 2 * int(np.prod(shape)))
                    self._levels.append(np.memmap(file, np.int16, "r+", start, shape))
        except OSError as error:
            raise explained(folder, error) from error

    def _usual_levels(self) -> NDArray[np.float32]:
        num = max(1, min(self.recording.num_samples, round(_PLACE_S * self.recording.rate_hz)))
        starts = np.linspace(0, self.recording.num_samples - num, _NUM_PLACES).astype(int).tolist()
        pieces = np.concatenate([self.recording.signal(start, start + num) for start in dict.fromkeys(starts)], axis=1)
        counts = np.isfinite(pieces).sum(axis=1)
        levels = [np.nanmedian(lead) if count else 0.0 for lead, count in zip(pieces, counts, strict=True)]
        return np.array(levels, np.float32)

    @property
    def num_built(self) -> int:
        """Number of blocks that are in the file."""
        return int(self._built.sum())

    def build(self) -> None:
        """Put all blocks into the file, unless it is closed before.

        Raises:
            HeartlmError: the signal cannot be read.
        """
        for block in range(self.num_blocks):
            if self._closed:
                return
            self._add(block)

    def close(self) -> None:
        """End `build` after the block that it reads."""
        self._closed = True

    def _add(self, block: int) -> None:
        with self._lock:
            if self._built[block]:
                return
            start = block * BLOCK
            signal = self.recording.signal(start, min(start + BLOCK, self.recording.num_samples))
            if signal.shape[1] < BLOCK:
                signal = np.pad(signal, ((0, 0), (0, BLOCK - signal.shape[1])), constant_values=np.nan)
            lowest = highest = signal
            for level, factor in enumerate((FIRST, *(FACTOR,) * (NUM_LEVELS - 1))):
                lowest, highest = _halved(lowest, factor, np.fmin), _halved(highest, factor, np.fmax)
                first, num = block * lowest.shape[1], lowest.shape[1]
                both = np.stack([lowest, highest], axis=2)
                self._levels[level][:, first : first + num] = self._values(both, self.level_mv[:, None, None])
            self._built[block] = True

    def _values(self, signal_mv: NDArray[np.float32], level_mv: NDArray[np.float32]) -> Values:
        values = np.clip(np.rint((signal_mv - level_mv) / UNIT_MV), -32767, 32767)
        return np.asarray(np.nan_to_num(values, copy=False, nan=MISSING), np.int16)

    def read(self, level: int, start: int, num: int, leads: Sequence[int]) -> tuple[Values, bool]:
        """Return buckets of a level, int16 `[num_leads, num, 2]`, or at level 0 samples, `[num_leads, num]`.

        Args:
            level: 0 to `NUM_LEVELS`.
            start: first bucket, or sample.
            num: number of buckets or samples; less is returned at the end of the recording.
            leads: indices of the leads.

        Returns:
            The values in `UNIT_MV` above the usual level of each lead, and whether all of them are built.

        Raises:
            HeartlmError: there is no such level or lead, or the signal cannot be read.
        """
        if not (0 <= level <= NUM_LEVELS and start >= 0 and num >= 0 and num * 2 * len(leads) <= MOST_VALUES):
            raise HeartlmError(f"level {level}, {num} values from {start} of {len(leads)} leads: there are none such")
        if any(not 0 <= lead < self.recording.num_leads for lead in leads):
            raise HeartlmError(f"leads {list(leads)}: there are 0 to {self.recording.num_leads - 1}")
        size = FIRST * FACTOR ** (level - 1) if level else 1
        stop = min(start + num, -(-self.recording.num_samples // size))
        start = min(start, stop)
        chosen = list(leads)
        if level == 0:
            signal = self.recording.signal(start, stop, chosen)
            return self._values(signal, self.level_mv[chosen, None]), True
        first, last = start * size // BLOCK, -(-stop * size // BLOCK)
        absent = (first + np.flatnonzero(~self._built[first:last])).tolist()
        if len(absent) * BLOCK <= _MOST_AT_ONCE:  # faster than the page would ask again
            for block in absent:
                self._add(block)
            absent = []
        values: Values = np.array(self._levels[level - 1][chosen, start:stop])
        for block in absent:
            at = block * BLOCK // size - start
            values[:, max(0, at) : max(0, at + max(1, BLOCK // size))] = MISSING
        return values, not absent


def _halved(signal: NDArray[np.float32], factor: int, extreme: np.ufunc) -> NDArray[np.float32]:
    """Return the extremes of groups of `factor` samples, a power of 2, ignoring NaN."""
    while factor > 1:
        signal = extreme(signal[:, ::2], signal[:, 1::2])
        factor //= 2
    return signal
