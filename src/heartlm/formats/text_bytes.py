"""Bytes of text files: unpacked if they are compressed by gzip, and in UTF-8."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.errors import HeartlmError
from heartlm.storage.foreign import TEXT_BYTES, first_bytes, open_file, size_of
from heartlm.storage.limits import most_samples

SNIFFED_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def is_gzip(path: Path) -> bool:
    """Return whether the content of a file is compressed by gzip."""
    return first_bytes(path, len(_GZIP)) == _GZIP


@contextmanager
def gunzip(path: Path) -> Iterator[gzip.GzipFile]:
    """Open a file that is compressed by gzip; errors of its content in the block are a `HeartlmError`."""
    try:
        with open_file(path) as packed, gzip.GzipFile(fileobj=packed, mode="rb") as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        raise HeartlmError(f"{path}: damaged, cannot be unpacked ({error}); fetch it again") from error


def unpacked(path: Path) -> bytes:
    """Return the content of a file that is compressed by gzip, two bytes for each sample that it may unpack to.

    Raises:
        HeartlmError: the file is damaged, or its content is too large.
    """
    most = min(TEXT_BYTES, 2 * most_samples(size_of(path)))
    with gunzip(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise HeartlmError(f"{path}: unpacks to more than {most} bytes; split it, or unpack it if that is right")
    return content


def first_text(path: Path) -> tuple[str | None, bool]:
    """Return the first characters of a file, and whether they are all; None if they are no text."""
    begin = first_bytes(path, SNIFFED_BYTES) or b""
    is_whole = len(begin) < SNIFFED_BYTES
    if begin.startswith(_GZIP):
        begin, piece = b"", b" "
        # in pieces: a damaged file is unpacked as far as it goes
        with suppress(HeartlmError), gunzip(path) as stream:
            while piece and len(begin) < SNIFFED_BYTES:
                piece = stream.read1(SNIFFED_BYTES - len(begin))
                begin += piece
        is_whole = not piece
    codec = codec_of(begin)
    if codec == "utf-8" and b"\0" in begin:
        return None, is_whole
    return begin.decode(codec, "surrogateescape" if codec == "utf-8" else "replace"), is_whole


def content_of(path: Path) -> Any:
    """Return the bytes of a text file as an Arrow buffer: unpacked if it is compressed, in UTF-8.

    Raises:
        HeartlmError: the file cannot be read or is too large.
    """
    import pyarrow as pa

    with open_file(path, TEXT_BYTES) as stream:
        begin = stream.read(4) or b""
    if not begin.startswith((_GZIP, *_UTF_16)):
        return pa.memory_map(str(path)).read_buffer() if begin else arrow_buffer(b"")
    content = unpacked(path) if begin.startswith(_GZIP) else path.read_bytes()
    codec = codec_of(content)
    return arrow_buffer(content if codec == "utf-8" else content.decode(codec, "replace").encode())


def codec_of(begin: bytes) -> str:
    """Return the encoding of a text by its first bytes."""
    return "utf-16" if begin.startswith(_UTF_16) else "utf-8"


def arrow_buffer(content: bytes) -> Any:
    """Return a copy of bytes in memory of Arrow.

    A reader with threads may release its source after it has returned. For an object of Python that thread needs the
    interpreter's lock, and while the process exits, waiting for it ends the process by SIGABRT.
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(len(content))
    np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(content, np.uint8)
    return buffer
