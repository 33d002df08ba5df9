"""NumPy files, and recordings of arrays in memory, for the readers of other formats too.

Metadata are in a `.json` file of the same name: `rate_hz`, `units` (one for all leads, or a list), `lead_names`, and
`start` (`"2024-03-01 13:00:00"`, or `"13:00:00"` if the date is unknown).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, time
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.mapped import RemoteArray
from heartlm.formats.plausible import check_rate, to_millivolts, without_infinities
from heartlm.formats.stated import Stated
from heartlm.formats.text_bytes import gunzip, is_gzip
from heartlm.formats.units import Unit, parse_unit
from heartlm.storage.foreign import RemotePath, is_there, open_file, size_of
from heartlm.storage.limits import check_samples
from heartlm.storage.reading import read_json

# Most leads, and fewest samples, of an array whose rows are taken as samples.
_MOST_LEADS, _FEWEST_SAMPLES = 64, 100


class ArraySettings(TypedDict, total=False):
    """Fields of the `.json` file."""

    rate_hz: float
    units: str | list[str]
    lead_names: list[str]
    start: str


def sidecar_of(path: Path) -> Path:
    """Return the path of the `.json` file next to a file, which may be compressed."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).with_suffix(".json")


def is_array_recording(path: Path) -> bool:
    """Return whether a file of numbers is a recording: its rate is stated, in a `.json` file or by the user."""
    return is_there(sidecar_of(path)) or Stated.current().rate_hz is not None


def settings_of(path: Path) -> ArraySettings:
    """Return the fields of the `.json` file next to a file; none if there is no such file.

    Raises:
        HeartlmError: the file is malformed.
    """
    sidecar = sidecar_of(path)
    return read_json(sidecar, ArraySettings) if sidecar != path and is_there(sidecar) else {}


@dataclass(frozen=True)
class Given:
    """What is stated about a file: by the user, or else in the `.json` file next to it."""

    path: Path
    stated: Stated
    settings: ArraySettings

    @staticmethod
    def of(path: Path) -> Given:
        """Return what is stated about a file now.

        Raises:
            HeartlmError: the `.json` file is malformed.
        """
        return Given(path, Stated.current(), settings_of(path))

    @property
    def rate_hz(self) -> float | None:
        """The rate, which is not yet checked; None if none is stated."""
        return self.stated.rate_hz or self.settings.get("rate_hz")

    @property
    def start(self) -> datetime | time | None:
        """The start; None if none is stated."""
        return start_of(sidecar_of(self.path), self.settings["start"]) if "start" in self.settings else None

    def units(self, chosen: Sequence[int], num_leads: int) -> list[Unit] | None:
        """Return the unit of each of the `chosen` of the file's leads; None if none is stated.

        Raises:
            HeartlmError: there is another number of units, or a text of the user is no unit.
        """
        if (units := self.stated.units_of(len(chosen))) is not None or "units" not in self.settings:
            return units
        texts = self.settings["units"]
        texts = [texts] * num_leads if isinstance(texts, str) else texts
        if len(texts) != num_leads:
            raise HeartlmError(
                f"{sidecar_of(self.path)}: {len(texts)} units for the {num_leads} leads of {self.path.name}"
            )
        return [parse_unit(texts[lead]) or Unit(texts[lead]) for lead in chosen]

    def no_rate(self, reason: str = "") -> HeartlmError:
        """Return the error of a file whose rate is not known."""
        return HeartlmError(
            f"{self.path}: states no sampling rate{reason and f' ({reason})'}; give --rate HZ, or write it into "
            f'{sidecar_of(self.path).name} as {{"rate_hz": …}}'
        )


def start_of(where: object, text: str) -> datetime | time:
    """Return the start that `where`, a file or another source, states as a text.

    Raises:
        HeartlmError: it is no time.
    """
    for kind in (time, datetime):
        with suppress(ValueError):
            return kind.fromisoformat(text).replace(tzinfo=None)
    raise HeartlmError(f"{where}: start: {text!r} found, expected a time such as 2024-03-01 13:00:00 or 13:00:00")


