"""Heart language models learning over clients: the patients of a corpus, and windows of their tokens.

Windows, batches, losses and the optimiser's step are those of `heartlm pretrain` and `heartlm finetune`; only which
rows of the corpus a client draws from is new. A corpus holds the tokens of everybody, which a federation outside of a
simulation would not have: there each client has a corpus of its own, made with the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import open_corpus
from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.distributed.communicator import local_rank
from heartlm.distributed.device import device_and_precision
from heartlm.distributed.wrapping import gradient_norm
from heartlm.errors import HeartlmError
from heartlm.evaluation.predictions import token_probabilities
from heartlm.federated.flat import FlatModel
from heartlm.federated.partition import Member, PatientCounts
from heartlm.federated.scores import Scores, beat_scores
from heartlm.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, draws
from heartlm.models.store import save_model
from heartlm.training.batches import (
    MakeBatch,
    beat_labels,
)
from heartlm.training.config import FinetuneConfig, PretrainConfig
from heartlm.training.finetune import finetuning, labelled_rows
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner
from heartlm.training.pretrain import pretraining, training_windows, validation_windows
from heartlm.typed import typed

CLIENT_STREAM = 16


OF_STUDY = (
    *("corpus", "run", "out", "resume", "batch_size", "accumulation", "steps", "learning_rate", "final_learning_rate"),
    *("warmup_steps", "weight_decay", "seed", "device", "precision", "threads", "class_balance", "weights", "order"),
)
"""Training settings that the study sets itself, or that have no effect on clients."""


def training_config(study: FederatedConfig) -> PretrainConfig | FinetuneConfig:
    """Return the training settings of the clients.

    Raises:
        HeartlmError: a setting in `training` is unknown, invalid, or set by the study itself.
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
            config = typed(FinetuneConfig, {"waveform_dropout": 0.0} | study.training | shared)
        else:
            config = typed(PretrainConfig, study.training | shared)
        config.check()
    except HeartlmError as error:
        raise HeartlmError(f"training: {error}") from error
    if isinstance(config, FinetuneConfig) and (config.task, config.head) != ("beats", "token"):
        raise HeartlmError(f"training: task {config.task}, head {config.head} found, beats and token expected")
    return config


class CorpusPatients:
    """The patients of a corpus.

    Args:
        study: settings.

    Raises:
        HeartlmError: an impossible setting, an unusable corpus, or one of another tokenizer than the model's.

    Attributes:
        left_out: rows that are not used, one line each.
        scored_split: whose tokens are scored: test patients, or validation patients where a pretraining has some.
    """

    def __init__(self, study: FederatedConfig) -> None:
        assert study.corpus is not None, "the study was checked"
        self.study, self.corpus, self.config = study, open_corpus(study.corpus), training_config(study)
        if isinstance(self.config, FinetuneConfig):  # its labels of the validation split are no client's
            self.task = finetuning(self.config, self.corpus, validates=False)
        else:
            self.task = pretraining(self.config, self.corpus)
        records, pretrains = self.corpus.records, study.model == "pretrain"
        validates = pretrains and len(records.select("validation")) > 0
        self.scored_split = "validation" if validates else "test"
        unused = {"excluded", "validation", *(["test"] if pretrains else [])} - {self.scored_split}
        self.left_out = [f"{row.database}/{row.record_id}: {row.split}" for row in records.rows if row.split in unused]

    def patients(self) -> list[PatientCounts]:
        """Return the training patients, by name."""
        records, of = self.corpus.records, dict[str, list[int]]()
        for row in self.task.rows.tolist():
            of.setdefault(str(records.patient_id[row]), []).append(row)
        return [
            PatientCounts(name, str(records.database[rows[0]]), int(records.num_tokens[rows].sum()))
            for name, rows in sorted(of.items())
        ]

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> LanguageLearning:
        """What the clients `mine` of this rank learn from, and part `part` of `of` of what is scored."""
        patient, rows = self.corpus.records.patient_id[self.task.rows], self.task.rows
        of_client = {client: rows[np.isin(patient, members[client].patients)] for client in mine}
        return LanguageLearning(self, of_client, part, of)


