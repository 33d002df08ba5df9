"""The baseline that learns: gradient boosting on hand-made features.

It learns from the training split alone. Boosting is scikit-learn's histogram gradient boosting with fixed, ordinary
settings: no early stopping, since an inner split over shuffled beats would put one patient on both sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import UNLABELLED
from heartlm.errors import HeartlmError, needs

Floats = NDArray[np.float64]


class GradientBoosting:
    """Class of a beat, or whether a window shows a rhythm, from the features of `heartlm.evaluation.features`.

    Classes weigh by the inverse root of their frequency, so that rare ones count and common ones still count more.
    """

    def __init__(self, seed: int = 0) -> None:
        with needs("score"):
            from sklearn.ensemble import HistGradientBoostingClassifier
        self._model = HistGradientBoostingClassifier(
            max_iter=100,
            learning_rate=0.1,
            max_leaf_nodes=15,
            min_samples_leaf=20,
            l2_regularization=1.0,
            max_features=0.3,
            early_stopping=False,
            random_state=seed,
        )

    def fit(self, features: Floats, classes: NDArray[np.int8]) -> GradientBoosting:
        """Learn from labelled cases; unlabelled ones are skipped.

        Args:
            features: `[num_cases, num_features]`, NaN where unknown.
            classes: class of each case, 0 or more, or `UNLABELLED`; int8 `[num_cases]`.

        Raises:
            HeartlmError: there are fewer than two classes to learn from.
        """
        labelled = classes != UNLABELLED
        known = classes[labelled]
        if (num_classes := len(np.unique(known))) < 2:
            raise HeartlmError(
                f"the baseline: {num_classes} classes to learn from, at least 2 expected: add recordings"
            )
        weights = 1 / np.sqrt(np.bincount(known))[known]
        self._model.fit(features[labelled], known, sample_weight=weights / weights.mean())
        return self

    def predict(self, features: Floats) -> NDArray[np.int8]:
        """Return the most likely class of each case, int8 `[num_cases]`."""
        return np.asarray(self._model.predict(features), np.int8)

    def score(self, features: Floats) -> Floats:
        """Return the probability of class 1 where there are classes 0 and 1, float64 `[num_cases]`."""
        return np.asarray(self._model.predict_proba(features)[:, 1], np.float64)
