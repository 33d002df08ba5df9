"""Fine-tuned models, checked against their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from heartlm.errors import HeartlmError, require
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.load import load_network
from heartlm.inference.network import Device
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.task import task_of
from heartlm.tokenizers.base import KINDS


def load_finetuned(path: Path, checkpoint: str = "best", device: Device = "cpu") -> FineTuned:
    """Load the fine-tuned model of the run in `path`.

    Raises:
        HeartlmError: the folder is not a run, the run is not fine-tuned, or it has no model yet.
    """
    folder = RunFolder(path)
    about = folder.about
    if about["kind"] == "folds":
        raise HeartlmError(f"run: {path} holds the runs of several folds, one expected: {path}/fold-1")
    if about["kind"] != "finetune":
        raise HeartlmError(
            f"run: {path} is a {about['kind']} run, a fine-tuned one expected: heartlm finetune {path} --task beats"
        )
    if not folder.model(checkpoint).is_dir():
        raise HeartlmError(f"{folder.model(checkpoint)}: no {checkpoint} model yet: let the run finish")
    model, info = load_network(folder.model(checkpoint), device)
    try:
        require(info, lambda value: value in KINDS, f"one of {', '.join(KINDS)}", "tokenizer_kind")
        task_of(str(info.task)).check_model(info)
    except HeartlmError as error:
        raise HeartlmError(f"{folder.model(checkpoint) / 'config.json'}: {error}") from error
    return FineTuned(folder, about, model, info)


def load_of_tasks(runs: Mapping[str, Path], device: Device = "cpu") -> list[FineTuned]:
    """Load the last models of several runs.

    Args:
        runs: for each expected task, the name of a shipped model or a run folder.
        device: device of the models.

    Raises:
        HeartlmError: a model cannot be read, or is of another task.
    """
    models = [load_finetuned(find_run(run), "last", device) for run in runs.values()]
    for model, task in zip(models, runs, strict=True):
        if model.info.task != task:
            raise HeartlmError(f"{model.folder.path}: task {model.info.task} found, {task} expected")
    return models


def load_random_init(path: Path, tuned: FineTuned, checkpoint: str, device: Device) -> FineTuned:
    """Load the run that started from random weights, for comparison with `tuned`.

    Raises:
        HeartlmError: the run started from pretrained weights, or its task, head, tokenizer, shape or corpus differs.
    """
    rival = load_finetuned(path, checkpoint, device)
    if not rival.about["from_scratch"]:
        raise HeartlmError(f"random_init: {path} started from pretrained weights: make one with --from-scratch")
    compared = ("task", "classes", "positive", "pooled", "tokenizer_hash")
    rival_facts, tuned_facts = (
        {name: getattr(each.info, name) for name in compared}
        | vars(replace(each.info.config, dropout=0.0))
        | {"manifest_hash": each.about["manifest_hash"]}
        for each in (rival, tuned)
    )
    for name, value in rival_facts.items():
        if value != tuned_facts[name]:
            raise HeartlmError(
                f"random_init: {path} has {name} {value}, but {tuned.folder.path} has {tuned_facts[name]}: "
                "compare runs of one task, tokenizer, shape and corpus"
            )
    return rival
