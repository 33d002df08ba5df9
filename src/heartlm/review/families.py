"""Families of beats: of one class by the model, and of one shape, lead pattern and context.

Beats of each class are divided in two, and the parts again, where that lessens most of the spread and of the doubt,
until there are enough families or none is uneven.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

MOST = 20
"""Largest number of families at first."""
EVEN = 0.35
"""Mean square distance from the mean of a family below which it is not divided."""
ROUNDS = 12
SAMPLED = 20_000
"""Beats by which a family is divided."""
SMOOTH = 0.5
"""Power of the number of beats in the order of divisions: families of many beats do not take all of them."""


@dataclass(frozen=True)
class Family:
    """Beats of one shape.

    Attributes:
        id: stays the same in a review; parts of a family have new ones.
        name: class of most of its beats, N, S, V or F.
        count: number of beats.
        doubt: expected fraction of its beats whose class is wrong.
        members: samples of its beats, int64 `[count]`, ascending.
        mean: mean wave in mV, float32 `[num_leads, num_samples]`, of the leads of `Findings.leads`.
        spread: standard deviation of the waves in mV, of the same shape.
        examples: samples of beats that show it, the most typical first, then the least typical ones.
        reviewed: whether a reviewer has named all of its beats.
    """

    id: int
    name: str
    count: int
    doubt: float
    members: Places
    mean: Floats
    spread: Floats
    examples: Places
    reviewed: bool = False


def divided(features: Floats) -> NDArray[np.bool_] | None:
    """Divide beats in two by their distances; return which are in the second part, None if all are equal.

    The first axis of the largest variance starts it, so that the result does not depend on chance.
    """
    some = features[:: max(1, len(features) // SAMPLED)].astype(np.float64)
    centred = some - some.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    if len(some) < 2 or values[-1] <= 1e-9 * len(some):
        return None
    axis = directions[:, -1] * np.sign(directions[np.abs(directions[:, -1]).argmax(), -1])
    along = centred @ axis
    second = along > along.mean()
    for _ in range(ROUNDS):
        if second.all() or not second.any():
            return None
        centres = np.stack([some[~second].mean(axis=0), some[second].mean(axis=0)])
        before, second = second, _nearer_second(some, centres)
        if np.array_equal(before, second):
            break
    if second.all() or not second.any():
        return None
    part = _nearer_second(features, centres.astype(np.float32))
    return None if part.all() or not part.any() else part


def _nearer_second(features: NDArray[np.float64] | Floats, centres: NDArray[np.float64] | Floats) -> NDArray[np.bool_]:
    middle = (centres**2).sum(axis=1)
    return np.asarray(features @ (centres[1] - centres[0]) > (middle[1] - middle[0]) / 2)


def unevenness(features: Floats) -> float:
    """Return the mean square distance from the mean."""
    return float(features.var(axis=0).sum()) if len(features) else 0.0


def families_of(features: Floats, symbol: NDArray[np.str_]) -> NDArray[np.int32]:
    """Return the family of each beat, int32 `[num_beats]`, from 0."""
    parts = [rows for name in "NSVF" if len(rows := np.flatnonzero(symbol == name))]
    spread = [unevenness(features[rows]) for rows in parts]
    while len(parts) < MOST:
        order = [
            value * len(rows) ** SMOOTH if value > EVEN else 0.0 for value, rows in zip(spread, parts, strict=True)
        ]
        if not order or max(order) <= 0:
            break
        chosen = int(np.argmax(order))
        rows, second = parts[chosen], divided(features[parts[chosen]])
        if second is None:
            spread[chosen] = 0.0
            continue
        parts[chosen : chosen + 1] = [rows[~second], rows[second]]
        spread[chosen : chosen + 1] = [unevenness(features[rows[~second]]), unevenness(features[rows[second]])]
    family = np.zeros(len(features), np.int32)
    for number, rows in enumerate(parts):
        family[rows] = number
    return family
