"""Atomic writing of files and folders, and safe reading of JSON and YAML.

Outputs are written under a temporary name next to their destination, flushed to the disk and renamed. A crash, a full
disk or a `kill -9` leaves the earlier output or none, never a partial one. A new folder replaces an existing one by
exchanging the two names in one system call if the filesystem supports that. Otherwise, a kill between the two renames
leaves the earlier folder under a name that `recover_folder` restores. Each writer holds a lock on its temporary until
it ends. Unlocked temporaries of killed processes are removed at the next write to the same folder.

`read_json`, `read_yaml` and `read_json_lines` raise a HeartlmError for a damaged or hostile file. They limit size,
depth and numbers, and check types against a dataclass or TypedDict (`heartlm.typed`).
"""

from __future__ import annotations

import csv
import ctypes
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from heartlm.errors import HeartlmError
from heartlm.typed import typed

T = TypeVar("T")

MAX_DEPTH = 64
"""Maximum nesting depth of lists and mappings in JSON and YAML."""
TOO_DEEP = f"nested more than {MAX_DEPTH} deep"

MAX_JSON_BYTES, MAX_YAML_BYTES = 1 << 28, 1 << 22
"""Maximum file sizes. A manifest may list a million skipped recordings; settings are written by hand."""

_DEFECTS = {errno.EBADF, errno.EINVAL, errno.EFAULT, errno.ESPIPE, errno.EPIPE, errno.ENOTTY, None}
"""Error numbers of programming errors. Any other error while writing is caused by the disk, the folder or the name."""


def explained(path: Path, error: OSError) -> Exception:
    """Return the exception to raise for `error` while writing `path`: a HeartlmError, or `error` if it is a defect."""
    why = error.strerror
    if error.errno is None and (part := re.search(r"\d+ requested and \d+ written", str(error))):  # by NumPy's tofile
        why = f"only a part fits ({part[0]})"
    elif error.errno in _DEFECTS:
        return error
    return HeartlmError(f"cannot write {path}: {why}; what was there is untouched, free space or choose another place")


