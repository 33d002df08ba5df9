"""Options common to all benches, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class BenchOptions:
    """Options common to all benches.

    Attributes:
        out: folder for the table (JSON) and the figure (PNG), named after the bench.
        rounds: number of turns of every method; the median is reported.
    """

    out: Path = Path("runs/bench")
    rounds: int = 5

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)


def at_least(field: str, value: float, least: float, unit: str = "") -> None:
    """Check one number.

    Raises:
        HeartlmError: `value` is below `least`.
    """
    if not value >= least:
        raise HeartlmError(f"{field}: {value:g} found, at least {least:g}{unit} expected")


def each_at_least(field: str, values: Sequence[float], least: float, unit: str = "") -> None:
    """Check a list of numbers.

    Raises:
        HeartlmError: the list is empty, or a number is below `least`.
    """
    if not values:
        raise HeartlmError(f"{field}: nothing found, at least one number expected")
    at_least(field, min(values), least, unit)
