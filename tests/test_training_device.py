"""Where a run computes: which GPUs have bf16, which thread uses which GPU, and when a GPU is waited for.

No GPU is needed: CUDA's answers are recorded or replaced, and on a machine without one any wait for a GPU raises.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heartlm.distributed.communication import GradientSync
from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.instrumentation.meters import Meters
from heartlm.training.batches import CausalBatches, LabelBatches, MakeBatch, MaskedBatches
from heartlm.training.checkpoint import Checkpoints
from heartlm.training.config import TrainingConfig
from heartlm.training.feed import Feed
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner, keep_compiled_code
from heartlm.training.objectives import FacetLoss, LabelLoss
from tests.checkpointed import progress, trained
from tests.synthetic_corpus import SIZES, every_window, small_model, synthetic_corpus
from tests.test_training_feed import order_of
from tests.test_training_measured import Hand


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Let torch report two GPUs; the list fills with the threads that choose one and its number."""
    chosen: list[tuple[str, int]] = []

    def choose(device: torch.device | int) -> None:
        chosen.append((threading.current_thread().name, device if isinstance(device, int) else device.index))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", choose)
    return chosen


@pytest.mark.parametrize(("capability", "precision"), [(7, torch.float32), (8, torch.bfloat16), (9, torch.bfloat16)])
def test_auto_takes_bf16_only_from_a_gpu_that_computes_in_it(
    gpu: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, capability: int, precision: torch.dtype
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=capability))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)  # as on V100 and T4, emulated
    assert device_and_precision("auto", "auto", 1) == (torch.device("cuda", 1), precision)
    if precision == torch.float32:
        with pytest.raises(HeartlmError, match=r"^precision: 'bf16' found, but this GPU has none"):
            device_and_precision("cuda", "bf16", 1)


def test_the_thread_of_the_feed_uses_the_gpu_of_its_rank(gpu: list[tuple[str, int]]) -> None:
    drawn = order_of(4)
    with Feed(drawn, CausalBatches(synthetic_corpus((200, 90, 7))), range(2), prefetch=1) as feed:
        assert len(list(feed)) == 2
    assert set(gpu) == {("heartlm-feed_0", 1)}


def test_the_thread_of_a_checkpoint_uses_the_gpu_of_its_rank(
    gpu: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path)
    state = trained(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # writing itself is on the CPU here
    checkpoints.save(*state, progress(1))
    checkpoints.wait()
    assert gpu == [("checkpoint_0", 1)] and len(checkpoints.complete()) == 1


def test_the_gpu_is_waited_for_at_the_last_gradient_only_where_a_measurement_asks_for_it() -> None:
    if torch.cuda.is_available():
        pytest.skip("a machine without GPU is needed, where waiting for one raises")
    device = torch.device("cuda", 0)
    hand, parts = Hand(), dict[str, float]()
    meters = Meters(now_s=hand, on_step=lambda *step: parts.update(step[-1]))
    grad_sync = GradientSync(meters, device)
    with meters.step(1), meters.span("forward_backward"):
        grad_sync.ready()
        hand.forward(1)
        grad_sync.returned()
        grad_sync.over()
    assert (parts["forward_backward"], parts["communication"]) == (1, 0)
    with pytest.raises((AssertionError, RuntimeError)):
        GradientSync(meters, device, measured=True).ready()


class Transfers(TorchDispatchMode):
    """Notes every operation that has tensors on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        if len({each.device.type for each in tensors}) > 1:
            self.seen.append(str(function))
        return result


CORPUS = synthetic_corpus((400, 300, 7))
MASK = np.array(SIZES)
MAKERS: dict[str, MakeBatch] = {
    "masked": MaskedBatches(CORPUS, MASK, 0.3, 3, seed=5),
    "causal": CausalBatches(CORPUS),
    "labels": LabelBatches(CORPUS, CORPUS.beat_class.astype(np.int64), MASK, False, 0.2, seed=5),
}


@pytest.mark.parametrize("objective", sorted(MAKERS))
@pytest.mark.parametrize("padded", [False, True])
def test_between_its_batch_and_its_losses_a_step_sends_nothing_to_the_host(
    monkeypatch: pytest.MonkeyPatch, objective: str, padded: bool
) -> None:
    """On the device `meta`, whose numbers cannot be read: what depends on one, or waits for one, raises there."""
    device, labels = torch.device("meta"), objective == "labels"
    learner = Learner(
        small_model(num_classes=4 if labels else 0, causal=objective == "causal", dropout=0.1 if labels else 0.0),
        LabelLoss(torch.ones(1, 4)) if labels else FacetLoss(("count", "half")),
        TrainingConfig(batch_size=6, clip=1e-9),
        device=device,
        precision=torch.float32,
        layout=BatchLayout(6),
    )
    learner.is_queued = True  # as on a GPU, but its facets cannot be batched, as that reads numbers
    windows = every_window(CORPUS, 16)
    batch = MAKERS[objective](windows[-6:] if padded else windows[:6], 0).to(device)
    if labels:
        keys = torch.zeros(learner.model.num_dropout_sites, 6, dtype=torch.int32, device=device)
        batch = replace(batch, keys=keys)
    monkeypatch.setattr(learner.optimizer, "step", lambda: None)  # torch has no fused AdamW for this device
    with Transfers() as transfers:
        loss, _ = learner.module(batch)
        loss.backward()
        norm = learner.gradient_norm()
        learner.update(1e-3, norm, norm > 0)
    assert transfers.seen == []


def test_compiled_code_is_kept_unless_the_environment_names_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine" and not (tmp_path / "cache").exists()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled_code()
    folder = tmp_path / "cache" / "heartlm" / "compiled"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder) and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled_code()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
