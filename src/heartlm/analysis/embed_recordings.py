"""Vectors of many recordings by an engine, as Parquet datasets or as one file.

    recordings ─► workers, each with the model ─► TABLE/part-000007.parquet ─► of a file: its vectors, joined

The tables of a file lie next to it until it is complete, so that a command that was interrupted continues, and parts of
the work can be done by several commands.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.analysis.embed import (
    EmbeddedLead,
    Level,
    check_level,
    embedded_leads,
    finest_level,
    joined,
    leads_of_recordings,
)
from heartlm.analysis.embeddings import Embeddings, checked_name
from heartlm.analysis.model import Model, loaded
from heartlm.databases.database import Database
from heartlm.databases.each_recording import build
from heartlm.databases.part_files import SUMMARIES, Rows, Tables, TablesTask, write_tables
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.inference.load import chosen_device
from heartlm.models.pretrained import model_files
from heartlm.storage.atomic import digest_of_files
from heartlm.system.cores import limit_threads, usable_cpus
from heartlm.system.engine import PartOptions

SCHEMA_VERSION = 1
"""Results of another version are not kept: raised where the same recording, model and settings give other results."""
VECTORS = "vectors"
"""Table with one row for each vector."""
SCHEMAS = {
    SUMMARIES: {"patient": "string", "num_vectors": "int64", "left_out": "string"},
    VECTORS: {
        **dict.fromkeys(("patient", "lead"), "string"),
        "sample": "int64",
        "time_s": "double",
        **dict.fromkeys(("beat_class", "rhythm"), "string"),
        "vector": "list<float>",
    },
}
"""Tables of `--tables parquet`, whose first columns are `database` and `record`, see docs/archive-cluster.md."""


@dataclass(frozen=True)
class EmbeddingTask(TablesTask):
    """Settings of the vectors of recordings.

    Attributes:
        model: run folder or folder of a model.
        level: one vector for each beat or window of the preferred lead, or for each recording: one for each lead, or
            one of all leads of a model that reads them together; by default the finest level of the model.
        layer: index of the block that gives the hidden states; -1 for the model's output.
        split: split of the recordings: train, validation or test; None for all.
        device: device of the model: auto, cpu or cuda.
    """

    model: Path
    level: Level | None = None
    layer: int = -1
    split: str | None = None
    device: str = "auto"
    schemas = SCHEMAS
    verb, done = "embed", "embedded"

    @cached_property
    def loaded(self) -> tuple[Model, Level]:
        """The model, and the level of its vectors.

        Raises:
            HeartlmError: the model cannot be read, has no such vectors, or there is no GPU.
        """
        limit_threads(1)  # one of several processes
        model = loaded(self.model, Path("af"), Path("waveform"), Path("statements"), self.device)
        level = self.level or finest_level(model.tokenizer)
        check_level(model.network, level, self.layer)
        return model, level

    @cached_property
    def made(self) -> dict[str, Any]:
        """Versions, model and settings."""
        model, level = self.loaded
        digests = {"model": digest_of_files(*model_files(model.weights)), "tokenizer": model.tokenizer.content_hash()}
        settings = {"level": level, "layer": self.layer, "split": self.split}
        return {"schema_version": SCHEMA_VERSION, "made_by": build() | digests, "settings": settings}

    def takes(self, database: Database, record_id: str) -> bool:
        """Return whether a recording is of the split."""
        return self.split in (None, database.split_of(record_id))

    def rows(self, recording: Recording, path: Path, source: str) -> dict[str, Rows]:
        """Embed a recording and return its rows; see `TablesTask.rows`."""
        (model, level), left_out = self.loaded, list[str]()
        leads = leads_of_recordings([recording], model.tokenizer, left_out, level)
        parts = list(embedded_leads(model.network, model.info.window, leads, level, self.layer, left_out))
        name = f"{recording.database}/{recording.record_id}: "
        reasons = "\n".join(line.removeprefix(name) for line in left_out)
        if not parts:
            raise HeartlmError("; ".join(reasons.splitlines()))
        rows = [row for part in parts for row in _rows_of(part)]
        summary = {"patient": recording.patient_id, "num_vectors": len(rows), "left_out": reasons}
        return {SUMMARIES: [summary], VECTORS: rows}

    def totals(self, summary: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the number of vectors."""
        return {"vectors": summary["num_vectors"]}


def _rows_of(part: EmbeddedLead) -> Rows:
    columns = {name: part[name].tolist() for name in SCHEMAS[VECTORS] if name != "vector"}
    columns["vector"] = list(part["vectors"])  # arrays, which take less memory than lists of numbers
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def embed_tables(task: EmbeddingTask, options: PartOptions) -> Tables:
    """Embed recordings by an engine, and write Parquet datasets; a command for all of them writes totals.

    Raises:
        HeartlmError: an option is invalid, no recording could be embedded, a file cannot be written, or a scheduler
            was lost.
    """
    options.check_engine()
    # every process would need memory of the GPU; other engines compute on other machines
    on_gpu = options.engine == "processes" and chosen_device(task.device) == "cuda"
    tables = write_tables(task, options, 1 if on_gpu else len(usable_cpus()))
    if options.part is None:
        tables.write_totals(tables.left_out)
    return tables


def embed_to_file(task: EmbeddingTask, options: PartOptions, file: Path) -> Embeddings | Tables:
    """Embed recordings by an engine, and write one file, see `Embeddings.write`; after a part of them there is none.

    `task.out` is a folder for tables, which is removed when the file is complete.

    Raises:
        HeartlmError: see `embed_tables`; or the name of the file has another ending.
    """
    checked_name(file)
    tables = embed_tables(task, options)
    if options.part is not None:
        return tables
    _, level = replace(task, device="cpu").loaded  # workers alone need a GPU
    left_out = list(tables.left_out)
    embedded = joined(list(_parts_of(task.out, level, left_out)), level, left_out)
    embedded.write(file)
    shutil.rmtree(task.out)
    return embedded


def _parts_of(folder: Path, level: Level, left_out: list[str]) -> Iterator[EmbeddedLead]:
    """Yield the vectors of each part file, at the level of recordings those of each lead; add to `left_out`."""
    from pyarrow import parquet

    for file in sorted((folder / VECTORS).glob("part-*.parquet")):
        for row in parquet.ParquetFile(folder / SUMMARIES / file.name).read().to_pylist():
            left_out += [f"{row['database']}/{row['record']}: {reason}" for reason in row["left_out"].splitlines()]
        table = parquet.ParquetFile(file).read().combine_chunks()
        if not table.num_rows:
            continue
        vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
        part = {name: np.array(table[name].to_pylist()) for name in table.column_names if name != "vector"}
        part["vectors"] = vectors
        if level == "recording":
            yield from ({name: each[row : row + 1] for name, each in part.items()} for row in range(table.num_rows))
        else:
            yield part
