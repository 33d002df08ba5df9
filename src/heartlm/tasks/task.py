"""What a task is, for training, inference, scores and pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus

IGNORE = -1
"""Label of a token or window that counts neither in a loss nor in a score."""

Flutter = Literal["negative", "positive", "left out"]


@dataclass(frozen=True)
class Task:
    """A question that a fine-tuned model answers.

    Attributes:
        name: name in settings, run folders and shipped models.
        scored_by: what one score is of.
        window_s: width of the only window in seconds; None if the model's settings give its width in tokens.
        has_pooled_head: whether one answer may be of a whole window.
        classes: class names, in the order of the head, from the corpus and the positive rhythm.
        labels: class of every token, −1 to ignore, int64 `[num_tokens]`, from the corpus, the positive rhythm and
            the label of flutter.
    """

    name: str
    scored_by: Literal["beat", "window"]
    window_s: float | None
    has_pooled_head: bool
    classes: Callable[[Corpus, str], tuple[str, ...]]
    labels: Callable[[Corpus, str, Flutter], NDArray[np.int64]]
