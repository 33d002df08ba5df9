"""Memory that is freed and asked for again, kept by the process."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""The largest that glibc accepts on 64 bits."""


def keep_memory() -> None:
    """Let the C library keep large freed blocks instead of returning them to the kernel.

    A training step frees its activations, and encoding a recording its samples, and the next asks for the same again;
    by default each goes back to the kernel and comes as zeroed pages, whose faults take about a twentieth of a small
    model's step on a CPU, and of tokenising. Only glibc has this setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 << 20)
