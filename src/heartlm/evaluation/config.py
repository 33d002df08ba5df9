"""Settings of an evaluation. Imports no large package, so that `--help` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heartlm.errors import HeartlmError, require
from heartlm.storage.typed import Checked

if TYPE_CHECKING:
    from heartlm.evaluation.bootstrap import Resampling

SMALLEST_WINDOW = 4
"""Smallest window in beats; the entropy of Zhou 2015 is undefined for fewer."""


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """Settings of an evaluation: recordings, baselines, intervals.

    Attributes:
        split: split of the recordings to score; all includes those excluded from training and testing.
        records: comma-separated names of recordings of the split to score, for example 201,202,203; by default all.
        beats: annotated uses the annotated beat positions; detected detects the beats and matches them with the
            annotated ones within 150 ms, which needs a folder of recordings.
        checkpoint: model to score, the one with the lowest validation loss or the last one.
        window: beats per window of the rhythm task; by default the width that the model was trained on.
        baselines: also score the majority class, gradient boosting and, for rhythm, Zhou 2015.
        random_init: run of the same task made with --from-scratch, to score as a further baseline.
        name: folder of the results below RUN/scores, or below scores/MODEL for a shipped model; by default derived
            from the settings.
        bootstrap: number of bootstrap resamples of patients for the confidence intervals.
        seed: random seed of the confidence intervals and of gradient boosting.
        device: device of the model; auto uses a GPU if there is one.
        threads: CPU threads of torch; by default torch's own default.
    """

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
        """Names of the recordings to score; empty for all of the split."""
        return tuple(name.strip() for name in (self.records or "").split(",") if name.strip())

    @property
    def resampling(self) -> Resampling:
        """Settings of the bootstrap for the confidence intervals."""
        from heartlm.evaluation.bootstrap import Resampling  # NumPy is slow to import

        return Resampling(self.bootstrap, self.seed)

    def check(self) -> None:
        """Raise a HeartlmError that names the first invalid field."""
        require(self, lambda value: value >= 1, "at least 1", "bootstrap", "threads")
        require(self, lambda value: value >= SMALLEST_WINDOW, f"at least {SMALLEST_WINDOW}", "window")
        require(self, lambda value: 0 <= value < 2**31, "0 to 2147483647", "seed")
        if self.name is not None and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise HeartlmError(f"name: {self.name!r} found, a plain folder name expected, without slashes")
