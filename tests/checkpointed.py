"""A model and an optimiser whose every number follows from how many steps they took, whatever they are wrapped in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from heartlm.training.checkpoint import Checkpoints, Progress
from tests.synthetic_corpus import small_model

Wrapping = Literal["plain", "ddp", "fsdp"]


def wrapped(how: Wrapping) -> nn.Module:
    """The small model; all but the first want a process group."""
    model: nn.Module = small_model(seed=1)
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        for block in model.trunk.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def trained(steps: int, how: Wrapping = "plain") -> tuple[nn.Module, AdamW]:
    """A model after so many steps of gradients that are the same on any rank."""
    model = wrapped(how)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
        optimizer.step()
    return model, optimizer


def progress(step: int) -> Progress:
    return Progress(step, 1.0 / step, {"losses": [0.1] * step})


def save(folder: Path, step: int, how: Wrapping = "plain") -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save(*trained(step, how), progress(step))
    checkpoints.wait()


def restored_step(folder: Path, how: Wrapping = "plain") -> int:
    """Restore the newest checkpoint and see that all of it is of the step it says."""
    model, optimizer = trained(1, how)
    found = Checkpoints(folder).restore(model, optimizer)
    expected_model, expected_optimizer = trained(found.step)
    assert found == progress(found.step)
    for tensor, expected in zip(model.state_dict().values(), expected_model.state_dict().values(), strict=True):
        assert torch.equal(_whole(tensor), expected)
    states = optimizer.state_dict()["state"]
    for key, state in expected_optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(_whole(states[key][name]), value), (key, name)
    return found.step


def _whole(tensor: Tensor) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
