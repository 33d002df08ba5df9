"""Models on disk: `model.safetensors` and `config.json`, readable by anyone.

The geometry of the tokenizer is part of the tensors, so a model loads without its tokenizer; `config.json` says which
tokenizer it reads by its content hash.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, read_json
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ModelInfo:
    """What a model on disk says of itself.

    Attributes:
        config: its resolved shape.
        tokenizer_hash: content hash of the tokenizer it reads.
        tokenizer_kind: beat, rhythm or sample.
        objective: what it was pretrained for, masked or causal.
        window: tokens a window it was trained on.
        task: beats or rhythm; None for a foundation model.
        classes: names of its labels; empty for a foundation model.
        pooled: it labels windows instead of tokens.
        positive: of the rhythm task, the rhythm it looks for and how flutter counts; empty otherwise.
        step: after how many steps it was saved.
    """

    config: ModelConfig
    tokenizer_hash: str
    tokenizer_kind: str
    objective: str
    window: int
    task: str | None = None
    classes: tuple[str, ...] = ()
    pooled: bool = False
    positive: tuple[str, ...] = ()
    step: int = 0


def save_model(folder: Path, model: HeartModel, info: ModelInfo) -> None:
    """Write `model` to `folder`, atomically, replacing one that is there."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_folder(folder) as temporary:
        save_file(tensors, temporary / "model.safetensors")
        described = {"schema_version": SCHEMA_VERSION, **asdict(info)}
        (temporary / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[HeartModel, ModelInfo]:
    """Load the model in `folder`, in evaluation mode.

    Raises:
        HeartlmError: there is none, it is of another schema version, or its files are damaged.
    """
    tensors, info = _read(folder)
    model = build_model(info.config, geometry_of(tensors, info.config), len(info.classes), info.pooled)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise HeartlmError(
            f"{folder}: tensors do not fit config.json ({str(error).splitlines()[0]}): train anew"
        ) from error
    return model.to(device).eval(), info


def load_foundation(
    folder: Path, *, num_classes: int, pooled: bool, dropout: float, keep_weights: bool
) -> tuple[HeartModel, ModelInfo]:
    """Load a pretrained model with a new head of `num_classes`; without `keep_weights` only its shape and geometry.

    The facet heads do not learn any further, so the model can still continue a recording.
    """
    tensors, info = _read(folder)
    config = ModelConfig(**{**asdict(info.config), "dropout": dropout, "facet_sizes": info.config.facet_sizes})
    model = build_model(config, geometry_of(tensors, config), num_classes, pooled)
    if keep_weights:
        without_head = {name: value for name, value in tensors.items() if not name.startswith("class_head.")}
        model.load_state_dict(without_head, strict=False)
    model.facet_heads.requires_grad_(False)
    return model, ModelInfo(**{**vars(info), "config": config})


def build_model(config: ModelConfig, geometry: list[Tensor], num_classes: int = 0, pooled: bool = False) -> HeartModel:
    """Build a model with random weights.

    Raises:
        HeartlmError: the geometry is of another number of codes than the config.
    """
    if tuple(map(len, geometry)) != config.facet_sizes:
        raise HeartlmError(
            f"the tokenizer has facets of {tuple(map(len, geometry))} codes, the model expects {config.facet_sizes}"
        )
    return HeartModel(config, geometry, num_classes, pooled)


def geometry_of(tensors: dict[str, Tensor], config: ModelConfig) -> list[Tensor]:
    """The places of the codes of each facet, as they were saved with the model."""
    return [tensors[f"embedding.places_{facet}"] for facet in range(len(config.facet_sizes))]


def _read(folder: Path) -> tuple[dict[str, Tensor], ModelInfo]:
    described: dict[str, Any] = read_json(Path(folder) / "config.json")
    if described.pop("schema_version", None) != SCHEMA_VERSION:
        raise HeartlmError(
            f"{folder}: model of another schema version, this heartlm reads {SCHEMA_VERSION}: train anew"
        )
    described["config"] = ModelConfig(
        **{**described["config"], "facet_sizes": tuple(described["config"]["facet_sizes"])}
    )
    for name in ("classes", "positive"):
        described[name] = tuple(described[name])
    try:
        tensors = load_file(Path(folder) / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise HeartlmError(f"{folder}/model.safetensors cannot be read ({error}): train anew") from error
    return tensors, ModelInfo(**described)
