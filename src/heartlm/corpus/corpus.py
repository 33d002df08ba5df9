"""Opening a corpus: checked against its manifest, read through the memory map."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.schema import FILES, ROW_FIELDS, SCHEMA_VERSION, RecordTable, Row
from heartlm.errors import HeartlmError
from heartlm.files import read_json
from heartlm.tokenizers.base import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Corpus:
    """Tokens of one or more databases.

    Attributes:
        folder: where it is.
        manifest: the content of `manifest.json`.
        codes: uint16 `[num_tokens, num_facets]`.
        sample: int64 `[num_tokens]`.
        labels: int8 `[num_tokens, 2]`, beat class and rhythm.
        scale_mv: float32 `[num_tokens]`.
        records: one row for each lead of each recording.
    """

    folder: Path
    manifest: dict[str, Any]
    codes: NDArray[np.uint16]
    sample: NDArray[np.int64]
    labels: NDArray[np.int8]
    scale_mv: NDArray[np.float32]
    records: RecordTable

    @property
    def beat_class(self) -> NDArray[np.int8]:
        """AAMI class index of each token, −1 unlabelled; `[num_tokens]`."""
        return self.labels[:, 0]

    @property
    def rhythm(self) -> NDArray[np.int8]:
        """Rhythm index of each token, −1 unlabelled; `[num_tokens]`."""
        return self.labels[:, 1]

    @property
    def tokenizer_hash(self) -> str:
        """Content hash of the tokenizer that made the codes."""
        return str(self.manifest["tokenizer"]["hash"])

    @property
    def manifest_hash(self) -> str:
        """SHA-256 over the manifest, the command left out: it holds all checksums, so it names the content exactly."""
        content = {key: value for key, value in self.manifest.items() if key != "command"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that made the codes."""
        return load_tokenizer(self.folder / "tokenizer")

    def tokens_of(self, row: int) -> slice:
        """Where the tokens of row `row` stand."""
        first = int(self.records.first_token[row])
        return slice(first, first + int(self.records.num_tokens[row]))


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus in `folder` without reading its tokens.

    Raises:
        HeartlmError: nothing is there, it is of another schema version, or a file is missing or of the wrong length.
    """
    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise HeartlmError(f"{folder}: no manifest.json, so not a corpus: make one with  heartlm tokenize")
    manifest = read_json(folder / "manifest.json")
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise HeartlmError(
            f"{folder}: corpus of schema version {version}, this heartlm reads {SCHEMA_VERSION}: tokenize anew"
        )
    try:
        num_tokens, num_facets = manifest["num_tokens"], len(manifest["tokenizer"]["facets"])
    except (KeyError, TypeError) as error:
        raise HeartlmError(f"{folder}/manifest.json lacks {error}: it was changed, tokenize anew") from error
    shapes = {"codes.bin": (num_tokens, num_facets), "labels.bin": (num_tokens, 2)}
    arrays = {
        field: _map(folder / name, shapes.get(name, (num_tokens,)), kind) for name, (kind, field) in FILES.items()
    }
    return Corpus(folder, manifest, **arrays, records=_read_records(folder / "records.parquet"))


def _map(path: Path, shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
    if not path.is_file():
        raise HeartlmError(f"{path} is missing: the corpus is incomplete, tokenize anew")
    expected = int(np.prod(shape)) * np.dtype(kind).itemsize
    if path.stat().st_size != expected:
        raise HeartlmError(f"{path}: {path.stat().st_size} bytes found, {expected} expected: tokenize anew")
    if expected == 0:
        return np.empty(shape, kind)
    return np.memmap(path, kind, "r", shape=shape)


def _read_records(path: Path) -> RecordTable:
    import pyarrow
    import pyarrow.parquet

    try:  # by the file: read_table would import pandas
        rows = pyarrow.parquet.ParquetFile(path).read(columns=list(ROW_FIELDS)).to_pylist()
        return RecordTable([Row(**row) for row in rows])
    except (OSError, pyarrow.ArrowInvalid, TypeError) as error:
        raise HeartlmError(f"{path} cannot be read ({str(error).splitlines()[0]}): tokenize anew") from error
