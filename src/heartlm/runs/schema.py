"""What the files of a run folder hold. Imports no torch."""

from __future__ import annotations

from typing import TypedDict


class RunAbout(TypedDict, total=False):
    """What is read of a run's `run.json`; it holds more for people."""

    schema: int
    name: str
    kind: str
    objective: str | None
    task: str | None
    parent: str | None
    from_scratch: bool
    steps: int
    manifest_hash: str
    finished: str | None
