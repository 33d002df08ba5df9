"""`heartlm tokenize`: turn recordings into a corpus of tokens."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cli.options import parse
from heartlm.corpus.config import TokenizeConfig
from heartlm.sources.address import source_path


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions(TokenizeConfig):
    """Options of `heartlm tokenize`.

    Attributes:
        databases: folders of recordings, one per database.
        out: the corpus folder to write, or its address in a bucket. An existing corpus is replaced when the new one is
            complete. If the command is killed, running it again resumes it.
    """

    databases: list[Path]
    out: Path


def run(arguments: Sequence[str]) -> int:
    """Turn recordings into a corpus of tokens. The tokenizer is fitted on the training split only.

    The exit status is 1 if recordings were left out; the last line counts them.

    Examples:
        heartlm tokenize mitdb --tokenizer beat --out corpora/mitdb
        heartlm tokenize mitdb cudb cinc2017 --tokenizer beat --training-leads all --out corpora/many
        heartlm tokenize afdb --tokenizer rhythm --out corpora/afdb
        heartlm tokenize cudb mitdb nstdb cinc2017 --tokenizer millivolts --training-leads all --out corpora/vf
        heartlm tokenize svdb --tokenizer-from runs/foundation --out corpora/svdb
    """
    options = parse(TokenizeOptions, arguments, "tokenize", run, positionals=["databases"])
    from heartlm import api

    out = source_path(options.out)
    if options.part is not None:
        from heartlm.corpus.build import build_part
        from heartlm.models.pretrained import find_run

        given = None if options.tokenizer_from is None else find_run(options.tokenizer_from) / "tokenizer"
        num_records, num_unreadable = build_part(options.databases, out, options, given)
        print(f"{out}: part {options.part}, {num_records:,} recordings, {num_unreadable:,} not readable")
        print(f"when all parts are done, join them:  the same command with --shards {options.num_shards} for --part")
        return 1 if num_unreadable else 0
    command = shlex.join(["heartlm", "tokenize", *arguments])
    corpus = api.tokenize(options.databases, out, options, command=command)
    print("\n".join(describe(corpus.manifest, out)))
    num_records, num_left_out = corpus.manifest["num_records"], corpus.manifest["num_left_out"]
    if num_left_out:
        print(f"{num_records:,} recordings tokenised, {num_left_out:,} left out")
    return 1 if num_left_out else 0


def describe(manifest: dict[str, Any], folder: Path) -> list[str]:
    """Return a description of a corpus as lines of text."""
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
        lines.append(f"  damaged or repaired, and used: {len(damaged)} recordings (listed in manifest.json)")
    return lines
