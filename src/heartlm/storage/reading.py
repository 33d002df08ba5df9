"""Safe reading of JSON, JSON Lines and YAML.

A damaged or hostile file raises a HeartlmError. Size, depth and numbers are limited, and types are checked against a
dataclass or TypedDict (`heartlm.storage.typed`).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, overload

from heartlm.errors import HeartlmError
from heartlm.storage.foreign import RemotePath, read_bytes
from heartlm.storage.limits import MAX_CONTAINERS, TOO_DEEP, finite_float, limited, small_int
from heartlm.storage.typed import typed

T = TypeVar("T")

MAX_JSON_BYTES, MAX_YAML_BYTES = 1 << 28, 1 << 22
"""Maximum file sizes. A manifest may list a million skipped recordings; settings are written by hand."""


def read_text(path: Path, max_bytes: int) -> str:
    """Read a file of UTF-8 text. Pipes and devices are rejected, because they may have no end.

    Raises:
        HeartlmError: the file is missing, unreadable, not a regular file, larger than `max_bytes` or not UTF-8.
    """
    if isinstance(path, RemotePath):
        content = read_bytes(path, max_bytes)
        try:
            return content.decode()
        except ValueError as error:
            raise HeartlmError(f"cannot read {path}: UTF-8 text expected ({error})") from error
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


def refuse_irregular(path: Path) -> None:
    """Raise a HeartlmError if there is something else than a regular file at `path`; opening a pipe would wait."""
    if Path(path).exists() and not Path(path).is_file():
        raise HeartlmError(f"cannot read {path}: a regular file expected, found something else")


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Return the value of JSON `text`. With `finite`, NaN and infinite numbers are errors.

    Raises:
        ValueError: the text is not JSON, is nested more than `MAX_DEPTH` deep, repeats a key in one object, or has an
            integer of more than 64 bits or a number that is not `finite`.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        if text.count("[") + text.count("{") > MAX_CONTAINERS:
            raise ValueError(f"more than {MAX_CONTAINERS} lists and mappings")
        value = _DECODERS[finite].decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return limited(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} found twice")
    return mapping


# Decoders of `parse_json`, kept because creating one takes as long as decoding a short text.
_DECODERS = {
    finite: json.JSONDecoder(
        parse_int=small_int,
        parse_float=finite_float if finite else float,
        parse_constant=finite_float if finite else float,
        object_pairs_hook=_without_repeats,
    )
    for finite in (False, True)
}


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
    # Not by splitlines, which also splits at U+2028: JSON texts may have it.
    for text in read_text(path, MAX_JSON_BYTES).split("\n"):
        try:
            lines.append(typed(dict[str, Any], parse_json(text, finite=False)))
        except (ValueError, HeartlmError):
            num_torn += bool(text.strip())
    return lines, num_torn


def each_json_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file of any length, one line in memory at a time; invalid lines are left out.

    Raises:
        HeartlmError: the file cannot be read.
    """
    refuse_irregular(path)
    try:
        with path.open("rb") as stream:
            for text in iter(lambda: stream.readline(MAX_JSON_BYTES), b""):
                with suppress(ValueError, HeartlmError):
                    yield typed(dict[str, Any], parse_json(text, finite=False))
    except OSError as error:
        raise HeartlmError(f"cannot read {path}: {error.strerror}") from error


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file; `what` describes its content in error messages.

    Raises:
        HeartlmError: the file is missing, unreadable, not YAML, or exceeds the limits of size and depth.
    """
    from heartlm.storage.safe_yaml import parse_yaml

    try:
        return parse_yaml(read_text(path, MAX_YAML_BYTES))
    except HeartlmError as error:
        raise HeartlmError(f"{error}; {what} expected") from error
    except ValueError as error:
        raise HeartlmError(f"{path}: not valid YAML ({error})") from error
