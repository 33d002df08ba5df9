"""Predicted next to measured: every cell of a study with more than one rank, from its one-rank cells alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.scaling.cell import Measurement, StudyCell
from heartlm.scaling.one_rank import Kind, steady
from heartlm.scaling.predict import Prediction, Predictor
from heartlm.scaling.simulate import typical_s


@dataclass(frozen=True)
class Checked:
    """A cell that was predicted and measured.

    Attributes:
        predicted: from one-rank measurements.
        repeats_s: measured, a typical step of each repeat.
        part_s: measured, medians of the means over all steps.
    """

    predicted: Prediction
    repeats_s: tuple[float, ...]
    part_s: dict[str, float]

    @property
    def step_s(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.repeats_s)

    @property
    def error(self) -> float:
        """Share by which the prediction is too long; below 0 where too short."""
        return self.predicted.step_s / self.step_s - 1

    @property
    def outside(self) -> float:
        """Share of the measured time by which it lies outside the interval; 0 inside."""
        return max(0.0, self.step_s - self.predicted.high_s, self.predicted.low_s - self.step_s) / self.step_s

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        measured = {"step_s": self.step_s, "repeats_s": self.repeats_s, "part_s": self.part_s}
        return {
            "predicted": self.predicted.to_json(),
            "measured": measured,
            "error": self.error,
            "outside": self.outside,
        }


@dataclass(frozen=True)
class Validation:
    """All cells of a study that could be checked.

    Attributes:
        cells: with more than one rank.
        not_checked: cells without a good one-rank measurement of their kind.
    """

    cells: list[Checked]
    not_checked: list[StudyCell]

    @property
    def median_error(self) -> float:
        """In the middle, without its sign."""
        return statistics.median(abs(each.error) for each in self.cells)

    @property
    def outside(self) -> list[Checked]:
        """Cells that were measured outside their interval."""
        return [each for each in self.cells if each.outside > 0]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "median_error": self.median_error,
            "num_outside": len(self.outside),
            "cells": [each.to_json() for each in self.cells],
            "not_checked": [each.name for each in self.not_checked],
        }


def validate(measurements: Iterable[Measurement], predictor: Predictor) -> Validation:
    """Predict every cell with more than one rank and put what was measured next to it.

    Raises:
        HeartlmError: there is none, or one cannot be predicted.
    """
    cells: dict[StudyCell, list[Measurement]] = {}
    for each in steady(measurements):
        if each.cell.ranks > 1:
            cells.setdefault(each.cell, []).append(each)
    if not cells:
        raise HeartlmError("no good measurement of more than one rank found: there is nothing to compare with")
    known = {cell: found for cell, found in cells.items() if Kind.of(cell) in predictor.kinds}
    if not known:
        raise HeartlmError("no cell with more than one rank has a one-rank cell of its kind: nothing can be predicted")
    checked = [
        Checked(
            predictor.predict(cell),
            tuple(typical_s(each.step_s) for each in found),
            {name: statistics.median(each.part_s[name] for each in found) for name in found[0].part_s},
        )
        for cell, found in known.items()
    ]
    return Validation(checked, [cell for cell in cells if cell not in known])
