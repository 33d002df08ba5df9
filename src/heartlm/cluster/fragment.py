"""Pieces of batch scripts, written in bash in `cluster/fragments`, with places such as `@ranks@` for values."""

from __future__ import annotations

import re
from importlib.resources import files


def fragment(name: str, **values: object) -> list[str]:
    """The lines of a piece, its places filled; a value stays within its line whatever characters it holds."""
    text = (files("heartlm.cluster") / "fragments" / f"{name}.sh").read_text(encoding="utf-8")
    return [re.sub(r"@(\w+)@", lambda place: str(values[place[1]]), line) for line in text.splitlines()]
