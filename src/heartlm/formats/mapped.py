"""The bytes of a file as an array: mapped into memory, or read from a store when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.storage.foreign import RemotePath, open_file, size_of


class ByteView:
    """Bytes of a remote file; `view[start:stop]` reads them, as that of a mapped file does: uint8 `[stop - start]`."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, size_of(path)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(self._size)
        with open_file(self._path) as stream:
            stream.seek(start)
            return np.frombuffer(stream.read(max(0, stop - start)) or b"", np.uint8)


def byte_view(path: Path) -> NDArray[np.uint8] | ByteView:
    """Return the bytes of a file, uint8 `[size]`."""
    if isinstance(path, RemotePath):
        return ByteView(path)
    return np.memmap(path, np.uint8, "r") if size_of(path) else np.empty(0, np.uint8)
