"""JSON logs of Movesense sensors: packets of samples, each with the time of the sensor's clock.

    {"Meas": {"ECG": [{"Samples": [-12, 8, …], "Timestamp": 4711}, …]}}

Programs nest the packets differently, for example `{"data": [{"ecg": {"Samples": …, "Timestamp": …}}, …]}`. Samples are
integers of 0.38147 µV (1 V / 20 / 2^17, as the maker states), or millivolts where a key says so: `MeasEcgmV`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.clock import PACKETS
from heartlm.formats.sample_table import Column, table_recording
from heartlm.storage.foreign import TEXT_BYTES, one_line, read_bytes
from heartlm.storage.limits import check_samples
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import is_number

_MV_PER_STEP = 1e3 / 20 / (1 << 17)
# Bytes of memory for each sample, as a number of Python and as float64; a packet takes as much as four.
_HELD_BYTES = 48

Packet = tuple[float, list[float]]


def is_movesense(begin: bytes, path: Path) -> bool:
    """Return whether a file begins as a log of ECG packets."""
    return begin.lstrip()[:1] in (b"{", b"[") and b'"Samples"' in begin and b'"Timestamp"' in begin


def read_movesense(path: Path) -> Recording:
    """Read a log.

    Raises:
        HeartlmError: there are no packets, or their times give no rate.
    """
    streams = dict[str, list[Packet]]()
    with one_line(path, "a log of Movesense"):
        content = read_bytes(path, TEXT_BYTES)
        check_samples(path, content.count(b",") + 4 * content.count(b"{"), held_bytes=_HELD_BYTES)
        for key, packet in _packets(parse_json(content), ""):
            streams.setdefault(key, []).append(packet)
    if not streams:
        raise HeartlmError(f"{path}: has no ECG packets with Samples and Timestamp; log the ECG of the sensor")
    # of a raw stream and one in millivolts, the longer one
    key = max(streams, key=lambda name: sum(len(samples) for _, samples in streams[name]))
    packets = streams[key]
    values = np.concatenate([np.array(samples, np.float64) for _, samples in packets])
    times_s = np.full(len(values), np.nan)
    starts = np.cumsum([0, *(len(samples) for _, samples in packets[:-1])])
    times_s[starts] = [time_ms / 1000 for time_ms, _ in packets]
    factor = 1.0 if "mv" in key.casefold() else _MV_PER_STEP
    columns = [Column("Timestamp", times_s - times_s[0], is_clock=True), Column("ECG", values * factor, "mV")]
    recording = table_recording(path, columns)
    # one time a packet is the rule here
    return replace(recording, repairs=tuple(each for each in recording.repairs if not each.startswith(PACKETS)))


def _packets(value: Any, key: str) -> Iterator[tuple[str, Packet]]:
    """Yield each packet with samples, and the names of the objects that contain it."""
    if isinstance(value, dict) and "Samples" in value and "Timestamp" in value:
        samples, time_ms = value["Samples"], value["Timestamp"]
        if not isinstance(samples, list) or not all(map(is_number, [*samples, time_ms])):
            raise ValueError(f"a packet of {key or 'the file'} has fields that are no numbers")
        if samples:
            yield key, (float(time_ms), samples)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _packets(each, f"{key}/{name}")
    elif isinstance(value, list):
        for each in value:
            yield from _packets(each, key)
