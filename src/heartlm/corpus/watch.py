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
    """Check the file behind the memory map `array`; do nothing if `array` is in memory.

    Args:
        array: array of tokens, `[num_tokens, ...]`.

    Raises:
        HeartlmError: the file can no longer be opened.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.path = array.filename if isinstance(array, np.memmap) else None
        self.num_bytes = array.nbytes
        self._file: int | None = None
        if self.path is not None:
            try:
                self._file = os.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise self._lost(error.strerror) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def check(self) -> None:
        """Check that the file is still complete.

        Raises:
            HeartlmError: the file was truncated, or its disk is unavailable.
        """
        if self._file is None:
            return
        try:
            state = os.fstat(self._file)
        except OSError as error:
            raise self._lost(error.strerror) from error
        if state.st_size < self.num_bytes:
            raise self._lost(f"{state.st_size} bytes found, {self.num_bytes} expected")

    def _lost(self, fault: str | None) -> HeartlmError:
        return HeartlmError(
            f"{self.path}: {fault} while the run reads it: bring the corpus back as it was and continue with --resume"
        )
