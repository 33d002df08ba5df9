"""Pretraining: a foundation model from unlabelled tokens."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.windows import Windows, WindowSampler, covering_windows, sampler
from heartlm.distributed.parallel import joined, together
from heartlm.distributed.ranks import Ranks
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, build_model
from heartlm.runs.run_folder import RunFolder
from heartlm.training.batches import CausalBatches, MakeBatch, MaskedBatches
from heartlm.training.config import PretrainConfig, TrainingConfig
from heartlm.training.job import Job
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss

VALIDATION_WINDOWS = 512
"""The most windows of a validation, evenly spread over the validation split."""


def pretrain(config: PretrainConfig) -> Path:
    """Pretrain as `config` says; return the run folder.

    Raises:
        HeartlmError: an impossible setting, an unusable corpus, or a folder that cannot be written.
    """
    config.checked_corpus()
    with joined(config.device, config.precision, config.threads, config.pin, config.timeout_s) as ranks:
        return finished(together(lambda: _job(config, ranks)))


def finished(job: Job) -> Path:
    """Train to the end, from the newest checkpoint where a run is resumed; return the run folder."""
    train(job, resume=job.config.resume is not None)
    if job.ranks.is_first:
        job.run.finish()
    return job.run.path


def _job(config: PretrainConfig, ranks: Ranks) -> Job:
    corpus = open_corpus(config.checked_corpus())
    facets = corpus.manifest["tokenizer"]["facets"]
    shape = ModelConfig(
        tuple(facet["size"] for facet in facets),
        config.depth,
        config.width,
        config.heads,
        causal=config.objective == "causal",
        dropout=config.dropout,
    ).resolve()
    assert shape.width
    config.follow(shape.depth, shape.width)
    config.check_split(ranks.world_size)
    torch.manual_seed(config.seed)
    model = build_model(shape, [torch.from_numpy(places) for places in corpus.tokenizer().geometry()])
    info = ModelInfo(
        shape, corpus.tokenizer_hash, corpus.manifest["tokenizer"]["kind"], config.objective, config.window
    )
    name = f"{config.objective}-{info.tokenizer_kind}-d{shape.depth}-w{config.window}-s{config.seed}"
    windows = training_windows(corpus, corpus.records.select("train"), config)
    run = RunFolder(config.resume or config.out or Path("runs") / name)
    about = {"kind": "pretrain", "objective": config.objective, "task": None, "parent": None, "from_scratch": False}
    begin(run, config, {**about, "num_parameters": model.num_parameters, "steps": config.steps}, corpus, ranks)
    return Job(
        config=config,
        run=run,
        model=model,
        info=info,
        sampler=windows,
        make_batch=_batches(config, corpus, model),
        loss=FacetLoss(tuple(facet["name"] for facet in facets)),
        validation=validation_windows(corpus, corpus.records.select("validation"), config.window),
        ranks=ranks,
    )


def begin(run: RunFolder, config: TrainingConfig, about: dict[str, Any], corpus: Corpus, ranks: Ranks) -> None:
    """Start the folder of a new run, or see that an interrupted one can be resumed.

    Raises:
        HeartlmError: neither can be done.
    """
    if config.resume is not None:
        run.check_resumable(corpus)
    elif ranks.is_first:
        run.start(asdict(config), about, corpus)


def _batches(config: PretrainConfig, corpus: Corpus, model: HeartModel) -> MakeBatch:
    if config.objective == "causal":
        return CausalBatches(corpus)
    return MaskedBatches(corpus, model.mask_codes().numpy(), config.mask_share, config.mask_span, config.seed)


def training_windows(corpus: Corpus, rows: NDArray[np.int64], config: TrainingConfig) -> WindowSampler:
    """The windows of every step, drawn from `rows` of `corpus`.

    Raises:
        HeartlmError: there is nothing to draw from, or the weights do not fit the databases.
    """
    assert config.batch_size is not None, "follow fills it in"
    return sampler(
        corpus.records,
        rows,
        width=config.window,
        batch_size=config.batch_size,
        seed=config.seed,
        weights=config.weights,
        order=config.order,
        token_bytes=corpus.codes.itemsize * corpus.codes.shape[1],
    )


def validation_windows(corpus: Corpus, rows: NDArray[np.int64], width: int) -> Windows | None:
    """At most `VALIDATION_WINDOWS` windows spread over `rows`; None where there are none."""
    if len(rows) == 0:
        return None
    parts = [
        covering_windows(int(corpus.records.first_token[row]), int(corpus.records.num_tokens[row]), width, width)
        for row in rows
    ]
    every = Windows(
        np.concatenate([part.first for part in parts]), np.concatenate([part.length for part in parts]), width
    )
    step = -(-len(every) // VALIDATION_WINDOWS)
    return every[slice(None, None, step)]
