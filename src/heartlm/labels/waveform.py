"""Labels of the waveform task: the class of windows of four seconds, which need not contain beats.

Sources of the labels:

- VF: bracketed fibrillation, and rhythms annotated as VFL or VFIB.
- VT: rhythms annotated as VT, and runs of three or more V beats at 100/min or faster. cudb does not annotate VT, so
  time outside of its brackets is labelled "not VF".
- Noise: annotated noise, the electrode noise of nstdb and the noisy recordings of cinc2017.
- Asystole: annotated in vfdb only, so most of it is simulated: see `waveform_batches`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.databases.known import KNOWN_DATABASES
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX, UNLABELLED
from heartlm.ecg.spans import runs
from heartlm.labels.tokens import IGNORE
from heartlm.tokenizers.sample import GRID_HZ

Labels = NDArray[np.int8]

CLASSES: tuple[str, ...] = ("other", "VT", "VF", "asystole", "noise")
"""Classes of a window; VF includes ventricular flutter."""
OTHER, VT, VF, ASYSTOLE, NOISE = range(5)
NOT_VF = 5
"""Label of time in which only fibrillation was annotated: any class but VF."""

WINDOW_S, STRIDE_S = 4.0, 1.0
WINDOW, STRIDE = round(WINDOW_S * GRID_HZ), round(STRIDE_S * GRID_HZ)
"""Tokens per window, and tokens between the starts of successive windows."""

BEFORE_BRACKET_S = 10.0
"""Time before fibrillation that is ignored if only fibrillation is annotated, since it is often tachycardia."""
SHORTEST_RUN, LONGEST_RR_S = 3, 0.6
"""Minimum number of V beats in a run that counts as VT, and their maximum median interval (100/min)."""

_CLASS_OF_RHYTHM = np.full(len(RHYTHM_INDEX) + 1, OTHER, np.int8)
for _name, _class in {"VT": VT, "VFL": VF, "VFIB": VF, "ASYS": ASYSTOLE, "NOISE": NOISE}.items():
    _CLASS_OF_RHYTHM[RHYTHM_INDEX[_name]] = _class
_CLASS_OF_RHYTHM[UNLABELLED] = IGNORE  # -1, the added last entry


def token_classes(database: str, beat_class: Labels, rhythm: Labels) -> Labels:
    """Return the class of every token of one lead, `NOT_VF`, or −1 if unknown; int8 `[num_tokens]`.

    Args:
        database: name in the catalogue, which records whether rhythms other than fibrillation are annotated.
        beat_class: class of the beat in each token, −1 without a beat.
        rhythm: rhythm index of each token, −1 if unlabelled.
    """
    classes = _CLASS_OF_RHYTHM[rhythm]
    known = KNOWN_DATABASES.get(database)
    if known is not None and known.bracketed_rhythm is not None:
        classes[classes == IGNORE] = NOT_VF
        classes[classes == OTHER] = NOT_VF
        for onset in np.flatnonzero(np.diff((classes == VF).astype(np.int8), prepend=0) == 1).tolist():
            before = classes[max(0, onset - round(BEFORE_BRACKET_S * GRID_HZ)) : onset]
            before[before != VF] = IGNORE
    labelled_at = np.flatnonzero(beat_class != UNLABELLED)
    is_v = beat_class[labelled_at] == BEAT_CLASSES.index("V")
    if len(labelled_at) and (rhythm == UNLABELLED).all():
        classes[:] = OTHER  # every beat is annotated, so VT appears as runs of V beats
    for first, stop in runs(is_v).tolist():
        run = labelled_at[first:stop]
        if len(run) >= SHORTEST_RUN and np.median(np.diff(run)) <= LONGEST_RR_S * GRID_HZ:
            during = classes[max(0, run[0] - round(0.1 * GRID_HZ)) : run[-1] + round(0.3 * GRID_HZ)]
            during[during == OTHER] = VT
    return classes


def corpus_classes(corpus: Corpus) -> NDArray[np.int64]:
    """Return `token_classes` of every lead of `corpus`, int64 `[num_tokens]`."""
    classes = np.empty(len(corpus.labels), np.int64)
    for row, database in enumerate(corpus.records.database.tolist()):
        tokens = corpus.tokens_of(row)
        classes[tokens] = token_classes(database, corpus.beat_class[tokens], corpus.rhythm[tokens])
    return classes
