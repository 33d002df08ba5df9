"""`heartlm embed`: write the hidden states of a model for recordings or a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import check_out, parse


@dataclass(frozen=True)
class EmbedOptions:
    """Options of `heartlm embed`.

    Attributes:
        model: a run folder, a folder with model.safetensors, or the name of a shipped model, such as foundation.
        source: a WFDB recording, a folder of recordings, or a corpus of the model's tokenizer.
        out: output file: .parquet with one row per vector, or .npz.
        level: one vector per beat, per window of the model's context length, or per recording, of all leads; by default
            beat, or recording for a model that reads all leads together, such as statements.
        layer: index of the block whose output is used, from 0; -1 is the output of the model.
        split: split of the corpus or folder: train, validation or test; by default all.
        device: device of the model; auto uses a GPU if there is one.
    """

    model: Path
    source: Path
    out: Path
    level: Literal["beat", "window", "recording"] | None = None
    layer: int = -1
    split: Literal["train", "validation", "test"] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"


def run(arguments: Sequence[str]) -> int:
    """Write the hidden states of a model as vectors, with the patient, record, lead, sample and labels of each.

    The exit status is 1 if recordings were left out; the last line counts them.

    Examples:
        heartlm embed foundation mitdb/100 --out 100.parquet
        heartlm embed foundation ptb-xl --level recording --out ptb-xl.npz
        heartlm embed statements ptb-xl --out ptb-xl.npz
        heartlm embed runs/foundation corpora/mitdb --split test --layer 2 --out mitdb.parquet
    """
    options = parse(EmbedOptions, arguments, "embed", run, positionals=["model", "source"])
    check_out(options.out, options.model, options.source)
    from heartlm import api

    model = api.load_model(options.model, device=options.device)
    embedded = model.embed(options.source, options.level, options.layer, options.split)
    path = embedded.write(options.out)
    num_records = len(dict.fromkeys(zip(embedded.database.tolist(), embedded.record.tolist(), strict=True)))
    print(f"{len(embedded):,} vectors of {embedded.vectors.shape[1]} numbers, {num_records:,} recordings")
    for line in embedded.left_out:
        print(f"left out: {line}")
    print(path)
    if embedded.left_out:
        print(f"{num_records:,} recordings embedded, {len(embedded.left_out):,} left out")
    return 1 if embedded.left_out else 0
