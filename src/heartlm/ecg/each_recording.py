"""Results of recordings: what they depend on, so that a repeated command keeps those that it would write again."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import heartlm
from heartlm.ecg.database import Database
from heartlm.storage.atomic import sha256_of
from heartlm.storage.reading import read_json

PACKAGE = Path(heartlm.__file__).parent


@cache
def build() -> dict[str, str]:
    """Return the version of heartlm, and a digest of its tables and weights, which change between builds."""
    files = sorted(path for kind in ("json", "safetensors") for path in PACKAGE.glob(f"*/*.{kind}"))
    digest = hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()
    return {"heartlm": heartlm.__version__, "tables and weights": digest[:16]}


def source_digest(database: Database, record_id: str) -> str:
    """Return a digest of the names, sizes and times of a recording's files, and of what the user states of them."""
    return hashlib.sha256(database.source(record_id).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def known_summary(path: Path, made: dict[str, Any]) -> dict[str, Any] | None:
    """Return the summary in `path`, a RECORD.json; None unless it exists and was `made` in the same way."""
    known = read_json(path, dict[str, Any]) if path.is_file() else {}
    return dict(known["summary"]) if made.items() <= known.items() else None
