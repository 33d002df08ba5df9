"""Child processes that end with their parent. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up on import: a child should load nothing before exec


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Make Linux send this process the signal `by` when its parent ends. No effect on other systems.

    Args:
        parent: process ID of the parent. If the parent has already ended, this process exits at once. None skips the
            check.
        by: signal to send.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
