"""Writing files so that nothing is ever half there.

Outputs are written under a temporary name beside their destination, flushed to the disk and renamed. A crash, a
full disk or a `kill -9` leaves the earlier output, or none; never a torn one. A folder that replaces another changes
places with it in one call where the filesystem has that; where it has not, a kill between the two renames leaves the
earlier one under a name that `recover_folder` knows.
"""

from __future__ import annotations

import ctypes
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


def explained(path: Path, error: OSError) -> Exception:
    """What to raise for `error` while writing `path`: one line for the user, or `error` where it is a defect."""
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
        fsync_folder(path.parent)
    except OSError as error:
        raise explained(path, error) from error
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
        replace_folder(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        raise explained(path, error) from error
    except HeartlmError as error:
        raise HeartlmError(str(error).replace(str(temporary), str(path))) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(temporary: Path, path: Path) -> None:
    """Give the complete folder `temporary` the name `path` beside it; a folder of that name is removed.

    At every moment `path` is the earlier folder or the new one, or, where the filesystem cannot exchange two names,
    `recover_folder` brings one of them back.

    Raises:
        OSError: `path` cannot be replaced and is as it was.
    """
    recover_folder(path)
    if not path.exists():
        temporary.rename(path)
    elif _exchange(temporary, path):
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        old = _set_aside(path)
        shutil.rmtree(old, ignore_errors=True)  # of a replacement that was killed when it was done
        path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Bring `path` back if a kill in the middle of `replace_folder` left it under its other name."""
    if not path.exists() and _set_aside(path).is_dir():
        _set_aside(path).rename(path)


def _set_aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


_RENAME_EXCHANGE, _AT_FDCWD = 2, -100
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where the system or the filesystem cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def append_line(path: Path, line: str) -> None:
    """Add `line` to the end of the file at `path`; on a full disk it may be torn.

    Raises:
        HeartlmError: the file cannot be written.
    """
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise explained(path, error) from error


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


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file, `what` in words.

    Raises:
        HeartlmError: the file is missing, unreadable or not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HeartlmError(f"{path}: cannot be read ({error.strerror}); {what} expected") from error
    except (ValueError, yaml.YAMLError) as error:
        raise HeartlmError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def fsync_folder(path: Path) -> None:
    """Flush the names in the folder `path` to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
