"""What a study has cost, what its next measurement will cost, and the most it may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heartlm.scaling.cell import Cell, Measurement


@dataclass(frozen=True)
class Cost:
    """Core-hours and node-hours."""

    core_hours: float = 0.0
    node_hours: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.core_hours + other.core_hours, self.node_hours + other.node_hours)

    def __str__(self) -> str:
        return f"{self.core_hours:.3g} core-hours, {self.node_hours:.3g} node-hours"


def cost_of(cell: Cell, wall_s: float) -> Cost:
    """What a training of `cell` costs that lasts `wall_s`."""
    return Cost(cell.num_cores * wall_s / 3600, cell.nodes * wall_s / 3600)


def spent(measurements: Iterable[Measurement]) -> Cost:
    """What measurements have cost, failed ones too."""
    return sum((cost_of(each.cell, each.wall_s) for each in measurements), Cost())


def expected_wall_s(cell: Cell, done: Sequence[Measurement]) -> float:
    """How long a training of `cell` will last, judged by those that are `done`; 0 where there is none.

    Judged by the same cell; else by the longest of the same stage and window, which has fewer ranks at worst; else by
    the longest of all.
    """
    alike: tuple[list[Measurement], ...] = (
        [each for each in done if each.cell == cell],
        [each for each in done if (each.cell.stage, each.cell.window) == (cell.stage, cell.window)],
        list(done),
    )
    return next((max(each.wall_s for each in some) for some in alike if some), 0.0)


@dataclass(frozen=True)
class Limit:
    """The most a study may cost; None for no limit."""

    core_hours: float | None = None
    node_hours: float | None = None

    def exceeded(self, cost: Cost) -> str | None:
        """Which limit `cost` exceeds, in words; None where it keeps within."""
        for name in ("core_hours", "node_hours"):
            limit, found = getattr(self, name), getattr(cost, name)
            if limit is not None and found > limit:
                return f"max_{name}: {found:.3g} expected with the next measurement, {limit:g} allowed"
        return None
