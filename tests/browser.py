"""Open an HTML file in a real headless Chromium: its document after the scripts ran, and a picture of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.chromium import FLAGS, NAMES, TIMEOUT_S, chromium

ALONE = ["--virtual-time-budget=5000", "--host-resolver-rules=MAP * ~NOTFOUND"]
"""Scripts run without waiting for time to pass, and there is no network."""


@dataclass(frozen=True)
class Page:
    """What the browser made of a file: the document's HTML, and the `data-…` attributes of its root element."""

    html: str
    data: dict[str, str]
    screenshot: Path


def find_chromium() -> str:
    """The path of a Chromium; the test is skipped, with a reason, where there is none."""
    found = chromium()
    if found is None:
        pytest.skip(f"no browser found: none of {', '.join(NAMES)} is on PATH")
    return found


def open_page(file: Path, workplace: Path, *, width: int = 1280, height: int = 1600, with_picture: bool = True) -> Page:
    """Load `file` without any network, let its scripts run, and return what came of it."""
    screenshot = workplace / f"{file.stem}-{width}.png"
    size = f"--window-size={width},{height}"
    html = _chromium(file, workplace, ["--dump-dom", size])
    if with_picture:
        _chromium(file, workplace, [f"--screenshot={screenshot}", size])
    root = re.search(r"<html[^>]*>", html)
    attributes = re.findall(r'data-([\w-]+)="([^"]*)"', root.group()) if root else []
    return Page(html, dict(attributes), screenshot)


def print_page(file: Path, workplace: Path) -> Path:
    """Print `file` without any network as its style sheet says, and return the PDF."""
    printed = workplace / f"{file.stem}.pdf"
    _chromium(file, workplace, ["--no-pdf-header-footer", f"--print-to-pdf={printed}"])
    return printed


def _chromium(file: Path, workplace: Path, arguments: Sequence[str]) -> str:
    command = [find_chromium(), *FLAGS, *ALONE, f"--user-data-dir={workplace / 'profile'}", *arguments]
    done = subprocess.run([*command, file.resolve().as_uri()], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
