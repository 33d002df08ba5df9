"""The one way to open files that heartlm did not write: regular files of a bounded size; each failure is one line.

Libraries raise anything on a damaged file, from `IndexError` to an exception of a codec. `reads` and `one_line` turn
it into a `HeartlmError` that names the file. FIFOs and devices are refused before they are opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Concatenate, ParamSpec, TypeVar

from heartlm.errors import HeartlmError

HEADER_BYTES = 1 << 24
"""The largest WFDB header; one of 400,000 segments has about as many bytes."""
LIST_BYTES = 1 << 28
"""The largest list or table of a database: RECORDS, sums, patients; and the largest annotation file."""
TEXT_BYTES = 1 << 31
"""The largest recording that is text, which is read as a whole."""

_LONGEST_REASON = 200

P = ParamSpec("P")
Result = TypeVar("Result")


@contextmanager
def one_line(path: Path, what: str) -> Iterator[None]:
    """Raise whatever a library raises in the block as one line: `path` is not readable as `what`.

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
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeartlmError(f"{path}: not readable as {what} ({reason[:_LONGEST_REASON]}); fetch it again") from error


def reads(
    what: str, largest: int | None = None
) -> Callable[[Callable[Concatenate[Path, P], Result]], Callable[Concatenate[Path, P], Result]]:
    """Let a reader of `path` see regular files of at most `largest` bytes only, and fail in one line."""

    def guard(read: Callable[Concatenate[Path, P], Result]) -> Callable[Concatenate[Path, P], Result]:
        @wraps(read)
        def guarded(path: Path, /, *arguments: P.args, **options: P.kwargs) -> Result:
            size_of(path, largest)
            with one_line(path, what):
                return read(path, *arguments, **options)

        return guarded

    return guard


def size_of(path: Path, largest: int | None = None) -> int:
    """The bytes of a regular file; links to one are followed.

    Raises:
        HeartlmError: there is no such file, it is something else, or it has more than `largest` bytes.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    return _checked(path, status, largest)


def open_file(path: Path) -> FileIO:
    """Open a regular file to read bytes, unbuffered.

    Raises:
        HeartlmError: it cannot be opened, or is no regular file.
    """
    try:
        # O_NONBLOCK: opening a FIFO that has no writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    try:
        _checked(path, os.fstat(descriptor), None)
    except HeartlmError:
        os.close(descriptor)
        raise
    return FileIO(descriptor)


def read_bytes(path: Path, largest: int) -> bytes:
    """All bytes of a regular file of at most `largest`.

    Raises:
        HeartlmError: it cannot be read, is no regular file or too large.
    """
    with open_file(path) as stream:
        _checked(path, os.fstat(stream.fileno()), largest)
        try:
            return stream.read(largest) or b""
        except OSError as error:
            raise _cannot_open(path, error) from error


def is_there(path: Path) -> bool:
    """Whether anything has that name: also a dangling link or a FIFO, which then fail when they are read."""
    return os.path.lexists(path)


def stays_inside(name: str) -> bool:
    """Whether a file name that a file states is relative, never goes up, and has no control characters."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts


def _checked(path: Path, status: os.stat_result, largest: int | None) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise HeartlmError(f"{path}: is not a regular file; put the file itself there, or take the name away")
    if largest is not None and status.st_size > largest:
        raise HeartlmError(f"{path}: has {status.st_size} bytes, at most {largest} expected; the file is damaged")
    return status.st_size


def _cannot_open(path: Path, error: OSError | ValueError) -> HeartlmError:
    if isinstance(error, FileNotFoundError):
        return HeartlmError(f"{path}: no such file; fetch it")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return HeartlmError(f"{path}: cannot be read ({reason}); check its name and permissions")
