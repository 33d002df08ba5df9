"""The one exception that a user can cause.

Every error that comes from bad input, a bad setting or a full disk is a `HeartlmError` whose text is a single
line: which file or field, what was found, what was expected, what to do. The command line prints that line and
exits with status 2; anything else that escapes is a defect of heartlm and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class HeartlmError(Exception):
    """A mistake in the input, the settings or the surroundings that the user can mend."""


@contextmanager
def needs(extra: str, package: str | None = None) -> Iterator[None]:
    """Say how to install what an import inside lacks: `package`, by default any, which comes with `extra`.

    Raises:
        HeartlmError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        found = (error.name or extra).partition(".")[0]
        if package not in (None, found):
            raise
        text = f"this needs the package {found!r}: install it with  pip install 'heartlm[{extra}]'"
        raise HeartlmError(text) from None


def require(settings: object, holds: Callable[[Any], bool], expected: str, *names: str) -> None:
    """Check fields of `settings`; None, an absent value, is not checked, and of a list every entry is.

    Raises:
        HeartlmError: `holds` is false of a value; the text names the field and says what was `expected`.
    """
    for name in names:
        value = getattr(settings, name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and not holds(each):
                raise HeartlmError(f"{name}: {value} found, {expected} expected")
