"""Files of a checkpoint's state: an index in JSON, and a file of tensors and numbers from each rank.

`torch.distributed.checkpoint` pickles its index and plain values, and a pickle can run arbitrary code when it is
loaded. Here the index is JSON, and torch loads the rest with `weights_only`, which allows tensors and plain values.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from heartlm.errors import HeartlmError
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json

INDEX = "index.json"
_PART = re.compile(r"__\d+_\d+\.distcp")


class StateWriter(FileSystemWriter):
    """Writes the parts in the format of torch, and the index as JSON."""

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Write the index. Rank 0 calls this after all parts are written."""
        stored = {written.index: written.storage_data for part in results for written in part}

        def location(name: str, offsets: torch.Size | None = None) -> dict[str, Any]:
            info = stored[MetadataIndex(name, offsets)]
            return {"file": info.relative_path, "start": info.offset, "length": info.length}

        index: dict[str, Any] = {}
        for name, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                chunks = [
                    {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **location(name, chunk.offsets)}
                    for chunk in entry.chunks
                ]
                index[name] = {"size": list(entry.size), "chunks": chunks}
            else:
                index[name] = location(name)
        write_json(Path(self.path) / INDEX, index)


class StateReader(FileSystemReader):
    """Reads the files of `StateWriter` in the folder `path`.

    Raises:
        HeartlmError: the index is missing or invalid.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._index = _metadata_of(path / INDEX)  # read here, since torch prints a traceback if reading fails later

    def read_metadata(self) -> Metadata:
        """Return the index as torch metadata."""
        return self._index

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read the entries of `plan`.

        Raises:
            ValueError: a part contains something other than tensors and plain values.
        """
        try:
            return super().read_data(plan, planner)
        except pickle.UnpicklingError as error:
            raise ValueError("a file holds something other than tensors and numbers") from error


class StatePlanner(DefaultLoadPlanner):
    """Planner of torch that loads plain values with `weights_only`."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Load one plain value."""
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))


def _metadata_of(path: Path) -> Metadata:
    locations: list[tuple[torch.Size | None, dict[str, Any]]]
    content, entries, stored = read_json(path), dict[str, Any](), dict[MetadataIndex, _StorageInfo]()
    try:
        for name, entry in content.items():
            if "chunks" in entry:
                locations = [(torch.Size(each["offsets"]), each) for each in entry["chunks"]]
                chunks = [
                    ChunkStorageMetadata(torch.Size(each["offsets"]), torch.Size(each["sizes"]))
                    for each in entry["chunks"]
                ]
                entries[name] = TensorStorageMetadata(TensorProperties(), torch.Size(entry["size"]), chunks)
            else:
                locations, entries[name] = [(None, entry)], BytesStorageMetadata()
            for offsets, chunk in locations:
                # The index may come from elsewhere, and a path in it would name a file outside the folder.
                if not _PART.fullmatch(chunk["file"]):
                    raise ValueError(f"file: {chunk['file']!r} found, the name of a part of this folder expected")
                where = _StorageInfo(chunk["file"], int(chunk["start"]), int(chunk["length"]))
                stored[MetadataIndex(name, offsets)] = where
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HeartlmError(f"{path}: not the index of a checkpoint ({error})") from error
    return Metadata(entries, storage_data=stored)
