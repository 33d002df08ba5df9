"""Writing files so that nothing is ever half there.

Outputs are written under a temporary name beside their destination, flushed to the disk and renamed. A crash, a
full disk or a `kill -9` leaves the earlier output, or none; never a torn one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from heartlm.errors import HeartlmError

_CANNOT_WRITE = {
    errno.ENOENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.EBUSY,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EIO,
}


def _explain(path: Path, error: OSError) -> Exception:
    if error.errno not in _CANNOT_WRITE:
        return error
    return HeartlmError(
        f"cannot write {path}: {error.strerror}; what was there is untouched, free space or choose another place"
    )


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary neighbour of `path` for writing; rename it to `path` when the block ends well.

    Raises:
        HeartlmError: the file cannot be written (permission, full disk); an earlier `path` is untouched.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, mode) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _fsync_folder(path.parent)
    except OSError as error:
        raise _explain(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary neighbour folder of `path`; flush it and rename it to `path` when the block ends well.

    An existing `path` is replaced only then.

    Raises:
        HeartlmError: the folder cannot be written.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        _swap(temporary, path)
        _fsync_folder(path.parent)
    except OSError as error:
        raise _explain(path, error) from error
    except HeartlmError as error:
        raise HeartlmError(str(error).replace(str(temporary), str(path))) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, path: Path) -> None:
    if not path.exists():
        temporary.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / "old")
    try:
        temporary.rename(path)
    except OSError:
        (old / "old").rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def append_line(path: Path, line: str) -> None:
    """Add `line` to the end of the file at `path`; on a full disk it may be torn.

    Raises:
        HeartlmError: the file cannot be written.
    """
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise _explain(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, atomically. NaN and infinities are refused."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as stream:
        stream.write(text + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        HeartlmError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HeartlmError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise HeartlmError(f"{path} is not valid JSON ({error}): it may be truncated, make it anew") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
