"""Token files of several shards as one array: each file is mapped at its place in one range of addresses.

A shard begins at a multiple of `ALIGN_TOKENS`, where a page of memory begins too, whatever the size of an element.
Between two shards are up to as many unused tokens: unlabelled ones, which belong to no row and take no space on disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

ALIGN_TOKENS = 1 << 16
"""Pages have up to 64 KB, elements at least one byte."""

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000 if os.uname().sysname == "Linux" else 0x40


class MappedShards(np.ndarray[Any, Any]):
    """Array over the files of all shards.

    Attributes:
        files: path and length in bytes of each file.
    """

    files: tuple[tuple[Path, int], ...] = ()


def first_tokens(num_tokens: Sequence[int]) -> list[int]:
    """Return the index of the first token of each shard, and the end of the last one, from their numbers of tokens."""
    places = [0]
    for number in num_tokens:
        places.append(-(-(places[-1] + number) // ALIGN_TOKENS) * ALIGN_TOKENS)
    return [*places[:-1], places[-2] + num_tokens[-1]]


def map_shards(
    paths: Sequence[Path], num_tokens: Sequence[int], shape: tuple[int, ...], kind: type[np.generic], unused: int
) -> NDArray[Any]:
    """Map the files of all shards into one read-only array `[num_places, *shape]`.

    Args:
        paths: file of each shard.
        num_tokens: number of tokens of each.
        shape: shape of a token.
        kind: type of an element.
        unused: value between shards.

    Raises:
        HeartlmError: a file is missing or has another length, or cannot be mapped.
    """
    *firsts, end = first_tokens(num_tokens)
    token_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, max(end * token_bytes, 1), flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    array = np.frombuffer(pages, kind, end * token_bytes // np.dtype(kind).itemsize).reshape(end, *shape)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    files = list[tuple[Path, int]]()
    for path, first, number in zip(paths, firsts, num_tokens, strict=True):
        if not path.is_file():
            raise HeartlmError(f"{path} is missing: the corpus is incomplete, tokenize again")
        num_bytes = number * token_bytes
        if path.stat().st_size != num_bytes:
            raise HeartlmError(f"{path}: {path.stat().st_size} bytes found, {num_bytes} expected: tokenize again")
        files.append((path, num_bytes))
        if not number:
            continue
        file = os.open(path, os.O_RDONLY)
        place = array.ctypes.data + first * token_bytes
        # private and writable, because unused tokens share the last page of the file; the array is read-only
        access = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = libc.mmap(place, num_bytes, access, mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE, file, 0)
        os.close(file)
        if mapped != place:
            raise HeartlmError(f"{path} cannot be mapped into memory: {os.strerror(ctypes.get_errno())}")
    if unused:
        for first, number, following in zip(firsts, num_tokens, [*firsts[1:], end], strict=True):
            array[first + number : following] = unused
    view = array.view(MappedShards)
    view.files, view.flags.writeable = tuple(files), False
    return view
