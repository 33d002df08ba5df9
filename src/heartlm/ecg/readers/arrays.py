"""CSV and NumPy files: samples without a header. `array_recording` also makes the recordings of other readers.

Metadata are in a `.json` file of the same name: `rate_hz`, `units` (one for all leads, or a list; `"mV"` by default),
`start` (`"2024-03-01 13:00:00"`, or `"13:00:00"` if the date is unknown) and, for NumPy, `lead_names`. The first row of
a CSV file names the leads. If it has a column `time`, in seconds, the rate is computed from it and the `.json` file is
optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, time
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import check_rate, first_bytes, is_there, to_millivolts, without_infinities
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.files import read_json

_TIME_COLUMNS = ("time", "time_s")
_FIRST_LINE_BYTES = 1 << 16


class _Settings(TypedDict, total=False):
    """Fields of the `.json` file."""

    rate_hz: float
    units: str | list[str]
    lead_names: list[str]
    start: str


def is_array_recording(path: Path) -> bool:
    """Return whether a CSV or NumPy file is a recording: it has a `.json` file, or a CSV time column."""
    if is_there(path.with_suffix(".json")):
        return True
    if path.suffix.lower() != ".csv":
        return False
    begin = first_bytes(path, _FIRST_LINE_BYTES)
    if begin is None:
        return True  # the reader then reports the error
    return any(_is_time(name) for name in begin.partition(b"\n")[0].decode("utf-8", "replace").split(","))


def read_csv(path: Path) -> Recording:
    """Read a CSV file: one row per sample, one column per lead, empty where invalid.

    Raises:
        HeartlmError: the file is not a table of numbers, has no rate, or has unevenly spaced times.
    """
    import pyarrow as pa
    from pyarrow import csv

    names = csv.read_csv(path, parse_options=csv.ParseOptions()).column_names
    types = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64()), strings_can_be_null=True)
    table = csv.read_csv(path, convert_options=types)
    columns = {name: table[name].to_numpy() for name in names}
    times = [name for name in names if _is_time(name)]
    settings = _settings(path)
    if times:
        settings.setdefault("rate_hz", _rate_of(path, columns[times[0]]))
    leads = [name for name in names if name not in times]
    if not leads:
        raise HeartlmError(f"{path}: has no lead column, only {', '.join(names)}")
    signal = np.stack([columns[name] for name in leads])
    return _with_sidecar(path, signal, settings, [name.strip() for name in leads])


def read_numpy(path: Path) -> Recording:
    """Map a `.npy` file: an array `[num_leads, num_samples]` or `[num_samples]`.

    Raises:
        HeartlmError: the array has another shape or type, or the `.json` file is missing.
    """
    signal = np.atleast_2d(np.lib.format.open_memmap(path, "r"))
    if signal.ndim != 2 or signal.dtype.kind not in "iuf" or signal.shape[0] > max(signal.shape[1], 1):
        raise HeartlmError(
            f"{path}: array of {signal.dtype} and shape {list(signal.shape)}, expected numbers [num_leads, num_samples]"
        )
    settings = _settings(path)
    names = settings.get("lead_names") or [f"lead {place}" for place in range(1, len(signal) + 1)]
    return _with_sidecar(path, signal, settings, names)


def _with_sidecar(path: Path, signal: NDArray[Any], settings: _Settings, names: Sequence[str]) -> Recording:
    sidecar = path.with_suffix(".json")
    units = settings.get("units", "mV")
    units = [units] * len(names) if isinstance(units, str) else units
    if not len(names) == len(units) == len(signal):
        raise HeartlmError(
            f"{sidecar}: {len(names)} lead names and {len(units)} units for the {len(signal)} leads of {path.name}"
        )
    recording = array_recording(path, signal, names, units, check_rate(sidecar, settings.get("rate_hz"), "rate_hz"))
    return replace(recording, start=_start(sidecar, settings["start"]) if "start" in settings else None)


def _start(sidecar: Path, text: str) -> datetime | time:
    for kind in (time, datetime):
        with suppress(ValueError):
            return kind.fromisoformat(text).replace(tzinfo=None)
    raise HeartlmError(f"{sidecar}: start: {text!r} found, expected a time such as 2024-03-01 13:00:00 or 13:00:00")


def array_recording(
    path: Path, signal: NDArray[Any], names: Sequence[str], units: Sequence[str], rate_hz: float
) -> Recording:
    """Return the recording of samples `[num_leads, num_samples]` in `units`; voltages are converted on reading."""
    converted, factors = zip(*map(to_millivolts, units), strict=True)
    scale, faults = np.array(factors), list[str]()

    def samples(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        chosen = list(leads)
        with np.errstate(over="ignore", invalid="ignore"):
            part: NDArray[np.float32] = (signal[chosen, start:stop] * scale[chosen, np.newaxis]).astype(np.float32)
        return without_infinities(part, [names[lead] for lead in chosen], faults)

    return Recording(
        rate_hz=rate_hz,
        num_samples=signal.shape[1],
        lead_names=tuple(names),
        units=converted,
        path=path,
        samples=samples,
        faults=faults,
    )


def _settings(path: Path) -> _Settings:
    sidecar = path.with_suffix(".json")
    return read_json(sidecar, _Settings) if is_there(sidecar) else {}


def _is_time(name: str) -> bool:
    return name.strip().strip('"').lower() in _TIME_COLUMNS


def _rate_of(path: Path, time_s: NDArray[np.float64]) -> float:
    """Return the rate of evenly spaced times, rounded to a whole number if it fits within their rounding error."""
    span_s = time_s[-1] - time_s[0] if len(time_s) > 1 else 0.0
    if not span_s > 0:
        raise HeartlmError(f"{path}: the time column does not rise from its first row to its last; expected seconds")
    rate_hz = (len(time_s) - 1) / span_s
    if abs(rate_hz - round(rate_hz)) < 1e-4 * rate_hz:
        rate_hz = round(rate_hz)
    off = np.abs((time_s - time_s[0]) * rate_hz - np.arange(len(time_s)))
    if not off.max() < 0.5:
        worst = int(np.argmax(np.nan_to_num(off, nan=np.inf)))
        raise HeartlmError(f"{path}: row {worst + 2} is not evenly spaced in time; expected one row a sample")
    return float(rate_hz)
