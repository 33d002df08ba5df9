"""A run that is watched, with each value of its files replaced by others, as in `tests/test_own_files.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heartlm.extensions.cluster.watch import frame
from heartlm.runs.run_folder import RunFolder
from tests.test_own_files import mutated, try_json, try_yaml, tuned

pytestmark = pytest.mark.slow

__all__ = ["tuned"]  # pytest finds it here


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
def test_a_run_that_is_watched(tuned: Path, name: str) -> None:
    def use() -> None:
        frame(RunFolder(tuned))

    assert (try_yaml if name == "config.yaml" else try_json)(tuned / name, use) > 4


def test_metrics_that_are_watched(tuned: Path) -> None:
    path = tuned / "metrics.jsonl"
    last = path.read_text().splitlines()[-1]
    for value in mutated(json.loads(last)):
        path.write_text(last + "\n" + json.dumps(value) + "\n" + last + "\n")
        frame(RunFolder(tuned))