def checked_leads(where: object, array: Any) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return an array of samples as `[num_leads, num_samples]`, and what was repaired.

    An array with more rows than columns, which has at most `_MOST_LEADS`, is one of `[num_samples, num_leads]`.

    Raises:
        HeartlmError: it has another shape or type.
    """
    try:
        signal = np.atleast_2d(array)
    except (RuntimeError, TypeError, ValueError) as error:  # rows of several lengths; a tensor of torch on a GPU
        reason = " ".join(str(error).split())
        raise HeartlmError(f"{where}: numbers [num_leads, num_samples] expected ({reason})") from None
    repairs = tuple[str, ...]()
    if signal.ndim == 2 and 0 < signal.shape[1] <= _MOST_LEADS and len(signal) > max(signal.shape[1], _FEWEST_SAMPLES):
        shape = f"[{len(signal)}, {signal.shape[1]}]"
        repairs = (f"an array of {shape} is taken as [num_samples, num_leads] and transposed",)
        signal = signal.T
    # More leads than samples would be read without an error.
    if signal.ndim != 2 or signal.dtype.kind not in "iuf" or not 0 < len(signal) <= max(signal.shape[1], 1):
        raise HeartlmError(
            f"{where}: array of {signal.dtype} and shape {list(signal.shape)}, expected numbers "
            "[num_leads, num_samples], transposed if its rows are samples"
        )
    return signal, repairs


def read_numpy(path: Path) -> Recording:
    """Map a `.npy` file: an array `[num_leads, num_samples]` or `[num_samples]`.

    Raises:
        HeartlmError: the array has another shape or type, or its rate is unknown.
    """
    signal: Any
    if is_gzip(path):
        signal, repairs = checked_leads(path, _unpacked(path))
    elif isinstance(path, RemotePath):
        signal, repairs = _remote_leads(path)
    else:
        signal, repairs = checked_leads(path, np.lib.format.open_memmap(path, "r"))
    check_samples(path, signal.size)
    given, sidecar = Given.of(path), sidecar_of(path)
    names = given.settings.get("lead_names") or [f"lead {place}" for place in range(1, len(signal) + 1)]
    if len(names) != len(signal):
        raise HeartlmError(f"{sidecar}: {len(names)} lead names for the {len(signal)} leads of {path.name}")
    chosen, names = given.stated.leads_of(names, path)
    if given.rate_hz is None:
        raise given.no_rate()
    rate_hz = check_rate(sidecar, given.rate_hz, "rate_hz")
    units = given.units(chosen, len(signal))
    if len(chosen) < len(signal):
        signal = signal[chosen]
    if units is None:
        check_size(path, signal[list(range(len(signal))), : _CHECKED_S * max(2, round(rate_hz))], rate_hz)
    recording = array_recording(path, signal, names, units or ["mV"] * len(signal), rate_hz)
    return replace(recording, start=given.start, repairs=repairs)


def _layout_of(path: Path, stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a `.npy` file: shape, whether columns are stored one after another, and type."""
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in read_header:
        raise HeartlmError(f"{path}: NumPy format {version} found, expected 1.0 or 2.0; save the array again")
    shape, is_fortran, kind = read_header[version](stream)
    if kind.hasobject:
        raise HeartlmError(f"{path}: array of objects, expected numbers; save it again")
    return shape, is_fortran, kind


def _remote_leads(path: Path) -> tuple[RemoteArray, tuple[str, ...]]:
    """Return the array of a remote file, and what was repaired; see `checked_leads`."""
    with open_file(path) as stream:
        shape, is_fortran, kind = _layout_of(path, stream)
        byte_offset = stream.tell()
    if (size := size_of(path)) < byte_offset + math.prod(shape) * kind.itemsize:
        raise HeartlmError(f"{path}: ends after {size} bytes, before the end of its array; fetch it again")
    # an array of that shape that takes no memory, so that shape and type are checked as those of others
    leads, repairs = checked_leads(path, np.broadcast_to(np.zeros((), kind), shape))
    is_transposed = len(shape) == 2 and leads.shape != shape
    by_time = len(shape) == 2 and is_fortran != is_transposed
    return RemoteArray(path, byte_offset, kind, leads.shape, by_time), repairs


