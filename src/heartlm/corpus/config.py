"""Settings of `heartlm tokenize`. This module imports no heavy package, so that `--help` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from heartlm.errors import HeartlmError, require


@dataclass
class TokenizeConfig:
    """Settings of `heartlm tokenize`.

    Attributes:
        databases: folders of recordings, one per database.
        out: the corpus folder to write. An existing corpus is replaced when the new one is complete. If the command is
            killed, running it again resumes it.
        tokenizer: beat (default) encodes waveforms and RR intervals; rhythm encodes RR intervals only; sample encodes
            amplitudes at 100 Hz; millivolts encodes voltages at 100 Hz (task waveform); leads encodes the voltages of
            all leads together at 100 Hz (task statements).
        tokenizer_from: a run or corpus whose tokenizer is used, instead of fitting a new one.
        causal: omit features that need later beats, so that a live stream gets the same tokens (beat; rhythm with
            waveforms).
        waveforms: also encode comparisons of the beats' waveforms if a recording has a signal (rhythm).
        training_leads: first encodes one lead of each recording; all also encodes the other leads of training
            recordings.
        beats: source of the beats. auto uses annotated beats, and detects beats if there are none.
        skip_unreadable: list unreadable recordings in the manifest instead of stopping at the first.
        damaged: treatment of a recording whose checksums or annotation file show damage. refuse treats it as
            unreadable; warn uses it and lists it in the manifest.
        strict: treat a recording whose file must be repaired to be read as unreadable, instead of using it with a
            warning.
        processes: number of parallel encoding processes, by default one per core. The corpus does not depend on it.
        seed: random seed for the choice of beats that the codebooks are fitted on.
        labels: CSV table of statements about recordings: the name of a recording, then a column for each statement with
            1, 0, or nothing if it is not known. By default the statements of PTB-XL and of the PhysioNet/CinC
            challenges are read (leads).
    """

    databases: list[Path]
    out: Path
    tokenizer: Literal["beat", "rhythm", "sample", "millivolts", "leads"] | None = None
    tokenizer_from: Path | None = None
    causal: bool = False
    waveforms: bool = False
    training_leads: Literal["first", "all"] = "first"
    beats: Literal["auto", "annotated", "detected"] = "auto"
    skip_unreadable: bool = False
    damaged: Literal["refuse", "warn"] = "refuse"
    strict: bool = False
    processes: int | None = None
    seed: int = 0
    labels: Path | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an invalid value."""
        require(self, lambda value: value >= 1, "at least 1", "processes")
        require(self, lambda value: value >= 0, "at least 0", "seed")
        kind = self.tokenizer or "beat"
        given = {"causal": self.causal, "waveforms": self.waveforms, "tokenizer": self.tokenizer}
        if self.tokenizer_from is not None:
            refused = [name for name, value in given.items() if value]
            why = f"the tokenizer of {self.tokenizer_from} has its settings"
        elif self.waveforms and kind != "rhythm":
            refused, why = ["waveforms"], f"only the rhythm tokenizer takes it, not {kind}"
        elif self.causal and kind != "beat" and not self.waveforms:
            refused, why = ["causal"], f"the {kind} tokenizer is always causal"
        else:
            return
        if refused:
            raise HeartlmError(f"{refused[0]}: {why}: leave --{refused[0].replace('_', '-')} out")


class TokenizeSettings(TypedDict, total=False):
    """The settings of `TokenizeConfig` as keyword arguments of `heartlm.tokenize`."""

    tokenizer: Literal["beat", "rhythm", "sample", "millivolts", "leads"] | None
    tokenizer_from: Path | str | None
    causal: bool
    waveforms: bool
    training_leads: Literal["first", "all"]
    beats: Literal["auto", "annotated", "detected"]
    skip_unreadable: bool
    damaged: Literal["refuse", "warn"]
    strict: bool
    processes: int | None
    seed: int
    labels: Path | str | None
