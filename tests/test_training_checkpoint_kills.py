"""SIGKILL while a checkpoint is written, of one process or of several: afterwards a whole one is restored."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from heartlm.errors import HeartlmError
from heartlm.training.checkpoint import Checkpoints
from tests.checkpointed import progress, restored_step, save, trained
from tests.ranks import run_in_a_process_of_its_own, run_ranks

pytestmark = pytest.mark.slow

WATCHED = ("open", "os.", "shutil.", "tempfile.", "ctypes.")
HERE = "tests.test_training_checkpoint_kills"


def die_when(condition: Callable[[str, str], bool], *others: int) -> None:
    """End this process, and `others` before it, by SIGKILL at the first call of that name and those arguments."""

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(WATCHED) and event != "os.kill" and condition(event, " ".join(map(str, arguments))):
            for number in (*others, os.getpid()):
                os.kill(number, signal.SIGKILL)

    sys.addaudithook(look)


def save_and_die(folder: Path, moment: int) -> None:
    """Write a checkpoint and die at the system call of this number."""
    seen, state, checkpoints = iter(range(moment)), trained(3), Checkpoints(folder)
    die_when(lambda event, arguments: next(seen, None) is None)
    checkpoints.save(*state, progress(3))
    checkpoints.wait()


def killed_at_every_moment(folder: str) -> list[int]:
    """The steps restored after a kill at the first system call of writing a checkpoint, at its second, …"""
    place = Path(folder)
    for step in (1, 2):
        save(place, step)
    steps = list[int]()
    status = -signal.SIGKILL
    while status != 0:
        child = os.fork()
        if child == 0:
            save_and_die(place, len(steps))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL)
        steps.append(restored_step(place))
    return steps


def test_killed_at_any_moment_of_writing_the_newest_whole_one_is_restored(tmp_path: Path) -> None:
    steps = run_in_a_process_of_its_own(f"{HERE}:killed_at_every_moment", str(tmp_path))
    assert steps == sorted(steps)
    assert steps.count(2) > 20
    assert steps.count(3) > 3, "a kill after the checkpoint has its name does not lose it"


STAGES = {
    "beginning": (0, "os.mkdir", r"/\.step-000000003/state ", 2),
    "opening its part": (0, "open", r"/__0_0\.distcp w", 2),
    "opening the part of the other": (1, "open", r"/__1_0\.distcp w", 2),
    "its part is written": (0, "open", r"/__0_0\.distcp r", 2),
    "the part of the other is written": (1, "open", r"/__1_0\.distcp r", 2),
    "naming it": (0, "os.rename", r"/step-000000003 ", 2),
    "removing an older one": (0, "os.rename", r"/\.step-000000001 ", 3),
    "half removed": (0, "os.remove", r"^files\.json ", 3),
}
"""Which of two ranks dies, at which call with which arguments, and the step restored afterwards."""


def ranks_die(folder: Path, together: bool, victim: int, event: str, arguments: str) -> None:
    """Write a checkpoint of which one rank, or both, do not see the end; a survivor ends with one line."""
    numbers: list[int] = [0, 0]
    dist.all_gather_object(numbers, os.getpid())
    if dist.get_rank() == victim:
        others = [numbers[1 - victim]] if together else []
        die_when(lambda seen, given: seen == event and re.search(arguments, given) is not None, *others)
    try:
        save(folder, 3)
    except HeartlmError as error:
        assert re.fullmatch(r".*/step-000000003 was not finished: .*", str(error)), error
    else:
        raise AssertionError("the loss of a rank was not noticed")


def killed_at_every_stage(folder: str, together: bool) -> None:
    """See that a kill of one rank, or of both, leaves what it must at each stage."""
    for name, (victim, event, arguments, expected) in STAGES.items():
        place = Path(folder) / name
        for step in (1, 2):
            save(place, step)
        expected_statuses = [-signal.SIGKILL if together or rank == victim else 0 for rank in (0, 1)]
        assert run_ranks(2, ranks_die, place, together, victim, event, arguments) == expected_statuses, name
        assert restored_step(place) == expected, name


@pytest.mark.parametrize("together", [False, True], ids=["one of two", "all"])
def test_killed_ranks_leave_a_whole_checkpoint(tmp_path: Path, together: bool) -> None:
    run_in_a_process_of_its_own(f"{HERE}:killed_at_every_stage", str(tmp_path), together)


def other_hangs(folder: Path) -> None:
    """One rank stops for good in the middle; the other does not wait for ever."""
    numbers: list[int] = [0, 0]
    dist.all_gather_object(numbers, os.getpid())
    state, checkpoints = trained(3), Checkpoints(folder, timeout_s=2)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    checkpoints.save(*state, progress(3))
    with pytest.raises(HeartlmError, match="step-000000003 was not finished: "):
        checkpoints.wait()
    os.kill(numbers[1], signal.SIGKILL)


def hanging(folder: str) -> int:
    save(Path(folder), 2)
    assert run_ranks(2, other_hangs, Path(folder)) == [0, -signal.SIGKILL]
    return restored_step(Path(folder))


def test_a_rank_that_hangs_counts_as_gone(tmp_path: Path) -> None:
    assert run_in_a_process_of_its_own(f"{HERE}:hanging", str(tmp_path)) == 2


def one_disk_is_full(folder: Path) -> None:
    """Both ranks say that the disk of one is full, and the next checkpoint is good."""
    checkpoints = Checkpoints(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    checkpoints.save(*trained(3), progress(3))
    with pytest.raises(HeartlmError, match=r"step-000000003: File too large; [^\n]*$"):
        checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoints.save(*trained(4), progress(4))
    checkpoints.wait()


def full_disks(folder: str) -> int:
    assert run_ranks(2, one_disk_is_full, Path(folder)) == [0, 0]
    return restored_step(Path(folder))


def test_all_ranks_learn_that_the_disk_of_one_is_full(tmp_path: Path) -> None:
    assert run_in_a_process_of_its_own(f"{HERE}:full_disks", str(tmp_path)) == 4
