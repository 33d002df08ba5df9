"""Scores of a model, in a file and in a line of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from heartlm.evaluation.beats import score_beats
from heartlm.evaluation.bootstrap import Resampling


def scores_of(parts: list[Any], final: bool) -> dict[str, Any]:
    """Return the mean loss, or the result of `score_beats`, over the parts of all ranks.

    Args:
        parts: of each rank, counted tokens and the sum of their losses; or classes of beats found and annotated, int8
            `[num_beats]`, and the patient of each beat.
        final: whether to add confidence intervals; otherwise only numbers for a line of metrics are returned.
    """
    columns = list(zip(*parts, strict=True))
    if len(columns) == 2:
        counted, loss = map(sum, columns)
        return {"loss": loss / max(1.0, counted)}
    predicted, annotated, patient = map(np.concatenate, columns)
    scores = score_beats(annotated, predicted, patient, resampling=Resampling(1000 if final else 1))
    return scores if final else summary(scores)


def summary(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of `scores` for a line of metrics."""
    if "per_class" not in scores:
        return dict(scores)
    f1 = {f"f1/{name}": each["f1"]["value"] for name, each in scores["per_class"].items()}
    return {"accuracy": scores["accuracy"]["value"], "macro_f1": scores["macro_f1"]["value"], **f1}


def shown(scores: Mapping[str, Any]) -> str:
    """Return scores as text."""
    return ", ".join(f"{key} {value:.3f}" for key, value in scores.items() if isinstance(value, float))
