"""Fine-tuning: train a pretrained model on labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.folds import in_fold
from heartlm.databases.splits import real_patient
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.inference.finetuned import check_tokenizer
from heartlm.labels.tokens import IGNORE
from heartlm.models.info import ModelInfo
from heartlm.models.store import load_foundation
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.task import FinetuneConfig, task_of
from heartlm.tokenizers.rhythm import RHYTHM_SCALES
from heartlm.training.batches import LabelBatches, MakeBatch
from heartlm.training.job import Job, TrainingTask
from heartlm.training.objectives import LabelLoss, label_weights
from heartlm.training.pretrain import job_of, run

Names = tuple[str, ...]
Labels = NDArray[np.int64]


def finetune(config: FinetuneConfig) -> Path:
    """Fine-tune a model with the settings in `config` and return the run folder; `cross_validate` trains all folds.

    Raises:
        HeartlmError: no corpus or run is given, the corpus has another tokenizer or no labels, or the folder cannot be
            written.
    """
    folder = run(config, lambda ranks: _job(config, ranks))
    task_of(config.task).finish(folder, config)
    return folder


def _job(config: FinetuneConfig, ranks: Ranks) -> Job:
    corpus, task = open_corpus(config.required_corpus()), task_of(config.task)
    if config.folds is not None:
        assert config.fold is not None, "several folds have several runs"
        corpus = in_fold(corpus, {"number": config.fold, "of": config.folds, "seed": config.seed})
    return job_of(task.learning(config, corpus), corpus, ranks, usual_name(config), about_run(config))


def usual_name(config: FinetuneConfig) -> str:
    """Return the name of the run folder in runs/ if none is given."""
    start = f"-{'scratch' if config.from_scratch else config.run.name}-w{config.window}" if config.run else ""
    folds = "" if config.folds is None else f"-{config.folds}folds" + (f"-{config.fold}" if config.fold else "")
    return f"{config.task}{start}-s{config.seed}{folds}"


def about_run(config: FinetuneConfig) -> dict[str, Any]:
    """Return the entries of `run.json` that follow from the settings."""
    return {
        "kind": "finetune",
        "task": config.task,
        "parent": None if config.run is None else str(config.run.resolve()),
        "from_scratch": config.from_scratch or config.run is None,
    }


def on_foundation(
    config: FinetuneConfig, corpus: Corpus, classes: Names, labels: Labels, validates: bool, positive: Names = ()
) -> TrainingTask:
    """Add a head for labels of tokens to a pretrained model.

    Args:
        config: settings.
        corpus: corpus of the labels.
        classes: names of the classes.
        labels: class of every token, −1 to ignore, int64 `[num_tokens]`.
        validates: whether to hold out the validation split; its labels then also count for the class weights.
        positive: as in `ModelInfo`.

    Raises:
        HeartlmError: the model does not exist or reads another tokenizer, or no training token has a label.
    """
    assert config.run is not None, "the settings were checked"
    parent, pooled = RunFolder(config.run), config.head == "window"
    if (learnt := parent.about.get("task")) is not None and not task_of(learnt).continues:
        raise HeartlmError(
            f"run: {config.run} is of the task {learnt}, a pretrained run or one that reads beats expected"
        )
    torch.manual_seed(config.seed)
    model, foundation = load_foundation(
        parent.model("best"),
        classes=classes,
        pooled=pooled,
        dropout=config.dropout,
        keep_weights=not config.from_scratch,
        seconds=interval_levels(corpus) if pooled else None,
        keeps_more=True,
    )
    classes = foundation.classes
    check_tokenizer(corpus, foundation, config.run)
    if foundation.config.network != "transformer":
        raise HeartlmError(f"run: {config.run} reads all leads, a pretrained run that reads beats expected")
    labelled = labelled_rows(corpus, labels, "train")
    if len(labelled) == 0:
        raise HeartlmError(f"{corpus.folder}: no token of the training split has a label for the task {config.task!r}")
    rows = rows_of_patients(corpus, labelled, config.patient_ids)
    held_out = labelled_rows(corpus, labels, "validation") if validates else rows[:0]
    weighted, loss = weighted_labels(corpus, labels, [*rows, *held_out], len(classes), config)
    info = replace(
        foundation,
        window=config.window,
        shortest=config.shortest_window or 0,
        threshold=config.threshold or ModelInfo.threshold,
        task=config.task,
        classes=classes,
        pooled=pooled,
        positive=positive,
    )

    def make_batch(seed: int) -> MakeBatch:
        return LabelBatches(
            corpus,
            weighted,
            model.mask_codes().numpy(),
            pooled,
            config.facet_dropout,
            seed,
            config.shortest_window,
            num_kept=int(model.statistics is not None),
            waveform_dropout=config.waveform_dropout,
        )

    return TrainingTask(config.sized(foundation.config), model, info, loss, rows, make_batch, held_out)


def interval_levels(corpus: Corpus) -> Tensor | None:
    """Return the interval in s of each code of the rhythm tokenizer's first facet, 0 for "unknown"; else None."""
    if corpus.manifest["tokenizer"]["kind"] != "rhythm":
        return None
    scale = RHYTHM_SCALES["rr"]
    seconds = scale.decode(np.arange(scale.size, dtype=np.uint16))
    # the mask code, which follows the tokenizer's codes, is unknown too
    return torch.from_numpy(np.append(np.nan_to_num(seconds), 0).astype(np.float32))