@contextmanager
def atomic_file(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path` for writing; rename it to `path` if the block succeeds.

    Raises:
        HeartlmError: the file cannot be written (permission, full disk); an earlier `path` is untouched.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _new_temporary(path)
        with os.fdopen(descriptor, mode) as stream:
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
    path = Path(path)
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


_MARK = f"tmp-{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]}-"
"""Mark of this machine in the names of temporaries: on some filesystems other machines do not see its locks."""

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
    """Flush every file below `temporary` to the disk, then rename it to `path`, see `replace_folder`."""
    for file in temporary.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
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


@contextmanager
def sole_holder(path: Path, taken: str) -> Iterator[None]:
    """Hold a lock on the file at `path` until the block or the process ends.

    Raises:
        HeartlmError: another process holds the lock (with the message `taken`), or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("w")
    except OSError as error:
        raise explained(path, error) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeartlmError(taken) from None
        yield


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON, atomically. NaN and infinities raise a ValueError."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as stream:
        stream.write(text + "\n")


def write_csv(
    rows: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str] = (), digits: int | None = None
) -> Path:
    """Write rows with the same columns as CSV; None is an empty field.

    Args:
        rows: rows to write, at least one unless `columns` is given.
        path: file to replace.
        columns: column names in order; by default those of the first row.
        digits: number of decimals; by default all.
    """
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, columns or list(rows[0]), lineterminator="\n")
        writer.writeheader()
        if digits is not None:
            rows = [{key: round(x, digits) if isinstance(x, float) else x for key, x in row.items()} for row in rows]
        writer.writerows(rows)
    return path


def read_text(path: Path, max_bytes: int) -> str:
    """Read a file of UTF-8 text. Pipes and devices are rejected, because they may have no end.

    Raises:
        HeartlmError: the file is missing, unreadable, not a regular file, larger than `max_bytes` or not UTF-8.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer. Path.open has no opener argument.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise HeartlmError(f"cannot read {path}: a regular file expected, found something else")
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise HeartlmError(f"cannot read {path}: more than {max_bytes >> 20} MiB found, which no such file has")
        return content.decode()
    except OSError as error:
        raise HeartlmError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # also raised for a name with a NUL
        raise HeartlmError(f"cannot read {path}: UTF-8 text expected ({error})") from error


def small_int(value: int | str) -> int:
    """Return `value` as a 64-bit integer; raise ValueError if it is larger."""
    if (number := int(value)).bit_length() > 63:
        raise ValueError("a whole number of more than 64 bits")
    return number


def finite_float(value: float | str) -> float:
    """Return `value` as a finite float; raise ValueError for infinities and NaN."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is no finite number")
    return number


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Return the value of JSON `text`. With `finite`, NaN and infinite numbers are errors.

    Raises:
        ValueError: the text is not JSON, is nested more than `MAX_DEPTH` deep, repeats a key in one object, or has an
            integer of more than 64 bits or a number that is not `finite`.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = _DECODERS[finite].decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return limited(value)


def limited(value: Any, max_values: int | None = None) -> Any:
    """Return `value`; raise ValueError if it is nested too deeply, or has `max_values` values or more at one depth."""
    level, depth = [value], 0
    while level := list(islice(chain.from_iterable(map(_below, level)), max_values)):
        if (depth := depth + 1) > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        if len(level) == max_values:
            raise ValueError(f"more than {max_values} values, aliases expanded")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} found twice")
    return found


def _below(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_DECODERS = {
    finite: json.JSONDecoder(
        parse_int=small_int,
        parse_float=finite_float if finite else float,
        parse_constant=finite_float if finite else float,
        object_pairs_hook=_without_repeats,
    )
    for finite in (False, True)
}
"""Decoders of `parse_json`, kept because creating one takes as long as decoding a short text."""


@overload
def read_json(path: Path) -> Any: ...


@overload
def read_json(path: Path, kind: type[T]) -> T: ...


def read_json(path: Path, kind: Any = Any) -> Any:
    """Read a JSON file as a value of `kind`, see `typed`.

    Raises:
        HeartlmError: the file is missing, unreadable, not JSON or not of type `kind`; the message names the field.
    """
    text = read_text(path, MAX_JSON_BYTES)
    try:
        return typed(kind, parse_json(text), path)
    except ValueError as error:
        raise HeartlmError(f"{path} is not valid JSON ({error}): it may be truncated, make it again") from error


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Read a JSON Lines file, such as metrics. Invalid lines, which a killed process can leave, are only counted.

    Returns:
        Objects in order, and the number of invalid lines. An empty list and 0 if the file does not exist.

    Raises:
        HeartlmError: the file cannot be read.
    """
    if not Path(path).exists():
        return [], 0
    lines, num_torn = list[dict[str, Any]](), 0
    for text in read_text(path, MAX_JSON_BYTES).splitlines():
        try:
            lines.append(typed(dict[str, Any], parse_json(text, finite=False)))
        except (ValueError, HeartlmError):
            num_torn += bool(text.strip())
    return lines, num_torn


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file; `what` describes its content in error messages.

    Raises:
        HeartlmError: the file is missing, unreadable, not YAML, or exceeds the limits of size and depth.
    """
    from heartlm.safe_yaml import parse_yaml

    try:
        return parse_yaml(read_text(path, MAX_YAML_BYTES))
    except HeartlmError as error:
        raise HeartlmError(f"{error}; {what} expected") from error
    except ValueError as error:
        raise HeartlmError(f"{path}: not valid YAML ({error})") from error


def cache_folder() -> Path:
    """Return the folder of what heartlm keeps for later runs of this user; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heartlm"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fsync_folder(path: Path) -> None:
    """Flush the directory entries of the folder `path` to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
