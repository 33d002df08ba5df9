"""Open files that heartlm did not write, and check their rates, units and gains for plausibility.

Files must be regular and of limited size. Each error message is one line.

Libraries raise arbitrary exceptions for a damaged file, from `IndexError` to a codec's own. `one_line` converts them to
a `HeartlmError` that names the file. FIFOs and devices are refused before they are opened.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.storage.typed import is_number

HEADER_BYTES = 1 << 24
"""Maximum size of a WFDB header, about that of a header with 400,000 segments."""
LIST_BYTES = 1 << 28
"""Maximum size of a list or table of a database (RECORDS, checksums, patients) and of an annotation file."""
TEXT_BYTES = 1 << 31
"""Maximum size of a recording in text form, which is read as a whole."""

_LONGEST_REASON = 200
_PIECE_BYTES = 1 << 20


@contextmanager
def one_line(path: Path, what: str) -> Iterator[None]:
    """Convert any exception in the block to a one-line error: `path` is not readable as `what`.

    Raises:
        HeartlmError: the block raised an exception.
    """
    try:
        yield
    except HeartlmError:
        raise
    except MemoryError as error:
        raise HeartlmError(f"{path}: does not fit into memory; correct the sizes it states") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeartlmError(f"{path}: not readable as {what} ({reason[:_LONGEST_REASON]}); fetch it again") from error


def open_file(path: Path, largest: int | None = None) -> FileIO:
    """Open a regular file of at most `largest` bytes for unbuffered reading; links are followed.

    Raises:
        HeartlmError: the file cannot be opened, is not a regular file or is too large.
    """
    try:
        # O_NONBLOCK: opening a FIFO without a writer would block.
        stream = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    status, problem = os.fstat(stream.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file; put the file itself there, or take the name away"
    elif largest is not None and status.st_size > largest:
        problem = f"has {status.st_size} bytes, at most {largest} expected; the file is damaged"
    if problem:
        stream.close()
        raise HeartlmError(f"{path}: {problem}")
    return stream


def size_of(path: Path, largest: int | None = None) -> int:
    """Return the size in bytes of a file that `open_file` accepts."""
    with open_file(path, largest) as stream:
        return os.fstat(stream.fileno()).st_size


def read_bytes(path: Path, largest: int) -> bytes:
    """Read all bytes of a regular file of at most `largest` bytes.

    Raises:
        HeartlmError: the file cannot be read, is not a regular file or is too large.
    """
    with open_file(path, largest) as stream:
        try:
            return stream.read(largest) or b""
        except OSError as error:
            raise _cannot_open(path, error) from error


def first_bytes(path: Path, num_bytes: int) -> bytes | None:
    """Return the first bytes of a regular file; None if it cannot be read."""
    try:
        with open_file(path) as stream:
            return stream.read(num_bytes) or b""
    except HeartlmError:
        return None


def inflated(packed: bytes | memoryview, window_bits: int = zlib.MAX_WBITS) -> Iterator[bytes]:
    """Yield the content of a deflated stream in pieces of at most a mebibyte, as far as it goes."""
    unpacker = zlib.decompressobj(window_bits)
    # pieces of the input too: what is left of it is copied after each piece of the output
    for first in range(0, len(packed), _PIECE_BYTES):
        rest, piece = bytes(packed[first : first + _PIECE_BYTES]), b" "
        while (rest or piece) and not unpacker.eof:
            piece = unpacker.decompress(rest, _PIECE_BYTES)
            rest = unpacker.unconsumed_tail
            yield piece


def inflates_beyond(packed: bytes, most: int, window_bits: int = zlib.MAX_WBITS) -> bool:
    """Return whether a deflated stream has more than `most` bytes; a piece of it is in memory at a time."""
    return any(num_bytes > most for num_bytes in accumulate(map(len, inflated(packed, window_bits))))


def ending_of(path: Path) -> str:
    """Return the ending of a file name in lower case, without that of a compressed file."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def is_there(path: Path) -> bool:
    """Return whether the path exists in any form, including a dangling link or a FIFO, which fail when read."""
    return os.path.lexists(path)


