"""Limits of what files may hold: depth, values and numbers of JSON and YAML, samples of recordings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from heartlm.errors import HeartlmError

MAX_DEPTH = 64
"""Maximum nesting depth of lists and mappings in JSON and YAML."""
MAX_CONTAINERS = 1 << 24
"""Maximum number of lists and mappings in JSON; an empty one takes two bytes of the file and 64 in memory."""
TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def small_int(value: int | str) -> int:
    """Return `value` as a 64-bit integer; raise ValueError if it is larger."""
    if (number := int(value)).bit_length() > 63:
        raise ValueError("a whole number of more than 64 bits")
    return number


def finite_float(value: float | str) -> float:
    """Return `value` as a finite float; raise ValueError for infinities and NaN."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is no finite number")
    return number


def limited(value: Any, max_values: int | None = None) -> Any:
    """Return `value`; raise ValueError if it is nested too deeply, or has `max_values` values or more at one depth."""
    level, depth = [value], 0
    while level := list(islice(chain.from_iterable(map(_below, level)), max_values)):
        if (depth := depth + 1) > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        if len(level) == max_values:
            raise ValueError(f"more than {max_values} values, aliases expanded")
    return value


def _below(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


MAX_SAMPLES = 1 << 34
"""Maximum samples of all leads of a recording: 14 days of 12 leads at 1,000 Hz are 1.45e10."""
SMALL_SAMPLES = 1 << 26
"""Samples that a file of any size may unpack to: a day of three leads at 250 Hz, 512 MiB of float64."""
SAMPLES_PER_BYTE = 16
"""Samples that each byte of a larger file may unpack to. Sixteen flat leads take as much; an ECG takes about a byte."""
GAP_SAMPLES = 1 << 28
"""Samples that a table of any size may have with its gaps: a week of one lead at 443 Hz, 1 GiB."""
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def most_samples(file_bytes: int) -> int:
    """Return how many samples of all leads a file of this size may unpack to."""
    return min(MAX_SAMPLES, max(SMALL_SAMPLES, SAMPLES_PER_BYTE * file_bytes))


def check_samples(path: object, num_samples: int, file_bytes: int | None = None, held_bytes: int = 0) -> None:
    """Check the samples that a file states, before memory is allocated for them.

    Args:
        path: file to name in messages.
        num_samples: samples of all leads together.
        file_bytes: size of the file, if its samples may take less than they state; None if they are read in slices.
        held_bytes: bytes of memory that the reader needs for each sample; 0 if they are read in slices.

    Raises:
        HeartlmError: these are more than the file can hold, or than fit into half of the memory.
    """
    most = MAX_SAMPLES if file_bytes is None else most_samples(file_bytes)
    if num_samples > most:
        size = "" if file_bytes is None else f" in {file_bytes} bytes"
        raise HeartlmError(
            f"{path}: has or states {num_samples} samples{size}, at most {most} expected; correct the sizes it states, "
            "or split it"
        )
    if num_samples * held_bytes > MEMORY_BYTES // 2:
        raise HeartlmError(
            f"{path}: {num_samples} samples of a format that is read as a whole do not fit into memory; correct the "
            "sizes it states, or convert it to EDF or WFDB, which are read in slices"
        )
