"""Processes get GPUs out of those that this process may use, by the names of its own mask."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from heartlm.extensions.cluster import gpus
from heartlm.extensions.cluster.cells import LocalCells
from heartlm.extensions.cluster.gpus import MASK, visible_gpus

UUIDS = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-e3b0c442-98fc-1c14-9afb-f4c8996fb924"]
SLICES = ["MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", "MIG-74c6a31a-fde5-5c61-973b-70e12346c202"]


@pytest.mark.parametrize(
    ("mask", "of", "expected"),
    [
        (None, 3, ["0", "1", "2"]),
        (None, 0, []),
        ("2,0", 4, ["2", "0"]),
        ("0, 2", 4, ["0", "2"]),
        (",".join(UUIDS), 4, UUIDS),
        (",".join(SLICES), 1, SLICES),
        ("", 4, []),
        ("-1", 4, []),
        ("NoDevFiles", 4, []),
        ("1,-1,0", 4, ["1"]),
        ("0,7,1", 4, ["0"]),
        ("0,7", 0, ["0", "7"]),
    ],
)
def test_gpus_are_those_that_the_mask_leaves(
    mask: str | None, of: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's list is a folder here; CUDA's rules for the mask are in its programming guide."""
    monkeypatch.setattr(gpus, "PROC", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    for number in range(of):
        (tmp_path / f"0000:{number:02x}:00.0").mkdir()
    assert visible_gpus({} if mask is None else {MASK: mask}) == expected


def note_mask(path: str) -> None:
    """A training of a study that writes which GPUs it was shown."""
    Path(path).write_text(os.environ.get(MASK, "none"))


@pytest.mark.parametrize("mask", [UUIDS, SLICES, ["6", "3"]])
def test_copies_of_a_study_get_gpus_of_the_inherited_mask(
    mask: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASK, ",".join(mask))
    monkeypatch.setattr(gpus, "_num_gpus", lambda: 0)  # no driver that knows better
    fields = [{"path": str(tmp_path / f"copy-{copy}")} for copy in range(3)]
    reason, _ = LocalCells("cuda", timeout_s=60.0).run(f"{__name__}:note_mask", fields, 1, 1, 1, tmp_path / "logs")
    assert reason is None
    shown = [(tmp_path / f"copy-{copy}").read_text() for copy in range(3)]
    assert shown == [mask[0], mask[1], mask[0]]
