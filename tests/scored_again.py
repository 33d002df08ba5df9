"""What a table of predictions holds is enough for the scores that were written next to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.results import Predictions
from heartlm.tasks.task import task_of


def check_scored_again(folder: Path) -> None:
    """Check that the predictions in `folder` give the scores of the model there, with their intervals."""
    written = json.loads((folder / "scores.json").read_text())
    resampling = Resampling(written["num_bootstrap"], written["seed"])
    scores = task_of(written["task"]).score_predictions(Predictions.read(folder), [written], resampling)
    assert len(scores) > 5
    _compare(scores, {key: written["scores"][key] for key in scores})


def _compare(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, dict | list):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            _compare(one[key], other[key])
    else:
        # tables have probabilities in single precision
        assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other)
