"""Training of the statements task: windows of all leads with several labels, augmented, and the loss.

leads of a recording ─► some left out, some without a direction ─► gain, noise ─► codes ─► network ─► loss
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows
from heartlm.kernels.draws import Use
from heartlm.labels.tokens import IGNORE
from heartlm.models.heart import HeartModel
from heartlm.models.leads import LeadsNetwork
from heartlm.tokenizers.leads import NUM_KNOWN, PLACES
from heartlm.tokenizers.millivolts import NO_SIGNAL, dequantize, quantize
from heartlm.training.batches import Batch, BatchPosition, CodesForm, HostBatch, LabelledWindows
from heartlm.training.objectives import WeightedLoss, padding

# Standard deviation of the gain of a recording and of each lead; largest standard deviation of noise in mV.
_GAIN, _LEAD_GAIN, _NOISE_MV = 0.15, 0.1, 0.02
# Fraction of leads left out; fraction of windows of which only some leads remain, and of these without directions.
_LEFT_OUT, _FEW, _UNKNOWN = 0.1, 0.3, 0.15
_SMOOTHED = 0.01
"""Label smoothing: reports are wrong now and then."""


@dataclass(frozen=True)
class StatementBatches(LabelledWindows):
    """Batches of windows with the statements about their recording; augmented in training.

    Attributes:
        labels: statements about each row of the corpus, int64 `[num_rows, num_statements]`: 1, 0, −1 if not known.
        seed: seed of the random numbers.
    """

    corpus: Corpus
    labels: NDArray[np.int64]
    seed: int

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Look up the statements; in training compute the codes of the augmented windows."""
        row = np.searchsorted(self.corpus.records.first_token, windows.first, side="right") - 1
        labels = self.labels[row]
        codes, valid = self.inputs(windows, "int64" if form == "windows" else form)
        if position.step is not None:
            array = codes.numpy().astype(np.int64)
            for index, window in enumerate(array):
                place = position.first_window + index
                random = np.random.default_rng([self.seed, position.step, Use.STATEMENT_WINDOWS, place])
                array[index] = augmented(window, random)
            codes = torch.from_numpy(array)
        num_counting = (labels != IGNORE).any(axis=1).astype(np.int64)
        return HostBatch(codes, valid, windows.length, num_counting, labels=torch.from_numpy(labels))


def augmented(codes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Return a window `[T, F]` with other gains and noise, without some of its leads, at times without directions."""
    num_places = len(PLACES)
    present = np.flatnonzero((codes[:, :num_places] != NO_SIGNAL).any(axis=0))
    if not len(present):
        return codes
    kept, is_few = leads_left(present, _FEW, random)
    disturbed = disturbed_codes(codes[:, kept], random)
    if is_few and random.random() < _UNKNOWN:
        chosen = random.permutation(len(kept))[: num_places - NUM_KNOWN]
        disturbed, kept = disturbed[:, chosen], NUM_KNOWN + np.arange(len(chosen))
    changed = np.full_like(codes, NO_SIGNAL)
    changed[:, kept] = disturbed
    changed[:, num_places:] = codes[:, num_places:]
    return changed


def leads_left(
    present: NDArray[np.int64], share_few: float, random: np.random.Generator
) -> tuple[NDArray[np.int64], bool]:
    """Return those of the places `present` that a network is shown, and whether only a few may be."""
    kept = present[random.random(len(present)) >= _LEFT_OUT]
    is_few = bool(random.random() < share_few)
    if is_few or not len(kept):
        kept = np.sort(random.permutation(present)[: random.integers(1, len(present) + 1)])
    return kept, is_few


def disturbed_codes(codes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Return codes of some leads `[T, num_leads]` with other gains and noise."""
    mv = dequantize(codes.astype(np.uint16)).astype(np.float64)
    mv *= (1 + _GAIN * random.standard_normal()) * (1 + _LEAD_GAIN * random.standard_normal(codes.shape[1]))
    mv += _NOISE_MV * random.random() * random.standard_normal(mv.shape)
    return np.where(codes == NO_SIGNAL, NO_SIGNAL, quantize(mv.astype(np.float32)))


class StatementLoss(WeightedLoss):
    """Binary cross-entropy of the known statements, averaged over members and statements.

    Args:
        weight: weight of present statements, float32 `[num_statements]`.
    """

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        assert isinstance(model, LeadsNetwork)
        logits = model.member_logits(batch.codes, padding(batch), keys).float()
        known = (batch.target != IGNORE)[:, None]
        target = (batch.target.clamp(min=0) * (1 - 2 * _SMOOTHED) + _SMOOTHED)[:, None].expand_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=self.weight)
        return (loss * known).sum() / logits[0].numel(), {}
