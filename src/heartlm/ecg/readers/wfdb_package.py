"""What is left to the `wfdb` package: rare signal formats, signals of several rates, records in segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.wfdb_header import Header
from heartlm.errors import HeartlmError

_DIFFERENCE_FORMAT = "8"


def read_physical(header: Header, start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float64]:
    """Read frames `start` to `stop` of `leads` in their units, skew ignored, NaN where invalid.

    Format 8 keeps differences, so it is summed from the start; where the header states no length, the package can only
    read to the end.

    Returns:
        `[num_leads, num_frames]`.

    Raises:
        HeartlmError: the package cannot read it.
    """
    first = 0 if any(signal.format == _DIFFERENCE_FORMAT for part in header.parts for signal in part.signals) else start
    last = stop if header.stated_samples is not None else None
    distinct = sorted(set(leads))
    record = _rdrecord(header.path, sampfrom=first, sampto=last, channels=distinct, ignore_skew=True)
    signal: NDArray[np.float64] = record.p_signal[start - first : stop - first]
    return signal.T[[distinct.index(lead) for lead in leads]]


def sums(header: Header, leads: Sequence[int]) -> dict[int, int]:
    """The sum, modulo 65536, of all samples of each of `leads`.

    Raises:
        HeartlmError: the package cannot read it.
    """
    record = _rdrecord(
        header.path, channels=list(leads), physical=False, smooth_frames=False, ignore_skew=True, return_res=32
    )
    return {
        lead: int(np.sum(signal, dtype=np.int64)) % 65536 for lead, signal in zip(leads, record.e_d_signal, strict=True)
    }


def _rdrecord(path: Path, **options: Any) -> Any:
    """Call the package; whatever it raises on a damaged file becomes one line."""
    import wfdb

    try:
        return wfdb.rdrecord(str(path.with_suffix("")), **options)
    except FileNotFoundError as error:
        raise HeartlmError(f"{error.filename}: a file that {path.name} needs is missing; fetch it") from error
    except Exception as error:  # the package raises anything from IndexError to a codec's own exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeartlmError(f"{path}: not readable as a WFDB record ({reason})") from error
