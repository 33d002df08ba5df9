"""Settings of tokenising. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.errors import HeartlmError, require


@dataclass
class TokenizeConfig:
    """What to tokenise, and how.

    Attributes:
        databases: folders of recordings, one each database.
        out: the corpus folder to write; an earlier one is replaced when the new one is complete. Killed, the same
            command continues where it was.
        tokenizer: beat, the default, reads waveforms and RR intervals; rhythm reads RR intervals alone; sample reads
            amplitudes at 100 Hz; bpe reads runs of them; millivolts reads voltages at 100 Hz, for the task waveform.
        tokenizer_from: encode with the tokenizer of this run or corpus instead of fitting one.
        causal: leave out what needs the next beats, so that a live stream can be tokenised alike (beat; rhythm with
            waveforms).
        waveforms: compare the beats' waveforms too, where a recording has a signal (rhythm).
        num_codes: how many different runs there are at most, by default 1024 (bpe).
        training_leads: first encodes one lead of each recording; all adds the other leads of training recordings.
        beats: auto takes annotated beats and detects them where there are none.
        skip_unreadable: list unreadable recordings in the manifest instead of stopping at the first.
        damaged: refuse takes a recording whose checksums or annotation file show damage for unreadable; warn uses it
            and lists it in the manifest.
        processes: how many encode side by side; by default one a core. The corpus does not depend on it.
        seed: of the choice of beats that the codebooks are fitted on.
    """

    databases: list[Path]
    out: Path
    tokenizer: Literal["beat", "rhythm", "sample", "bpe", "millivolts"] | None = None
    tokenizer_from: Path | None = None
    causal: bool = False
    waveforms: bool = False
    num_codes: int | None = None
    training_leads: Literal["first", "all"] = "first"
    beats: Literal["auto", "annotated", "detected"] = "auto"
    skip_unreadable: bool = False
    damaged: Literal["refuse", "warn"] = "refuse"
    processes: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        require(self, lambda value: value >= 1, "at least 1", "processes")
        require(self, lambda value: value >= 0, "at least 0", "seed")
        kind = self.tokenizer or "beat"
        given = {"causal": self.causal, "waveforms": self.waveforms, "tokenizer": self.tokenizer}
        given["num_codes"] = self.num_codes is not None
        if self.tokenizer_from is not None:
            refused = [name for name, value in given.items() if value]
            why = f"the tokenizer of {self.tokenizer_from} has its settings"
        elif self.waveforms and kind != "rhythm":
            refused, why = ["waveforms"], f"only the rhythm tokenizer takes it, not {kind}"
        elif self.causal and kind != "beat" and not self.waveforms:
            refused, why = ["causal"], f"the {kind} tokenizer is always causal"
        elif self.num_codes is not None and kind != "bpe":
            refused, why = ["num_codes"], f"only the bpe tokenizer takes it, not {kind}"
        else:
            return
        if refused:
            raise HeartlmError(f"{refused[0]}: {why}: leave --{refused[0].replace('_', '-')} out")
