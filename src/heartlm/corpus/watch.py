"""The file behind a memory map, watched while a run reads it.

A memory map of a file that was cut short ends the process with SIGBUS when it is touched, and nothing is said. So the
length is looked at before each step. What remains: a file cut short, or a network disk lost, within the microseconds in
which a step's windows are copied. A deleted file stays readable through its map on a local disk; that is said once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.progress import say


class WatchedFile:
    """Watches the file that `array` is a memory map of; does nothing where it is in memory.

    Args:
        array: `[num_tokens, ...]`.

    Raises:
        HeartlmError: the file cannot be opened any more.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.path = array.filename if isinstance(array, np.memmap) else None
        self.token_bytes = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        self.num_bytes = len(array) * self.token_bytes
        self.deleted = False
        self._file: int | None = None
        if self.path is not None:
            try:
                self._file = os.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise self._lost(error.strerror) from error

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def check(self) -> None:
        """Look whether the file is still whole.

        Raises:
            HeartlmError: it was cut short, or its disk is gone.
        """
        if self._file is None:
            return
        try:
            state = os.fstat(self._file)
        except OSError as error:
            raise self._lost(error.strerror) from error
        if state.st_size < self.num_bytes:
            raise self._lost(f"{state.st_size} bytes found, {self.num_bytes} expected")
        if state.st_nlink == 0 and not self.deleted:
            self.deleted = True
            say(
                f"heartlm: {self.path} was deleted; this run continues with the file it holds open, but cannot be "
                "resumed without it"
            )

    def read_ahead(self, tokens: slice) -> None:
        """Ask the system to read `tokens` into memory, in one go, without waiting for it."""
        if self._file is not None:
            begin, end = tokens.start * self.token_bytes, tokens.stop * self.token_bytes
            os.posix_fadvise(self._file, begin, end - begin, os.POSIX_FADV_WILLNEED)

    def _lost(self, found: str | None) -> HeartlmError:
        return HeartlmError(
            f"{self.path}: {found} while the run reads it: bring the corpus back as it was and continue with --resume"
        )
