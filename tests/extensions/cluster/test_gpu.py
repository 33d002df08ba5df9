"""What launched jobs ask of GPUs: masks, MIG instances, and ranks that are asked to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heartlm.extensions.cluster.gpus import MASK, visible_gpus
from tests.test_gpu import FP32, LONGER, TIMEOUT_S, check_stopped, pytestmark, real_gpu, reference, trained, two_gpus

__all__ = ["pytestmark", "reference"]  # pytest finds them here


@two_gpus
def test_ranks_stopped_in_the_middle_go_on_as_if_never_stopped(tiny_corpus: Path, tmp_path: Path) -> None:
    """The launcher is asked, and asks its ranks."""
    launcher = "heartlm.extensions.cluster.torchrun"
    check_stopped(
        tiny_corpus, tmp_path, lambda process: process.send_signal(signal.SIGUSR1), 2, launcher=launcher, **LONGER
    )


SEEN = """
import torch
from heartlm.extensions.cluster.gpus import visible_gpus
print(torch.cuda.device_count(), len(visible_gpus()), *(torch.cuda.get_device_properties(i).uuid
      for i in range(torch.cuda.device_count())))
"""


def seen(mask: str) -> list[str]:
    """How many GPUs torch and heartlm see with this mask, and which."""
    done = subprocess.run(
        [sys.executable, "-c", SEEN], env=os.environ | {MASK: mask}, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@real_gpu
def test_masks_are_understood_as_cuda_understands_them() -> None:
    names = visible_gpus()
    assert len(names) == torch.cuda.device_count()
    uuids = [str(torch.cuda.get_device_properties(number).uuid) for number in range(len(names))]
    for name, uuid in zip(names, uuids, strict=True):
        assert seen(name) == ["1", "1", uuid]
        if not name.startswith("MIG-"):
            assert seen(f"GPU-{uuid}") == ["1", "1", uuid]
    for mask in ("", "-1", f"-1,{names[0]}"):
        assert seen(mask) == ["0", "0"]
    assert seen(f"{names[0]},-1")[:2] == ["1", "1"]


def mig_names() -> Iterator[str]:
    """UUIDs of the MIG instances of this machine."""
    nvml = pytest.importorskip("pynvml", reason="MIG instances are found by heartlm[energy]")
    nvml.nvmlInit()
    for number in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        try:
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except nvml.NVMLError:
            continue
        for place in range(most):
            try:
                yield str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)))
            except nvml.NVMLError:
                continue


@real_gpu
def test_a_mig_instance_is_trained_on(
    tiny_corpus: Path,
    tmp_path: Path,
    reference: dict[tuple[str, int], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = next(mig_names(), None)
    if name is None:
        pytest.skip("no GPU here is divided (MIG)")
    assert seen(name)[:2] == ["1", "1"]
    monkeypatch.setenv(MASK, name)
    assert trained(tiny_corpus, tmp_path / "run") == pytest.approx(reference, rel=FP32)
