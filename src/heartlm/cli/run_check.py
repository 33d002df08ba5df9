"""Checks of a run file before its job is queued."""

from __future__ import annotations

from typing import Any

from heartlm.cli.options import parse
from heartlm.cluster.run_file import POSITIONAL, RunFile
from heartlm.errors import HeartlmError
from heartlm.training.config import FinetuneConfig, PretrainConfig, TrainingConfig


def checked_options(run: RunFile) -> Any:
    """Return the options of the command of `run`; check the settings of a training.

    Raises:
        HeartlmError: the command does not accept a field; the text names the field.
    """
    from heartlm.corpus.config import TokenizeConfig
    from heartlm.evaluation.config import EvaluationConfig

    if run.fields.get("resume") is not None:
        raise HeartlmError("resume: leave it out: a run that was started in out continues without it")
    kinds: dict[str, type[Any]] = {
        "pretrain": PretrainConfig,
        "finetune": FinetuneConfig,
        "evaluate": EvaluationConfig,
        "tokenize": TokenizeConfig,
    }
    positionals = [POSITIONAL[run.command]] if run.command in POSITIONAL else []
    options = parse(kinds[run.command], run.argv()[1:], run.command, positionals=positionals)
    if isinstance(options, TrainingConfig):
        options.checked_corpus()
    return options
