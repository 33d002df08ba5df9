"""Limits of what JSON and YAML files may hold: depth, number of values, size of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

MAX_DEPTH = 64
"""Maximum nesting depth of lists and mappings in JSON and YAML."""
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