def _unpacked(path: Path) -> NDArray[Any]:
    """Return the array of a file that is compressed by gzip; its header states the size before anything is unpacked."""
    with gunzip(path) as stream:
        shape, is_fortran, kind = _layout_of(path, stream)
        check_samples(path, math.prod(shape) * max(1, kind.itemsize // 8), size_of(path), held_bytes=kind.itemsize + 4)
        signal = np.empty(shape, kind, order="F" if is_fortran else "C")
        content = signal.reshape(-1, order="A").view(np.uint8).data
        done = 0
        while done < len(content) and (length := stream.readinto(content[done:])):
            done += length
    if done < len(content):
        raise HeartlmError(f"{path}: ends after {done} of {len(content)} bytes of its array; fetch it again")
    return signal


# Seconds whose range is looked at.
_CHECKED_S = 300
LEAST_MV, MOST_MV = 0.03, 20.0
"""Plausible range of an ECG within a second, in mV."""


def typical_range(values: NDArray[Any], rate_hz: float) -> float:
    """Return the median of the ranges within seconds of the first minutes of a signal; 0 if it is flat or empty."""
    size = max(2, round(rate_hz))
    values = values[: _CHECKED_S * size]
    blocks = values[: len(values) // size * size].reshape(-1, size) if len(values) >= size else values[np.newaxis]
    blocks = np.where(np.isfinite(blocks), blocks, np.nan)
    blocks = blocks[~np.isnan(blocks).all(axis=1)]
    return float(np.median(np.nanmax(blocks, axis=1) - np.nanmin(blocks, axis=1))) if blocks.size else 0.0


def check_size(path: Path, signal: NDArray[Any], rate_hz: float) -> None:
    """Check that values without a unit are plausible as millivolts in some lead.

    Args:
        path: path of the file.
        signal: values `[num_leads, num_samples]`.
        rate_hz: samples per second.

    Raises:
        HeartlmError: no lead is plausible.
    """
    sizes = [typical_range(lead, rate_hz) for lead in signal]
    if sizes and not any(size == 0 or LEAST_MV <= size <= MOST_MV for size in sizes):
        raise HeartlmError(
            f"{path}: states no unit, and values that vary by {sizes[0]:.3g} within a second are no millivolts; give "
            f"--units, for example uV, or 200/mV for steps of a converter, or write it into {sidecar_of(path).name} as "
            '{"units": …}'
        )


def array_recording(
    path: Path, signal: NDArray[Any], names: Sequence[str], units: Sequence[str | Unit], rate_hz: float
) -> Recording:
    """Return the recording of samples `[num_leads, num_samples]` in `units`; voltages are converted on reading."""
    converted = [unit if isinstance(unit, Unit) else Unit(*to_millivolts(unit)) for unit in units]
    scale = np.array([unit.factor for unit in converted])
    baseline = np.array([unit.baseline for unit in converted])
    faults = list[str]()

    def samples(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        chosen = list(leads)
        with np.errstate(over="ignore", invalid="ignore"):
            part = signal[chosen, start:stop]
            if baseline[chosen].any():
                part = part - baseline[chosen, np.newaxis]
            if part.dtype != np.float32 or (scale[chosen] != 1).any():
                part = (part * scale[chosen, np.newaxis]).astype(np.float32)
        return without_infinities(part, [names[lead] for lead in chosen], faults)

    return Recording(
        rate_hz=rate_hz,
        num_samples=signal.shape[1],
        lead_names=tuple(names),
        units=tuple(unit.name for unit in converted),
        path=path,
        samples=samples,
        faults=faults,
        steps=tuple((1 / unit.factor, unit.baseline) for unit in converted) if signal.dtype.kind in "iu" else (),
    )
