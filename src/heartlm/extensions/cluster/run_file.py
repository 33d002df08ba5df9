"""One run as a YAML file: the options of one command, flat, and the command.

    command: pretrain
    corpus: corpora/many
    out: runs/foundation
    steps: 5000

The default `command` is pretrain. `heartlm pretrain FILE.yaml` takes the same file without that line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.storage.reading import read_yaml
from heartlm.training.config import LAYOUT

TRAINING = ("pretrain", "finetune")
"""Commands that run on many ranks and can be resumed."""

RANKED = (*TRAINING, "federate")
"""Commands that run on many ranks."""

RESUMED = (*TRAINING, "campaign")
"""Commands that can be asked to stop and then continue."""

COMMANDS = (*TRAINING, "evaluate", "tokenize")

IN_PARTS = ("analyze", "delineate", "embed", "tokenize", "data convert", "data verify")
"""Commands on recordings, which can be done in parts."""

POSITIONAL: dict[str, tuple[str, ...]] = {
    "evaluate": ("run",),
    "tokenize": ("databases",),
    "analyze": ("path",),
    "delineate": ("path",),
    "embed": ("model", "source"),
    "data convert": ("source", "folder"),
    "data verify": ("folder",),
    "campaign": ("words",),
}
"""Positional fields of a command."""


@dataclass(frozen=True)
class RunFile:
    """A command and its options.

    Attributes:
        command: pretrain, finetune, evaluate, tokenize, analyze, delineate, embed, data convert or data verify.
        fields: options of the command, by name; None stands for the default.
    """

    command: str
    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> RunFile:
        """Read a run file.

        Raises:
            HeartlmError: the file cannot be read, is not a YAML mapping, or names an unknown command.
        """
        return cls.of(read_yaml(path, "a YAML file of a run"), str(path), tuple(dict.fromkeys((*COMMANDS, *IN_PARTS))))

    @classmethod
    def of(cls, content: Any, where: str, commands: tuple[str, ...] = COMMANDS) -> RunFile:
        """Return the run of one of `commands` described by `content`; `where` names its source in errors.

        Raises:
            HeartlmError: `content` is not a mapping, or names an unknown command.
        """
        if isinstance(content, dict) and True in content:
            content = {"on" if name is True else name: value for name, value in content.items()}  # YAML's on is true
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise HeartlmError(f"{where}: fields with their values expected, for example  steps: 1000")
        fields = {name.replace("-", "_"): value for name, value in content.items()}
        command = fields.pop("command", "pretrain")
        if command not in commands:
            raise HeartlmError(f"{where}: command: {command!r} found, one of {', '.join(commands)} expected")
        strange = [name for name in fields if not re.fullmatch(r"[a-z]\w*", name)]
        if strange:
            raise HeartlmError(f"{where}: {strange[0]!r} found, the name of a field of heartlm {command} expected")
        return cls(command, fields)

    def argv(self) -> list[str]:
        """Return the equivalent arguments of `heartlm`."""
        words = self.command.split()
        by_place = POSITIONAL.get(self.command, ())
        for value in (self.fields[name] for name in by_place if self.fields.get(name) is not None):
            words += [str(entry) for entry in (value if isinstance(value, list) else [value])]
        for name, value in self.fields.items():
            if value is not None and name not in by_place:
                words.append(_option(name.replace("_", "-"), value))
        return words

    @property
    def is_training(self) -> bool:
        """Whether the command runs on many ranks and can be resumed."""
        return self.command in TRAINING

    def is_success(self, status: int) -> bool:
        """Return whether the result is complete with this exit status; 1 of tokenize means that it left out some."""
        return status == 0 or (status == 1 and self.command == "tokenize")

    @property
    def out(self) -> Path | None:
        """Output folder, if the file gives it; evaluations write into the run that they score."""
        name = "run" if self.command == "evaluate" else "out"
        value = self.fields.get(name)
        return None if value is None else Path(str(value))

    def having(self, **fields: Any) -> RunFile:
        """Return the same run with some fields set."""
        return RunFile(self.command, {**self.fields, **fields})

    def resumed(self) -> RunFile:
        """Return the training that continues this one: its own settings apply, with the compute options given here."""
        layout = {name: value for name, value in self.fields.items() if name in LAYOUT}
        return RunFile(self.command, {"resume": str(self.out), **layout})

    def with_device(self, device: str) -> RunFile:
        """Return the same run; a training that names no device gets this one."""
        is_open = self.is_training and self.fields.get("device") in (None, "auto")
        return self.having(device=device) if is_open else self


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, dict | list):
        return f"--{name}={json.dumps(value)}"
    return f"--{name}={value}"
