"""What a check finds: facts for programs, lines for people, and advice with the gain that was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORTH = 1.05
"""The least gain that is worth a change."""


@dataclass(frozen=True)
class Advice:
    """A setting worth changing.

    Attributes:
        what: to do, in words.
        how: the exact command or variable.
        gain: training time now over training time then, as measured here; None where it could not be measured.
        because: what was seen.
    """

    what: str
    how: str
    gain: float | None
    because: str


@dataclass(frozen=True)
class Section:
    """What one check found.

    Attributes:
        lines: for people.
        facts: for programs, plain values with units in their names.
        advice: what follows from it.
    """

    lines: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)


@dataclass
class Context:
    """What checks are given.

    Attributes:
        scratch: an empty folder that is removed afterwards.
        corpus: the user's own, to measure reading on; None measures none.
        quick: measure only what takes a few seconds.
        facts: of the checks before, by their names.
    """

    scratch: Path
    corpus: Path | None = None
    quick: bool = False
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fact(self, check: str, name: str, otherwise: Any = None) -> Any:
        """What an earlier check found; `otherwise` where it failed."""
        return self.facts.get(check, {}).get(name, otherwise)


Check = Callable[[Context], Section]


def size_in_words(num_bytes: float) -> str:
    """Such as `1.5 GiB`; small numbers in MiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 1 << 29 else f"{num_bytes / 2**20:.1f} MiB"
