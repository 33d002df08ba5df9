"""`heartlm embed`: write the hidden states of a model for recordings or a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heartlm.cli.options import check_out, parse
from heartlm.errors import HeartlmError
from heartlm.system.engine import PartOptions


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(PartOptions):
    """Options of `heartlm embed`.

    Attributes:
        model: a run folder, a folder with model.safetensors, or the name of a shipped model, such as foundation.
        source: a recording, a folder of recordings or its index, or a corpus of the model's tokenizer.
        out: output file, .parquet with one row per vector, or .npz; with --tables parquet, a folder. If the command is
            killed, running it again resumes it.
        level: one vector per beat, per window of the model's context length, or per recording, of all leads; by default
            beat, or recording for a model that reads all leads together, such as statements.
        layer: index of the block whose output is used, from 0; -1 is the output of the model.
        split: split of the corpus or folder: train, validation or test; by default all.
        tables: file writes one file; parquet writes the vectors of recordings as Parquet datasets, for archives of any
            size.
        device: device of the model; auto uses a GPU if there is one, for one recording at a time by default.
    """

    model: Path
    source: Path
    out: Path
    level: Literal["beat", "window", "recording"] | None = None
    layer: int = -1
    split: Literal["train", "validation", "test"] | None = None
    tables: Literal["file", "parquet"] = "file"
    device: Literal["auto", "cpu", "cuda"] = "auto"


def run(arguments: Sequence[str]) -> int:
    """Write the hidden states of a model as vectors, with the patient, record, lead, sample and labels of each.

    The exit status is 1 if recordings were left out; the last line counts them.

    Examples:
        heartlm embed foundation mitdb/100 --out 100.parquet
        heartlm embed foundation ptb-xl --level recording --out ptb-xl.npz
        heartlm embed statements ptb-xl --out ptb-xl.npz
        heartlm embed runs/foundation corpora/mitdb --split test --layer 2 --out mitdb.parquet
        heartlm embed foundation archive --out vectors --tables parquet --engine dask --scheduler tcp://node1:8786
    """
    options = parse(EmbedOptions, arguments, "embed", run, positionals=["model", "source"])
    options.check_engine()
    check_out(options.out, options.model, options.source)
    from heartlm import api
    from heartlm.analysis.embed import is_corpus
    from heartlm.analysis.embed_recordings import EmbeddingTask, embed_tables, embed_to_file
    from heartlm.analysis.embeddings import Embeddings
    from heartlm.databases.index import holds_recordings
    from heartlm.models.pretrained import find_run

    source, out, to_tables = options.source, options.out, options.tables == "parquet"
    is_of_many = not is_corpus(source) and holds_recordings(source)
    if not is_of_many and (to_tables or options.part is not None):
        what = "tables" if to_tables else "part"
        raise HeartlmError(f"{what}: {source} is no folder of recordings, whose vectors are one file: leave it out")
    if is_of_many:
        task = EmbeddingTask(
            (source,),
            out if to_tables else out.with_name(f".{out.name}.parts"),
            find_run(options.model),
            options.level,
            options.layer,
            options.split,
            options.device,
        )
        done = embed_tables(task, options) if to_tables else embed_to_file(task, options, out)
    else:
        done = api.load_model(options.model, device=options.device).embed(
            source, options.level, options.layer, options.split
        )
        done.write(out)
    if isinstance(done, Embeddings):
        num_records = len(dict.fromkeys(zip(done.database.tolist(), done.record.tolist(), strict=True)))
        print(f"{len(done):,} vectors of {done.vectors.shape[1]} numbers, {num_records:,} recordings")
    else:
        num_records = done.num_recordings
        print(f"{int(done.totals['vectors']):,} vectors, {num_records:,} recordings")
    for line in done.left_out:
        print(f"left out: {line}")
    print(out if options.part is None else f"{out}: part {options.part}")
    if done.left_out:
        print(f"{num_records:,} recordings embedded, {len(done.left_out):,} left out")
    return 1 if done.left_out else 0
