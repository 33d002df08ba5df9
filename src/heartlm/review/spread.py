"""What a review tells of the beats that were not seen: the open recording is classified again after each answer.

    model's classes + named beats ─► half: classifier of this recording ─┐
                                 └─► half: likeness to named groups ─────┴─► probability of each class of each beat

The classifier is a multinomial regression on the features of the beats, which starts from what the model says and is
held near it, so that a few named beats change little. By likeness, a beat has the classes of the model and of groups
near it: `(A · model's + Σ of the class) / (A + Σ of all)`, where a group counts by the most similar of its beats.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64]
Groups = Mapping[Hashable, tuple[str, Rows]]

CLASSES = "NSVF"
PROTOTYPES = 32
"""Beats that stand for a group."""
MODEL_WEIGHT, WIDTH = 0.3, 0.35
"""`A`, and the width of the likeness as a fraction of the median distance of two beats."""
HELD = 40.0
"""How strongly the classifier is held to the model. By studies/clicks.py on a third of the folds, 1 and 10 ask more."""
FOLLOW, NEAR = 0.5, 0.2
"""Probability of a named class from which on a beat follows, and its least likeness to the beats that were named."""
KEPT = 16
"""Number of groups whose likeness is kept."""


class Evidence:
    """Classes of beats by the model and by named beats.

    Args:
        features: of all automatic beats, float32 `[num_beats, num_features]`.
        classes: the model's probabilities, float32 `[num_beats, 4]`.
    """

    def __init__(self, features: Floats, classes: Floats) -> None:
        self._features, self._classes = features, classes
        self._square = (features**2).sum(axis=1)
        self._likeness_sum = np.zeros_like(classes)
        self._groups = dict[Hashable, tuple[str, Rows]]()
        self._kept = dict[bytes, Floats]()
        self._width = WIDTH * _usual_distance(features)
        scaled = features / np.maximum(features.std(axis=0), 1e-6) if len(features) else features
        self._inputs = np.concatenate([scaled, np.ones((len(features), 1), np.float32)], axis=1)
        self._log_model = np.log(np.clip(classes, 1e-3, 1))
        self._weights = np.zeros((self._inputs.shape[1], len(CLASSES)))

    def probability(self, groups: Groups) -> Floats:
        """Return the probability of each class of each beat, float32 `[num_beats, 4]`.

        Args:
            groups: class and rows of named beats; a group with the same key is the same.
        """
        return np.asarray((self._by_likeness(groups) + self._by_classifier(groups)) / 2, np.float32)

    def _by_likeness(self, groups: Groups) -> Floats:
        for key, (symbol, rows) in list(self._groups.items()):
            if key not in groups:
                self._likeness_sum[:, CLASSES.index(symbol)] -= self.likeness(rows)
                del self._groups[key]
        for key, (symbol, rows) in groups.items():
            if key not in self._groups:
                self._likeness_sum[:, CLASSES.index(symbol)] += self.likeness(rows)
                self._groups[key] = symbol, rows
        total = MODEL_WEIGHT * self._classes + np.maximum(self._likeness_sum, 0)
        return np.asarray(total / np.maximum(total.sum(axis=1, keepdims=True), 1e-9))

    def likeness(self, rows: Rows) -> Floats:
        """Return the likeness of each beat to the most similar beat of some rows, float32 `[num_beats]`."""
        some = _some(rows)
        if (known := self._kept.get(some.tobytes())) is not None:
            return known
        nearest = np.full(len(self._features), np.inf, np.float32)
        for row in range(0, len(some), 16):  # bounds the memory
            part = self._features[some[row : row + 16]]
            nearer = self._features @ (-2 * part.T)
            nearer += (part**2).sum(axis=1)
            np.minimum(nearest, nearer.min(axis=1), out=nearest)
        found = np.exp(-np.maximum(nearest + self._square, 0) / (2 * self._width**2))
        self._kept[some.tobytes()] = found  # a change asks for it twice, its undoing once more
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return np.asarray(found)

    def _by_classifier(self, groups: Groups) -> Floats:
        rows = np.concatenate([np.empty(0, np.int64), *(_some(each) for _, each in groups.values())])
        labels = [np.full(len(_some(each)), CLASSES.index(symbol)) for symbol, each in groups.values()]
        if not len(rows):
            self._weights[:] = 0
        else:
            known = np.eye(len(CLASSES))[np.concatenate(labels)]
            inputs, offset = self._inputs[rows].astype(np.float64), self._log_model[rows].astype(np.float64)
            self._weights = _fitted(inputs, offset, known, self._weights)
        return _softmax(self._inputs @ self._weights.astype(np.float32) + self._log_model)


def _fitted(inputs: Doubles, offset: Doubles, known: Doubles, start: Doubles) -> Doubles:
    """Return weights of the regression, float64 `[num_inputs, 4]`, by named beats with their classes as 0 and 1."""
    from scipy.optimize import minimize

    def loss(flat: Doubles) -> tuple[float, Doubles]:
        weights = flat.reshape(start.shape)
        probability = _softmax(inputs @ weights + offset)
        likelihood = float(np.log(np.maximum((probability * known).sum(axis=1), 1e-12)).sum())
        gradient = inputs.T @ (probability - known) + HELD * weights
        return 0.5 * HELD * float((weights**2).sum()) - likelihood, gradient.ravel()

    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 40})
    return np.asarray(found.x.reshape(start.shape))


def _softmax(logits: NDArray[np.floating]) -> NDArray[np.floating]:
    # By columns: NumPy reduces rows of four slowly.
    powers = np.exp(logits - reduce(np.maximum, logits.T)[:, None])
    return np.asarray(powers / sum(powers.T)[:, None])


def _some(rows: Rows) -> Rows:
    return rows[:: -(-len(rows) // PROTOTYPES)]


def _usual_distance(features: Floats) -> float:
    some = features[:: max(1, len(features) // 500)]
    square = (some**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square - 2 * some @ some.T, 0)
    return float(np.sqrt(np.median(distance))) if len(some) > 1 else 1.0
