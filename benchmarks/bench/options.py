"""What all benches are asked, and how wrong answers are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class BenchOptions:
    """Where results go, and how often every rival has its turn.

    Attributes:
        out: folder for the table as JSON and the figure as PNG, which take the name of the bench.
        rounds: how often every rival has its turn; the median counts.
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
        HeartlmError: there is none, or one is below `least`.
    """
    if not values:
        raise HeartlmError(f"{field}: nothing found, at least one number expected")
    at_least(field, min(values), least, unit)
