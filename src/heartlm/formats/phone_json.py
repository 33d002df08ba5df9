"""JSON exports of telephones, watches and sensors: Fitbit, Polar Recorder and Movesense.

Fitbit: {"ecgReadings": [{"startTime": "2022-09-28T17:12:30.222", "waveformSamples": [258, …],
"samplingFrequencyHz": "250", "scalingFactor": 10922, "leadNumber": 1}]}. A sample over the scaling factor is in mV.

Polar Recorder: a line for each packet, {"dataType": "ECG", "phoneTimestamp": …, "data": [{"voltage": 24,
"timeStamp": 808517651478952192}, …]}, in µV and nanoseconds since 2000.

Movesense: packets, each with the time of the sensor's clock in ms, {"Meas": {"ECG": [{"Samples": [-12, 8, …],
"Timestamp": 4711}, …]}}. Programs nest them differently, for example {"data": [{"ecg": {"Samples": …, "Timestamp": …}},
…]}. Samples are integers of 0.38147 µV (1 V / 20 / 2^17, as the maker states), or mV where a key says so: `MeasEcgmV`.

Formats: https://dev.fitbit.com/build/reference/web-api/electrocardiogram/get-ecg-log-list/;
https://github.com/Boelensman1/PolarRecorder; PolarEcgData of the SDK of Polar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.clock import PACKETS
from heartlm.formats.sample_table import Column, Table
from heartlm.storage.foreign import TEXT_BYTES, one_line, read_bytes
from heartlm.storage.limits import check_samples
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import is_number

_FITBIT_STEPS_PER_MV = 10922.0
_MOVESENSE_MV = 1e3 / 20 / (1 << 17)
# Nanoseconds of 2041 since 2000, and of 2011 since 1970: smaller ones count from 2000.
_POLAR_EPOCH = datetime(2000, 1, 1)
_UNIX_NS = 1_300_000_000_000_000_000
# Bytes of memory for each number of Python; an object of two numbers takes as much as eight, a packet as much as four.
_HELD_BYTES, _OBJECT, _PACKET = 48, 8, 4


def is_fitbit(begin: bytes, path: Path) -> bool:
    """Return whether a file begins as an export of Fitbit with samples."""
    return begin.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"[") and b'"waveformSamples"' in begin


def is_movesense(begin: bytes, path: Path) -> bool:
    """Return whether a file begins as a log of ECG packets."""
    return begin.lstrip()[:1] in (b"{", b"[") and b'"Samples"' in begin and b'"Timestamp"' in begin


def is_polar_recorder(begin: bytes, path: Path) -> bool:
    """Return whether a file begins with a packet of voltages with times."""
    begins = begin.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"{", b"[")
    return begins and b'"voltage"' in begin and re.search(rb'"time[sS]tamp"', begin) is not None


def _content(path: Path, numbers_per_object: int = _OBJECT) -> bytes:
    content = read_bytes(path, TEXT_BYTES)
    check_samples(path, content.count(b",") + numbers_per_object * content.count(b"{"), held_bytes=_HELD_BYTES)
    return content.removeprefix(b"\xef\xbb\xbf")


def read_fitbit(path: Path) -> Recording:
    """Read the longest reading of an export; others, which are of other days, are left out with a warning.

    Raises:
        HeartlmError: there are no samples, or a field is malformed.
    """
    with one_line(path, "an export of Fitbit"):
        readings = [each for _, each in _objects(parse_json(_content(path)), "waveformSamples")]
        readings = [each for each in readings if isinstance(each["waveformSamples"], list) and each["waveformSamples"]]
        if not readings:
            raise HeartlmError(f"{path}: has no reading with waveformSamples; export the ECG again")
        reading = max(readings, key=lambda each: len(each["waveformSamples"]))
        values = np.array([np.nan if each is None else each for each in reading["waveformSamples"]], np.float64)
        factor, rate_hz = (float(reading.get(key) or usual) for key, usual in
                           (("scalingFactor", _FITBIT_STEPS_PER_MV), ("samplingFrequencyHz", "nan")))  # fmt: skip
        if not factor > 0:
            raise HeartlmError(f"{path}: scalingFactor is {factor:g}, expected steps per mV; export the ECG again")
    comments = [f"{key}: {reading[key]}"[:200] for key in ("resultClassification", "deviceName", "averageHeartRate")
                if reading.get(key) is not None]  # fmt: skip
    others = len(readings) - 1
    left_out = "a reading" if others == 1 else f"{others} readings"
    return Table(
        [Column("", values / factor, "mV")],
        rate_hz,
        lead="I",
        start=_moment(reading.get("startTime")),
        comments=tuple(comments),
        repairs=(f"has {others + 1} readings; the longest is read, {left_out} left out",) if others else (),
    ).recording(path)


def read_polar_recorder(path: Path) -> Recording:
    """Read the ECG packets of a recording; lines of other kinds are skipped.

    Raises:
        HeartlmError: there are no packets, a line is malformed, or times give no rate.
    """
    ticks, values = list[int](), list[float]()
    with one_line(path, "a recording of Polar Recorder"):
        for packet in _packets(_content(path)):
            for sample in packet:
                tick = sample.get("timeStamp", sample.get("timestamp"))
                if not is_number(tick) or not is_number(sample["voltage"]):
                    raise ValueError("a sample without numbers for voltage and timeStamp")
                ticks.append(int(tick))
                values.append(float(sample["voltage"]))
    if not values:
        raise HeartlmError(f"{path}: has no packets with voltage and timeStamp; record the ECG")
    # subtracted as whole numbers: float64 has steps of 128 ns there
    seconds = np.array([tick - ticks[0] for tick in ticks], np.float64) * 1e-9
    epoch = datetime(1970, 1, 1) if ticks[0] > _UNIX_NS else _POLAR_EPOCH
    start = None
    with suppress(OverflowError):
        start = epoch + timedelta(microseconds=ticks[0] // 1000) if ticks[0] > 10**17 else None
    columns = [Column("time", seconds, is_clock=True, start=start), Column("ECG", np.array(values), "uV")]
    return Table(columns).recording(path)


def read_movesense(path: Path) -> Recording:
    """Read a log of packets; of a raw stream and one in millivolts, the longer one.

    Raises:
        HeartlmError: there are no packets, or their times give no rate.
    """
    streams = dict[str, list[tuple[float, list[float]]]]()
    with one_line(path, "a log of Movesense"):
        for stream, packet in _objects(parse_json(_content(path, _PACKET)), "Samples", "Timestamp"):
            samples, time_ms = packet["Samples"], packet["Timestamp"]
            if not isinstance(samples, list) or not all(map(is_number, [*samples, time_ms])):
                raise ValueError(f"a packet of {stream or 'the file'} has fields that are no numbers")
            if samples:
                streams.setdefault(stream, []).append((float(time_ms), samples))
    if not streams:
        raise HeartlmError(f"{path}: has no ECG packets with Samples and Timestamp; log the ECG of the sensor")
    stream = max(streams, key=lambda name: sum(len(samples) for _, samples in streams[name]))
    packets = streams[stream]
    values = np.concatenate([np.array(samples, np.float64) for _, samples in packets])
    times_s = np.full(len(values), np.nan)
    times_s[np.cumsum([0, *(len(samples) for _, samples in packets[:-1])])] = [time_ms / 1000 for time_ms, _ in packets]
    factor = 1.0 if "mv" in stream.casefold() else _MOVESENSE_MV
    columns = [Column("Timestamp", times_s - times_s[0], is_clock=True), Column("ECG", values * factor, "mV")]
    recording = Table(columns).recording(path)
    # one time a packet is the rule here
    return replace(recording, repairs=tuple(each for each in recording.repairs if not each.startswith(PACKETS)))


def _packets(content: bytes) -> Iterator[list[dict[str, Any]]]:
    """Yield the samples of each packet of a file with one JSON text, or one on each line."""
    try:
        texts = [parse_json(content)]
    except ValueError:
        lines = content.splitlines()
        texts = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    texts.append(parse_json(line))
                except ValueError:
                    if number == len(lines):
                        continue  # a recorder that was stopped leaves an incomplete last line
                    raise ValueError(f"line {number} is no JSON") from None
    for text in texts:
        for _, each in _objects(text, "data"):
            data = each["data"]
            if isinstance(data, list) and data and isinstance(data[0], dict) and "voltage" in data[0]:
                yield [sample for sample in data if isinstance(sample, dict) and "voltage" in sample]


def _objects(value: Any, *keys: str, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects that have all keys, in the order of the file, each after the names of those that contain it."""
    if isinstance(value, dict) and value.keys() >= set(keys):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _objects(each, *keys, path=f"{path}/{name}")
    elif isinstance(value, list):
        for each in value:
            yield from _objects(each, *keys, path=path)


def _moment(text: Any) -> datetime | None:
    """Return the local time that a text states."""
    with suppress(ValueError):
        return datetime.fromisoformat(text).replace(tzinfo=None) if isinstance(text, str) else None
    return None
