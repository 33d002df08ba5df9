"""A corpus in name alone, for checks that read no tokens."""

from __future__ import annotations

from pathlib import Path


def name_corpus(folder: Path) -> None:
    """Make a corpus of the name alone, as far as a launch looks."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
