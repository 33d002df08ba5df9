"""The rhythm task: one rhythm against all others, of every beat or of a window of beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import RHYTHM_INDEX
from heartlm.tasks.task import IGNORE, Task


def rhythm_labels(rhythm: NDArray[np.int8], positive: str, flutter: str) -> NDArray[np.int64]:
    """Return labels of the rhythm task, int64 `[num_tokens]`: 1 in the positive rhythm, 0 in others, −1 if unlabelled.

    Args:
        rhythm: rhythm index of each token, −1 if unlabelled.
        positive: name of the positive rhythm.
        flutter: label of AFL when the positive rhythm is AFIB: `"negative"`, `"positive"` or `"left out"`.
    """
    labels = np.where(rhythm < 0, IGNORE, (rhythm == RHYTHM_INDEX[positive]).astype(np.int64))
    if positive == "AFIB" and flutter != "negative":
        labels[rhythm == RHYTHM_INDEX["AFL"]] = 1 if flutter == "positive" else IGNORE
    return labels


RHYTHM = Task(
    "rhythm",
    scored_by="window",
    window_s=None,
    has_pooled_head=True,
    classes=lambda corpus, rhythm: ("other", rhythm),
    labels=lambda corpus, rhythm, flutter: rhythm_labels(corpus.rhythm, rhythm, flutter),
)
