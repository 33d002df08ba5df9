"""Labels of tokens: the AAMI class of a beat, or whether it is in a rhythm."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES, RHYTHM_INDEX

IGNORE = -1
"""Label of a token or window that counts neither in a loss nor in a score."""

Flutter = Literal["negative", "positive", "left out"]

BEAT_TASK_CLASSES: tuple[str, ...] = BEAT_CLASSES[:4]
"""AAMI classes of the beats task: N, S, V, F. Q beats are excluded from training and scores, as in de Chazal 2004."""


def beat_classes_in(corpus: Corpus) -> tuple[str, ...]:
    """Return the classes of the beats task on `corpus`: those of AAMI, and no beat if it has annotated artefacts."""
    has_artefacts = bool((corpus.beat_class == BEAT_CLASSES.index(ARTEFACT)).any())
    return (*BEAT_TASK_CLASSES, ARTEFACT) if has_artefacts else BEAT_TASK_CLASSES


def beat_labels(beat_class: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return labels of the beats task, int64 `[num_tokens]`: 4 for artefacts, −1 for Q and unlabelled beats."""
    num = len(BEAT_TASK_CLASSES)
    artefact = beat_class == BEAT_CLASSES.index(ARTEFACT)
    return np.select([beat_class < num, artefact], [beat_class, num], IGNORE).astype(np.int64)


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
