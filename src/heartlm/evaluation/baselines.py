"""The baseline that learns: gradient boosting on hand-made features.

It learns from the training split alone. Boosting is scikit-learn's histogram gradient boosting with fixed, ordinary
settings: no early stopping, since an inner split over shuffled beats would put one patient on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import BEAT_CLASSES, UNLABELLED
from heartlm.errors import HeartlmError, needs

Floats = NDArray[np.float64]
Classes = NDArray[np.int8]


class GradientBoostedBeats:
    """AAMI class of a beat from `heartlm.evaluation.features.beat_features`.

    Classes weigh by the inverse root of their frequency: rare ones are heard, common ones are not drowned.
    """

    def __init__(self, seed: int = 0) -> None:
        self._model = _boosting(seed)

    def fit(self, features: Floats, classes: Classes) -> GradientBoostedBeats:
        """Learn from labelled beats; unlabelled ones are passed over.

        Args:
            features: `[num_beats, num_features]`, NaN where unknown.
            classes: index into `BEAT_CLASSES`, or `UNLABELLED`; int8 `[num_beats]`.

        Raises:
            HeartlmError: nothing is labelled, or all of it with one class.
        """
        labelled = _labelled(classes)
        if len(np.unique(classes[labelled])) < 2:
            name = BEAT_CLASSES[classes[labelled][0]]
            raise HeartlmError(f"the baseline needs beats of two classes to learn from, all are {name}: add recordings")
        self._model.fit(features[labelled], classes[labelled], sample_weight=_weights(classes[labelled]))
        return self

    def predict(self, features: Floats) -> Classes:
        """Return the most likely class of each beat, int8 `[num_beats]`."""
        return np.asarray(self._model.predict(features), np.int8)


class GradientBoostedRhythm:
    """Probability that a window shows the rhythm sought, from `heartlm.evaluation.features.rr_window_features`."""

    def __init__(self, seed: int = 0) -> None:
        self._model = _boosting(seed)

    def fit(self, features: Floats, positive: NDArray[np.bool_]) -> GradientBoostedRhythm:
        """Learn from labelled windows.

        Args:
            features: `[num_windows, num_features]`, NaN where undefined.
            positive: bool `[num_windows]`.

        Raises:
            HeartlmError: all windows have the same label.
        """
        if len(np.unique(positive)) < 2:
            raise HeartlmError("the baseline needs windows with and without the rhythm to learn from: add recordings")
        self._model.fit(features, positive, sample_weight=_weights(positive.astype(np.int8)))
        return self

    def score(self, features: Floats) -> Floats:
        """Return the probability of each window, float64 `[num_windows]`."""
        return np.asarray(self._model.predict_proba(features)[:, 1], np.float64)


def _boosting(seed: int) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise needs("score", "scikit-learn") from None
    return HistGradientBoostingClassifier(
        max_iter=100,
        learning_rate=0.1,
        max_leaf_nodes=15,
        min_samples_leaf=20,
        l2_regularization=1.0,
        max_features=0.3,
        early_stopping=False,
        random_state=seed,
    )


def _labelled(classes: Classes) -> NDArray[np.bool_]:
    labelled: NDArray[np.bool_] = classes != UNLABELLED
    if not labelled.any():
        raise HeartlmError("the baseline needs labelled beats to learn from: none of these is labelled")
    return labelled


def _weights(classes: Classes) -> Floats:
    """Weight of each case: the inverse root of its class's frequency, 1 on average."""
    weights = 1 / np.sqrt(np.bincount(classes))[classes]
    return np.asarray(weights / weights.mean(), np.float64)
