"""Description of a model on disk. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from heartlm.errors import require
from heartlm.models.config import ModelConfig

MAX_WINDOW = 1 << 20
"""Most tokens of a window; a window of all tokens of a week has fewer."""
_HASH = "the SHA-256 of a tokenizer, 64 hexadecimal digits,"


@dataclass(frozen=True)
class ModelInfo:
    """Description of a model on disk.

    Attributes:
        config: resolved sizes.
        tokenizer_hash: content hash of the tokenizer.
        tokenizer_kind: kind of the tokenizer: beat, rhythm, sample, millivolts or leads.
        objective: objective of pretraining, masked or causal.
        window: tokens per training window.
        task: name of the task; None for a foundation model.
        classes: names of the classes; empty for a foundation model.
        pooled: whether the model labels windows instead of tokens.
        positive: positive rhythm of the rhythm task and treatment of flutter; empty for other tasks.
        step: training step at which the model was saved.
        shortest: tokens of the shortest training window of the rhythm task; 0 if equal to `window`.
        threshold: probability at which a prediction counts as positive (the rhythm, or VF).
        thresholds: probability at which each of the classes counts as present (statements task); empty for others.
    """

    config: ModelConfig
    tokenizer_hash: str
    tokenizer_kind: str
    objective: str
    window: int
    task: str | None = None
    classes: tuple[str, ...] = ()
    pooled: bool = False
    positive: tuple[str, ...] = ()
    step: int = 0
    shortest: int = 0
    threshold: float = 0.5
    thresholds: tuple[float, ...] = ()

    def check(self) -> None:
        """Raise a HeartlmError that names the first field whose value no training writes."""
        require(self, lambda value: len(value) == 64 and set(value) <= set("0123456789abcdef"), _HASH, "tokenizer_hash")
        require(self, lambda value: 1 <= value <= MAX_WINDOW, f"1 to {MAX_WINDOW:,}", "window")
        require(self, lambda value: 0 <= value <= self.window, f"0 to the window of {self.window:,}", "shortest")
        require(self, lambda value: value >= 0, "at least 0", "step")
        require(self, lambda value: 0 <= value <= 1, "a probability, 0 to 1,", "threshold")
        require(self, lambda value: all(0 <= each <= 1 for each in value), "probabilities, 0 to 1,", "thresholds")
        require(self, lambda value: value in ("masked", "causal", "labels"), "masked, causal or labels", "objective")
        sizes = "whole numbers from 1 to 65,536"
        require(self.config, lambda value: value and all(1 <= size <= 1 << 16 for size in value), sizes, "facet_sizes")
        require(self, lambda value: bool(value) == bool(self.task), f"names for task {self.task}", "classes")
