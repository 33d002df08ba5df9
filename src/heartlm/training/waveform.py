"""The waveform task: classify windows of four seconds, which need not contain beats.

    rhythms, V beats ─► class of every token ─► spans of one class ─► windows balanced over classes and patients
                                                             augmented windows (waveform_batches) ─► network ─► loss

Sources of the labels:

- VF: bracketed fibrillation, and rhythms annotated as VFL or VFIB.
- VT: rhythms annotated as VT, and runs of three or more V beats at 100/min or faster. cudb does not annotate VT, so
  time outside of its brackets is labelled "not VF".
- Noise: annotated noise, the electrode noise of nstdb and the noisy recordings of cinc2017.
- Asystole: annotated in vfdb only, so most of it is simulated: see `waveform_batches`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import RandomSampler
from heartlm.ecg.databases_known import KNOWN_DATABASES
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX, UNLABELLED
from heartlm.errors import HeartlmError
from heartlm.models.heart import HeartModel
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.training.batches import IGNORE, Batch
from heartlm.training.config import WAVEFORM_WINDOW

Labels = NDArray[np.int8]

CLASSES: tuple[str, ...] = ("other", "VT", "VF", "asystole", "noise")
"""Classes of a window; VF includes ventricular flutter."""
OTHER, VT, VF, ASYSTOLE, NOISE = range(5)
NOT_VF = 5
"""Label of time in which only fibrillation was annotated: any class but VF."""

WINDOW_S, STRIDE_S = 4.0, 1.0
WINDOW, STRIDE = WAVEFORM_WINDOW, round(STRIDE_S * GRID_HZ)
"""Tokens per window, and tokens between the starts of successive windows."""

BEFORE_BRACKET_S = 10.0
"""Time before fibrillation that is ignored if only fibrillation is annotated, since it is often tachycardia."""
SHORTEST_RUN, LONGEST_RR_S = 3, 0.6
"""Minimum number of V beats in a run that counts as VT, and their maximum median interval (100/min)."""

_CLASS_OF_RHYTHM = np.full(len(RHYTHM_INDEX) + 1, OTHER, np.int8)
for _name, _class in {"VT": VT, "VFL": VF, "VFIB": VF, "ASYS": ASYSTOLE, "NOISE": NOISE}.items():
    _CLASS_OF_RHYTHM[RHYTHM_INDEX[_name]] = _class
_CLASS_OF_RHYTHM[UNLABELLED] = IGNORE


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
    place = np.flatnonzero(beat_class != UNLABELLED)
    is_v = beat_class[place] == BEAT_CLASSES.index("V")
    if len(place) and (rhythm == UNLABELLED).all():
        classes[:] = OTHER  # every beat is annotated, so VT appears as runs of V beats
    for first, stop in runs_of(is_v):
        run = place[first:stop]
        if len(run) >= SHORTEST_RUN and np.median(np.diff(run)) <= LONGEST_RR_S * GRID_HZ:
            during = classes[max(0, run[0] - round(0.1 * GRID_HZ)) : run[-1] + round(0.3 * GRID_HZ)]
            during[during == OTHER] = VT
    return classes


def runs_of(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and stop of each run of true flags."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def corpus_classes(corpus: Corpus) -> NDArray[np.int64]:
    """Return `token_classes` of every lead of `corpus`, int64 `[num_tokens]`."""
    classes = np.empty(len(corpus.labels), np.int64)
    for row, database in enumerate(corpus.records.database.tolist()):
        tokens = corpus.tokens_of(row)
        classes[tokens] = token_classes(database, corpus.beat_class[tokens], corpus.rhythm[tokens])
    return classes


_SHARES = {OTHER: 0.20, NOT_VF: 0.25, VT: 0.10, VF: 0.32, ASYSTOLE: 0.03, NOISE: 0.10}
"""Relative sampling frequency of each class, over the classes in the corpus."""
_PRIOR = 0.2
"""Prior weight of each class except `OTHER` in windows labelled `NOT_VF`."""


def balanced_windows(
    corpus: Corpus, rows: NDArray[np.int64], classes: NDArray[np.int64], batch_size: int, seed: int
) -> RandomSampler:
    """Return a sampler of windows of a single class.

    Classes have fixed frequencies. Within a class, the frequency of a database or patient is proportional to the
    square root of its duration.

    Raises:
        HeartlmError: the training split has no fibrillation, or only fibrillation.
    """
    first, length, label, patients, databases = [], [], [], [], []
    for row in rows.tolist():
        begin = int(corpus.records.first_token[row])
        of_row = classes[corpus.tokens_of(row)]
        edges = np.flatnonzero(np.diff(of_row, prepend=-2, append=-2))
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if of_row[start] != IGNORE and stop - start >= WINDOW:
                first.append(begin + start)
                length.append(stop - start)
                label.append(int(of_row[start]))
                patients.append(str(corpus.records.patient_id[row]))
                databases.append(str(corpus.records.database[row]))
    found = set(label)
    if VF not in found or not found & {OTHER, NOT_VF}:
        lacking = "ventricular fibrillation or flutter" if VF not in found else "other rhythms"
        raise HeartlmError(
            f"{corpus.folder}: no {lacking} of {WINDOW_S:g} s in the training split, so the task waveform has nothing "
            "to learn from: tokenize a database with them, such as cudb or vfdb, too"
        )
    places, span = np.array(length, np.float64) - WINDOW + 1, np.array(label)
    probability = np.zeros(len(span))
    for each in found:
        own = span == each
        patient, database = (np.unique(np.array(names)[own], return_inverse=True)[1] for names in (patients, databases))
        drawn = places[own] / np.sqrt(np.bincount(patient, places[own]))[patient]
        shares = np.sqrt(np.bincount(database, places[own])) / np.bincount(database, drawn)
        probability[own] = drawn * shares[database] / (drawn * shares[database]).sum() * _SHARES[each]
    return RandomSampler(
        np.array(first, np.int64), np.array(length, np.int64), WINDOW, batch_size, seed, probability / probability.sum()
    )


class WaveformLoss(nn.Module):
    """Cross-entropy of the class; for `NOT_VF`, of the prior-weighted sum over all classes except VF."""

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        known = model.class_logits(batch.codes, None, keys).float().log_softmax(dim=-1)
        weight = torch.full_like(known[0], math.log(_PRIOR))
        weight[OTHER], weight[VF] = 0, -math.inf
        not_vf = (known + weight).logsumexp(dim=1, keepdim=True)
        return F.nll_loss(torch.cat([known, not_vf], dim=1), batch.target, ignore_index=IGNORE, reduction="sum"), {}
