"""Checkpoints: the same state back, whatever moment the process is killed at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim import AdamW

from heartlm.errors import HeartlmError
from heartlm.models.heart import HeartModel
from heartlm.training.checkpoint import Progress, complete_checkpoints, restore_checkpoint, save_checkpoint
from tests.conftest import ROOT
from tests.synthetic_corpus import small_model


def trained(steps: int) -> tuple[HeartModel, AdamW]:
    """A model and an optimiser that differ with the number of steps."""
    model = small_model(seed=1)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
        optimizer.step()
    return model, optimizer


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, *trained(step), Progress(step, 1.0 / step))


def restored_step(folder: Path) -> int:
    """Restore the newest checkpoint and see that all of it is of the step it says."""
    model, optimizer = trained(1)
    progress = restore_checkpoint(folder, model, optimizer)
    expected_model, expected_optimizer = trained(progress.step)
    assert progress.best_loss == 1.0 / progress.step
    for name, tensor in expected_model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    for key, state in expected_optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(optimizer.state_dict()["state"][key][name], value), (key, name)
    return progress.step


def test_the_newest_comes_back_and_few_are_kept(tmp_path: Path) -> None:
    for step in (2, 3, 11):
        save(tmp_path, step)
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-000000003", "step-000000011"]
    assert len(complete_checkpoints(tmp_path)) == 2
    assert restored_step(tmp_path) == 11


def test_what_a_kill_left_behind_is_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for name in (".step-000000004.x1y2", "step-000000004"):
        (tmp_path / name / "state").mkdir(parents=True)
    (tmp_path / ".step-000000004.x1y2" / "progress.json").write_text("{}")
    assert restored_step(tmp_path) == 2
    save(tmp_path, 4)
    assert restored_step(tmp_path) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000004"]


def test_nothing_to_restore(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match="no checkpoint to resume from"):
        restore_checkpoint(tmp_path / "none", *trained(1))


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_checkpoint_is_named_and_the_one_before_holds(tmp_path: Path, file: str, share: float) -> None:
    save(tmp_path, 2)
    save(tmp_path, 3)
    path = tmp_path / "step-000000003" / "state" / file
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(
        HeartlmError, match=r"step-000000003 cannot be loaded .*remove it to resume from the one before"
    ):
        restore_checkpoint(tmp_path, *trained(1))
    (tmp_path / "step-000000003").rename(tmp_path / "aside")
    assert restored_step(tmp_path) == 2


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 2)
    other = small_model(num_classes=3)
    with pytest.raises(HeartlmError, match=r"cannot be loaded \(.*class_head") as error:
        restore_checkpoint(tmp_path, other, AdamW(other.parameters()))
    assert "\n" not in str(error.value)


KILLED_AT_EVERY_MOMENT = """
import json, os, sys
from pathlib import Path
from tests.test_training_checkpoint import restored_step, save
folder, watched = Path(sys.argv[1]), ("open", "os.", "shutil.", "tempfile.")
save(folder, 2)
kept, moment, status = [], 0, -1
while status != 0:
    moment += 1
    child = os.fork()
    if child == 0:
        left = moment
        def count(event, arguments):
            global left
            if event.startswith(watched):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), 9)
        sys.addaudithook(count)
        save(folder, 3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, 9), status
    kept.append(restored_step(folder))
    if kept[-1] == 3 and status == 9:
        break
print(json.dumps(kept))
"""
"""Forks a process that dies at its first system call of writing a checkpoint, one that dies at its second, …"""


def test_killed_at_any_moment_of_writing_a_checkpoint_is_loadable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_MOMENT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout.splitlines()[-1])
    assert kept == [2] * (len(kept) - 1) + [3]
    assert len(kept) > 10, "the writing of a checkpoint has more moments than that"
