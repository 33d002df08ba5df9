"""What a task is, and the settings of fine-tuning for it. Imports no torch.

            ┌► check ─► learning ─► training ─► model ─┐
settings ───┤                                          ├► check_model ─► score, heading
            └ task_of: the file of the task's name     └► annotate
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import RHYTHMS, Annotations, Recording
from heartlm.errors import HeartlmError, require
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.results import Predictions, ScoreSet
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.leads import ScoredLead
from heartlm.labels.tokens import Flutter
from heartlm.models.info import ModelInfo
from heartlm.tasks.registry import TaskName
from heartlm.tokenizers.base import Lead, Tokens
from heartlm.training.config import TrainingConfig
from heartlm.training.job import TrainingTask

if TYPE_CHECKING:
    from heartlm.evaluation.bootstrap import Resampling

Leads = Sequence[ScoredLead]


@dataclass(frozen=True)
class Answer:
    """What a model says about a recording.

    Attributes:
        found: beats with predicted codes (beats task), or spans of predicted rhythms (rhythm and waveform tasks);
            empty if the task names neither.
        seconds: probability of each class in every second, float64 `[num_seconds, num_classes]` (waveform task).
        statements: probability and threshold of each statement (statements task); of a recording of more than a
            minute, the mean probability of its pieces of ten seconds.
        pieces: probability of each statement in each of these pieces, float64 `[num_pieces, num_statements]`; None for
            shorter recordings.
        piece_s: start and stop of each piece in seconds, float64 `[num_pieces, 2]`.
    """

    found: Annotations
    seconds: NDArray[np.float64] | None = None
    statements: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    pieces: NDArray[np.float64] | None = None
    piece_s: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class FinetuneConfig(TrainingConfig):
    """Settings of fine-tuning.

    Attributes:
        run: run folder of a pretrained or fine-tuned model, or the name of a shipped model, such as foundation. The
            head of a fine-tuned model is kept if it has all classes of the labels. The statements task starts from
            random weights without a run, the waveform task always.
        patients: patients to train on, such as mitdb/101,svdb/800, including their beats on simulated rhythms; by
            default all patients of the training split.
        task: what to predict; beats is the AAMI class of every beat, rhythm is whether every beat is in the rhythm,
            waveform is VF, VT, asystole, noise or other for 4 s of signal, statements is which of several statements a
            report makes about the recording. The waveform task takes a corpus of the millivolt tokenizer, balances
            classes and patients when sampling, and augments the windows; the statements task takes one of the leads
            tokenizer.
        statements: names of the statements to learn, such as AFIB,PVC; by default those with enough training patients.
        network: network of the statements task; leads adds up leads by their directions, residual is the baseline, a
            residual network with a weight for each lead.
        members: networks of the statements task that are trained together; their logits are averaged.
        trees: fit boosted trees on a summary of the beats too, which answer with the network of the statements task.
        from_scratch: start from random weights instead of the pretrained ones, as a baseline.
        head: unit of prediction; token labels each token, window labels a whole window by the majority of its tokens.
        rhythm: positive class of the rhythm task.
        flutter: how atrial flutter is labelled when the rhythm is AFIB.
        shortest_window: shortest width in tokens for training on mixed widths. Each step splits its windows into
            halves, quarters and so on, down to this width. The model then accepts windows of any width in this range.
        threshold: probability at which a window or beat is labelled as in the rhythm (by default 0.5) or a window as VF
            (by default 0.2); stored with the model. Select it on patients used for neither training nor testing.
        class_balance: balance of the classes in the loss; 0 weights every labelled token equally, 1 every class
            equally, 0.5 lies between. With the head token, the classes of each database are balanced by themselves.
        patient_balance: balance of the patients within a class; 0 weights every label equally, 1 every patient with
            labels of the class equally.
        facet_dropout: fraction of codes hidden in training.
        waveform_dropout: fraction of windows whose waveform codes are all hidden in training (beat tokenizer), so that
            the model relies on beat timing and on comparison with other beats as well as on beat shape.
        dropout: dropout probability in training.
        folds: cross-validation: number of folds, 3 or more, into which all patients except excluded ones are divided,
            by a hash of seed and patient. For each fold, a model is trained on all but two folds, selected on the next
            one, and scored on the fold itself.
        fold: train for this fold alone, 1 to `folds`.
    """

    run: Path | None = None
    patients: str | None = None
    task: TaskName = "beats"
    statements: str | None = None
    network: Literal["leads", "residual"] = "leads"
    members: int = 3
    trees: bool = True
    from_scratch: bool = False
    head: Literal["token", "window"] = "token"
    rhythm: str = "AFIB"
    flutter: Flutter = "negative"
    shortest_window: int | None = None
    threshold: float | None = None
    class_balance: float = 0.5
    patient_balance: float = 0.5
    facet_dropout: float = 0.1
    waveform_dropout: float = 0.5
    dropout: float = 0.1
    folds: int | None = None
    fold: int | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        super().check()
        task_of(self.task).check(self)
        if self.rhythm not in RHYTHMS:
            raise HeartlmError(f"rhythm: {self.rhythm!r} found, one of {', '.join(RHYTHMS)} expected")
        require(self, lambda value: 0 <= value <= 1, "0 to 1", "class_balance", "patient_balance")
        require(self, lambda value: 0 <= value < 1, "0 to below 1", "facet_dropout", "waveform_dropout", "dropout")
        require(self, lambda value: 0 < value < 1, "between 0 and 1", "threshold")
        require(self, lambda value: value >= 1, "at least 1", "members")
        require(self, lambda value: value >= 3, "at least 3", "folds")
        require(self, lambda value: 1 <= value <= (self.folds or 0), f"1 to {self.folds or 'folds'}", "fold")
        if self.folds is not None and self.measure:
            raise HeartlmError("measure: true found, but folds are trained to be scored: leave one of both out")
        require(self, lambda value: 1 <= value <= self.window, f"1 to {self.window}, the window", "shortest_window")
        if self.shortest_window is not None and self.compile:
            raise HeartlmError("compile: true found, but windows of mixed widths have no one shape: leave it out")

    def required_corpus(self) -> Path:
        """Return the corpus folder.

        Raises:
            HeartlmError: no corpus is given, or no run where the task starts from one.
        """
        if self.run is None and task_of(self.task).continues:
            raise HeartlmError("run: nothing found, a run folder expected: heartlm finetune RUN --corpus FOLDER")
        return super().required_corpus()

    @property
    def statement_names(self) -> tuple[str, ...]:
        """Statements to learn; empty for those with enough examples."""
        return tuple(name.strip() for name in (self.statements or "").split(",") if name.strip())

    @property
    def patient_ids(self) -> tuple[str, ...]:
        """Patients to train on; empty for all."""
        return tuple(name.strip() for name in (self.patients or "").split(",") if name.strip())


class Task(ABC):
    """A question that a fine-tuned model answers.

    The defaults suit a task that adds a head for tokens to a pretrained model.

    Attributes:
        name: name in settings, run folders and shipped models.
        scored: what a score is of, for messages.
        heading: what scores are of, and what they leave out, with fields of `scores.json` in braces. Its tables follow
            from its content.
        heads: values of `pooled` that its models may have.
        classes: class names that its models may have; none if they are "other" and the positive rhythm of the model.
        continues: whether its models start from a pretrained one, and other tasks from its models.
        needs_classified_beats: whether detected beats can be scored only on recordings with annotated classes of beats.
    """

    name: ClassVar[TaskName]
    scored: ClassVar[str]
    heading: ClassVar[tuple[str, str]]
    heads: ClassVar[tuple[bool, ...]] = (False,)
    classes: ClassVar[tuple[tuple[str, ...], ...]] = ()
    continues: ClassVar[bool] = True
    needs_classified_beats: ClassVar[bool] = False

    def check(self, config: FinetuneConfig) -> None:
        """Raise a HeartlmError that names the first setting that the task does not accept; imports no torch."""
        if config.head == "window" and True not in self.heads:
            raise HeartlmError(f"head: 'window' found, but the {self.name} task labels tokens: use --head token")

    @abstractmethod
    def learning(self, config: FinetuneConfig, corpus: Corpus, validates: bool = True) -> TrainingTask:
        """Return model, loss, batches and resolved settings on `corpus`.

        Args:
            config: settings.
            corpus: corpus with labels.
            validates: whether to hold out the validation split.

        Raises:
            HeartlmError: the model does not exist or reads another tokenizer, or no training token has a label.
        """

    def finish(self, run: Path, config: FinetuneConfig) -> None:  # noqa: B027 - most tasks have nothing to add
        """Complete the models of a finished run, for example by thresholds chosen on the validation split."""

    def check_model(self, info: ModelInfo) -> None:
        """Raise a HeartlmError that names the first field of a saved model that does not belong to the task."""
        allowed, num = self.classes or (("other", *info.positive[:1]),), 0 if self.classes else 2
        require(info, lambda value: len(value) == num, f"{num} texts for task {self.name}", "positive")
        require(info, lambda value: value in self.heads, f"{self.heads[0]} for task {self.name}", "pooled")
        require(info, lambda value: value in allowed, " or ".join(" ".join(each) for each in allowed), "classes")

    @abstractmethod
    def score(self, leads: Leads, tuned: FineTuned, rival: FineTuned | None, config: EvaluationConfig) -> ScoreSet:
        """Score the model and its baselines on `leads`.

        Args:
            leads: leads to score.
            tuned: fine-tuned model.
            rival: the same model trained from random weights, if available.
            config: evaluation settings.

        Raises:
            HeartlmError: nothing in `leads` has a label of the task.
        """

    @abstractmethod
    def score_predictions(
        self, predictions: Predictions, evaluations: Sequence[Mapping[str, Any]], resampling: Resampling
    ) -> dict[str, Any]:
        """Score a table of predictions, or several together, as `score` does the model.

        Args:
            predictions: rows of one or several evaluations.
            evaluations: the `scores.json` of each of them; they agree in how they were made.
            resampling: settings of the intervals.
        """

    def scored_how(self, tuned: FineTuned, config: EvaluationConfig) -> str:
        """Return the part of the default name of scores that follows the split.

        Raises:
            HeartlmError: the task does not accept a setting of the evaluation.
        """
        if config.window is not None:
            raise HeartlmError(f"window: {config.window} found, but the task {self.name} scores {self.scored}")
        return self.name

    @abstractmethod
    def annotate(self, tuned: FineTuned, recording: Recording, lead: Lead, tokens: Tokens) -> Answer:
        """Return the answers for a lead of `recording`.

        Raises:
            HeartlmError: the lead is too short.
        """


def task_of(name: str) -> Task:
    """Return the task of this name, from its file.

    Raises:
        HeartlmError: there is none.
    """
    if name not in (names := get_args(TaskName)):
        raise HeartlmError(f"task: {name} found, one of {', '.join(names)} expected")
    task: Task = import_module(f"heartlm.tasks.{name}").TASK
    return task