def stays_inside(name: str) -> bool:
    """Return whether a file name is relative, never leaves the folder, and has no control characters."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts


def _cannot_open(path: Path, error: OSError | ValueError) -> HeartlmError:
    if isinstance(error, FileNotFoundError):
        return HeartlmError(f"{path}: no such file; fetch it")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return HeartlmError(f"{path}: cannot be read ({reason}); check its name and permissions")


RATES_HZ = 1e-3, 1e6
"""Plausible sampling rates in Hz: from slower than one value per minute to faster than any ECG amplifier."""
ADU_PER_MV = 1e-3, 1e12
"""Plausible gains of voltages in adu/mV; an almost flat lead scaled to 16 bits has a high gain."""
OTHER_GAINS = 1e-30, 1e30
"""Plausible gains of other quantities, in any unit."""
MOST_MV = 1e5
"""Maximum distance in mV between 0 adu and 0 mV."""

_MV_PER_UNIT = {"mv": 1.0, "v": 1e3, "uv": 1e-3, "µv": 1e-3, "μv": 1e-3, "nv": 1e-6}


def to_millivolts(unit: str) -> tuple[str, float]:
    """Return the unit to which samples in `unit` are converted, and the conversion factor."""
    factor = _MV_PER_UNIT.get(unit.strip().lower())
    return (unit, 1.0) if factor is None else ("mV", factor)


def check_rate(path: Path | str, rate_hz: Any, what: str = "sampling rate") -> float:
    """Return a rate as a float.

    Raises:
        HeartlmError: the rate is not a number or not plausible.
    """
    least, most = RATES_HZ
    if not is_number(rate_hz) or not least <= rate_hz <= most:
        shown = f"{rate_hz:g}" if isinstance(rate_hz, float) else repr(rate_hz)[:40]
        raise HeartlmError(f"{path}: {what} is {shown}, expected samples a second, {least:g} to {most:g}; correct it")
    return float(rate_hz)


def without_infinities(signal: NDArray[np.float32], names: Sequence[str], faults: list[str]) -> NDArray[np.float32]:
    """Replace infinite samples of `[num_leads, num_samples]` by NaN in place, and add their leads to `faults`."""
    infinite = np.isinf(signal)
    for lead in np.flatnonzero(infinite.any(axis=1)).tolist():
        fault = f"lead {names[lead]}: has infinite samples, which are read as invalid"
        if fault not in faults:
            faults.append(fault)
    signal[infinite] = np.nan
    return signal


def check_calibration(
    path: Path,
    names: Sequence[str],
    units: Sequence[str],
    gain: NDArray[np.float64],
    baseline: NDArray[np.float64],
    *,
    inverted: bool = False,
) -> None:
    """Check the calibration of all leads.

    Args:
        path: file that states the calibration.
        names: names of the leads.
        units: units of the leads; voltages are in mV.
        gain: adu per unit, NaN where unknown, `[num_leads]`.
        baseline: adu of physical zero, `[num_leads]`.
        inverted: whether the format allows voltages of negative gain.

    Raises:
        HeartlmError: a gain or a baseline is implausible.
    """
    for name, unit, adu_per_unit, zero in zip(names, units, gain.tolist(), baseline.tolist(), strict=True):
        least, most = ADU_PER_MV if unit == "mV" else OTHER_GAINS
        size = adu_per_unit if unit == "mV" and not inverted else abs(adu_per_unit)
        if not (np.isnan(size) or least <= size <= most):
            raise HeartlmError(
                f"{path}: lead {name} has gain {adu_per_unit:g} adu/{unit}, expected {least:g} to {most:g}; "
                "correct the header"
            )
        if unit == "mV" and not np.isnan(size) and not abs(zero) <= MOST_MV * size:
            raise HeartlmError(
                f"{path}: lead {name} has baseline {zero:g} adu at {adu_per_unit:g} adu/mV, expected at most "
                f"{MOST_MV:g} mV; correct the header"
            )
