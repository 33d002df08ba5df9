"""A fine-tuned run as evaluation needs it: its model, its tokenizer, and the corpus it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.errors import HeartlmError
from heartlm.files import read_json
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, load_model
from heartlm.tokenizers.base import Tokenizer, load_tokenizer
from heartlm.training.run_folder import RunFolder


@dataclass(frozen=True)
class FineTuned:
    """A model with a head, and where it came from.

    Attributes:
        folder: of the run.
        about: content of `run.json`.
        model: in evaluation mode.
        info: what the model says of itself.
    """

    folder: RunFolder
    about: dict[str, Any]
    model: HeartModel
    info: ModelInfo

    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose codes the model reads."""
        return load_tokenizer(self.folder.tokenizer)

    def training_manifests(self) -> list[dict[str, Any]]:
        """Copies of the manifests of what it was trained on, which stay when the corpus is gone."""
        return [entry["manifest"] for entry in read_json(self.folder.path / "data.json")]

    def training_corpus(self) -> Corpus:
        """Open the corpus it was trained on.

        Raises:
            HeartlmError: the corpus is gone, or another one stands in its place.
        """
        corpus = open_corpus(Path(read_json(self.folder.path / "data.json")[0]["path"]))
        if corpus.manifest_hash != self.about["manifest_hash"]:
            raise HeartlmError(f"{corpus.folder}: no longer the corpus that the run was trained on")
        return corpus


def load_finetuned(path: Path, checkpoint: str = "best", device: torch.device | str = "cpu") -> FineTuned:
    """Load the fine-tuned model of the run in `path`.

    Raises:
        HeartlmError: no run, a pretrained one, or one without a model yet.
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
    return FineTuned(folder, about, model, info)


def load_random_init(path: Path, beside: FineTuned, checkpoint: str, device: torch.device | str) -> FineTuned:
    """Load the run that started from random weights, to stand beside another.

    Raises:
        HeartlmError: it started from pretrained weights, or has another task, head or tokenizer.
    """
    rival = load_finetuned(path, checkpoint, device)
    if not rival.about["from_scratch"]:
        raise HeartlmError(f"random_init: {path} started from pretrained weights: make one with --from-scratch")
    for name in ("task", "classes", "positive", "pooled", "tokenizer_hash"):
        found, expected = getattr(rival.info, name), getattr(beside.info, name)
        if found != expected:
            raise HeartlmError(
                f"random_init: {path} has {name} {found!r}, but {beside.folder.path} has {expected!r}: "
                "compare runs of one task and one tokenizer"
            )
    return rival
