"""Atrial fibrillation in a short recording of one lead: by RR intervals, P waves and signal quality together.

In half a minute irregular RR intervals alone do not distinguish AF from ectopic beats or missed ones. The weights are
those of a logistic regression, which `recipes/short_af.py` fits on recordings of CinC 2017 and writes to
`short_af.json`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.delineate import Delineation, P
from heartlm.storage.reading import read_json

LONGEST_S = 120.0
"""Longest recording that is judged as a whole; those of the regression have 9 to 61 s."""
MEASURES = "log odds of RR", "confidence of P", "quality"
AF_BY_RR = "AF by RR"
"""Name of what RR intervals alone tell, 1 for AF, which stands with the measures in `Findings.short_af`."""
WEIGHTS = read_json(Path(__file__).with_suffix(".json"), dict[str, float])
"""Weight of each of `MEASURES` in log odds; `offset`; and `threshold`, the log odds from which on there is AF."""
_MOST_LOG_ODDS = 5.0


def measures(
    delineation: Delineation, af_probability: NDArray[np.float64], quality: NDArray[np.float32]
) -> dict[str, float]:
    """Return the value of each of `MEASURES`.

    Args:
        delineation: waves of the lead, of at most `LONGEST_S`.
        af_probability: what the AF model gives for each beat of readable stretches, float64 `[num_examined]`, not
            empty.
        quality: signal quality of each piece, float32 `[num_pieces]`.
    """
    probability = np.clip(af_probability, 1e-9, 1 - 1e-9)
    odds = np.clip(np.log(probability / (1 - probability)), -_MOST_LOG_ODDS, _MOST_LOG_ODDS)
    confidence = delineation.confidence[:, 0, P]  # 0 where a beat has no P wave
    return dict(zip(MEASURES, (float(each.mean()) for each in (odds, confidence, quality)), strict=True))


def log_odds(measured: dict[str, float]) -> float:
    """Return the log odds of AF by the measures of a recording."""
    return WEIGHTS["offset"] + sum(WEIGHTS[name] * measured[name] for name in MEASURES)
