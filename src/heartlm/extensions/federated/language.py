"""Heart language models learning over clients: the patients of a corpus, and windows of their tokens.

Windows, batches, losses and the optimiser's step are those of `heartlm pretrain` and `heartlm finetune`; only which
rows of the corpus a client draws from is new. A corpus holds the tokens of everybody, which a federation outside of a
simulation would not have: there each client has a corpus of its own, made with the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.corpus import open_corpus
from heartlm.corpus.windows import WindowSampler
from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.communicator import local_rank
from heartlm.extensions.federated.flat import FlatModel
from heartlm.extensions.federated.partition import Member, PatientCounts
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.inference.predictions import recording_probabilities
from heartlm.kernels.draws import Stream, Use, draws
from heartlm.labels.tokens import beat_labels
from heartlm.models.answering import answering
from heartlm.models.store import save_model
from heartlm.storage.typed import typed
from heartlm.tasks.finetune import labelled_rows
from heartlm.tasks.task import FinetuneConfig, task_of
from heartlm.training.batches import MakeBatch
from heartlm.training.config import PretrainConfig
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner
from heartlm.training.pretrain import pretraining, training_windows, validation_windows

SHARED = ("batch_size", "learning_rate", "weight_decay", "seed", "device", "precision", "threads", "corpus")
"""Settings of a study that are settings of its clients' training."""

