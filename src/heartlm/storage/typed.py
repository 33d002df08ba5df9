"""Checks of values from JSON and YAML against type hints, used for every settings and result file.

A mapping becomes an instance of a dataclass; an unknown field is an error. A TypedDict stays a dictionary; unknown keys
are kept, so that newer versions may add some.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar, Union

from heartlm.errors import HeartlmError

T = TypeVar("T")

_LARGEST = 2**63
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


def typed(kind: type[T], value: Any, where: str | Path = "") -> T:
    """Return `value`, parsed from JSON or YAML, as an instance of `kind`.

    Args:
        kind: dataclass, TypedDict, or type hint composed of those, str, int, float, bool, Path, date, None, Any,
            Literal, unions, lists, tuples and dictionaries. An integer is valid as a float; a boolean is not a number.
        value: value to check at every depth. Numbers must be finite, integers at most 64 bits.
        where: file or field at the start of the error message.

    Raises:
        HeartlmError: a field is unknown, missing or of another type; the message names it.
    """
    try:
        return typing.cast(T, _typed(kind, value, ""))
    except HeartlmError as error:
        raise HeartlmError(f"{where}: {error}" if str(where) else str(error)) from None


class Checked:
    """Base of the dataclasses of settings: fields are checked when one is made, also by `dataclasses.replace`.

    A value is converted as by `typed`, so that text is accepted for a path.

    Raises:
        HeartlmError: a value has the wrong type or is not possible; the message names the field.
    """

    def __post_init__(self) -> None:
        """Check the type of every field, then their values."""
        kind: Any = type(self)
        for name, hint in _hints(kind)[0].items():
            object.__setattr__(self, name, _typed(hint, getattr(self, name), name))  # the dataclasses are frozen
        self.check()

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""


def _typed(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return _fields(hint, value, path)
    if origin in (Union, types.UnionType):
        return _one_of(hint, arguments, value, path)
    if origin is list and isinstance(value, list):
        return [_typed(arguments[0], entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if origin is tuple and isinstance(value, list | tuple):
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(hints) == len(value):
            return tuple(_typed(hints[index], entry, f"{path}[{index}]") for index, entry in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {
            _typed(arguments[0], key, _below(path, "a key")): _typed(arguments[1], entry, _below(path, key))
            for key, entry in value.items()
        }
    if origin is Literal and any(type(value) is type(each) and value == each for each in arguments):
        return value
    if hint is float and is_number(value):
        return float(value)
    if hint is Path and isinstance(value, str | Path) and "\0" not in str(value):
        return Path(value)
    if hint is date and isinstance(value, str):
        with suppress(ValueError):
            return date.fromisoformat(value)
    if hint is int and is_number(value) and isinstance(value, int):
        return value
    if hint in (str, bool, list, dict, type(None)) and isinstance(value, hint):
        return value
    raise _unfit(hint, value, path)


def _fields(kind: Any, value: Any, path: str) -> Any:
    hints, required = _hints(kind)
    if not isinstance(value, Mapping):
        raise HeartlmError(f"{_start(path)}{_shown.repr(value)} found, fields with their values expected")
    missing = next((name for name in required if name not in value), None)
    if missing is not None:
        raise HeartlmError(f"{_below(path, missing)}: nothing found, {_words(hints[missing])} expected")
    fields = {name: _typed(hints[name], entry, _below(path, name)) for name, entry in value.items() if name in hints}
    if typing.is_typeddict(kind):
        return {**value, **fields}
    if unknown := [name for name in value if name not in hints]:
        known = ", ".join(sorted(hints))
        raise HeartlmError(f"{_below(path, unknown[0])}: found, but there is no such field: it is one of {known}")
    return kind(**fields)


@functools.cache
def _hints(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the type hints of a dataclass or TypedDict, and its required fields."""
    hints = typing.get_type_hints(kind)
    if typing.is_typeddict(kind):
        said = typing.get_type_hints(kind, include_extras=True)  # __required_keys__ is wrong with postponed hints
        needed = [*hints] if kind.__total__ else []
        return hints, tuple(name for name in needed if typing.get_origin(said[name]) is not typing.NotRequired)
    known = [each for each in dataclasses.fields(kind) if each.init]
    needed = [each.name for each in known if each.default is each.default_factory is dataclasses.MISSING]
    return {each.name: hints[each.name] for each in known}, tuple(needed)


def _one_of(hint: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    """Return the value as the first of a union's `arguments` that matches."""
    left = [each for each in arguments if each is not type(None)]
    if value is None and len(left) < len(arguments):
        return None
    if len(left) == 1:
        return _typed(left[0], value, path)  # for a more exact error message
    for each in left:
        try:
            return _typed(each, value, path)
        except HeartlmError:
            continue
    raise _unfit(hint, value, path)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite number, not a boolean, and at most 64 bits if it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_LARGEST <= value < _LARGEST if isinstance(value, int) else math.isfinite(value)


def _unfit(hint: Any, value: Any, path: str) -> HeartlmError:
    return HeartlmError(f"{_start(path)}{_shown.repr(value)} found, {_words(hint)} expected")


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        return " or ".join(_words(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        several = "" if origin is list or arguments[-1] is Ellipsis else f"{len(arguments)} of "
        return f"a list of {several}{_words(arguments[0])}"
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
        date: "a date such as 1951-05-02",
    }
    return words.get(hint, "a list" if hint is list else "fields with their values")


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _start(path: str) -> str:
    return f"{path}: " if path else ""
