"""`heartlm pretrain`: a corpus in, a foundation model out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import yaml

from heartlm.cli.options import existing, parse
from heartlm.errors import HeartlmError
from heartlm.training.config import PretrainConfig, TrainingConfig

EXAMPLES = (
    "heartlm pretrain --corpus corpora/many --out runs/foundation",
    "heartlm pretrain --corpus corpora/many --depth 8 --objective causal --steps 5000",
    "heartlm pretrain pretrain.yaml --seed 1",
    "heartlm pretrain --resume runs/foundation",
)

Config = TypeVar("Config", bound=TrainingConfig)

STOPPED_STATUS = 143


def run(arguments: Sequence[str]) -> int:
    """Pretrain as `arguments` say."""
    config = parse(
        PretrainConfig,
        arguments,
        command="pretrain",
        summary="Train a foundation model on the training split of a corpus. One dial, --depth, sets its size.",
        examples=EXAMPLES,
        config_file=True,
    )

    def work(settings: PretrainConfig) -> Path:
        from heartlm.training.pretrain import pretrain

        return pretrain(settings)

    return run_or_resume(config, work, arguments)


def run_or_resume(config: Config, work: Callable[[Config], Path], arguments: Sequence[str]) -> int:
    """Do `work` with `config`, or with the settings of the run to resume; print where the run is."""
    settings = resumed(config, arguments) if config.resume else config
    settings.checked_corpus()  # before torch is imported, which takes a while
    try:
        from heartlm.training.loop import Stopped
    except ModuleNotFoundError as error:
        from heartlm.errors import needs

        raise needs("train", error.name or "torch") from None
    try:
        path = work(settings)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED_STATUS
    print(path)
    return 0


def resumed(config: Config, arguments: Sequence[str]) -> Config:
    """The settings of the run that `config.resume` names; `arguments` are the words typed.

    Raises:
        HeartlmError: it is no run of this kind, it is finished, or other options were given beside it.
    """
    assert config.resume is not None
    folder = existing(config.resume, "run folder")
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    beside = [word for word in (*options, *arguments[:1]) if word.partition("=")[0] != "--resume"]
    if beside:
        raise HeartlmError(f"{beside[0].lstrip('-')}: cannot change when a run is resumed: give --resume alone")
    try:
        saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise HeartlmError(f"{folder}/config.yaml cannot be read ({error}): start the run anew") from error
    known = {field.name for field in fields(config)}
    if not isinstance(saved, dict) or set(saved) != known:
        raise HeartlmError(f"{folder}: not a run of this command, or of another version of heartlm: start it anew")
    paths = {name: Path(saved[name]) for name in ("corpus", "out", "run") if saved.get(name) is not None}
    return type(config)(**{**saved, **paths, "resume": folder})
