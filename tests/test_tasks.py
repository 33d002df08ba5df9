"""A task is one file and one name in the registry; nothing else asks for a task by its name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

import heartlm
from heartlm.errors import HeartlmError
from heartlm.kernels.draws import Use
from heartlm.tasks.registry import TaskName
from heartlm.tasks.task import task_of

NAMES = get_args(TaskName)


def test_every_name_is_a_file_with_a_task() -> None:
    assert [task_of(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(HeartlmError, match=rf"^task: jazz found, one of {', '.join(NAMES)} expected$"):
        task_of("jazz")


def test_settings_are_checked_without_torch() -> None:
    """On a login node, and before a slow import."""
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from heartlm.errors import HeartlmError\nfrom heartlm.tasks.task import FinetuneConfig\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        FinetuneConfig(corpus='a', task=name).required_corpus()\n"
        "    except HeartlmError as refused:\n        print(name, refused)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *NAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "beats run: nothing found, a run folder expected" in done.stdout and "waveform" not in done.stdout


def test_nothing_compares_the_name_of_a_task() -> None:
    """Rooms ask a task for what differs between tasks. Extensions may say which task they are for."""
    package = Path(heartlm.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        if "extensions" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and "task" in ast.unparse(node)
        if {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & set(NAMES)
    ]
    assert not found


def test_no_two_uses_of_random_numbers_share_a_stream() -> None:
    """An alias of an enumeration is no member: two names of one number would be fewer members than names."""
    assert Counter(use.value for use in Use).most_common(1)[0][1] == 1
    assert len(Use) == len(Use.__members__)
