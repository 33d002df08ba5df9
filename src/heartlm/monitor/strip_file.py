"""The signal around an alarm as a WFDB record of 16-bit integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.formats.write_wfdb import annotation_bytes, write_signals
from heartlm.monitor.alarms import Alarm

Floats = NDArray[np.float32]

# Steps per millivolt, and the value of an invalid sample in WFDB's format 16.
_GAIN, _INVALID = 2000.0, -32768


def to_int16(mv: Floats) -> NDArray[np.int16]:
    """Return samples as strips store them, in half the memory."""
    steps = np.clip(np.rint(mv * _GAIN), 1 + _INVALID, -1 - _INVALID)
    return np.where(np.isnan(steps), _INVALID, steps).astype(np.int16)


def from_int16(steps: NDArray[np.int16]) -> Floats:
    """Return the samples in mV, NaN where invalid."""
    return np.where(steps == _INVALID, np.nan, steps / _GAIN).astype(np.float32)


def write_strip(folder: Path, name: str, strip: Floats, alarm: Alarm, first: int, raised: str) -> None:
    """Write samples `[num_leads, num_samples]` from sample `first` of the stream on, with a note where the alarm is.

    Raises:
        OSError: the files cannot be written.
    """
    write_signals(
        folder,
        name,
        to_int16(strip),
        signal_format="16",
        rate_hz=alarm.rate_hz,
        leads=[f"ECG{number}" for number in range(1, len(strip) + 1)],
        gain=_GAIN,
        comments=[f"{alarm.key}: {alarm.severity}, {raised}"],
    )
    place = np.array([alarm.raised - first])
    (folder / f"{name}.alarm").write_bytes(annotation_bytes(place, ['"'], [alarm.kind], alarm.rate_hz))
