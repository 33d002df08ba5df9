"""The content of a file as an array: mapped into memory, or read from a store when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


class RemoteArray:
    """Samples `[num_leads, num_samples]` of a remote file, which holds one lead after another, or all of each time.

    `array[leads, start:stop]` reads those samples; `array[leads]` reads nothing.
    """

    def __init__(
        self, path: Path, byte_offset: int, kind: np.dtype[Any], layout: tuple[int, int], by_time: bool
    ) -> None:
        self.dtype, self.shape, self._by_time = kind, layout, by_time
        self._view, self._byte_offset, self._leads = ByteView(path), byte_offset, np.arange(layout[0])
        self._layout = layout

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of samples of all leads."""
        return self.shape[0] * self.shape[1]

    def __getitem__(self, key: Any) -> Any:
        leads = self._leads[key[0] if isinstance(key, tuple) else key]
        if not isinstance(key, tuple):
            chosen = RemoteArray.__new__(RemoteArray)
            chosen.__dict__ |= self.__dict__ | {"_leads": leads, "shape": (len(leads), self.shape[1])}
            return chosen
        (num_leads, num_samples), (start, stop, _) = self._layout, key[1].indices(self.shape[1])
        if self._by_time:
            return self._read(start * num_leads, (stop - start) * num_leads).reshape(-1, num_leads).T[leads]
        return np.stack([self._read(lead * num_samples + start, stop - start) for lead in leads])

    def _read(self, first: int, number: int) -> NDArray[Any]:
        begin = self._byte_offset + first * self.dtype.itemsize
        return self._view[begin : begin + number * self.dtype.itemsize].view(self.dtype)
