"""The one exception that a user can cause.

Every error that comes from bad input, a bad setting or a full disk is a `HeartlmError` whose text is a single
line: which file or field, what was found, what was expected, what to do. The command line prints that line and
exits with status 2; anything else that escapes is a defect of heartlm and shows its traceback.
"""

from __future__ import annotations


class HeartlmError(Exception):
    """A mistake in the input, the settings or the surroundings that the user can mend."""


def needs(extra: str, module: str) -> HeartlmError:
    """Return the error for a feature whose optional dependency `module` is not installed."""
    return HeartlmError(f"this needs the package {module!r}: install it with  pip install 'heartlm[{extra}]'")
