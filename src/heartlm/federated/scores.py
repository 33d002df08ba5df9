"""Scores of a model in a line of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Scores = dict[str, Any]
"""A loss, or the result of `BeatScores.to_json`."""


def summary(scores: Mapping[str, Any]) -> Scores:
    """Return the numbers of `scores` for a line of metrics."""
    if "per_class" not in scores:
        return dict(scores)
    f1 = {f"f1/{name}": each["f1"]["value"] for name, each in scores["per_class"].items()}
    return {"accuracy": scores["accuracy"]["value"], "macro_f1": scores["macro_f1"]["value"], **f1}
