"""Result of a check: facts for programs, lines for people, and advice with the measured gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


Check = Callable[[Mapping[str, Any]], Section]
"""A check of the machine; its argument is the facts of all earlier checks that did not fail, and `begin_s`, the time
by `time.monotonic` at which the first check began."""
