"""Open a corpus: check it against its manifest and map its files into memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.bucket import fetched
from heartlm.corpus.integrity import check_content
from heartlm.corpus.rows import RecordTable, StoredRows
from heartlm.corpus.schema import (
    FILES,
    SCHEMA_VERSION,
    Manifest,
    ShardEntry,
)
from heartlm.corpus.shards import first_tokens, map_shards
from heartlm.errors import HeartlmError
from heartlm.sources.address import source_path
from heartlm.sources.store import forget
from heartlm.storage.foreign import RemotePath
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed
from heartlm.tokenizers.base import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Corpus:
    """Tokens of one or more databases.

    Attributes:
        folder: folder of the corpus.
        manifest: content of `manifest.json`.
        codes: codes of each token, uint16 `[num_tokens, num_facets]`.
        sample: position of each token in its recording, int64 `[num_tokens]`.
        labels: beat class and rhythm of each token, int8 `[num_tokens, 2]`.
        scale_mv: millivolts per unit of the decoded waveform, float32 `[num_tokens]`.
        records: table with one row per lead of each recording.
    """

    folder: Path
    manifest: dict[str, Any]
    codes: NDArray[np.uint16]
    sample: NDArray[np.int64]
    labels: NDArray[np.int8]
    scale_mv: NDArray[np.float32]
    records: RecordTable

    def __repr__(self) -> str:
        kind, num = self.manifest["tokenizer"]["kind"], self.manifest["num_records"]
        return f"<Corpus {self.folder}: {len(self.sample):,} {kind} tokens of {num:,} recordings>"

    @property
    def beat_class(self) -> NDArray[np.int8]:
        """AAMI class index of each token, −1 if unlabelled; `[num_tokens]`."""
        return self.labels[:, 0]

    @property
    def rhythm(self) -> NDArray[np.int8]:
        """Rhythm index of each token, −1 if unlabelled; `[num_tokens]`."""
        return self.labels[:, 1]

    @property
    def tokenizer_hash(self) -> str:
        """Content hash of the tokenizer that encoded the corpus."""
        return str(self.manifest["tokenizer"]["hash"])

    @property
    def manifest_hash(self) -> str:
        """SHA-256 of the manifest without the command. As the manifest holds all checksums, it identifies the data."""
        return _manifest_hash(self.manifest)

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that encoded the corpus.

        Raises:
            HeartlmError: the tokenizer is missing, damaged or not the one in the manifest.
        """
        tokenizer = load_tokenizer(self.folder / "tokenizer")
        if tokenizer.content_hash() != self.tokenizer_hash:
            raise HeartlmError(f"{self.folder}/tokenizer: not the tokenizer that made the codes: tokenize again")
        return tokenizer

    def tokens_of(self, row: int) -> slice:
        """Return the slice of the tokens of row `row`."""
        first = int(self.records.first_token[row])
        return slice(first, first + int(self.records.num_tokens[row]))


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus in `folder`. The first opening on a machine reads all files to check them; then they are mapped.

    One at an address is copied to this machine first.

    Raises:
        HeartlmError: there is no corpus, its schema version differs, or a file is missing, damaged or changed.
    """
    folder = source_path(folder)
    if isinstance(folder, RemotePath):
        forget(folder)
    if not (folder / "manifest.json").is_file():
        raise HeartlmError(f"{folder}: no manifest.json, so not a corpus: make one with  heartlm tokenize")
    if isinstance(folder, RemotePath):
        folder = fetched(folder)
    manifest = read_json(folder / "manifest.json", dict[str, Any])
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise HeartlmError(
            f"{folder}: corpus of schema version {version}, this heartlm reads {SCHEMA_VERSION}: tokenize again"
        )
    known = typed(Manifest, manifest, folder / "manifest.json")
    shards = typed(list[ShardEntry], manifest.get("shards", []), folder / "manifest.json")
    token_files = [f"{shard['folder']}/{name}" for shard in shards for name in FILES] or list(FILES)
    if lacking := [name for name in (*token_files, "records.parquet") if name not in known["checksums"]]:
        raise HeartlmError(
            f"{folder}/manifest.json: checksums.{lacking[0]}: nothing found: it was changed, tokenize again"
        )
    num_tokens, sizes = known["num_tokens"], [facet["size"] for facet in known["tokenizer"]["facets"]]
    shapes = {"codes.bin": (len(sizes),), "labels.bin": (2,)}
    in_shards = [shard["num_tokens"] for shard in shards] or [num_tokens]
    if sum(in_shards) != num_tokens:
        raise HeartlmError(f"{folder}/manifest.json: shards: {sum(in_shards)} tokens found, {num_tokens} expected")
    arrays = {
        field: map_shards(
            [folder / shard["folder"] / name for shard in shards],
            in_shards,
            shapes.get(name, ()),
            kind,
            -1 if name == "labels.bin" else 0,
        )
        if shards
        else _map(folder / name, (num_tokens, *shapes.get(name, ())), kind)
        for name, (kind, field) in FILES.items()
    }
    hashed = _manifest_hash(manifest)
    check_content(folder, hashed, {name: known["checksums"][name] for name in (*token_files, "records.parquet")}, sizes)
    return Corpus(folder, manifest, **arrays, records=_read_records(folder / "records.parquet", in_shards))


def _manifest_hash(manifest: dict[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "command"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _map(path: Path, shape: tuple[int, ...], kind: type[np.generic]) -> NDArray[Any]:
    if not path.is_file():
        raise HeartlmError(f"{path} is missing: the corpus is incomplete, tokenize again")
    expected = math.prod(shape) * np.dtype(kind).itemsize
    if path.stat().st_size != expected:
        raise HeartlmError(f"{path}: {path.stat().st_size} bytes found, {expected} expected: tokenize again")
    if expected == 0:
        return np.empty(shape, kind)
    return np.memmap(path, kind, "r", shape=shape)


def _read_records(path: Path, in_shards: Sequence[int]) -> RecordTable:
    import pyarrow

    try:
        rows = StoredRows(path)
        rows.check()
        table = RecordTable(rows)
    except (OSError, pyarrow.ArrowException, TypeError, ValueError) as error:
        raise HeartlmError(f"{path} cannot be read ({str(error).splitlines()[0]}): tokenize again") from error
    firsts, shard_ends = np.array(first_tokens(in_shards)[:-1]), np.cumsum(in_shards)
    first = np.cumsum(table.num_tokens) - table.num_tokens  # without the unused tokens between shards
    shard = np.minimum(np.searchsorted(shard_ends, first, "right"), len(firsts) - 1)
    expected, has_tokens = first - (shard_ends - in_shards)[shard] + firsts[shard], table.num_tokens > 0
    if (
        (table.num_tokens < 0).any()
        or (table.first_token != expected)[has_tokens].any()
        or table.num_tokens.sum() != sum(in_shards)
    ):
        raise HeartlmError(
            f"{path}: its rows do not hold the {sum(in_shards)} tokens of the corpus one after the other"
        )
    return table
