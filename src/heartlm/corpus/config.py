"""Settings of `heartlm tokenize`. This module imports no heavy package, so that `--help` is fast."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.storage.typed import Checked, typed
from heartlm.system.engine import PartOptions
from heartlm.tokenizers.registry import TokenizerName

if TYPE_CHECKING:
    from heartlm.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class TokenizeConfig(PartOptions, Checked):
    """Settings of a corpus.

    Attributes:
        tokenizer: beat (default) encodes waveforms and RR intervals; rhythm encodes RR intervals only; sample encodes
            amplitudes at 100 Hz; millivolts encodes voltages at 100 Hz (task waveform); leads encodes the voltages of
            all leads together at 100 Hz (task statements).
        tokenizer_from: a run or corpus whose tokenizer is used, instead of fitting a new one.
        causal: omit features that need later beats, so that a live stream gets the same tokens (beat; rhythm with
            waveforms).
        waveforms: also encode comparisons of the beats' waveforms if a recording has a signal (rhythm).
        settings: further settings of the tokenizer, for example {num_codes: 64}; they are the fields of the settings
            class in its file.
        training_leads: first encodes one lead of each recording; all also encodes the other leads of training
            recordings.
        beats: source of the beats. auto uses annotated beats, and detects beats if there are none.
        skip_unreadable: list unreadable recordings in the manifest instead of stopping at the first.
        damaged: treatment of a recording whose checksums or annotation file show damage. refuse treats it as
            unreadable; warn uses it and lists it in the manifest.
        strict: treat a recording whose file must be repaired to be read as unreadable, instead of using it with a
            warning.
        seed: random seed for the choice of beats that the codebooks are fitted on.
        labels: CSV table of statements about recordings: the name of a recording, then a column for each statement with
            1, 0, or nothing if it is not known. By default the statements of PTB-XL and of the PhysioNet/CinC
            challenges are read (leads).
        shards: number of shards. Each is written whole by the worker that encodes it, and the command writes the index.
            By default 1, or the number of parts of --part, which does one shard; the same command with --shards then
            joins them. Windows and their order do not depend on it.
    """

    tokenizer: TokenizerName | None = None
    tokenizer_from: Path | None = None
    causal: bool = False
    waveforms: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    training_leads: Literal["first", "all"] = "first"
    beats: Literal["auto", "annotated", "detected"] = "auto"
    skip_unreadable: bool = False
    damaged: Literal["refuse", "warn"] = "refuse"
    strict: bool = False
    seed: int = 0
    labels: Path | None = None
    shards: int | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an invalid value."""
        self.check_engine()
        require(self, lambda value: value >= 1, "at least 1", "shards")
        if self.part is not None and self.shards not in (None, self.part_of[1]):
            raise HeartlmError(f"part: {self.part} found next to {self.shards} shards: a part is a shard")
        require(self, lambda value: value >= 0, "at least 0", "seed")
        if self.tokenizer_from is None:
            self.new_tokenizer()
        elif refused := [*self._given, *(["tokenizer"] if self.tokenizer else [])]:
            raise HeartlmError(f"{refused[0]}: the tokenizer of {self.tokenizer_from} has its settings: leave it out")

    @property
    def num_shards(self) -> int:
        """Number of shards of the corpus."""
        return self.shards or self.part_of[1]

    @property
    def _given(self) -> dict[str, Any]:
        """Settings of the tokenizer."""
        return self.settings | {name: True for name in ("causal", "waveforms") if getattr(self, name)}

    def new_tokenizer(self) -> Tokenizer:
        """Return a tokenizer of the chosen kind, to be fitted.

        Raises:
            HeartlmError: it does not take a setting; the message names the setting.
        """
        from heartlm.tokenizers.base import tokenizer_class  # NumPy is slow to import

        tokenizer = tokenizer_class(self.tokenizer or "beat")
        known = {each.name for each in fields(tokenizer.takes)}
        if unknown := [name for name in self._given if name not in known]:
            raise HeartlmError(f"{unknown[0]}: the {tokenizer.kind} tokenizer has no such setting: leave it out")
        return tokenizer.of(typed(tokenizer.takes, self._given))
