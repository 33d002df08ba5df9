"""One run as a YAML file: the fields of one command, flat, and which command they are for.

    command: pretrain
    corpus: corpora/many
    out: runs/foundation
    steps: 5000

Without `command` they are for pretrain. The same file without that line is what `heartlm pretrain FILE.yaml` takes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.files import read_yaml

TRAINING = ("pretrain", "finetune")
"""Commands that many ranks run together and that can be resumed."""

COMMANDS = (*TRAINING, "evaluate", "tokenize")
POSITIONAL = {"evaluate": "run", "tokenize": "databases"}
"""Fields that a command takes by place."""


@dataclass(frozen=True)
class RunFile:
    """A command and its fields.

    Attributes:
        command: pretrain, finetune, evaluate or tokenize.
        fields: of the command, by name; None stands for the default.
    """

    command: str
    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> RunFile:
        """Read a file.

        Raises:
            HeartlmError: it cannot be read, is no YAML of fields, or names no command of heartlm.
        """
        return cls.of(read_yaml(path, "a YAML file of a run"), str(path))

    @classmethod
    def of(cls, content: Any, where: str) -> RunFile:
        """The run that `content`, read from `where`, describes.

        Raises:
            HeartlmError: it is no mapping of fields, or names no command of heartlm.
        """
        if isinstance(content, dict) and True in content:
            content = {"on" if name is True else name: value for name, value in content.items()}  # YAML's on is true
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise HeartlmError(f"{where}: fields with their values expected, for example  steps: 1000")
        fields = {name.replace("-", "_"): value for name, value in content.items()}
        command = fields.pop("command", "pretrain")
        if command not in COMMANDS:
            raise HeartlmError(f"{where}: command: {command!r} found, one of {', '.join(COMMANDS)} expected")
        strange = [name for name in fields if not re.fullmatch(r"[a-z]\w*", name)]
        if strange:
            raise HeartlmError(f"{where}: {strange[0]!r} found, the name of a field of heartlm {command} expected")
        return cls(command, fields)

    def argv(self) -> list[str]:
        """The words after `heartlm` that say the same."""
        words = [self.command]
        by_place = POSITIONAL.get(self.command)
        if by_place is not None and self.fields.get(by_place) is not None:
            value = self.fields[by_place]
            words += [str(entry) for entry in (value if isinstance(value, list) else [value])]
        for name, value in self.fields.items():
            if value is not None and name != by_place:
                words.append(_option(name.replace("_", "-"), value))
        return words

    @property
    def is_training(self) -> bool:
        """Whether many ranks may run it together, and resume it."""
        return self.command in TRAINING

    @property
    def out(self) -> Path | None:
        """The folder it writes, as far as the file says: evaluations write into the run they score."""
        name = "run" if self.command == "evaluate" else "out"
        value = self.fields.get(name)
        return None if value is None else Path(str(value))

    def having(self, **fields: Any) -> RunFile:
        """The same run with some fields set."""
        return RunFile(self.command, {**self.fields, **fields})


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, dict | list):
        return f"--{name}={json.dumps(value)}"
    return f"--{name}={value}"
