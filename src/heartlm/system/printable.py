"""Text of files and of the network on a terminal: control characters are shown, not carried out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO
from unicodedata import category


def printable(text: str, kept: str = "") -> str:
    """Return `text` with each character that is not printable as Python writes it in a text: `\\n`, `\\x1b`, `\\u202e`.

    Spaces of any width are printable, such as those between the digits of large numbers.

    Args:
        text: any text, for example the name of a lead or the reason of an HTTP answer.
        kept: characters that are not replaced.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept or category(each) == "Zs" else repr(each)[1:-1] for each in text
    )


def show_control_characters() -> None:
    """Let standard output and error of this process write all but tabs and line feeds as `printable` does.

    Tables, warnings, log lines of libraries and tracebacks may all quote a file. What draws on a terminal takes
    `unfiltered`.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.write = _filtered(stream.write)  # type: ignore[method-assign]


def unfiltered(stream: TextIO) -> TextIO:
    """Return a stream to the same place that `show_control_characters` does not change."""
    if "write" not in getattr(stream, "__dict__", {}):
        return stream
    return open(stream.fileno(), "w", encoding=stream.encoding, closefd=False)


def _filtered(write: Callable[[str], int]) -> Callable[[str], int]:
    def filtered(text: str) -> int:
        write(printable(text, kept="\n\t"))
        return len(text)

    return filtered
