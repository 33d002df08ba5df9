"""Result of a check: facts for programs, lines for people, and advice with the measured gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORTH = 1.05
"""Smallest gain that is reported as advice."""


@dataclass(frozen=True)
class Advice:
    """A recommended change of a setting.

    Attributes:
        what: description of the change.
        how: exact command or variable.
        gain: current training time divided by the training time after the change; None if not measured.
        because: observation that led to the advice.
    """

    what: str
    how: str
    gain: float | None
    because: str


@dataclass(frozen=True)
class Section:
    """Result of one check.

    Attributes:
        lines: lines of text for people.
        facts: plain values for programs, with units in their names.
        advice: recommended changes.
    """

    lines: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)


@dataclass
class Context:
    """Input of the checks.

    Attributes:
        scratch: an empty folder that is removed afterwards.
        quick: run only measurements that take a few seconds.
        facts: facts of earlier checks, by check name.
    """

    scratch: Path
    quick: bool = False
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fact(self, check: str, name: str, otherwise: Any = None) -> Any:
        """Return a fact of an earlier check, or `otherwise` if that check failed."""
        return self.facts.get(check, {}).get(name, otherwise)


Check = Callable[[Context], Section]


def size_in_words(num_bytes: float) -> str:
    """Format a size, such as `1.5 GiB`; small numbers are in MiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 1 << 29 else f"{num_bytes / 2**20:.1f} MiB"
