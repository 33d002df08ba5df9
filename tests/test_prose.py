"""The phrases that the project's style excludes occur in no text: documents, docstrings, comments, messages."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHRASES = re.compile(
    r"\b(told of|sa(?:id|ys) nothing|has gone|(?:is|are|does|do) what (?:it|they) says?|as it does while"
    r"|for want of|anew|begun|go(?:es)? on|went on|so many|nobody|beside|apart from|said twice|may not move)\b",
    re.IGNORECASE,
)
CODE = re.compile(
    r"\{[^{}\n]*\}|\{%.*?%\}|`[^`\n]+`|\S*\.begun\b|\bnote begun\b|\bbeside:|\bunder beside\b|\bgive beside\b"
)
"""What in a text is code: placeholders, names between backticks, names of files and fields."""

FILES = sorted(
    path
    for folder, kinds in (("src", "py c h html yaml md"), ("docs", "md py"), (".", "md"), ("examples", "py yaml ipynb"))
    for kind in kinds.split()
    for path in (ROOT / folder).glob(f"*.{kind}" if folder == "." else f"**/*.{kind}")
    if path.name != "CHANGELOG.md"
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers: of Python its comments and strings that hold a space, of others everything."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield from enumerate(token.string.splitlines(), token.start[0])


def faults(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r} in {line.strip()!r}"
        for number, line in texts(path)
        if (found := PHRASES.search(CODE.sub("", line)))
    ]


@pytest.mark.parametrize("folder", ["src", "docs", "examples", "."])
def test_texts_are_in_plain_technical_english(folder: str):
    paths = [path for path in FILES if path.relative_to(ROOT).parts[0] == folder or path.parent == ROOT / folder]
    assert paths
    found = [fault for path in paths for fault in faults(path)]
    assert not found, "\n".join(found)


def test_a_phrase_in_a_comment_a_docstring_and_a_message_is_found_and_a_name_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('"""Start it\nanew."""\nbeside = 1  # nobody reads it\nraise ValueError(f"{beside} goes on")\n')
    assert [fault.split(":")[1] for fault in faults(path)] == ["2", "3", "4"]