def weighted_labels(
    corpus: Corpus, labels: NDArray[np.int64], rows: Iterable[int], num_classes: int, config: FinetuneConfig
) -> tuple[NDArray[np.int64], LabelLoss]:
    """Return labels in the format of `LabelLoss`, and that loss with the weights of each class and patient.

    Args:
        corpus: corpus of the labels.
        labels: class of every token, −1 to ignore, int64 `[num_tokens]`.
        rows: rows of the corpus for training and validation; labels of other rows do not count for the weights.
        num_classes: number of classes.
        config: settings, with `class_balance` and `patient_balance`.
    """
    records = corpus.records
    patient = np.repeat(np.unique(records.patient_id, return_inverse=True)[1], records.num_tokens).astype(np.int64)
    used = np.repeat(np.isin(np.arange(len(records)), list(rows)), records.num_tokens)
    counted = np.where(used, labels, IGNORE)
    # A database of many patients and one class, such as recordings labelled normal, would change the balance of the
    # others. Windows are balanced over all databases, as a database may have windows of one class alone.
    name = records.database if config.head == "token" else np.zeros(len(records), np.int64)
    database = np.repeat(np.unique(name, return_inverse=True)[1], records.num_tokens)
    weight = torch.ones(int(patient.max(initial=0)) + 1, num_classes)
    for each in np.unique(database):
        inside = np.where(database == each, counted, IGNORE)
        own = label_weights(inside, patient, num_classes, config.class_balance, config.patient_balance)
        patients = np.unique(patient[database == each])
        weight[patients] = own[patients]
    return np.where(labels == IGNORE, IGNORE, patient * num_classes + labels), LabelLoss(weight)


def labelled_rows(corpus: Corpus, labels: NDArray[np.int64], split: str) -> NDArray[np.int64]:
    """Return the rows of `split` with at least one labelled token."""
    rows = [row for row in corpus.records.select(split) if (labels[corpus.tokens_of(int(row))] >= 0).any()]
    return np.array(rows, np.int64)


def rows_of_patients(corpus: Corpus, rows: NDArray[np.int64], patients: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the rows of `patients`, including their beats on simulated rhythms; all rows if `patients` is empty.

    Raises:
        HeartlmError: a patient has no row.
    """
    if not patients:
        return rows
    patient_ids = np.array([real_patient(name) for name in corpus.records.patient_id[rows]], np.str_)
    if missing := sorted(set(patients) - set(patient_ids.tolist())):
        raise HeartlmError(
            f"patients: {missing[0]!r} found, but {corpus.folder} has no labels of that patient for training; it has "
            f"{', '.join(np.unique(patient_ids)[:3].tolist())} and so on"
        )
    return rows[np.isin(patient_ids, patients)]
