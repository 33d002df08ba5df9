"""What a heart language model learns over clients, as `heartlm pretrain` and `heartlm finetune` would set it up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.errors import HeartlmError
from heartlm.federated.study_file import FederatedConfig
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, build_model, load_foundation
from heartlm.runs.run_folder import RunFolder
from heartlm.training.batches import BEAT_TASK_CLASSES, beat_labels
from heartlm.training.config import FinetuneConfig, PretrainConfig
from heartlm.training.finetune import check_tokenizer, labelled_rows, rows_of_patients, weighted_labels
from heartlm.training.objectives import FacetLoss, LossSum
from heartlm.typed import typed

OF_STUDY = (
    *("corpus", "run", "out", "resume", "batch_size", "accumulation", "steps", "learning_rate", "final_learning_rate"),
    *("warmup_steps", "weight_decay", "seed", "device", "precision", "threads", "class_balance", "weights", "order"),
)
"""Settings of training that a study says itself, or that mean nothing to its clients."""


@dataclass(frozen=True)
class Task:
    """What a language model learns.

    Attributes:
        model: with its first weights.
        info: how it describes itself.
        loss: what it is asked.
        rows: of the corpus to learn from.
        labels: of every token of the corpus as `LabelLoss` reads them, int64 `[num_tokens]`; None where codes are
            predicted.
    """

    model: HeartModel
    info: ModelInfo
    loss: LossSum
    rows: NDArray[np.int64]
    labels: NDArray[np.int64] | None


def training_config(study: FederatedConfig) -> PretrainConfig | FinetuneConfig:
    """The settings of training that a study gives its clients.

    Raises:
        HeartlmError: one of `training` is unknown, impossible, or not for clients to say.
    """
    for name in study.training:
        if name in OF_STUDY:
            raise HeartlmError(f"training: {name} found, which is not for training to say: see heartlm federate --help")
    shared: dict[str, Any] = {
        "batch_size": study.batch_size,
        "steps": study.rounds * study.local_steps,
        "learning_rate": study.learning_rate,
        "weight_decay": study.weight_decay,
        "warmup_steps": 0,
        "seed": study.seed,
        "device": study.device,
        "precision": study.precision,
        "threads": study.threads,
        "corpus": study.corpus,
    }
    config: PretrainConfig | FinetuneConfig
    try:
        if study.model == "finetune":
            shared |= {"run": study.foundation, "class_balance": study.class_balance}
            config = typed(FinetuneConfig, study.training | shared)
        else:
            config = typed(PretrainConfig, study.training | shared)
        config.check()
    except HeartlmError as error:
        raise HeartlmError(f"training: {error}") from error
    if isinstance(config, FinetuneConfig) and (config.task, config.head) != ("beats", "token"):
        raise HeartlmError(f"training: task {config.task}, head {config.head} found, beats and token expected")
    return config


def task_of(config: PretrainConfig | FinetuneConfig, corpus: Corpus) -> Task:
    """The model of a study with its first weights, drawn by the seed, and what it is asked.

    Raises:
        HeartlmError: there is no pretrained model, it reads another tokenizer, or nothing has a label.
    """
    torch.manual_seed(config.seed)
    return _finetuning(config, corpus) if isinstance(config, FinetuneConfig) else _pretraining(config, corpus)


def _pretraining(config: PretrainConfig, corpus: Corpus) -> Task:
    facets = corpus.manifest["tokenizer"]["facets"]
    sizes, causal = tuple(facet["size"] for facet in facets), config.objective == "causal"
    shape = ModelConfig(
        sizes, config.depth, config.width, config.heads, causal=causal, dropout=config.dropout
    ).resolve()
    model = build_model(shape, [torch.from_numpy(places) for places in corpus.tokenizer().geometry()])
    kind = corpus.manifest["tokenizer"]["kind"]
    info = ModelInfo(shape, corpus.tokenizer_hash, kind, config.objective, config.window)
    loss = FacetLoss(tuple(facet["name"] for facet in facets))
    return Task(model, info, loss, corpus.records.select("train"), None)


def _finetuning(config: FinetuneConfig, corpus: Corpus) -> Task:
    model, foundation = load_foundation(
        RunFolder(config.foundation).model("best"),
        classes=BEAT_TASK_CLASSES,
        pooled=False,
        dropout=config.dropout,
        keep_weights=not config.from_scratch,
    )
    check_tokenizer(corpus, foundation, config.foundation)
    labels = beat_labels(corpus.beat_class)
    rows = rows_of_patients(corpus, labelled_rows(corpus, labels, "train"), config.patient_ids)
    if len(rows) == 0:
        raise HeartlmError(f"{corpus.folder}: no beat of the training split has a label")
    labels, loss = weighted_labels(corpus, labels, rows, len(BEAT_TASK_CLASSES), config)
    info = replace(foundation, window=config.window, task="beats", classes=BEAT_TASK_CLASSES)
    return Task(model, info, loss, rows, labels)
