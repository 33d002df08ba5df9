"""Corpora in memory, for training: two facets, codes that follow from the one before, labels that follow from codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.rows import RecordTable
from heartlm.corpus.schema import LeadRow
from heartlm.corpus.windows import Windows, covering_windows, sampler
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.store import build_model
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import TrainingConfig
from heartlm.training.job import Job, TrainingTask

SIZES = (8, 4)
"""Codes of each facet."""


def synthetic_corpus(lengths: tuple[int, ...] = (400, 300, 7), seed: int = 0) -> Corpus:
    """One training recording a length: facet 0 counts up, with one step in eight random; facet 1 is its half."""
    random = np.random.default_rng(seed)
    num_tokens = sum(lengths)
    steps = np.where(random.random(num_tokens) < 0.125, random.integers(0, SIZES[0], num_tokens), 1)
    first = np.cumsum(steps) % SIZES[0]
    codes = np.stack([first, first // 2], axis=1).astype(np.uint16)
    labels = np.stack([(first // 2).astype(np.int8), np.zeros(num_tokens, np.int8)], axis=1)
    begins = np.cumsum((0, *lengths[:-1])).tolist()
    rows = [
        LeadRow("synthetic", f"r{i}", f"p{i}", "train", "MLII", 0, 250.0, 1000, begin, length, "")
        for i, (begin, length) in enumerate(zip(begins, lengths, strict=True))
    ]
    sample = np.arange(num_tokens, dtype=np.int64)
    return Corpus(Path("synthetic"), {}, codes, sample, labels, np.ones(num_tokens, np.float32), RecordTable(rows))


def small_model(
    *, num_classes: int = 0, causal: bool = False, dropout: float = 0.0, seed: int = 0, depth: int = 1
) -> HeartModel:
    """A model of one block, or `depth`, for the codes of `synthetic_corpus`."""
    torch.manual_seed(seed)
    geometry = [torch.linspace(-1, 1, size)[:, None] ** torch.arange(1, 4) for size in SIZES]
    return build_model(ModelConfig(SIZES, depth, 32, 2, 64, causal=causal, dropout=dropout), geometry, num_classes)


def job(corpus: Corpus, model: HeartModel, folder: Path, config: TrainingConfig, **parts: Any) -> Job:
    """A job on all rows of `corpus`; `parts` are make_batch, loss and whatever else differs."""
    assert config.batch_size is not None
    folder.mkdir(parents=True, exist_ok=True)
    windows = sampler(
        corpus.records,
        np.arange(len(corpus.records)),
        width=config.window,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    info = ModelInfo(model.config, "0" * 64, "beat", "masked", config.window)
    make_batch, loss = parts.pop("make_batch"), parts.pop("loss")
    task = TrainingTask(config, model, info, loss, np.arange(len(corpus.records)), lambda _: make_batch, np.arange(0))
    return Job(task, config, RunFolder(folder), windows, make_batch, **parts)


def every_window(corpus: Corpus, width: int) -> Windows:
    """Windows that cover `corpus`, recording by recording."""
    parts = [
        covering_windows(int(first), int(length), width, width)
        for first, length in zip(corpus.records.first_token, corpus.records.num_tokens, strict=True)
    ]
    return Windows(
        np.concatenate([part.first for part in parts]), np.concatenate([part.length for part in parts]), width
    )
