"""`heartlm pretrain`: a corpus in, a foundation model out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar

from heartlm.cli.options import existing, given_to_resume, parse
from heartlm.distributed.ranks import Ranks, ReportedByPeer, status_of
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import LAYOUT, FinetuneConfig, PretrainConfig, TrainingConfig
from heartlm.typed import typed

Config = TypeVar("Config", bound=TrainingConfig)

STOPPED_STATUS = 143

LINGER_S = 3.0
"""torchrun ends all ranks when one has ended, so one that has nothing to say waits for the one that speaks."""


def run(arguments: Sequence[str]) -> int:
    """Train a foundation model on the training split of a corpus. One dial, --depth, sets its size.

    Examples:
        heartlm pretrain --corpus corpora/many --out runs/foundation
        heartlm pretrain --corpus corpora/many --depth 8 --objective causal --steps 5000
        heartlm pretrain pretrain.yaml --seed 1
        heartlm pretrain --resume runs/foundation
        torchrun --nproc-per-node 4 -m heartlm pretrain --corpus corpora/many --out runs/foundation
    """
    return train(PretrainConfig, arguments, "pretrain", run)


def train(kind: type[Config], arguments: Sequence[str], command: str, run: Callable[..., int]) -> int:
    """Train with the settings in `arguments`, or with those of the run to resume; print where the run is.

    Of several ranks one alone speaks.
    """
    ranks = Ranks.from_environment()
    try:
        try:
            config = _settings(kind, arguments, command, run)
        except HeartlmError as error:  # all ranks read the same words
            raise error if ranks.is_first else ReportedByPeer(str(error)) from error
        from heartlm import api
        from heartlm.training.loop import Stopped

        try:
            path = getattr(api, command)(**vars(config)).path
        except Stopped as stopped:
            if ranks.is_first:
                print(stopped, file=sys.stderr)
            else:
                time.sleep(LINGER_S)
            return STOPPED_STATUS
    except ReportedByPeer as error:
        time.sleep(LINGER_S)
        return status_of(error)
    if ranks.is_first:
        print(path)
    return 0


def _settings(kind: type[Config], arguments: Sequence[str], command: str, run: Callable[..., int]) -> Config:
    """What is to be trained, checked before torch is imported, which takes a while."""
    config = parse(kind, arguments, command, run, config_file=True)
    if isinstance(config, FinetuneConfig) and config.run is not None:
        config.run = find_run(config.run)
    config = resumed(config, arguments) if config.resume else config
    config.checked_corpus()
    return config


def resumed(config: Config, arguments: Sequence[str]) -> Config:
    """The settings of the run that `config.resume` names; `arguments` are the words typed.

    Raises:
        HeartlmError: it is no run of this kind, or other settings than how to compute are given.
    """
    assert config.resume is not None
    folder = existing(config.resume, "run folder")
    given = given_to_resume(arguments, LAYOUT, "run")
    saved = RunFolder(folder).settings
    known = {field.name for field in fields(config)}
    if set(saved) != known:
        raise HeartlmError(f"{folder}: not a run of this command, or of another version of heartlm: start it again")
    changed = {name: getattr(config, name) for name in given}
    return typed(type(config), {**saved, **changed, "resume": folder}, folder / "config.yaml")
