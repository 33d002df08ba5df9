"""Settings of an evaluation. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heartlm.errors import HeartlmError, require

if TYPE_CHECKING:
    from heartlm.evaluation.bootstrap import Resampling

SMALLEST_WINDOW = 4
"""Beats; the entropy of Zhou 2015 is not defined below."""


@dataclass
class EvaluationConfig:
    """What to score, on what, next to which baselines.

    Attributes:
        run: the run folder of the fine-tuned model, or the name of a shipped one.
        on: a corpus, or a folder of recordings, which is tokenised by the run's own tokenizer.
        split: the recordings to score; all takes every split, those excluded from training and testing too.
        records: only these recordings of the split, names apart by commas, for example 201,202,203.
        beats: annotated scores each beat where it was annotated; detected finds the beats first and matches them with
            the annotated ones within 150 ms, which takes a folder of recordings.
        checkpoint: the model with the lowest validation loss, or the last one.
        window: beats a window of the rhythm task; by default as many as the model was trained on.
        baselines: score the majority class, gradient boosting and, for rhythm, Zhou 2015 next to the model.
        random_init: a run of the same task made with --from-scratch, scored next to the model.
        name: folder below RUN/scores, for a shipped model below scores/MODEL; by default from what is scored.
        bootstrap: how many times patients are drawn again for the confidence intervals.
        seed: of the confidence intervals and of gradient boosting.
        device: where the model computes; auto takes a GPU where there is one.
        threads: CPU threads of torch; by default as many as torch takes.
    """

    run: Path
    on: Path
    split: Literal["test", "validation", "train", "all"] = "test"
    records: str | None = None
    beats: Literal["annotated", "detected"] = "annotated"
    checkpoint: Literal["best", "last"] = "best"
    window: int | None = None
    baselines: bool = True
    random_init: Path | None = None
    name: str | None = None
    bootstrap: int = 1000
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None

    @property
    def record_ids(self) -> tuple[str, ...]:
        """The recordings asked for by name; empty where all of the split are."""
        return tuple(name.strip() for name in (self.records or "").split(",") if name.strip())

    @property
    def resampling(self) -> Resampling:
        """How the confidence intervals are made."""
        from heartlm.evaluation.bootstrap import Resampling  # NumPy is slow to import

        return Resampling(self.bootstrap, self.seed)

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        require(self, lambda value: value >= 1, "at least 1", "bootstrap", "threads")
        require(self, lambda value: value >= SMALLEST_WINDOW, f"at least {SMALLEST_WINDOW}", "window")
        require(self, lambda value: 0 <= value < 2**31, "0 to 2147483647", "seed")
        if self.name is not None and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise HeartlmError(f"name: {self.name!r} found, a plain folder name expected, without slashes")
