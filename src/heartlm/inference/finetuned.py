"""Access to a run for evaluation: its model, its tokenizer and its training corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.recording import ARTEFACT, RHYTHMS
from heartlm.errors import HeartlmError, require
from heartlm.inference.leads import ScoredLead, lead_of_row
from heartlm.models.heart import HeartModel
from heartlm.models.pretrained import find_run
from heartlm.models.store import TASKS, ModelInfo, load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.beats import BEAT_TASK_CLASSES
from heartlm.tasks.task import Flutter
from heartlm.tasks.waveform import CLASSES, WINDOW, WINDOW_S
from heartlm.tokenizers.base import KINDS, Tokenizer, load_tokenizer, tokenizer_class


@dataclass(frozen=True)
class FineTuned:
    """A model with a task head, and its run.

    Attributes:
        folder: run folder.
        about: content of `run.json`.
        model: model in evaluation mode.
        info: description of the model.
    """

    folder: RunFolder
    about: dict[str, Any]
    model: HeartModel
    info: ModelInfo

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model's input.

        Raises:
            HeartlmError: it cannot be read, or is not the one that the model was trained with.
        """
        return tokenizer_of(self.folder.tokenizer, self.info)

    @property
    def tokens_are_beats(self) -> bool:
        """Whether each token is a heartbeat; otherwise tokens are pieces of the signal."""
        return tokenizer_class(self.info.tokenizer_kind).needs_beats

    def training_counts(self, kind: Literal["beats_per_class", "rhythms"]) -> Counter[str]:
        """Return label counts of the training split, from the run's copies of the manifests; needs no corpus."""
        counts: Counter[str] = Counter()
        for entry in self.folder.trained_on:
            for database in entry["manifest"]["databases"]:
                if "train" in database["splits"]:
                    counts.update(database["splits"]["train"][kind])
        return counts

    def training_corpus(self) -> Corpus:
        """Open the training corpus.

        Raises:
            HeartlmError: the corpus is missing, or has been replaced by another one.
        """
        corpus = self.folder.corpus()
        if corpus.manifest_hash != self.about["manifest_hash"]:
            raise HeartlmError(f"{corpus.folder}: no longer the corpus that the run was trained on")
        return corpus

    def training_leads(self) -> list[ScoredLead]:
        """Return one lead of each recording of the training split.

        Raises:
            HeartlmError: see `training_corpus`.
        """
        corpus = self.training_corpus()
        records = corpus.records
        # The last lead of each recording, which replaces the others.
        last = {(records.database[row], records.record_id[row]): int(row) for row in records.select("train")}
        return [lead_of_row(corpus, row) for row in last.values()]

    def seen_notes(self, patients: Collection[str]) -> list[str]:
        """Return a note if some `patients` are in the training data or this is unknown; otherwise an empty list."""
        trained = self.folder.trained_on[0].get("patients")
        if trained is None:
            try:
                records = self.training_corpus().records
            except HeartlmError as error:
                return [f"not known whether patients were trained on: {error}"]
            trained = records.patient_id[records.select("train")].tolist()
        in_training = sorted(set(patients).intersection(trained))
        if not in_training:
            return []
        names = ", ".join(in_training[:5]) + (", ..." if len(in_training) > 5 else "")
        num = len(in_training)
        return [f"{num} of {len(set(patients))} patients {'was' if num == 1 else 'were'} trained on ({names})"]


def tokenizer_of(folder: Path, info: ModelInfo) -> Tokenizer:
    """Load the tokenizer in `folder` for the model that `info` describes.

    Raises:
        HeartlmError: it cannot be read, or is not the one that the model was trained with.
    """
    tokenizer = load_tokenizer(folder)
    if (found := tokenizer.content_hash()) != info.tokenizer_hash:
        raise HeartlmError(
            f"{folder}: tokenizer {found[:12]} found, {info.tokenizer_hash[:12]} expected by tokenizer_hash in "
            "config.json of the model: copy the tokenizer of its training, or train again"
        )
    return tokenizer


