"""Files that heartlm wrote, with each value replaced by others: one line, or a use of it, and never a traceback."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.cli.pretrain import resumed
from heartlm.errors import HeartlmError
from heartlm.inference.finetuned import FineTuned
from heartlm.models.store import load_model
from heartlm.report.page import write_report
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.task import FinetuneConfig
from heartlm.tokenizers.base import load_tokenizer
from tests.conftest import edit_json
from tests.synthetic_run import write_runs

pytestmark = pytest.mark.slow

OTHERS: list[Any] = [None, -1, 2**62, "x", [], {"a": [1]}]


def mutated(value: Any, depth: int = 2) -> Iterator[Any]:
    """`value` with one of its parts, down to `depth`, replaced or left out."""
    yield from OTHERS
    if depth == 0:
        return
    parts = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, part in parts[:12] if isinstance(value, dict) else parts[:1]:
        changed = copy.copy(value)
        del changed[key]
        yield changed
        for other in mutated(part, depth - 1):
            changed = copy.copy(value)
            changed[key] = other
            yield changed


def try_all(path: Path, use: Callable[[], object], *, dump: Callable[[Any], str], load: Callable[[str], Any]) -> int:
    """Use `path` with every mutation of its content; return how many were refused, each by one line."""
    original = path.read_text()
    num_refused = 0
    for value in mutated(load(original)):
        path.write_text(dump(value))
        try:
            use()
        except HeartlmError as error:
            assert "\n" not in str(error) and len(str(error)) < 5000
            num_refused += 1
        except Exception as error:
            pytest.fail(f"{path.name}: {dump(value)[:500]}: {error!r}")
    path.write_text(original)
    use()
    return num_refused


def try_json(path: Path, use: Callable[[], object]) -> int:
    return try_all(path, use, dump=json.dumps, load=json.loads)


def try_yaml(path: Path, use: Callable[[], object]) -> int:
    return try_all(path, use, dump=yaml.safe_dump, load=yaml.safe_load)


@pytest.fixture
def tuned(tiny_finetuned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_finetuned, tmp_path / "beats"))


def test_the_config_of_a_model(tuned: Path) -> None:
    folder = RunFolder(tuned).model("best")
    assert try_json(folder / "config.json", lambda: load_model(folder)) > 10


def test_a_tokenizer(tuned: Path) -> None:
    assert try_json(tuned / "tokenizer" / "tokenizer.json", lambda: load_tokenizer(tuned / "tokenizer")) > 10


def test_what_a_run_says_of_itself(tuned: Path) -> None:
    corpus = load_finetuned(tuned).training_corpus()

    def use() -> None:
        RunFolder(tuned).check_resumable(corpus)

    edit_json(tuned / "run.json", finished=None)
    assert try_json(tuned / "run.json", use) > 10


def test_the_data_of_a_run(tuned: Path) -> None:
    found: FineTuned = load_finetuned(tuned)

    def use() -> None:
        read_again = replace(found, folder=RunFolder(tuned))
        read_again.training_counts("beats_per_class")
        read_again.seen_notes(["p1"])

    assert try_json(tuned / "data.json", use) > 10


def test_the_settings_of_a_run(tuned: Path) -> None:
    def use() -> None:
        resumed(FinetuneConfig(resume=tuned), ["--resume", str(tuned)])
        assert isinstance(RunFolder(tuned).num_steps, int)

    assert try_yaml(tuned / "config.yaml", use) > 10


def test_the_metrics_of_a_run(tuned: Path) -> None:
    path = tuned / "metrics.jsonl"
    last = path.read_text().splitlines()[-1]

    def use() -> None:
        assert RunFolder(tuned).last_step >= 0
        kept = path.read_text()
        RunFolder(tuned).truncate_metrics(2)
        path.write_text(kept)

    for value in mutated(json.loads(last)):
        path.write_text(last + "\n" + json.dumps(value) + "\n" + last + "\n")
        use()


@pytest.mark.parametrize("name", ["run.json", "data.json", "scores/test/scores.json"])
@pytest.mark.parametrize("value", OTHERS, ids=str)
def test_a_run_that_is_reported(tmp_path: Path, name: str, value: Any) -> None:
    _, child = write_runs(tmp_path)
    content = json.loads((child / name).read_text())
    entry = content[0] if isinstance(content, list) else content
    entry.update(dict.fromkeys(entry, value) | {"schema": 1})
    (child / name).write_text(json.dumps(content))
    with suppress(HeartlmError):
        write_report(child)
