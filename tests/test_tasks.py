"""Tasks are registered once; settings, labels and classes agree with the register."""

from __future__ import annotations

from collections import Counter
from typing import get_args, get_type_hints

from heartlm.evaluation.evaluate import SCORES
from heartlm.kernels.draws import Use
from heartlm.tasks.registry import TASKS
from heartlm.training.config import FinetuneConfig


def test_settings_and_scores_know_every_task() -> None:
    assert set(get_args(get_type_hints(FinetuneConfig)["task"])) == set(TASKS) == set(SCORES)
    assert all(task.name == name for name, task in TASKS.items())


def test_no_two_uses_of_random_numbers_share_a_stream() -> None:
    """An alias of an enumeration is no member: two names of one number would be fewer members than names."""
    assert Counter(use.value for use in Use).most_common(1)[0][1] == 1
    assert len(Use) == len(Use.__members__)
