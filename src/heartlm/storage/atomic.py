"""Atomic writing of files and folders.

Outputs are written under a temporary name next to their destination, flushed to the disk and renamed. A crash, a full
disk or a `kill -9` leaves the earlier output or none, never a partial one. A new folder replaces an existing one by
exchanging the two names in one system call if the filesystem supports that. Otherwise, a kill between the two renames
leaves the earlier folder under a name that `recover_folder` restores. Each writer holds a lock on its temporary until
it ends. Unlocked temporaries of killed processes are removed at the next write to the same folder.
A file in a bucket is written to a temporary folder of this machine, and appears when its upload is complete.
"""

from __future__ import annotations

import csv
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from heartlm.errors import HeartlmError
from heartlm.storage.foreign import RemotePath

# Error numbers of programming errors. Any other error while writing is caused by the disk, the folder or the name.
_DEFECTS = {errno.EBADF, errno.EINVAL, errno.EFAULT, errno.ESPIPE, errno.EPIPE, errno.ENOTTY, None}


def explained(path: Path, error: OSError) -> Exception:
    """Return the exception to raise for `error` while writing `path`: a HeartlmError, or `error` if it is a defect."""
    why = error.strerror
    if error.errno is None and (part := re.search(r"\d+ requested and \d+ written", str(error))):  # by NumPy's tofile
        why = f"only a part fits ({part[0]})"
    elif error.errno in _DEFECTS:
        return error
    return HeartlmError(f"cannot write {path}: {why}; what was there is untouched, free space or choose another place")


