"""`HeartlmError`, the exception for all errors that a user can cause.

Bad input, bad settings and full disks raise a `HeartlmError`. Its message is a single line: the file or field, what was
found, what was expected, what to do. The command line prints that line and exits with status 2. Any other exception is
a defect of heartlm and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from heartlm.system.printable import printable


class HeartlmError(Exception):
    """Error in the input, the settings or the environment that the user can correct."""

    status = 2
    """Exit status of the command."""

    def __str__(self) -> str:
        """Return the message in a single line, also if a name in it has a line feed or controls a terminal."""
        return printable(super().__str__())


@contextmanager
def needs(extra: str, package: str | None = None) -> Iterator[None]:
    """Replace a failed import in the block by an error that gives the command to install `extra`.

    Args:
        extra: extra of heartlm that includes the package.
        package: only package to handle; by default any.

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
    """Check the fields `names` of `settings` with `holds`. None is not checked; in lists, every entry is.

    Raises:
        HeartlmError: `holds` is false for a value; the message names the field and what is `expected`.
    """
    for name in names:
        value = getattr(settings, name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and not holds(each):
                raise HeartlmError(f"{name}: {value} found, {expected} expected")
