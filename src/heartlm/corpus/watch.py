"""Check the file behind a memory map while a run reads it.

Reading a memory map of a truncated file ends the process with SIGBUS, without a message. Therefore the length is
checked before each step. One case remains: the file is truncated, or a network disk fails, in the microseconds in which
a step's windows are copied. On a local disk a deleted file stays readable through its map.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError


class WatchedFile:
    """Check the files behind the memory map `array`; do nothing if `array` is in memory.

    Args:
        array: array of tokens, `[num_tokens, ...]`.

    Raises:
        HeartlmError: a file can no longer be opened.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        files = getattr(array, "files", ())
        if isinstance(array, np.memmap):
            files = ((array.filename, array.nbytes),)
        self._files = list[tuple[Any, int, int]]()
        for path, num_bytes in files:
            try:
                self._files.append((path, num_bytes, os.open(path, os.O_RDONLY)))
            except OSError as error:
                raise _lost(path, error.strerror) from error

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop()[2])

    def check(self) -> None:
        """Check that the files are still complete.

        Raises:
            HeartlmError: a file was truncated, or its disk is unavailable.
        """
        for path, num_bytes, file in self._files:
            try:
                state = os.fstat(file)
            except OSError as error:
                raise _lost(path, error.strerror) from error
            if state.st_size < num_bytes:
                raise _lost(path, f"{state.st_size} bytes found, {num_bytes} expected")


def _lost(path: Any, fault: str | None) -> HeartlmError:
    return HeartlmError(
        f"{path}: {fault} while the run reads it: bring the corpus back as it was and continue with --resume"
    )
