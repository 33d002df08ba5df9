"""Access to a run for evaluation: its model, its tokenizer and its training corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.folds import in_fold
from heartlm.errors import HeartlmError
from heartlm.inference.leads import ScoredLead, lead_of_row
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.base import Tokenizer, load_tokenizer, tokenizer_class

if TYPE_CHECKING:
    from heartlm.inference.network import InferenceNetwork
    from heartlm.models.info import ModelInfo


@dataclass(frozen=True)
class FineTuned:
    """A model with a task head, and its run.

    Attributes:
        folder: run folder.
        about: content of `run.json`.
        model: network that answers.
        info: description of the model.
    """

    folder: RunFolder
    about: dict[str, Any]
    model: InferenceNetwork
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

    def own_splits(self, corpus: Corpus) -> Corpus:
        """Return `corpus` with the splits that the model was trained with, if it was trained for a fold of it."""
        own = in_fold(corpus, self.folder.fold)
        return own if own.manifest_hash == self.about["manifest_hash"] else corpus

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


def check_tokenizer(corpus: Corpus, info: ModelInfo, run: Path) -> None:
    """Raise a HeartlmError unless `corpus` has the tokenizer of the model in `run`."""
    if corpus.tokenizer_hash != info.tokenizer_hash:
        raise HeartlmError(
            f"{corpus.folder}: made by tokenizer {corpus.tokenizer_hash[:12]}, but the model in {run} reads "
            f"{info.tokenizer_hash[:12]}: tokenize with  --tokenizer-from {run}"
        )
