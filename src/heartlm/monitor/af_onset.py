"""The onset of atrial fibrillation: the log odds of AF at each beat, which the rules of a lead add up.

A window of many beats shows AF late, because most of it is sinus rhythm when AF begins. Each beat is therefore judged
by itself:

last six intervals, P wave, classes of the last three beats ─► levels ─► a row of `table` each, summed ─┐
last hidden state of the model of beats ─► a matrix ───────────────────────────────────────────────────┴► log odds
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from heartlm.models.pretrained import FOLDER

Doubles = NDArray[np.float64]

NUM_INTERVALS = 6
"""RR intervals that end at a beat and decide on it."""
CODES = "p_correlation", "p_difference", "p_correlation_near", "p_consistency", "p_correlation_usual", "qrs_correlation"
"""Facets of a beat token that decide on its beat."""
CLASSES, NUM_CLASSIFIED = ("S", "V"), 3
"""Beat classes whose probabilities decide, and the number of last beats whose classes do: ectopic beats are early."""
_SHORTEST_S, _LONGEST_S = 0.2, 4.0
_ROWS = 256
"""Beats that are judged together: their rows fit into the cache of a core."""


def interval_measures(rr_s: Doubles) -> Doubles:
    """Return the measures of the last RR intervals, float64 `[num_beats, 19]`.

    They are the logarithms of the last interval and of the median; the distances of the last interval from the five
    before, by time and by size; the changes from interval to interval, the last one first; the distance of the mean of
    the last two from the median, which a compensatory pause leaves alone; and the median change.

    Args:
        rr_s: intervals in seconds, the last one last, `[num_beats, NUM_INTERVALS]`.
    """
    log = np.log(np.clip(rr_s, _SHORTEST_S, _LONGEST_S))
    median, changes = np.median(log, axis=1), np.diff(log, axis=1)
    distances = np.abs(log[:, -1:] - log[:, :-1])
    single = log[:, -1], median, (log[:, -1] + log[:, -2]) / 2 - median, np.median(np.abs(changes), axis=1)
    return np.column_stack([*single[:2], distances[:, ::-1], np.sort(distances), changes[:, ::-1], *single[2:]])


class AfOnset:
    """The network that judges beats.

    Args:
        path: file of its tensors.

    Attributes:
        edges: lower edges of the levels of each measure, float32 `[num_measures, num_edges]`; level 0 means unknown.
        table: float32 `[num_measures, num_edges + 2, num_hidden]`.
        of_state: matrix by which `heartlm.monitor.models.BeatsKernel` multiplies hidden states, `[num_hidden, width]`.
        bias: float32 `[num_hidden]`; `weight` likewise, and `offset` is a number.
    """

    def __init__(self, path: Path = FOLDER / "af-onset/model.safetensors") -> None:
        tensors = {name: value.astype(np.float32) for name, value in load_file(path).items()}
        self.edges, self.table, self.bias = tensors["edges"], tensors["table"], tensors["bias"]
        self.weight, self.offset = tensors["weight"], float(tensors["offset"][0])
        self.of_state = tensors["of_state"]
        self._measures = np.arange(len(self.edges))

    def judge(self, measures: Doubles, states: NDArray[np.float32]) -> Doubles:
        """Return the log odds of AF of each beat, with AF as frequent as not; float64 `[num_beats]`.

        A beat's result does not depend on the others, to the last bit.

        Args:
            measures: `interval_measures`, codes of `CODES`, probabilities of `CLASSES` of the last beats, the last one
                first; NaN where unknown, `[num_beats, num_measures]`.
            states: hidden states times `of_state`, `[num_beats, num_hidden]`.
        """
        odds = np.empty(len(measures))
        for first in range(0, len(measures), _ROWS):
            rows = measures[first : first + _ROWS].astype(np.float32)
            levels = np.where(np.isnan(rows), 0, 1 + (rows[..., None] >= self.edges).sum(axis=-1))
            hidden = self.table[self._measures, levels].sum(axis=1) + self.bias
            hidden = np.maximum(hidden + states[first : first + _ROWS], 0)
            odds[first : first + _ROWS] = (hidden * self.weight).sum(axis=1) + self.offset
        return odds
