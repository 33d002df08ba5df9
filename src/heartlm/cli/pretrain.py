"""`heartlm pretrain`: train a foundation model on a corpus."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from heartlm.cli.options import existing, given_to_resume, parse
from heartlm.distributed.ranks import LINGER_S, STOPPED_STATUS, Ranks, ReportedByPeer
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.typed import typed
from heartlm.system.garbage import search_rarely
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import LAYOUT, PretrainConfig, TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)


def run(arguments: Sequence[str]) -> int:
    """Train a foundation model on the training split of a corpus. The option --depth sets its size.

    Examples:
        heartlm pretrain --corpus corpora/many --out runs/foundation
        heartlm pretrain --corpus corpora/many --depth 8 --objective causal --steps 5000
        heartlm pretrain pretrain.yaml --seed 1
        heartlm pretrain --resume runs/foundation
        torchrun --nproc-per-node 4 -m heartlm pretrain --corpus corpora/many --out runs/foundation
    """
    return train(PretrainConfig, arguments, "pretrain", run)


def train(
    kind: type[Config],
    arguments: Sequence[str],
    command: str,
    run: Callable[..., int],
    show: Callable[[Path], None] = print,
) -> int:
    """Train with the settings in `arguments` or of the run to resume, and show the run folder.

    Only one rank prints.
    """
    search_rarely()
    ranks = Ranks.from_environment()
    try:
        config = _settings(kind, arguments, command, run)
    except HeartlmError as error:  # all ranks have the same arguments
        raise error if ranks.is_first else ReportedByPeer(str(error)) from error
    from heartlm import api
    from heartlm.training.loop import Stopped

    try:
        path = getattr(api, command)(config=config).path
    except Stopped as stopped:
        if ranks.is_first:
            print(stopped, file=sys.stderr)
        else:
            time.sleep(LINGER_S)
        return STOPPED_STATUS
    if ranks.is_first:
        show(path)
    return 0


def _settings(kind: type[Config], arguments: Sequence[str], command: str, run: Callable[..., int]) -> Config:
    """Return the settings, complete before torch is imported, which is slow."""
    config = parse(kind, arguments, command, run, config_file=True)
    if isinstance(config, FinetuneConfig) and config.run is not None:
        config = replace(config, run=find_run(config.run))
    config = resumed(config, arguments) if config.resume else config
    config.required_corpus()
    return config


def resumed(config: Config, arguments: Sequence[str]) -> Config:
    """Return the settings of the run in `config.resume`; `arguments` are the command-line arguments.

    Raises:
        HeartlmError: the run is of another kind, or a setting other than the compute layout is given.
    """
    assert config.resume is not None
    folder = existing(config.resume, "run folder")
    given = given_to_resume(arguments, LAYOUT, "run")
    run = RunFolder(folder)
    saved, known = run.settings, {field.name for field in fields(config)}
    if different := sorted(set(saved) ^ known):
        command = "pretrain" if isinstance(config, PretrainConfig) else "finetune"
        if run.run_json["kind"] != command:
            raise HeartlmError(f"{folder}: a {run.run_json['kind']} run found, one of heartlm {command} expected")
        raise HeartlmError(
            f"{folder}: started by another version of heartlm, with other settings ({', '.join(different)}), so it "
            "cannot be resumed: start it again; the models in its folder models/ can be used as before"
        )
    changed = {name: getattr(config, name) for name in given}
    return typed(type(config), {**saved, **changed, "resume": folder}, folder / "config.yaml")
