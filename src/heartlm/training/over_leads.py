"""Pretraining over all leads without labels: a window tells the voltages that it does not show.

    window of 6 s ─► gain, noise ─► leads and stretches of time hidden ─► network ─► all voltages ─► those hidden

What can be measured in the recording, such as its mean beat, teaches nothing more (docs/log/statements.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows
from heartlm.errors import HeartlmError
from heartlm.kernels.draws import Use
from heartlm.labels.statements import BATCH, LEARNING_RATE, WINDOW
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.leads import LeadsNetwork
from heartlm.models.sizes import STRIDES
from heartlm.models.store import build_model
from heartlm.tokenizers.leads import PLACES
from heartlm.tokenizers.millivolts import NO_SIGNAL
from heartlm.training.batches import Batch, BatchPosition, CodesForm, HostBatch, MakeBatch
from heartlm.training.config import PretrainConfig
from heartlm.training.job import TrainingTask
from heartlm.training.statements import disturbed_codes, leads_left

_FEW = 0.5
"""Fraction of windows of which only some leads are shown."""
_STRETCHES, _SHORTEST, _LONGEST = 3, 20, 90
"""Most stretches of time that are hidden in a window, and tokens of the shortest and longest."""
_SHOWN_WEIGHT = 0.1
"""Weight of a voltage that is shown."""
_LEAST_MV = 0.03
"""Least spread of a lead by which its voltages are divided."""


def pretraining_over_leads(config: PretrainConfig, corpus: Corpus) -> TrainingTask:
    """Return the pretraining task on a corpus of the leads tokenizer.

    Raises:
        HeartlmError: a setting does not suit the network.
    """
    for name, allowed in {"objective": ("masked",), "depth": (len(STRIDES),)}.items():
        if (found := getattr(config, name)) not in allowed:
            raise HeartlmError(f"{name}: {found} found, {allowed[0]} expected with the tokenizer leads")
    if config.window not in (PretrainConfig.window, WINDOW):
        raise HeartlmError(f"window: {config.window} found, {WINDOW} expected with the tokenizer leads (6 s)")
    torch.manual_seed(config.seed)
    geometry = [torch.from_numpy(coordinates) for coordinates in corpus.tokenizer().geometry()]
    sizes = tuple(map(len, geometry))
    shape = ModelConfig(sizes, config.depth, config.width, dropout=config.dropout, network="leads").resolve()
    batch_size, rate = config.batch_size or BATCH, config.learning_rate or LEARNING_RATE
    return TrainingTask(
        replace(config, window=WINDOW, batch_size=batch_size, learning_rate=rate).sized(shape),
        build_model(shape, geometry),
        ModelInfo(shape, corpus.tokenizer_hash, corpus.tokenizer().kind, config.objective, WINDOW),
        VoltageLoss(),
        corpus.records.select("train"),
        lambda seed: HidingBatches(corpus, seed),
        held_out=corpus.records.select("validation"),
    )


@dataclass(frozen=True)
class HidingBatches(MakeBatch):
    """Batches of windows with hidden leads and stretches of time; the same in each validation.

    Attributes:
        seed: seed of the random numbers.
    """

    can_be_resident = False  # the codes of disturbed windows are made on the host

    corpus: Corpus
    seed: int

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Disturb the windows and choose what is hidden."""
        codes, valid = self.inputs(windows, "int64" if form == "windows" else form)
        array = codes.numpy().astype(np.int64)
        hidden = np.zeros(array.shape, bool)
        for index, window in enumerate(array):
            place = position.first_window + index
            random = np.random.default_rng([self.seed, position.step or 0, Use.STATEMENT_WINDOWS, place])
            hidden[index, :, : len(PLACES)] = hidden_voltages(window, random)
            window[:, : len(PLACES)] = disturbed_codes(window[:, : len(PLACES)], random)
        every = np.ones(len(array), np.int64)
        return HostBatch(torch.from_numpy(array), valid, windows.length, every, torch.from_numpy(hidden))

    def finish(self, draft: HostBatch) -> Batch:
        """Hide the voltages."""
        assert draft.hidden is not None
        shown, target = draft.codes.masked_fill(draft.hidden, NO_SIGNAL), draft.codes[..., : len(PLACES)]
        counts = draft.valid.any(dim=1)
        return Batch(shown, target, counts, draft.valid, draft.num_valid, draft.num_counting, keys=draft.keys)


def hidden_voltages(codes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.bool_]:
    """Return the voltages of a window `[T, F]` to hide, bool `[T, P]`: of some leads all, of others some stretches."""
    present = np.flatnonzero((codes[:, : len(PLACES)] != NO_SIGNAL).any(axis=0))
    hidden = np.ones((len(codes), len(PLACES)), bool)
    if len(present):
        hidden[:, leads_left(present, _FEW, random)[0]] = False
    for _ in range(random.integers(1, _STRETCHES + 1)):
        first = random.integers(0, max(1, len(codes) - _LONGEST))
        hidden[first : first + random.integers(_SHORTEST, _LONGEST)] = True
    return hidden


class VoltageLoss(nn.Module):
    """Smooth absolute error of the voltages over the spread of their lead, most of all of hidden ones."""

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        assert isinstance(model, LeadsNetwork)
        voltages = model.voltages(batch.codes, None if batch.all_valid else batch.valid)
        known = (batch.target != NO_SIGNAL) & batch.valid[..., None]
        mv = torch.where(known, model.embedding.get_buffer("places_0")[:, 0][batch.target], 0)
        spread = (mv.square().sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)).sqrt()
        weight = known * torch.where(batch.codes[..., : model.num_places] == NO_SIGNAL, 1.0, _SHOWN_WEIGHT)
        error = F.smooth_l1_loss(voltages.float(), mv / spread.clamp(min=_LEAST_MV), reduction="none") * weight
        return (error.sum(dim=(1, 2)) / weight.sum(dim=(1, 2)).clamp(min=1)).sum(), {}