def _check_task(info: ModelInfo) -> None:
    """Raise a HeartlmError that names the first field that does not belong to the task of a fine-tuned model."""
    require(info, lambda value: value in KINDS, f"one of {', '.join(KINDS)}", "tokenizer_kind")
    if info.task is None:
        raise HeartlmError(f"task: null found, one of {', '.join(TASKS)} expected")
    if info.task == "rhythm":
        known = f"a rhythm of {', '.join(RHYTHMS)}, and one of {', '.join(get_args(Flutter))} for flutter"
        require(info, lambda value: value[0] in RHYTHMS and value[1] in get_args(Flutter), known, "positive")
    else:
        is_waveform = info.task == "waveform"
        require(info, lambda value: value == is_waveform, f"{is_waveform} for task {info.task}", "pooled")
        if is_waveform:
            require(info, lambda value: value == WINDOW, f"{WINDOW}, the tokens of {WINDOW_S:g} s,", "window")
    allowed = {
        "beats": (BEAT_TASK_CLASSES, (*BEAT_TASK_CLASSES, ARTEFACT)),
        "rhythm": (("other", *info.positive[:1]),),
        "waveform": (CLASSES,),
    }[info.task]
    require(info, lambda value: value in allowed, " or ".join(" ".join(each) for each in allowed), "classes")


def load_finetuned(path: Path, checkpoint: str = "best", device: torch.device | str = "cpu") -> FineTuned:
    """Load the fine-tuned model of the run in `path`.

    Raises:
        HeartlmError: the folder is not a run, the run is not fine-tuned, or it has no model yet.
    """
    folder = RunFolder(path)
    about = folder.about
    if about["kind"] != "finetune":
        raise HeartlmError(
            f"run: {path} is a {about['kind']} run, a fine-tuned one expected: heartlm finetune {path} --task beats"
        )
    if not folder.model(checkpoint).is_dir():
        raise HeartlmError(f"{folder.model(checkpoint)}: no {checkpoint} model yet: let the run finish")
    model, info = load_model(folder.model(checkpoint), device)
    try:
        _check_task(info)
    except HeartlmError as error:
        raise HeartlmError(f"{folder.model(checkpoint) / 'config.json'}: {error}") from error
    return FineTuned(folder, about, model, info)


def load_of_tasks(runs: Mapping[str, Path], device: torch.device | str = "cpu") -> list[FineTuned]:
    """Load the last models of several runs.

    Args:
        runs: for each expected task, the name of a shipped model or a run folder.
        device: device of the models.

    Raises:
        HeartlmError: a model cannot be read, or is of another task.
    """
    models = [load_finetuned(find_run(run), "last", device) for run in runs.values()]
    for model, task in zip(models, runs, strict=True):
        if model.info.task != task:
            raise HeartlmError(f"{model.folder.path}: task {model.info.task} found, {task} expected")
    return models


def load_random_init(path: Path, tuned: FineTuned, checkpoint: str, device: torch.device | str) -> FineTuned:
    """Load the run that started from random weights, for comparison with `tuned`.

    Raises:
        HeartlmError: the run started from pretrained weights, or its task, head, tokenizer, shape or corpus differs.
    """
    rival = load_finetuned(path, checkpoint, device)
    if not rival.about["from_scratch"]:
        raise HeartlmError(f"random_init: {path} started from pretrained weights: make one with --from-scratch")
    compared = ("task", "classes", "positive", "pooled", "tokenizer_hash")
    rival_facts, tuned_facts = (
        {name: getattr(each.info, name) for name in compared}
        | vars(replace(each.info.config, dropout=0.0))
        | {"manifest_hash": each.about["manifest_hash"]}
        for each in (rival, tuned)
    )
    for name, value in rival_facts.items():
        if value != tuned_facts[name]:
            raise HeartlmError(
                f"random_init: {path} has {name} {value}, but {tuned.folder.path} has {tuned_facts[name]}: "
                "compare runs of one task, tokenizer, shape and corpus"
            )
    return rival


def check_tokenizer(corpus: Corpus, info: ModelInfo, run: Path) -> None:
    """Raise a HeartlmError unless `corpus` has the tokenizer of the model in `run`."""
    if corpus.tokenizer_hash != info.tokenizer_hash:
        raise HeartlmError(
            f"{corpus.folder}: made by tokenizer {corpus.tokenizer_hash[:12]}, but the model in {run} reads "
            f"{info.tokenizer_hash[:12]}: tokenize with  --tokenizer-from {run}"
        )
