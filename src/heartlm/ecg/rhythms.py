"""Rhythm names and their indices.

The names are those of the WFDB AUX strings without the opening bracket. `rhythms.json` holds them with their meaning,
and other names for them. New names are only appended to the file, so that an index stored in a corpus keeps its
meaning.
"""

from __future__ import annotations

from pathlib import Path

from heartlm.files import read_json

_TABLES = read_json(Path(__file__).with_suffix(".json"), dict[str, dict[str, str]])

RHYTHMS: tuple[str, ...] = tuple(_TABLES["names"])
"""Rhythm names. The position of a rhythm is its index in corpora and scores."""

RHYTHM_INDEX: dict[str, int] = {name: index for index, name in enumerate(RHYTHMS)}


def rhythm_index(name: str) -> int:
    """Return the index of a rhythm name, ignoring a bracket or NUL around it; an unknown name is `OTHER`."""
    bare = name.strip("\x00 \t\n(")
    return RHYTHM_INDEX.get(_TABLES["aliases"].get(bare, bare), RHYTHM_INDEX["OTHER"])
