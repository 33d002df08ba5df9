"""Processes that end with the one that started them. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: between fork and exec a child should load nothing


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Let Linux send this process the signal `by` when its parent ends; other systems have no such call.

    Args:
        parent: process id; this process exits at once where that one has ended already. None checks nothing.
        by: the signal.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
