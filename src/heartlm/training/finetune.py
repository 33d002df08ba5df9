"""Fine-tuning: train a pretrained model on labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.inference.finetuned import check_tokenizer
from heartlm.models.config import ModelConfig
from heartlm.models.store import ModelInfo, build_model, load_foundation
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.registry import TASKS
from heartlm.tasks.task import IGNORE
from heartlm.tasks.waveform import CLASSES, WINDOW, corpus_classes
from heartlm.tokenizers.millivolts import MillivoltTokenizer
from heartlm.tokenizers.rhythm import RHYTHM_SCALES
from heartlm.training import waveform
from heartlm.training.batches import LabelBatches, MakeBatch
from heartlm.training.config import WAVEFORM_BATCH, WAVEFORM_THRESHOLD, FinetuneConfig
from heartlm.training.job import Job, Learning
from heartlm.training.objectives import LabelLoss, label_weights
from heartlm.training.pretrain import job_of, run
from heartlm.training.waveform_batches import WaveformBatches


def finetune(config: FinetuneConfig) -> Path:
    """Fine-tune a model with the settings in `config` and return the run folder.

    Raises:
        HeartlmError: a setting is invalid, the corpus has another tokenizer or no labels, or the folder is unwritable.
    """
    return run(config, lambda ranks: _job(config, ranks))


def _job(config: FinetuneConfig, ranks: Ranks) -> Job:
    corpus = open_corpus(config.checked_corpus())
    if config.task == "waveform":
        if ranks.world_size * config.accumulation > 1:
            raise HeartlmError(
                f"task: waveform found with {ranks.world_size} ranks and accumulation {config.accumulation}, 1 of each "
                "expected: its small network normalises over whole batches"
            )
        task, name = _waveform_task(config, corpus), f"waveform-s{config.seed}"
    else:
        task = finetuning(config, corpus)
        start = "scratch" if config.from_scratch else config.foundation.name
        name = f"{config.task}-{start}-w{config.window}-s{config.seed}"
    about = {
        "kind": "finetune",
        "task": config.task,
        "parent": None if config.run is None else str(config.run.resolve()),
        "from_scratch": config.from_scratch or config.run is None,
    }
    return job_of(task, config, corpus, ranks, name, about)


def finetuning(config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> Learning:
    """Return the fine-tuning task on `corpus`; fills in the settings derived from the model size.

    Args:
        config: settings.
        corpus: corpus with labels.
        validates: whether to hold out the validation split; its labels then also count for the class weights.

    Raises:
        HeartlmError: the model does not exist or reads another tokenizer, or no training token has a label.
    """
    parent, pooled = RunFolder(config.foundation), config.head == "window"
    classes = TASKS[config.task].classes(corpus, config.rhythm)
    if parent.about.get("task") == "waveform":
        raise HeartlmError(
            f"run: {config.run} is of the task waveform, a pretrained run or one that reads beats expected"
        )
    torch.manual_seed(config.seed)
    model, foundation = load_foundation(
        parent.model("best"),
        classes=classes,
        pooled=pooled,
        dropout=config.dropout,
        keep_weights=not config.from_scratch,
        seconds=interval_levels(corpus) if pooled else None,
    )
    check_tokenizer(corpus, foundation, config.foundation)
    assert foundation.config.width
    config.follow(foundation.config.depth, foundation.config.width)
    labels = TASKS[config.task].labels(corpus, config.rhythm, config.flutter)
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
        positive=(config.rhythm, config.flutter) if config.task == "rhythm" else (),
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

    return Learning(model, info, loss, rows, make_batch, held_out)


def _waveform_task(config: FinetuneConfig, corpus: Corpus) -> Learning:
    kind = corpus.manifest["tokenizer"]["kind"]
    if kind != MillivoltTokenizer.kind:
        raise HeartlmError(
            f"{corpus.folder}: tokens of the {kind} tokenizer found, the task waveform reads millivolts: tokenize "
            "with  --tokenizer millivolts"
        )
    config.window, config.batch_size = WINDOW, config.batch_size or WAVEFORM_BATCH
    torch.manual_seed(config.seed)
    geometry = [torch.from_numpy(coordinates) for coordinates in corpus.tokenizer().geometry()]
    shape = ModelConfig((len(geometry[0]),), 4, 48, dropout=config.dropout, network="waveform").resolve()
    assert shape.width
    config.follow(shape.depth, shape.width)
    info = ModelInfo(
        shape,
        corpus.tokenizer_hash,
        kind,
        objective="labels",
        window=WINDOW,
        task=config.task,
        classes=CLASSES,
        pooled=True,
        threshold=config.threshold or WAVEFORM_THRESHOLD,
    )
    labels, rows = corpus_classes(corpus), corpus.records.select("train")
    return Learning(
        build_model(shape, geometry, len(CLASSES), pooled=True),
        info,
        waveform.WaveformLoss(),
        rows,
        lambda seed: WaveformBatches(corpus, labels, rows, seed),
        held_out=rows[:0],  # few validation patients have VF, so their loss is too noisy to select a model
        sampler=waveform.balanced_windows(corpus, rows, labels, config.batch_size, config.seed),
    )


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
    patient_ids = np.array([name.replace("-retimed/", "/") for name in corpus.records.patient_id[rows]], np.str_)
    if missing := sorted(set(patients) - set(patient_ids.tolist())):
        raise HeartlmError(
            f"patients: {missing[0]!r} found, but {corpus.folder} has no labels of that patient for training; it has "
            f"{', '.join(np.unique(patient_ids)[:3].tolist())} and so on"
        )
    return rows[np.isin(patient_ids, patients)]
