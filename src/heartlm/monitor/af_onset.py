"""The onset of atrial fibrillation: the log odds of AF at each beat, which the rules of a lead add up.

A window of many beats shows AF late, because most of it is sinus rhythm when AF begins. Each beat is therefore judged
by itself:

last six intervals, P wave, classes of the last three beats ─► levels ─► a row of `table` each, summed ─┐
last hidden state of the model of beats ─► a matrix ───────────────────────────────────────────────────┴► log odds
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from heartlm.kernels.library import kernel, structure
from heartlm.models.pretrained import FOLDER

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

NUM_INTERVALS = 6
"""RR intervals that end at a beat and decide on it."""
CODES = "p_correlation", "p_difference", "p_correlation_near", "p_consistency", "p_correlation_usual", "qrs_correlation"
"""Facets of a beat token that decide on its beat."""
CLASSES, NUM_CLASSIFIED = ("S", "V"), 3
"""Beat classes whose probabilities decide, and the number of last beats whose classes do: ectopic beats are early."""
_SHORTEST_S, _LONGEST_S, _NUM_OF_INTERVALS = 0.2, 4.0, 19


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


class AfMeasures:
    """Measures beats of live leads: `interval_measures`, codes of `CODES`, and probabilities of `CLASSES`.

    Args:
        facets: indices of `CODES` in a token.
        classes: indices of `CLASSES` in the answers of the model of beats.

    Attributes:
        num_bytes: size in bytes of the history of a lead, which is zero at the start. Its first number, int64, is set
            to zero where no interval reaches across a gap.
    """

    num_bytes = ctypes.sizeof(structure("history"))

    def __init__(self, facets: list[int], classes: list[int]) -> None:
        self._facets, self._classes = np.array(facets), np.array(classes)
        self._num_measures = _NUM_OF_INTERVALS + len(facets) + NUM_CLASSIFIED * len(classes)
        self._run = kernel("live_af_measures")

    def take(
        self,
        histories: NDArray[np.int64],
        samples: NDArray[np.int64],
        rates_hz: Doubles,
        answers: Floats,
        codes: NDArray[np.uint16],
        faint: NDArray[np.bool_],
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Add the next beat of each lead to its history, and measure it.

        Args:
            histories: address of the history of each lead, `[num_leads]`.
            samples: sample position of each beat.
            rates_hz: sampling rate of each lead in Hz.
            answers: class probabilities, `[num_leads, num_classes]`.
            codes: tokens, `[num_leads, num_facets]`.
            faint: beats that do not count.

        Returns:
            The measures, float32 `[num_leads, num_measures]`, and whether each beat has enough beats before it; the
            measures of the others are undefined.
        """
        num = len(histories)
        measures, known = np.empty((num, self._num_measures), np.float32), np.empty(num, np.bool_)
        assert len(samples) == len(rates_hz) == len(answers) == len(codes) == len(faint) == num
        self._run(
            *(histories, samples, rates_hz, answers, answers.shape[1], self._classes, codes, codes.shape[1]),
            *(self._facets, len(self._facets), faint, num, measures, known),
        )
        return measures, known


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
        self._scratch, self._run = np.empty(len(self.bias), np.float32), kernel("live_af_odds")

    def judge(self, measures: Floats, states: Floats) -> Doubles:
        """Return the log odds of AF of each beat, with AF as frequent as not; float64 `[num_beats]`.

        A beat's result does not depend on the others, to the last bit.

        Args:
            measures: as `AfMeasures` gives them, float32 `[num_beats, num_measures]`; NaN where unknown.
            states: hidden states times `of_state`, float32 `[num_beats, num_hidden]`.
        """
        odds = np.empty(len(measures))
        assert measures.shape == (len(states), len(self.edges)) and states.shape[1] == len(self.bias)
        self._run(
            *(measures, len(self.edges), states, self.edges, self.edges.shape[1], self.table, self.bias, self.weight),
            *(len(self.bias), self.offset, len(measures), self._scratch, odds),
        )
        return odds
