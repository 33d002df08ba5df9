"""A model of torch in memory as the network that answers without torch."""

from __future__ import annotations

from heartlm.inference.load import network_of
from heartlm.inference.network import InferenceNetwork
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.store import whole_tensors


def in_numpy(model: HeartModel, window: int = 16) -> InferenceNetwork:
    classes = tuple(map(str, range(model.num_classes)))
    info = ModelInfo(
        model.config, "0" * 64, "beat", "masked", window, "beats" if classes else None, classes, model.pooled
    )
    return network_of({name: each.numpy() for name, each in whole_tensors(model).items()}, info)
