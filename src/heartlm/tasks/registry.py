"""All tasks, by name."""

from __future__ import annotations

from heartlm.tasks.beats import BEATS
from heartlm.tasks.rhythm import RHYTHM
from heartlm.tasks.task import Task
from heartlm.tasks.waveform import WAVEFORM

TASKS: dict[str, Task] = {task.name: task for task in (BEATS, RHYTHM, WAVEFORM)}
