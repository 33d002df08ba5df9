"""Keyword arguments of the public functions are the fields of the settings, for people, editors and mypy."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import heartlm
from heartlm.corpus.config import TokenizeConfig, TokenizeSettings
from heartlm.evaluation.config import EvaluationConfig, EvaluationSettings
from heartlm.training.config import FinetuneConfig, FinetuneSettings, PretrainConfig, PretrainSettings

PAIRS: list[tuple[Any, Any, Any, set[str]]] = [
    (heartlm.tokenize, TokenizeConfig, TokenizeSettings, {"databases", "out"}),
    (heartlm.pretrain, PretrainConfig, PretrainSettings, {"corpus"}),
    (heartlm.finetune, FinetuneConfig, FinetuneSettings, {"run", "corpus"}),
    (heartlm.evaluate, EvaluationConfig, EvaluationSettings, {"run", "on"}),
]


@pytest.mark.parametrize(("function", "config", "settings", "given"), PAIRS)
def test_keyword_arguments_are_the_fields(function: Any, config: Any, settings: Any, given: set[str]) -> None:
    fields = get_type_hints(config)
    assert {field.name for field in dataclasses.fields(config)} == settings.__annotations__.keys() | given
    for name, hint in get_type_hints(settings).items():
        own = fields[name]
        assert hint == (own | str if own in (Path, Path | None) else own), name
    parameters = inspect.signature(function).parameters
    assert settings.__annotations__.keys() | given <= parameters.keys()
    for field in dataclasses.fields(config):
        if field.name not in given and field.default is not dataclasses.MISSING:
            assert parameters[field.name].default == field.default


@pytest.mark.slow
def test_mypy_checks_them(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import heartlm\n"
        'heartlm.pretrain("corpus", depth=2, out="runs/x", objective="causal")\n'
        'heartlm.pretrain("corpus", depht=2)\n'
        'heartlm.finetune("foundation", "corpus", task="beat")\n'
        'heartlm.evaluate("beats", "data", bootstrap="many")\n'
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports"]
    done = subprocess.run([*command, "silent", str(wrong)], capture_output=True, text=True, check=False)
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {3, 4, 5}, done.stdout + done.stderr
