"""Checks of a run file before its job is queued."""

from __future__ import annotations

from typing import Any

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.run_file import POSITIONAL, RunFile
from heartlm.extensions.cluster.topology import Topology
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import PretrainConfig, TrainingConfig


def checked_options(run: RunFile, topology: Topology) -> Any:
    """Return the options of the command of `run`, checked with the ranks of `topology`.

    Raises:
        HeartlmError: the command does not accept a field, or does not run on these ranks; the text names the field.
    """
    from heartlm.cli.evaluate import EvaluateOptions
    from heartlm.cli.tokenize import TokenizeOptions

    if run.fields.get("resume") is not None:
        raise HeartlmError("resume: leave it out: a run that was started in out continues without it")
    if not run.is_training and topology.world_size > 1:
        raise HeartlmError(f"heartlm {run.command} is one process, but {topology.words} found: give 1 and 1")
    kinds: dict[str, type[Any]] = {
        "pretrain": PretrainConfig,
        "finetune": FinetuneConfig,
        "evaluate": EvaluateOptions,
        "tokenize": TokenizeOptions,
    }
    positionals = [POSITIONAL[run.command]] if run.command in POSITIONAL else []
    options = parse(kinds[run.command], run.argv()[1:], run.command, positionals=positionals)
    if isinstance(options, TrainingConfig):
        options.required_corpus()
        if isinstance(options, PretrainConfig):
            options = options.resolved()
        options.check_split(topology.world_size)
    return options