def _writable(path: Path) -> Path:
    if isinstance(path, RemotePath) and not path.is_output:
        raise HeartlmError(f"{path}: addresses are read only; give a local folder for what is written")
    return path if isinstance(path, RemotePath) else Path(path)


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path` for writing; rename it to `path` if the block succeeds.

    Raises:
        HeartlmError: the file cannot be written (permission, full disk); an earlier `path` is untouched.
    """
    path = _writable(path)
    temporary: Path | None = None
    try:
        # Without an encoding, Python takes that of the locale, and readers expect UTF-8.
        encoding = None if "b" in mode else "utf-8"
        if isinstance(path, RemotePath):
            with TemporaryDirectory(prefix="heartlm-") as folder:
                with (file := Path(folder) / path.name).open(mode, encoding=encoding) as stream:
                    yield stream
                path.put(file)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _new_temporary(path)
        with os.fdopen(descriptor, mode, encoding=encoding) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)  # before closing, which releases the lock
        fsync_folder(path.parent)
    except OSError as error:
        raise explained(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; flush it and rename it to `path` if the block succeeds.

    Otherwise an existing `path` is untouched.

    Raises:
        HeartlmError: the folder cannot be written.
    """
    path = _writable(path)
    temporary, descriptor = None, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _new_temporary(path, is_folder=True)
        yield temporary
        publish_folder(temporary, path)
    except OSError as error:
        raise explained(path, error) from error
    except HeartlmError as error:
        raise HeartlmError(str(error).replace(str(temporary), str(path))) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


# Mark of this machine in the names of temporaries: on some filesystems other machines do not see its locks.
_MARK = f"tmp-{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]}-"

_TEMPORARY = re.compile(rf"\..+\.{_MARK}[a-z0-9_]{{8}}")
_swept: set[Path] = set()


def _new_temporary(path: Path, is_folder: bool = False) -> tuple[Path, int]:
    """Create a file or folder next to `path`; return it and a descriptor that holds its lock. Remove stale ones."""
    parent = path.parent.absolute()
    if is_folder or parent not in _swept:  # for files once per process: a folder may have thousands
        _swept.add(parent)
        _sweep(parent)
    while True:
        name = parent / f".{path.name}.{_MARK}{secrets.token_hex(4)}"
        if is_folder:
            name.mkdir()
            try:
                descriptor = os.open(name, os.O_RDONLY)
            except FileNotFoundError:  # another process removed it before it was locked
                continue
        else:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # a filesystem without locks, on which no temporaries are removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path.with_name(name.name), descriptor
        os.close(descriptor)  # also removed by another process


def _sweep(folder: Path) -> None:
    """Remove temporaries that no process has locked."""
    with suppress(OSError):  # the folder may not be readable
        for path in [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]:
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                finally:
                    os.close(descriptor)


def publish_folder(temporary: Path, path: Path) -> None:
    """Flush all files and folders in `temporary` to the disk, then rename it to `path`, see `replace_folder`."""
    for entry in (*temporary.rglob("*"), temporary):
        if entry.is_file() or entry.is_dir():
            fsync_folder(entry)  # works for files too
    replace_folder(temporary, path)
    fsync_folder(path.parent)


def replace_folder(temporary: Path, path: Path) -> None:
    """Rename the complete folder `temporary` to `path` in the same folder; an existing `path` is removed.

    `path` is always either the earlier folder or the new one. If the filesystem cannot exchange two names, an
    interruption may leave no `path`, and `recover_folder` restores it.

    Raises:
        OSError: `path` cannot be replaced and is unchanged.
    """
    recover_folder(path)
    if not path.exists():
        temporary.rename(path)
    elif _exchange(temporary, path):
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        old = _set_aside(path)
        shutil.rmtree(old, ignore_errors=True)  # left by a process killed after its replacement was complete
        path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restore `path` if a kill during `replace_folder` left it under its other name."""
    if not path.exists() and _set_aside(path).is_dir():
        _set_aside(path).rename(path)


def _set_aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


_RENAME_EXCHANGE, _AT_FDCWD = 2, -100
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False if the system or the filesystem does not support it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def append_line(path: Path, line: str) -> None:
    """Append `line` to the file at `path`; on a full disk the line may be incomplete.

    Raises:
        HeartlmError: the file cannot be written.
    """
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError as error:
        raise explained(path, error) from error


def open_lock(path: Path) -> IO[str]:
    """Open the file at `path`, whose locks count and not its content; create it and its folder if they are missing.

    Raises:
        HeartlmError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")  # NFS has shared locks of files alone that are open for reading
    except OSError as error:
        raise explained(path, error) from error


@contextmanager
def locked(path: Path, message: str, *, is_shared: bool = False) -> Iterator[None]:
    """Hold a lock on the file at `path` until the block or the process ends: alone, or with others that share it.

    The one that holds it alone may remove the file within the block.

    Raises:
        HeartlmError: another process holds the lock (with this message), or the file cannot be written.
    """
    while True:
        with open_lock(path) as stream:
            try:
                fcntl.flock(stream, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeartlmError(message) from None
            # The one that held it may have removed the file after this process opened it.
            try:
                is_there = os.path.samestat(os.fstat(stream.fileno()), path.stat())
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield
                return


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path` as UTF-8, atomically; return the path.

    Raises:
        HeartlmError: the file cannot be written.
    """
    with atomic_file(path) as stream:
        stream.write(text)
    return Path(path)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, atomically. NaN and infinities raise a ValueError."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(
    rows: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str] = (), digits: int | None = None
) -> Path:
    """Write rows with the same columns as CSV; None is an empty field.

    A text that a spreadsheet would run as a formula gets an apostrophe in front, as OWASP advises; numbers do not.

    Args:
        rows: rows to write, at least one unless `columns` is given.
        path: file to replace.
        columns: column names in order; by default those of the first row.
        digits: number of decimals; by default all.
    """

    names = list(columns or rows[0])
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writerow({name: csv_field(name) for name in names})
        writer.writerows({key: csv_field(value, digits) for key, value in row.items()} for row in rows)
    return path


def csv_field(value: Any, digits: int | None = None) -> Any:
    """Return a value as `write_csv` writes it."""
    if isinstance(value, float) and digits is not None:
        return round(value, digits)
    if not isinstance(value, str):
        return value
    mark = "'" * (value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and not _is_number(value))
    return mark + value.replace("\r", " ")  # which the module csv does not quote, and readers take for a new row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def cache_folder() -> Path:
    """Return the folder of what heartlm keeps for later runs of this user; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heartlm"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of_files(*paths: Path) -> str:
    """Return the first 16 hexadecimal digits of a SHA-256 over those of several files, in this order."""
    return hashlib.sha256("".join(map(sha256_of, paths)).encode()).hexdigest()[:16]


def fsync_folder(path: Path) -> None:
    """Flush the directory entries of the folder `path` to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
