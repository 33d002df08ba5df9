"""Predicted and reference classes of the beats of one lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import BEAT_CLASSES, UNLABELLED
from heartlm.evaluation.beats import NO_BEAT, Classes
from heartlm.evaluation.results import prediction_columns
from heartlm.evaluation.scored import ScoredLead

CLASS_NAMES: dict[int, str | None] = {**dict(enumerate(BEAT_CLASSES)), UNLABELLED: None, NO_BEAT: "none"}
"""Names of classes in prediction tables. `"none"` is the missing partner of a missed or extra beat."""


@dataclass(frozen=True)
class LeadAnswers:
    """Annotated and extra beats of one lead in order of time.

    Attributes:
        lead: lead of the beats.
        sample: sample positions, int64 `[num_beats]`.
        reference: index into `BEAT_CLASSES`, `UNLABELLED` or `NO_BEAT`, int8 `[num_beats]`.
        predicted: index into `BEAT_CLASSES` or `NO_BEAT`, int8 `[num_beats]`.
        probabilities: probabilities of the task's classes, NaN for missed beats, float32 `[num_beats, num_classes]`.
    """

    lead: ScoredLead
    sample: NDArray[np.int64]
    reference: Classes
    predicted: Classes
    probabilities: NDArray[np.float32]


def columns_of(answers: Sequence[LeadAnswers]) -> dict[str, Any]:
    """Return the columns of the prediction table, one row per beat."""
    return prediction_columns(
        [each.lead for each in answers],
        np.repeat(np.arange(len(answers)), [len(each.sample) for each in answers]),
        np.concatenate([each.sample for each in answers]),
        reference=[CLASS_NAMES[index] for each in answers for index in each.reference.tolist()],
        predicted=[CLASS_NAMES[index] for each in answers for index in each.predicted.tolist()],
        probabilities=np.concatenate([each.probabilities for each in answers]),
    )