class LanguageLearning:
    """A language model, its optimiser, and the windows of the clients of this rank.

    Args:
        patients: of the corpus.
        rows: of each client of this rank, by its number.
        part: which part of the scored rows is this rank's.
        of: how many parts there are.

    Attributes:
        flat: the model.
        optimizer: of its learning parameters.
    """

    def __init__(self, patients: CorpusPatients, rows: Mapping[int, NDArray[np.int64]], part: int, of: int) -> None:
        self._patients, self._corpus, config = patients, patients.corpus, patients.config
        self._task = patients.task
        device, precision = device_and_precision(config.device, config.precision, local_rank())
        model = self._task.model
        layout = BatchLayout(patients.study.batch_size)
        self._learner = Learner(model, self._task.loss, config, device=device, precision=precision, layout=layout)
        self.flat = FlatModel(model)
        self.optimizer: torch.optim.Optimizer = self._learner.optimizer
        self._windows: dict[int, tuple[WindowSampler, MakeBatch]] = {}
        for client, own in rows.items():
            seed = client_seed(config.seed, client)
            of_client = replace(config, seed=seed)
            self._windows[client] = training_windows(self._corpus, own, of_client), self._task.make_batch(seed)
        scored = self._corpus.records.select(patients.scored_split)
        self._labels_beats = isinstance(config, FinetuneConfig)
        if self._labels_beats:
            scored = labelled_rows(self._corpus, beat_labels(self._corpus.beat_class), patients.scored_split)
        if len(scored) == 0:
            raise HeartlmError(f"{self._corpus.folder}: no patient of the {patients.scored_split} split to score")
        self._rows = scored[part::of]

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of a local step."""
        sampler, make_batch = self._windows[client]
        batch = make_batch(sampler.windows(step), step).to(self._learner.device)
        counted = max(1.0, float(batch.num_counted))
        losses, _ = self._learner.gradients(step, [batch], lambda: counted)
        return torch.tensor(losses["loss"] / counted)

    def step(self, rate: float) -> None:
        """Clip the gradient and take an optimiser step with learning rate `rate`."""
        gradients = [each.grad for each in self.flat.parameters if each.grad is not None]
        self._learner.step(rate, float(gradient_norm(gradients)))

    def evaluate(self) -> Any:
        """Sums of counted tokens and losses over this rank's rows, or the classes of their beats, as in `tiny`."""
        self.flat.module.eval()
        return self._classes() if self._labels_beats else self._losses()

    def _losses(self) -> tuple[float, float]:
        counted, loss = 0.0, 0.0
        windows = validation_windows(self._corpus, self._rows, self._patients.config.window)
        make_batch = self._task.make_batch(self._patients.config.seed)
        size = self._patients.study.batch_size
        for begin in range(0, 0 if windows is None else len(windows), size):
            assert isinstance(windows, Windows)
            batch = make_batch(windows[begin : begin + size], None, begin, len(windows))
            counted += batch.num_counted
            loss += self._learner.evaluate(batch)["loss"]
        return counted, loss

    def _classes(self) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.str_]]:
        found, annotated, patients = [np.zeros(0, np.int8)], [np.zeros(0, np.int8)], [np.zeros(0, np.str_)]
        for row in self._rows.tolist():
            place = self._corpus.tokens_of(row)
            codes, labels = self._corpus.codes[place], beat_labels(self._corpus.beat_class[place]).astype(np.int8)
            answer = token_probabilities(self._task.model, codes, self._patients.config.window).argmax(axis=1)
            found.append(answer[labels >= 0].astype(np.int8))
            annotated.append(labels[labels >= 0])
            patients.append(np.full(len(annotated[-1]), self._corpus.records.patient_id[row]))
        return np.concatenate(found), np.concatenate(annotated), np.concatenate(patients)

    def scores(self, parts: list[Any], final: bool) -> Scores:
        """The mean loss, or beat scores, over the parts of all ranks."""
        if self._labels_beats:
            return beat_scores(parts, final)
        counted, loss = (sum(column) for column in zip(*parts, strict=True))
        return {"loss": loss / max(1.0, counted)}

    def save(self, folder: Path) -> None:
        """Write the model as `heartlm pretrain` and `finetune` do."""
        study = self._patients.study
        save_model(folder, self._task.model, replace(self._task.info, step=study.rounds * study.local_steps))


def client_seed(seed: int, client: int) -> int:
    """Return a distinct seed for every client, so that clients draw different windows and masks."""
    return int(draws(Stream(seed, client, CLIENT_STREAM), 0, 1)[0] >> np.uint64(1))
