"""Setting of the C library's allocator that keeps freed memory in the process."""

from __future__ import annotations

import ctypes
import platform

# Parameters of mallopt, from malloc.h of glibc.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# Largest threshold that glibc accepts on 64-bit systems.
_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_memory() -> None:
    """Make the C library keep large freed blocks instead of returning them to the kernel.

    A training step frees its activations, and encoding a recording frees its samples; the next one allocates the same
    amount again. By default these blocks return to the kernel and come back as zeroed pages. The page faults take about
    a twentieth of a small model's step on a CPU, and of tokenising. Only glibc has this setting.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 << 20)
