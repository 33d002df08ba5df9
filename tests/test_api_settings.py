"""Settings are objects of the public interface: for people, editors and mypy; keyword arguments of 0.1 still work."""

from __future__ import annotations

import subprocess
import sys
import typing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import heartlm
from heartlm import HeartlmError
from heartlm.runs.run_folder import RunFolder
from tests.conftest import ROOT

FUNCTIONS = (heartlm.tokenize, heartlm.pretrain, heartlm.finetune, heartlm.evaluate)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_settings_of_a_function_are_public_and_have_defaults(function: Any) -> None:
    kind = next(each for each in typing.get_args(typing.get_type_hints(function)["config"]) if each is not type(None))
    assert getattr(heartlm, kind.__name__) is kind
    assert kind() == kind() and "command" not in asdict(kind())


def test_keyword_arguments_of_the_last_release_warn_and_work(tiny_corpus: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"steps": 2, "depth": 1, "window": 16, "batch_size": 2, "threads": 1, "device": "cpu"}
    with pytest.warns(DeprecationWarning, match=r"steps= are deprecated.*config=heartlm\.PretrainConfig") as warned:
        old = heartlm.pretrain(tiny_corpus, out=str(tmp_path / "old"), **how)
    assert warned[0].filename == __file__
    new = heartlm.pretrain(tiny_corpus, tmp_path / "new", heartlm.PretrainConfig(**how))
    assert [*old.curve("train", "loss")[1]] == [*new.curve("train", "loss")[1]]
    assert RunFolder(old.path).settings == RunFolder(new.path).settings | {"out": str(tmp_path / "old")}
    with pytest.warns(DeprecationWarning), pytest.raises(HeartlmError, match="stepps: found, but there is no such fie"):
        heartlm.pretrain(tiny_corpus, stepps=3)


def test_what_is_given_comes_before_the_settings(tiny_corpus: Path, tmp_path: Path) -> None:
    config = heartlm.PretrainConfig(corpus=Path("no"), out=Path("no"), steps=1, depth=1, window=16, threads=1)
    run = heartlm.pretrain(tiny_corpus, tmp_path / "run", config)
    assert run.path == tmp_path / "run" and (config.corpus, config.batch_size) == (Path("no"), None), "as it was"


@pytest.mark.slow
def test_mypy_checks_them(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import heartlm\n"
        'heartlm.pretrain("corpus", "runs/x", heartlm.PretrainConfig(depth=2, objective="causal"))\n'
        'heartlm.pretrain("corpus", config=heartlm.PretrainConfig(depht=2))\n'
        'heartlm.finetune("foundation", "corpus", config=heartlm.FinetuneConfig(task="beat"))\n'
        'heartlm.evaluate("beats", "data", heartlm.EvaluationConfig(bootstrap="many"))\n'
        'heartlm.evaluate("beats", "data", heartlm.PretrainConfig())\n'
    )
    # With the settings, and so the cache, of make lint.
    done = subprocess.run([sys.executable, "-m", "mypy", wrong], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {3, 4, 5, 6}, done.stdout + done.stderr
