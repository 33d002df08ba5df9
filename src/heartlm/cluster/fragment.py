"""Bash fragments of batch scripts in `cluster/fragments`, with placeholders such as `@ranks@`."""

from __future__ import annotations

import re
from importlib.resources import files


def fragment(name: str, **values: object) -> list[str]:
    """Return the lines of a fragment with its placeholders filled; a value stays on its line whatever it contains."""
    text = (files("heartlm.cluster") / "fragments" / f"{name}.sh").read_text(encoding="utf-8")
    return [re.sub(r"@(\w+)@", lambda place: str(values[place[1]]), line) for line in text.splitlines()]
