"""A model of torch that answers as `heartlm.inference.network.Network`: on a GPU, or while it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.leads import LeadsNetwork
from heartlm.models.store import load_model


class Later:
    """A result that a GPU computes while the host continues; `np.asarray` waits for it."""

    def __init__(self, result: Tensor) -> None:
        self._done: Any = None
        if result.device.type == "cuda":
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            result = result.to("cpu", non_blocking=True)  # torch pins it
            self._done.record(torch.cuda.current_stream())
        self._result = result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        if self._done is not None:
            self._done.synchronize()
        return self._result.numpy() if dtype is None else self._result.numpy().astype(dtype, copy=False)


class Answering:
    """A model in evaluation mode.

    Args:
        model: model on any device.

    Attributes:
        trees: logits of boosted trees, as `heartlm.inference.trees.Trees`; None without any.
    """

    def __init__(self, model: HeartModel) -> None:
        self.model = model
        self.config, self.pooled, self.num_classes = model.config, model.pooled, model.num_classes
        self.trees = None if getattr(model, "trees", None) is None else self._of_trees

    @property
    def device(self) -> str:
        """Type of the device, cpu or cuda."""
        return next(self.model.parameters()).device.type

    @property
    def num_weights(self) -> int:
        """Number of weights."""
        return self.model.num_parameters

    def windows_at_once(self, width: int) -> int:
        """Return the number of windows of `width` tokens per batch, at least 1."""
        return self.model.windows_at_once(width)

    @torch.inference_mode()
    def probabilities(self, codes: NDArray[np.integer]) -> Later:
        """Return the probability of each class; see `Network`."""
        logits = self.model.class_logits(self._moved(codes)).float()
        return Later(logits.sigmoid() if isinstance(self.model, LeadsNetwork) else logits.softmax(dim=-1))

    @torch.inference_mode()
    def hidden(self, codes: NDArray[np.integer], layer: int = -1) -> Later:
        """Return states of tokens, or features of windows; see `Network`."""
        moved = self._moved(codes)
        if isinstance(self.model, LeadsNetwork):
            return Later(self.model.features(moved, layer=layer).float())
        if layer < 0:
            return Later(self.model.hidden(moved)[0].float())
        kept = list[Tensor]()
        blocks: Any = self.model.trunk.blocks
        handle = blocks[layer].register_forward_hook(lambda _module, _given, out: kept.append(out))
        try:
            self.model.hidden(moved)
        finally:
            handle.remove()
        return Later(kept.pop().float())

    @torch.inference_mode()
    def classified(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return class probabilities of hidden states `[N, width]`, `[N, num_classes]`."""
        assert self.model.class_head is not None, "a foundation model has no labels to predict"
        own = torch.from_numpy(hidden).to(next(self.model.parameters()).device)
        logits: Tensor = self.model.class_head(own)
        return logits.softmax(dim=-1).cpu().numpy()

    @torch.inference_mode()
    def _of_trees(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        trees: Any = self.model.trees
        logits: Tensor = trees(torch.from_numpy(features).to(trees.bias.device))
        return logits.cpu().numpy()

    def _moved(self, codes: NDArray[np.integer]) -> Tensor:
        moved, device = torch.from_numpy(codes), next(self.model.parameters()).device
        if device.type == "cuda":
            moved = moved.pin_memory().to(device, non_blocking=True)
        return moved.to(torch.int64)


def answering(model: HeartModel) -> Any:
    """Return what inference computes with instead of a `Network`."""
    return Answering(model)


def load_answering(folder: Path, device: str) -> tuple[Any, ModelInfo]:
    """Load the model in `folder`; see `heartlm.models.store.load_model`."""
    model, info = load_model(folder, device)
    return answering(model), info
