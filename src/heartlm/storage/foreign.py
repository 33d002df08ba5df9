"""Open files that heartlm did not write.

Files must be regular and of limited size. Each error message is one line.

Libraries raise arbitrary exceptions for a damaged file, from `IndexError` to a codec's own. `one_line` converts them to
a `HeartlmError` that names the file. FIFOs and devices are refused before they are opened.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO, RawIOBase
from itertools import accumulate
from pathlib import Path, PosixPath, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TypeVar

from heartlm.errors import HeartlmError

HEADER_BYTES = 1 << 24
"""Maximum size of a WFDB header, about that of a header with 400,000 segments."""
LIST_BYTES = 1 << 28
"""Maximum size of a list or table of a database (RECORDS, checksums, patients) and of an annotation file."""
TEXT_BYTES = 1 << 31
"""Maximum size of a recording in text form, which is read as a whole."""

_LONGEST_REASON = 200
_PIECE_BYTES = 1 << 20
# Files that are fetched before they are read.
_AHEAD = 64

Item = TypeVar("Item")
_ADDRESS = re.compile(r" (object )?at 0x[0-9a-fA-F]+")


@contextmanager
def one_line(path: Path, what: str) -> Iterator[None]:
    """Convert any exception in the block to a one-line error: `path` is not readable as `what`.

    Raises:
        HeartlmError: the block raised an exception.
    """
    try:
        yield
    except HeartlmError:
        raise
    except MemoryError as error:
        raise HeartlmError(f"{path}: does not fit into memory; correct the sizes it states") from error
    except Exception as error:
        # NumPy quotes objects of a header that it cannot evaluate, each with its address
        reason = " ".join(_ADDRESS.sub("", str(error)).split()) or type(error).__name__
        raise HeartlmError(f"{path}: not readable as {what} ({reason[:_LONGEST_REASON]}); fetch it again") from error


class UnreachableError(HeartlmError):
    """A store does not give a file that it lists: nothing follows from it about the file."""


class RemotePath(PosixPath):
    """Path of a file that no call of the system opens: `heartlm.sources` has those of addresses.

    Attributes:
        is_output: whether files are written there, by `put`.
    """

    is_output = False

    def put(self, file: Path) -> None:
        """Store a complete local file at this path, in place of an earlier one."""
        raise NotImplementedError

    def get(self, file: Path) -> None:
        """Copy the whole file to a local one, past the cache."""
        raise NotImplementedError

    def stream(self) -> RawIOBase:
        """Open the file for reading."""
        raise NotImplementedError

    def version(self) -> str:
        """Return a text that changes with the content of the file."""
        raise NotImplementedError

    def files_below(self) -> Iterator[RemotePath]:
        """Yield the files below this folder that are not hidden."""
        raise NotImplementedError

    def files_matching(self) -> Iterator[RemotePath]:
        """Yield the files whose path this pattern of the shell matches."""
        raise NotImplementedError

    def folders_below(self) -> Iterator[list[str]]:
        """Yield the addresses of the files of one folder after another."""
        raise NotImplementedError

    def ahead(self) -> None:
        """Begin to fetch the file, which is read soon; of a long one its begin."""
        raise NotImplementedError

    def files_beginning(self) -> Iterator[RemotePath]:
        """Yield the files of the folder whose name begins as the name of this path."""
        raise NotImplementedError


@contextmanager
def local_copy(path: Path, *others: Path) -> Iterator[Path]:
    """Yield `path`, or a copy of a remote file for a library that reads paths only, removed after the block.

    Args:
        path: the file.
        others: files of its folder, or of folders in it, that the library looks for; those that exist are copied too.

    Raises:
        HeartlmError: the file cannot be read, or an error of the block, which names the file and not the copy.
    """
    if not isinstance(path, RemotePath):
        yield path
        return
    with TemporaryDirectory(prefix="heartlm-") as folder:
        copies = [(each, Path(folder) / each.relative_to(path.parent)) for each in (path, *others)]
        for each, copy in copies:
            if each == path or is_there(each):
                copy.parent.mkdir(parents=True, exist_ok=True)
                with open_file(each) as stream, copy.open("wb") as file:
                    shutil.copyfileobj(stream, file, _PIECE_BYTES)
        try:
            yield copies[0][1]
        except HeartlmError as error:
            raise HeartlmError(str(error).replace(folder, str(path.parent))) from error


def read_ahead(items: Iterable[Item], path_of: Callable[[Item], Path | None]) -> Iterator[Item]:
    """Yield items whose files are read in this order; remote ones are fetched before they are yielded."""
    coming = deque[Item]()
    for item in items:
        if isinstance(path := path_of(item), RemotePath):
            path.ahead()
        coming.append(item)
        if len(coming) > _AHEAD:
            yield coming.popleft()
    yield from coming


def version_of(path: Path) -> str:
    """Return a text that changes when a file does: its size and time of change, or what a store states."""
    if isinstance(path, RemotePath):
        return path.version()
    status = path.lstat()
    return f"{status.st_size} {status.st_mtime_ns}"


def open_file(path: Path, largest: int | None = None) -> RawIOBase:
    """Open a regular file of at most `largest` bytes for unbuffered reading; links are followed.

    Raises:
        HeartlmError: the file cannot be opened, is not a regular file or is too large.
    """
    if isinstance(path, RemotePath):
        if largest is not None and (size := path.stat().st_size) > largest:
            raise HeartlmError(f"{path}: {_too_large(size, largest)}")
        return path.stream()
    try:
        # O_NONBLOCK: opening a FIFO without a writer would block.
        stream = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    status, problem = os.fstat(stream.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file; put the file itself there, or take the name away"
    elif largest is not None and status.st_size > largest:
        problem = _too_large(status.st_size, largest)
    if problem:
        stream.close()
        raise HeartlmError(f"{path}: {problem}")
    return stream


def size_of(path: Path, largest: int | None = None) -> int:
    """Return the size in bytes of a file that `open_file` accepts."""
    with open_file(path, largest) as stream:
        return path.stat().st_size if isinstance(path, RemotePath) else os.fstat(stream.fileno()).st_size


def _too_large(size: int, largest: int) -> str:
    return f"has {size} bytes, at most {largest} expected; the file is damaged"


def read_bytes(path: Path, largest: int) -> bytes:
    """Read all bytes of a regular file of at most `largest` bytes.

    Raises:
        HeartlmError: the file cannot be read, is not a regular file or is too large.
    """
    with open_file(path, largest) as stream:
        try:
            return stream.read(largest) or b""
        except OSError as error:
            raise _cannot_open(path, error) from error


def first_bytes(path: Path, num_bytes: int) -> bytes | None:
    """Return the first bytes of a regular file; None if it cannot be read.

    Raises:
        UnreachableError: a store does not give it.
    """
    try:
        with open_file(path) as stream:
            return stream.read(num_bytes) or b""
    except UnreachableError:
        raise
    except HeartlmError:
        return None


def inflated(packed: bytes | memoryview, window_bits: int = zlib.MAX_WBITS) -> Iterator[bytes]:
    """Yield the content of a deflated stream in pieces of at most a mebibyte, as far as it goes."""
    unpacker = zlib.decompressobj(window_bits)
    # pieces of the input too: what is left of it is copied after each piece of the output
    for first in range(0, len(packed), _PIECE_BYTES):
        rest, piece = bytes(packed[first : first + _PIECE_BYTES]), b" "
        while (rest or piece) and not unpacker.eof:
            piece = unpacker.decompress(rest, _PIECE_BYTES)
            rest = unpacker.unconsumed_tail
            yield piece


def inflates_beyond(packed: bytes, most: int, window_bits: int = zlib.MAX_WBITS) -> bool:
    """Return whether a deflated stream has more than `most` bytes; a piece of it is in memory at a time."""
    return any(num_bytes > most for num_bytes in accumulate(map(len, inflated(packed, window_bits))))


def ending_of(path: Path) -> str:
    """Return the ending of a file name in lower case, without that of a compressed file."""
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def is_there(path: Path) -> bool:
    """Return whether the path exists in any form, including a dangling link or a FIFO, which fail when read."""
    return path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)


def stays_inside(name: str) -> bool:
    """Return whether a file name is relative, never leaves the folder, and has no control characters."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts


def _cannot_open(path: Path, error: OSError | ValueError) -> HeartlmError:
    if isinstance(error, FileNotFoundError):
        return HeartlmError(f"{path}: no such file; fetch it")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return HeartlmError(f"{path}: cannot be read ({reason}); check its name and permissions")