OF_STUDY = (
    *(*SHARED, "run", "out", "resume", "accumulation", "steps", "final_learning_rate", "warmup_steps"),
    *("class_balance", "weights", "order"),
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
    # not compiled unless set: the number of tokens to predict differs from step to step of a client
    fields = {"compile": False} | study.training | {name: getattr(study, name) for name in SHARED}
    fields |= {"steps": study.rounds * study.local_steps, "warmup_steps": 0}
    config: PretrainConfig | FinetuneConfig
    try:
        if study.model == "finetune":
            fields |= {"run": study.foundation, "class_balance": study.class_balance}
            config = typed(FinetuneConfig, {"waveform_dropout": 0.0} | fields)
            if (config.task, config.head) != ("beats", "token"):
                raise HeartlmError(f"task {config.task}, head {config.head} found, beats and token expected")
        else:
            config = typed(PretrainConfig, fields)
    except HeartlmError as error:
        raise HeartlmError(f"training: {error}") from error
    return config


class LanguageLearning:
    """The patients of a corpus, a language model with its optimiser, and the windows of the clients of this rank.

    Args:
        study: settings.

    Raises:
        HeartlmError: an impossible setting, an unusable corpus, or one of another tokenizer than the model's.

    Attributes:
        left_out: rows that are not used, one line each.
        flat: the model.
        optimizer: of its learning parameters.
    """

    def __init__(self, study: FederatedConfig) -> None:
        assert study.corpus is not None, "the study was checked"
        self._study, self._corpus, self._config = study, open_corpus(study.corpus), training_config(study)
        records, pretrains = self._corpus.records, isinstance(self._config, PretrainConfig)
        # Test patients are scored, or validation patients where a pretraining has some.
        split = "validation" if pretrains and len(records.select("validation")) > 0 else "test"
        if isinstance(self._config, FinetuneConfig):  # its labels of the validation split are no client's
            self._task = task_of(self._config.task).learning(self._config, self._corpus, validates=False)
            self._scored = labelled_rows(self._corpus, beat_labels(self._corpus.beat_class), split)
        else:
            self._task, self._scored = pretraining(self._config, self._corpus), records.select(split)
        if len(self._scored) == 0:
            raise HeartlmError(f"{self._corpus.folder}: no patient of the {split} split to score")
        unused = {"excluded", "validation", *(["test"] if pretrains else [])} - {split}
        named = zip(records.database, records.record_id, records.split, strict=True)
        self.left_out = [f"{database}/{record_id}: {split}" for database, record_id, split in named if split in unused]
        device, precision = device_and_precision(study.device, study.precision, local_rank())
        model, loss, layout = self._task.model, self._task.loss, BatchLayout(study.batch_size)
        self._learner = Learner(model, loss, self._config, device=device, precision=precision, layout=layout)
        self.flat, self.optimizer = FlatModel(model), self._learner.optimizer
        self._windows: dict[int, tuple[WindowSampler, MakeBatch]] = {}

    def patients(self) -> list[PatientCounts]:
        """Return the training patients, by name."""
        records, rows = self._corpus.records, self._task.rows
        names, first, patient = np.unique(records.patient_id[rows], return_index=True, return_inverse=True)
        num_tokens = np.bincount(patient, records.num_tokens[rows])
        databases = records.database[rows[first]]
        return [PatientCounts(str(a), str(b), int(c)) for a, b, c in zip(names, databases, num_tokens, strict=True)]

    def use_on_node(self, class_counts: list[int]) -> None:
        """Do nothing: classes are weighted by the corpus, and what a node scores is not asked for."""

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> LanguageLearning:
        """Prepare the windows of the clients `mine` of this rank, and part `part` of `of` of what is scored."""
        rows = self._task.rows
        for client in mine:
            own = rows[np.isin(self._corpus.records.patient_id[rows], members[client].patients)]
            # Every client draws other windows and masks.
            # Shifted by a bit, to fit a signed integer.
            seed = int(draws(Stream(self._study.seed, client, Use.CLIENT_SEED), 0, 1)[0] >> np.uint64(1))
            windows = training_windows(self._corpus, own, self._config, seed)
            self._windows[client] = windows, self._task.make_batch(seed)
        self._scored = self._scored[part::of]
        return self

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of a local step."""
        sampler, make_batch = self._windows[client]
        batch = make_batch(sampler.windows(step), step)
        batch = replace(batch, keys=self._learner.draw_keys(step, 0, len(batch.codes))).to(self._learner.device)
        counted = max(1.0, float(batch.num_counted))
        _, losses, _ = self._learner.backward([batch], lambda: counted)
        return torch.tensor(float(losses[0]) / counted)

    def step(self, rate: float) -> None:
        """Clip the gradient and take an optimiser step with learning rate `rate`."""
        self._learner.update(rate, self._learner.gradient_norm())

    def evaluate(self) -> Any:
        """Sums of counted tokens and losses over this rank's rows, or the classes of their beats; see `scores_of`."""
        self.flat.module.eval()
        return self._classes() if isinstance(self._config, FinetuneConfig) else self._losses()

    def _losses(self) -> tuple[float, float]:
        counted, loss, size = 0.0, 0.0, self._study.batch_size
        windows = validation_windows(self._corpus, self._scored, self._config.window)
        if windows is None:
            return counted, loss
        make_batch = self._task.make_batch(self._study.seed)
        for begin in range(0, len(windows), size):
            batch = make_batch(windows[begin : begin + size], None, begin, len(windows))
            counted += batch.num_counted
            loss += self._learner.evaluate(batch)["loss"]
        return counted, loss

    def _classes(self) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.str_]]:
        predicted, annotated, patients = [np.zeros(0, np.int8)], [np.zeros(0, np.int8)], [np.zeros(0, np.str_)]
        rows = self._scored.tolist()
        codes = (self._corpus.codes[self._corpus.tokens_of(row)] for row in rows)
        answers = recording_probabilities(answering(self._task.model), codes, self._config.window)
        for row, probabilities in zip(rows, answers, strict=True):
            labels = beat_labels(self._corpus.beat_class[self._corpus.tokens_of(row)]).astype(np.int8)
            answer = probabilities.argmax(axis=1)
            predicted.append(answer[labels >= 0].astype(np.int8))
            annotated.append(labels[labels >= 0])
            patients.append(np.full(len(annotated[-1]), self._corpus.records.patient_id[row]))
        return np.concatenate(predicted), np.concatenate(annotated), np.concatenate(patients)

    def save(self, folder: Path) -> None:
        """Write the model as `heartlm pretrain` and `finetune` do."""
        save_model(
            folder, self._task.model, replace(self._task.info, step=self._study.rounds * self._study.local_steps)
        )
