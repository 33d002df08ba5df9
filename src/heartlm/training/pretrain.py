"""Pretraining: a foundation model from unlabelled tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from heartlm.errors import HeartlmError
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.store import build_model
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.base import Tokenizer
from heartlm.training.batches import CausalBatches, MakeBatch, MaskedBatches
from heartlm.training.config import PretrainConfig, TrainingConfig
from heartlm.training.job import Job, TrainingTask
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss
from heartlm.training.over_leads import pretraining_over_leads

VALIDATION_WINDOWS = 512
"""Maximum number of windows per validation, evenly spread over the validation split."""


def pretrain(config: PretrainConfig) -> Path:
    """Pretrain a model with the settings in `config` and return the run folder.

    Raises:
        HeartlmError: no corpus is given, it is unusable, or the folder cannot be written.
    """
    return run(config, lambda ranks: _job(config, ranks))


def run(config: TrainingConfig, make_job: Callable[[Ranks], Job]) -> Path:
    """Join the process group and train to the last step, from the newest checkpoint if the run is resumed.

    Returns:
        The run folder.
    """
    with joined(config.device, config.precision, config.threads, config.pin, config.timeout_s) as ranks:
        job = together(lambda: make_job(ranks))
        train(job, resume=config.resume is not None)
        if ranks.is_first:
            job.folder.finish()
        return job.folder.path


def _job(config: PretrainConfig, ranks: Ranks) -> Job:
    corpus = open_corpus(config.required_corpus())
    task = pretraining(config, corpus)
    kind, depth = task.info.tokenizer_kind, task.model.config.depth
    name = f"{config.objective}-{kind}-d{depth}-w{config.window}-s{config.seed}"
    return job_of(task, corpus, ranks, name, {"kind": "pretrain", "task": None, "from_scratch": False})


def pretraining(config: PretrainConfig, corpus: Corpus) -> TrainingTask:
    """Return the pretraining task on `corpus`."""
    tokenizer = corpus.tokenizer()
    if tokenizer.joins_leads:
        return pretraining_over_leads(config, corpus)
    torch.manual_seed(config.seed)
    model = model_to_pretrain(config, tokenizer)

    def make_batch(seed: int) -> MakeBatch:
        if config.objective == "causal":
            return CausalBatches(corpus)
        return MaskedBatches(corpus, model.mask_codes().numpy(), config.mask_share, config.mask_span, seed)

    return TrainingTask(
        config.resolved(),
        model,
        ModelInfo(model.config, corpus.tokenizer_hash, tokenizer.kind, config.objective, config.window),
        FacetLoss(tuple(facet.name for facet in tokenizer.facets)),
        corpus.records.select("train"),
        make_batch,
        held_out=corpus.records.select("validation"),
    )


def model_to_pretrain(config: PretrainConfig, tokenizer: Tokenizer) -> HeartModel:
    """Return the transformer that `config` describes."""
    if tokenizer.joins_leads:
        raise HeartlmError("corpus: tokens of the leads tokenizer found, those of a transformer expected")
    causal = config.objective == "causal"
    sizes = tuple(facet.size for facet in tokenizer.facets)
    shape = ModelConfig(sizes, config.depth, config.width, config.heads, causal=causal, dropout=config.dropout)
    return build_model(shape.resolve(), [torch.from_numpy(coordinates) for coordinates in tokenizer.geometry()])


def job_of(task: TrainingTask, corpus: Corpus, ranks: Ranks, name: str, about: Mapping[str, Any]) -> Job:
    """Return a job for `task`, in the folder of a new or an interrupted run.

    Args:
        task: settings, model, loss and data to train with.
        corpus: training corpus.
        ranks: rank of this process and number of ranks.
        name: default name of the run folder.
        about: entries of `run.json`.

    Raises:
        HeartlmError: batches cannot be split or sampled with these settings, the folder is not empty, or its run
            cannot be resumed.
    """
    config = task.config
    config.check_split(ranks.world_size)
    if task.model.normalises_batches and ranks.world_size * config.accumulation > 1:
        raise HeartlmError(
            f"accumulation: {config.accumulation} found with {ranks.world_size} ranks, 1 of each expected: the small "
            "network normalises over whole batches"
        )
    windows = task.sampler or training_windows(corpus, task.rows, config)
    folder = RunFolder(config.resume or config.out or Path("runs") / name)
    if config.resume is not None:
        folder.check_resumable(corpus)
    elif ranks.is_first:
        size = {"num_parameters": task.model.num_parameters, "steps": config.steps}
        known = {"objective": task.info.objective, "parent": None, **about, **size}
        folder.start(asdict(config), known, corpus)
    validation = validation_windows(corpus, task.held_out, config.window)
    return Job(task, config, folder, windows, task.make_batch(config.seed), validation, ranks)


def training_windows(
    corpus: Corpus, rows: NDArray[np.int64], config: TrainingConfig, seed: int | None = None
) -> WindowSampler:
    """Return the sampler of training windows from `rows` of `corpus`; their order follows from `seed`, if given.

    Raises:
        HeartlmError: there are no windows, or the weights do not match the databases.
    """
    assert config.batch_size is not None, "sized fills it in"
    return sampler(
        corpus.records,
        rows,
        width=config.window,
        batch_size=config.batch_size,
        seed=config.seed if seed is None else seed,
        weights=config.weights,
        order=config.order,
    )


def validation_windows(corpus: Corpus, rows: NDArray[np.int64], width: int) -> Windows | None:
    """Return at most `VALIDATION_WINDOWS` windows spread over `rows`, or None if `rows` is empty."""
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
