"""All tasks, by name. Imports nothing, so that settings and `--help` know the names at once."""

from __future__ import annotations

from typing import Literal

TaskName = Literal["beats", "rhythm", "waveform", "statements"]
"""Each is a file of this room with a `TASK`; see `heartlm.tasks.task.task_of`."""
