"""A hook of MkDocs: links of documents to files outside of docs/, such as `../benchmarks/results/reading.md`.

The documents are read in the repository too, so their links are those of the repository. The site gets a copy of each
linked file at its path below the root, and links that leave docs/ are shortened to it.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
ROOT = Path(__file__).parent.parent


def targets(path: Path) -> set[Path]:
    """Files outside of docs/ that a document links to."""
    named = {Path(os.path.normpath(path.parent / link[2])) for link in LINK.finditer(path.read_text(encoding="utf-8"))}
    return {each for each in named if each.is_file() and not each.is_relative_to(ROOT / "docs")}


def on_files(files: Files, config: Any) -> Files:
    """Add what documents link to, and what Markdown among it links to."""
    known: set[Path] = set()
    new = {target for path in (ROOT / "docs").rglob("*.md") for target in targets(path)}
    while new:
        known |= new
        new = {target for path in new if path.suffix == ".md" for target in targets(path)} - known
    for path in sorted(known):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links those of the site, in which docs/ is the root."""
    page_path = page.file.src_uri
    here = page_path if page.file.generated_by else f"docs/{page_path}"

    def shortened(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[2])).removeprefix("docs/")
        if (ROOT / target).is_dir():
            return link[0].replace(link[2], posixpath.relpath("index.md", posixpath.dirname(page_path) or "."))
        relative = posixpath.relpath(target, posixpath.dirname(page_path) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    return LINK.sub(shortened, markdown)
