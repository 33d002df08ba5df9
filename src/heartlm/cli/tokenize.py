"""`heartlm tokenize`: recordings in, a corpus out."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heartlm.cli.options import parse


@dataclass
class TokenizeOptions:
    """Options of `heartlm tokenize`.

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


def run(arguments: Sequence[str]) -> int:
    """Turn recordings into a corpus of tokens. The tokenizer is fitted on the training split alone.

    Examples:
        heartlm tokenize mitdb --tokenizer beat --out corpora/mitdb
        heartlm tokenize mitdb cudb cinc2017 --tokenizer beat --training-leads all --out corpora/many
        heartlm tokenize afdb --tokenizer rhythm --out corpora/afdb
        heartlm tokenize cudb mitdb nstdb cinc2017 --tokenizer millivolts --training-leads all --out corpora/vf
        heartlm tokenize svdb --tokenizer-from runs/foundation --out corpora/svdb
    """
    options = parse(TokenizeOptions, arguments, "tokenize", run, positionals=["databases"])
    from heartlm import api

    command = shlex.join(["heartlm", "tokenize", *arguments])
    corpus = api.tokenize(**vars(options), command=command)
    print("\n".join(describe(corpus.manifest, options.out)))
    return 0


def describe(manifest: dict[str, Any], folder: Path) -> list[str]:
    """The lines that tell what is in a corpus."""
    tokenizer = manifest["tokenizer"]
    lines = [
        f"{folder}: {manifest['num_tokens']:,} {tokenizer['kind']} tokens of {len(tokenizer['facets'])} facets, "
        f"{manifest['num_records']} records, {manifest['num_patients']} patients"
    ]
    for database in manifest["databases"]:
        lines.append(
            f"  {database['name']}: {database['num_beats']:,} beats in {database['num_records']} records, "
            f"{database['hours']:.1f} h"
        )
        for split, content in database["splits"].items():
            classes = ", ".join(f"{name} {count:,}" for name, count in content["beats_per_class"].items())
            lines.append(
                f"    {split}: {content['patients']} patients, {content['leads']} leads, "
                f"{content['tokens']:,} tokens ({classes})"
            )
    if tokenizer["decode_error"] is not None:
        lines.append(f"  decoding loses {100 * tokenizer['decode_error']:.1f} % of the waveform's RMS")
    reasons = Counter[str]()
    for entry in manifest["dropped"]:
        reasons[entry["reason"]] += entry.get("count", 1)
    lines += [f"  left out: {count} x {reason} (listed in manifest.json)" for reason, count in reasons.most_common()]
    if damaged := {entry["record"] for entry in manifest["damaged"]}:
        lines.append(f"  damaged and used: {len(damaged)} recordings (listed in manifest.json)")
    return lines
