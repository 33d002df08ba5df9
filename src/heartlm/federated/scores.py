"""Scores of a model as a line of metrics says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Scores = dict[str, Any]
"""A loss, or what `BeatScores.to_json` gives."""


def summary(scores: Mapping[str, Any]) -> Scores:
    """The numbers of `scores` that a line of metrics holds; itself where it is short."""
    if "per_class" not in scores:
        return dict(scores)
    f1 = {f"f1/{name}": each["f1"]["value"] for name, each in scores["per_class"].items()}
    return {"accuracy": scores["accuracy"]["value"], "macro_f1": scores["macro_f1"]["value"], **f1}
