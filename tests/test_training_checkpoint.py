"""Checkpoints: the same state back, on any number of ranks, whatever became of the newest."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from threading import Event

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.optim import AdamW

from heartlm.errors import HeartlmError
from heartlm.training.checkpoint import Checkpoints
from tests.checkpointed import progress, restored_step, save, trained
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.synthetic_corpus import small_model


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_comes_back_and_few_are_kept(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    for step in (2, 3, 11):
        checkpoints.save(*trained(step), progress(step))
    checkpoints.wait()
    assert names(tmp_path) == ["step-000000003", "step-000000011"][-keep:]
    assert [path.name for path in checkpoints.complete()] == names(tmp_path)
    assert restored_step(tmp_path) == 11


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is the state when it was asked for, and the next save waits for it."""
    goes_on, write = Event(), dcp.save
    monkeypatch.setattr(dcp, "save", lambda *args, **how: (goes_on.wait(), write(*args, **how)))
    model, optimizer = trained(2)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model, optimizer, progress(2))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.3)
    optimizer.step()
    assert checkpoints.complete() == []
    goes_on.set()
    checkpoints.save(model, optimizer, progress(3))
    assert "step-000000002" in names(tmp_path)
    checkpoints.wait()
    assert restored_step(tmp_path) == 3
    (tmp_path / "step-000000003" / "files.json").unlink()
    assert restored_step(tmp_path) == 2


def test_what_a_kill_left_behind_is_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for name in (".step-000000004", ".step-000000001", "step-000000004"):
        (tmp_path / name / "state").mkdir(parents=True)
    (tmp_path / ".step-000000004" / "files.json").write_text("{}")
    assert restored_step(tmp_path) == 2
    save(tmp_path, 4)
    assert restored_step(tmp_path) == 4
    assert names(tmp_path) == ["step-000000002", "step-000000004"]


def test_nothing_to_restore(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match="no checkpoint to resume from"):
        Checkpoints(tmp_path / "none").restore(*trained(1))


def damage(path: Path, share: float) -> None:
    """Cut a file short; all of it left means that one bit turns over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content[: int(share * len(content))])


@pytest.mark.parametrize("file", ["state/__0_0.distcp", "state/index.json", "files.json", "progress.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    tmp_path: Path, file: str, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 2)
    save(tmp_path, 3)
    damage(tmp_path / "step-000000003" / file, share)
    assert restored_step(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/step-000000003")
    assert " is damaged" in line
    assert line.endswith(": passed over")


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step)
    damage(tmp_path / "step-000000004" / "state" / "index.json", 0.5)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore(*trained(1)).step == 2
    checkpoints.save(*trained(3), progress(3))
    checkpoints.wait()
    assert names(tmp_path) == ["step-000000002", "step-000000003"]


def test_a_step_done_again_replaces_its_damaged_checkpoint(tmp_path: Path) -> None:
    for step in (2, 3):
        save(tmp_path, step)
    damage(tmp_path / "step-000000003" / "state" / "index.json", 0.5)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.restore(*trained(1))
    checkpoints.save(*trained(3), progress(3))
    checkpoints.wait()
    assert names(tmp_path) == ["step-000000002", "step-000000003"]
    assert restored_step(tmp_path) == 3


def test_where_all_are_damaged_it_says_so(tmp_path: Path) -> None:
    save(tmp_path, 2)
    damage(tmp_path / "step-000000002" / "state" / "index.json", 0.5)
    with pytest.raises(HeartlmError, match="none of 1 checkpoints is undamaged; start the run again"):
        Checkpoints(tmp_path).restore(*trained(1))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 2)
    other = small_model(num_classes=3)
    with pytest.raises(HeartlmError, match=r"step-000000002 does not fit this run \(.*class_head") as error:
        Checkpoints(tmp_path).restore(other, AdamW(other.parameters()))
    assert "\n" not in str(error.value)


def test_a_checkpoint_with_separate_weights_of_each_facet_is_refused(tmp_path: Path) -> None:
    old = torch.nn.ModuleDict(
        {"embedding": torch.nn.ModuleDict({"project": torch.nn.ModuleList([torch.nn.Linear(3, 3)])})}
    )
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(old, AdamW(old.parameters()), progress(2))
    model, optimizer = trained(1)
    with pytest.raises(
        HeartlmError, match=r"step-000000002: written by an earlier version [^\n]*: start it again; [^\n]*$"
    ):
        checkpoints.restore(model, optimizer)


def test_a_full_disk_is_one_line_and_the_one_before_holds(tmp_path: Path) -> None:
    save(tmp_path, 2)
    checkpoints = Checkpoints(tmp_path)
    ignored, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        checkpoints.save(*trained(3), progress(3))
        with pytest.raises(HeartlmError, match=r"^cannot write .*/step-000000003: File too large; [^\n]*$"):
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert restored_step(tmp_path) == 2
    checkpoints.save(*trained(3), progress(3))
    checkpoints.wait()
    assert restored_step(tmp_path) == 3


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / "file" / "checkpoints")
    checkpoints.save(*trained(2), progress(2))
    with pytest.raises(HeartlmError, match=r"^cannot write .*: Not a directory; [^\n]*$"):
        checkpoints.wait()
    checkpoints.wait()


SAVED_AND_RESTORED = [
    ((2, "plain"), [(1, "plain")]),
    ((2, "ddp"), [(4, "fsdp")]),
    ((2, "fsdp"), [(1, "plain"), (2, "ddp")]),
]
"""Numbers of ranks and wrappings."""


def saved_and_restored_elsewhere(folder: str) -> None:
    for (num_ranks, how), elsewhere in SAVED_AND_RESTORED:
        place = Path(folder) / f"{how}-{num_ranks}"
        assert run_ranks(num_ranks, save, place, 3, how) == [0] * num_ranks
        for other_ranks, other in elsewhere:
            assert run_ranks(other_ranks, restored_step, place, other) == [0] * other_ranks


def test_it_resumes_on_any_number_of_ranks_wrapped_in_anything(tmp_path: Path) -> None:
    run_in_a_process_of_its_own("tests.test_training_checkpoint:saved_and_restored_elsewhere", str(tmp_path))
