"""What all tests share: where the optional real recordings are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("HEARTLM_TEST_DATA", ROOT.parent / "shared" / "data"))


def shared_data(name: str) -> Path:
    """The folder or file `name` of the real recordings; the test is skipped, with a reason, where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"real recordings {name!r} not found: set HEARTLM_TEST_DATA to the folder that holds them")
    return path
