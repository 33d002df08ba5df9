"""The beats task: the AAMI class of every beat, or that a detection is no heartbeat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import ARTEFACT, BEAT_CLASSES
from heartlm.tasks.task import IGNORE, Task

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


BEATS = Task(
    "beats",
    scored_by="beat",
    window_s=None,
    has_pooled_head=False,
    classes=lambda corpus, rhythm: beat_classes_in(corpus),
    labels=lambda corpus, rhythm, flutter: beat_labels(corpus.beat_class),
)
