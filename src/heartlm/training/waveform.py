"""Training of the waveform task: windows balanced over classes and patients, and the loss.

class of every token (labels.waveform) ─► spans of one class ─► windows balanced over classes and patients
                                               augmented windows (waveform_batches) ─► network ─► loss
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
from heartlm.errors import HeartlmError
from heartlm.labels.tokens import IGNORE
from heartlm.labels.waveform import ASYSTOLE, NOISE, NOT_VF, OTHER, VF, VT, WINDOW, WINDOW_S
from heartlm.models.heart import HeartModel
from heartlm.training.batches import Batch

# Relative sampling frequency of each class, over the classes in the corpus.
_SHARES = {OTHER: 0.20, NOT_VF: 0.25, VT: 0.10, VF: 0.32, ASYSTOLE: 0.03, NOISE: 0.10}
# Prior weight of each class except `OTHER` in windows labelled `NOT_VF`.
_PRIOR = 0.2


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
        row_classes = classes[corpus.tokens_of(row)]
        edges = np.flatnonzero(np.diff(row_classes, prepend=-2, append=-2))
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if row_classes[start] != IGNORE and stop - start >= WINDOW:
                first.append(begin + start)
                length.append(stop - start)
                label.append(int(row_classes[start]))
                patients.append(str(corpus.records.patient_id[row]))
                databases.append(str(corpus.records.database[row]))
    labels = set(label)
    if VF not in labels or not labels & {OTHER, NOT_VF}:
        lacking = "ventricular fibrillation or flutter" if VF not in labels else "other rhythms"
        raise HeartlmError(
            f"{corpus.folder}: no {lacking} of {WINDOW_S:g} s in the training split, so the task waveform has nothing "
            "to learn from: tokenize a database with them, such as cudb or vfdb, too"
        )
    num_starts, span = np.array(length, np.float64) - WINDOW + 1, np.array(label)
    probability = np.zeros(len(span))
    for each in labels:
        own = span == each
        patient, database = (np.unique(np.array(names)[own], return_inverse=True)[1] for names in (patients, databases))
        drawn = num_starts[own] / np.sqrt(np.bincount(patient, num_starts[own]))[patient]
        shares = np.sqrt(np.bincount(database, num_starts[own])) / np.bincount(database, drawn)
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
