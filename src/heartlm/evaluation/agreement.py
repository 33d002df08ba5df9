"""Agreement of two annotators beyond chance: Cohen's kappa (1960), of all classes together and of each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from heartlm.evaluation.ec57 import LABELS


def kappa(matrix: ArrayLike) -> float | None:
    """Return Cohen's kappa of a square matrix of counts; None where both always chose the same single class."""
    counts = np.asarray(matrix, np.float64)
    total = counts.sum()
    if total == 0:
        return None
    by_chance = float(counts.sum(axis=0) @ counts.sum(axis=1)) / total**2
    return None if by_chance == 1 else (float(np.trace(counts)) / total - by_chance) / (1 - by_chance)


def agreement(matrix: ArrayLike) -> dict[str, Any]:
    """Return kappa of two annotators over the beats that one of them has.

    A beat that only one of them marked is of a class of its own, `O`; beats in what one of them could not read are left
    out. By class, beats are of the class or not.

    Args:
        matrix: number of pairs by the label of one and the other, in the order of `LABELS`, `[7, 7]`.

    Returns:
        `num_beats`, `kappa`, and `by_class`, of each class that one of them named.
    """
    kept = [LABELS.index(label) for label in "NSVFQO"]
    counts = np.asarray(matrix, np.int64)[np.ix_(kept, kept)]
    by_class = {}
    for place, label in enumerate("NSVF"):
        both = int(counts[place, place])
        one, other = int(counts[place].sum()) - both, int(counts[:, place].sum()) - both
        if both + one + other:
            by_class[label] = kappa([[both, one], [other, int(counts.sum()) - both - one - other]])
    return {"num_beats": int(counts.sum()), "kappa": kappa(counts), "by_class": by_class}
