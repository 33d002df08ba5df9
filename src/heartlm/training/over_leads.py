"""Pretraining over all leads without labels: a window tells the voltages it does not show and what was measured.

    window of 6 s ─► leads and stretches of time hidden ─► network ─┬► voltages of all leads ─► those that were hidden
    recording ─► summary of its beats (`beat_summary`)              └► measures of the whole recording

Measures are the main parts of the mean beat of twelve leads, the intervals, and how beats differ. Each alone teaches
less than both (docs/log/statements.md).
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
from heartlm.inference.beat_summary import NUM_OF_SHAPE, beat_summary
from heartlm.kernels.draws import Use
from heartlm.labels.statements import BATCH, LEARNING_RATE, WINDOW
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.leads import NUM_MEASURES, STRIDES, LeadsNetwork
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
_MAIN_PARTS, _LIMIT = 64, 6.0
"""Parts of the mean beat, and the largest measure."""
_MEASURES_WEIGHT = 2.0


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
        ExpectedLoss(torch.from_numpy(measures_of(corpus))),
        corpus.records.select("train"),
        lambda seed: HidingBatches(corpus, seed),
        held_out=corpus.records.select("validation"),
    )


def measures_of(corpus: Corpus) -> NDArray[np.float32]:
    """Return measures of each recording, `[num_rows, NUM_MEASURES]`, NaN of one without I, II or a chest lead.

    They have mean 0 in the training split, and spread 1: each, or all main parts of the mean beat together.
    """
    measures = np.full((len(corpus.records), NUM_MEASURES), np.nan, np.float32)
    summaries = [beat_summary(corpus.codes[corpus.tokens_of(row)]) for row in range(len(measures))]
    rows = np.array([row for row, summary in enumerate(summaries) if summary is not None], np.int64)
    training = np.isin(rows, corpus.records.select("train"))
    if not training.any():
        return measures
    found = np.stack([summary for summary in summaries if summary is not None]).astype(np.float64)
    found -= found[training].mean(axis=0)
    shape, rest = found[:, :NUM_OF_SHAPE], found[:, NUM_OF_SHAPE:]
    _, sizes, parts = np.linalg.svd(shape[training], full_matrices=False)
    main = np.zeros((len(found), _MAIN_PARTS))
    # Softly whitened, so that the first parts, which are the largest, count more than the last.
    largest = (shape @ parts.T / np.maximum(sizes, 1e-6) ** 0.75)[:, :_MAIN_PARTS]
    main[:, : largest.shape[1]] = largest / max(float(largest[training].std()), 1e-6)
    every = np.concatenate([main, rest / np.maximum(rest[training].std(axis=0), 1e-6)], axis=1)
    measures[rows] = every.clip(-_LIMIT, _LIMIT)
    return measures


@dataclass(frozen=True)
class HidingBatches(MakeBatch):
    """Batches of windows with hidden leads and stretches of time; the same in each validation.

    The target of a window is the row of its recording, then its voltages, int64 `[B, 1 + T × P]`.

    Attributes:
        seed: seed of the random numbers.
    """

    can_be_resident = False  # the codes of disturbed windows are made on the host

    corpus: Corpus
    seed: int

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Disturb the windows and choose what is hidden."""
        rows = np.searchsorted(self.corpus.records.first_token, windows.first, side="right") - 1
        codes, valid = self.inputs(windows, "int64" if form == "windows" else form)
        array = codes.numpy().astype(np.int64)
        hidden = np.zeros(array.shape, bool)
        for index, window in enumerate(array):
            place = position.first_window + index
            random = np.random.default_rng([self.seed, position.step or 0, Use.STATEMENT_WINDOWS, place])
            hidden[index, :, : len(PLACES)] = hidden_voltages(window, random)
            window[:, : len(PLACES)] = disturbed_codes(window[:, : len(PLACES)], random)
        every = np.ones(len(array), np.int64)
        return HostBatch(
            torch.from_numpy(array), valid, windows.length, every, torch.from_numpy(hidden), torch.from_numpy(rows)
        )

    def finish(self, draft: HostBatch) -> Batch:
        """Hide the voltages."""
        codes, rows, hidden = draft.codes, draft.labels, draft.hidden
        assert rows is not None
        assert hidden is not None
        target = torch.cat([rows[:, None], codes[..., : len(PLACES)].flatten(1)], dim=1)
        shown = codes.masked_fill(hidden, NO_SIGNAL)
        counts = torch.ones_like(rows, dtype=torch.bool)
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


class ExpectedLoss(nn.Module):
    """Smooth absolute error of the voltages, most of all of hidden ones, and of the measures.

    Args:
        measures: of each row of the corpus, float32 `[num_rows, NUM_MEASURES]`, NaN where not known.
    """

    measures: Tensor

    def __init__(self, measures: Tensor) -> None:
        super().__init__()
        self.register_buffer("measures", measures)

    def forward(self, model: HeartModel, batch: Batch, keys: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the loss of `batch`."""
        assert isinstance(model, LeadsNetwork)
        measures, voltages = model.expected(batch.codes, None if batch.all_valid else batch.valid)
        codes = batch.target[:, 1:].view_as(voltages)
        known = (codes != NO_SIGNAL) & batch.valid[..., None]
        mv = torch.where(known, model.embedding.get_buffer("places_0")[:, 0][codes], 0)
        spread = (mv.square().sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)).sqrt()
        weight = known * torch.where(batch.codes[..., : model.num_places] == NO_SIGNAL, 1.0, _SHOWN_WEIGHT)
        error = F.smooth_l1_loss(voltages.float(), mv / spread.clamp(min=_LEAST_MV), reduction="none") * weight
        of_voltages = (error.sum(dim=(1, 2)) / weight.sum(dim=(1, 2)).clamp(min=1)).sum()
        target = self.measures[batch.target[:, 0]]
        is_known = target.isfinite()
        off = F.smooth_l1_loss(measures.float(), target.nan_to_num(), reduction="none") * is_known
        of_measures = off.sum() / NUM_MEASURES
        parts = {"voltages": of_voltages.detach(), "measures": of_measures.detach()}
        return of_voltages + _MEASURES_WEIGHT * of_measures, parts
