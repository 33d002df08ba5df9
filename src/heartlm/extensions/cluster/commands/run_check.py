"""Checks of a run file before its job is queued."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.run_file import POSITIONAL, RunFile
from heartlm.extensions.cluster.topology import Topology
from heartlm.models import hub
from heartlm.models.pretrained import find_run
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import PretrainConfig, TrainingConfig


def checked_options(run: RunFile, topology: Topology) -> Any:
    """Return the options of the command of `run`, checked with the ranks of `topology`.

    Raises:
        HeartlmError: the command does not accept a field, or does not run on these ranks; the text names the field.
    """
    from heartlm.cli.analyze import AnalyzeOptions
    from heartlm.cli.data import VerifyOptions
    from heartlm.cli.data_convert import ConvertOptions
    from heartlm.cli.delineate import DelineateOptions
    from heartlm.cli.embed import EmbedOptions
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
        "analyze": AnalyzeOptions,
        "delineate": DelineateOptions,
        "embed": EmbedOptions,
        "data convert": ConvertOptions,
        "data verify": VerifyOptions,
    }
    arguments = run.argv()[len(run.command.split()) :]
    options = parse(kinds[run.command], arguments, run.command, positionals=POSITIONAL.get(run.command, ()))
    if isinstance(options, TrainingConfig):
        options.required_corpus()
        if isinstance(options, PretrainConfig):
            options = options.resolved()
        options.check_split(topology.world_size)
    return options


def check_inputs(options: Any, image: str | None = None, later: Collection[Path] = ()) -> None:
    """Refuse a job that would find nothing: a missing corpus, model, database or image.

    Args:
        options: options of a command, as `checked_options` returns them.
        image: container image of the job.
        later: folders that earlier jobs of the campaign make, which may not be there yet.

    Raises:
        HeartlmError: an input is missing; the text names the field.
    """
    made = {Path(folder).absolute() for folder in later}

    def is_later(path: Path) -> bool:
        return not made.isdisjoint([path.absolute(), *path.absolute().parents])

    for name in ("run", "random_init"):
        model = getattr(options, name, None)
        if model is not None and not is_later(model) and not str(model).startswith(hub.PREFIX):
            try:
                find_run(model)
            except HeartlmError as error:
                raise HeartlmError(f"{name}: {error}") from None
    named = [(name, getattr(options, name, None)) for name in ("corpus", "on", "source")]
    if not hasattr(options, "source"):  # next to one it is the output folder
        named.append(("folder", getattr(options, "folder", None)))
    several = [(name, each) for name in ("databases", "path") for each in getattr(options, name, None) or ()]
    for name, path in [*named, *several]:
        if path is None or is_later(path) or set("*?[") & set(str(path)):
            continue
        if not (path.exists() or path.with_name(f"{path.name}.hea").exists()):
            raise HeartlmError(f"{name}: {path}: nothing is there, so the job would end at once")
        if name == "corpus" and not (path / "manifest.json").is_file():
            raise HeartlmError(f"{name}: {path}: no corpus, which heartlm tokenize makes")
    if image is not None and "://" not in image and not Path(image).exists():
        raise HeartlmError(f"image: {image}: no such file; heartlm image makes one")
