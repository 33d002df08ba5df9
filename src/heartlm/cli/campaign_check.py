"""Whether the runs of a campaign say what their commands understand, before any of them begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heartlm.cli.options import parse
from heartlm.cluster.campaign.campaign import Experiment
from heartlm.cluster.campaign.done import TRAININGS
from heartlm.cluster.run_file import POSITIONAL
from heartlm.errors import HeartlmError
from heartlm.training.config import TrainingConfig


def check_runs(experiments: Iterable[Experiment]) -> None:
    """Raise a HeartlmError that names the first experiment and field that its command would refuse."""
    for experiment in experiments:
        try:
            _check(experiment)
        except HeartlmError as error:
            raise HeartlmError(f"{experiment.name}: {str(error).partition('  (see ')[0]}") from error


def _check(experiment: Experiment) -> None:
    run = experiment.run
    kind = _options(run.command)
    if run.fields.get("resume") is not None:
        raise HeartlmError("resume: leave it out: a run that was started in out continues without it")
    positionals = [POSITIONAL[run.command]] if run.command in POSITIONAL else []
    config: Any = parse(kind, run.argv()[1:], run.command, positionals=positionals)
    if not isinstance(config, TrainingConfig):
        return
    config.checked_corpus()
    config.check_split(experiment.topology.world_size)


def _options(command: str) -> type[Any]:
    from heartlm.cli.tokenize import TokenizeOptions
    from heartlm.evaluation.config import EvaluationConfig

    return {**TRAININGS, "evaluate": EvaluationConfig, "tokenize": TokenizeOptions}[command]
