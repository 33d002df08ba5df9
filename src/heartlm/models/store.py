"""Models on disk: `model.safetensors` and `config.json`.

The tensors include the geometry of the tokenizer, so a model loads without its tokenizer. `config.json` identifies the
tokenizer by its content hash.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.leads import LeadsNetwork
from heartlm.models.trees import Trees
from heartlm.models.waveform import WaveformNetwork
from heartlm.models.weights import one_line, read_weights, unfitting, write_weights
from heartlm.storage.atomic import atomic_folder

_OF_LABELS = ("class_head.", "statistics.", "trees.", "voltage_head.")
"""Prefixes of the tensors that belong to the labels of a model, or to what it learnt without labels."""


def save_model(folder: Path, model: HeartModel, info: ModelInfo) -> None:
    """Write `model` to `folder` atomically, replacing an existing model."""
    save_tensors(folder, whole_tensors(model), info)


def whole_tensors(model: HeartModel) -> dict[str, Tensor]:
    """Return the tensors of `model` in host memory. For a sharded model every rank calls this and gets all tensors."""
    tensors = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        tensors[name] = whole.detach().cpu().contiguous()
    _split_facets(tensors, model)
    return tensors


def save_tensors(folder: Path, tensors: dict[str, Tensor], info: ModelInfo) -> None:
    """Write the tensors of `whole_tensors` to `folder` atomically, replacing an existing model."""
    with atomic_folder(folder) as temporary:
        write_tensors(temporary, tensors, info)


def write_tensors(folder: Path, tensors: dict[str, Tensor], info: ModelInfo) -> None:
    """Write `model.safetensors` and `config.json` to an existing folder, not atomically."""
    write_weights(folder, save(tensors), info)


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[HeartModel, ModelInfo]:
    """Load the model in `folder` in evaluation mode.

    Raises:
        HeartlmError: the model is missing, has another schema version, or is damaged.
    """
    tensors, info = _read(folder)
    model = _model_for(tensors, info.config, len(info.classes), info.pooled, tensors.get("statistics.seconds"))
    model.load_state_dict(tensors)
    model = model.to(device).eval()
    if torch.device(device).type == "cuda":
        model.batch_facets()
    return model, info


def load_foundation(
    folder: Path,
    *,
    classes: tuple[str, ...],
    pooled: bool,
    dropout: float,
    keep_weights: bool,
    seconds: Tensor | None = None,
    members: int | None = None,
    keeps_more: bool = False,
) -> tuple[HeartModel, ModelInfo]:
    """Load a pretrained model with a head for `classes`; without `keep_weights`, only its sizes and geometry.

    The head is new unless the model has one for the same labels; with `keeps_more`, also one for some more, such as
    artefacts. The facet heads are frozen, so the model can still continue a recording. Of more `members` than the
    model has, each starts from the weights of one of its own.

    Raises:
        HeartlmError: the model is missing, has another schema version, or is damaged.
    """
    tensors, info = _read(folder)
    config = replace(info.config, dropout=dropout, members=members or info.config.members)
    if keeps_more and keep_weights and info.classes[: len(classes)] == classes:
        classes = info.classes
    if (info.classes, info.pooled) != (classes, pooled):
        tensors = {name: value for name, value in tensors.items() if not name.startswith(_OF_LABELS)}
    model = _model_for(tensors, config, len(classes), pooled, seconds)
    if keep_weights:
        new = model.state_dict()
        model.load_state_dict(new | {name: _of_members(value, new[name].shape) for name, value in tensors.items()})
    if model.facet_heads is not None:
        model.facet_heads.requires_grad_(False)
    return model, replace(info, config=config, classes=classes)


def _of_members(value: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor of a network of some members for another number of them; those of a member follow each other."""
    repeats = [-(-new // old) for new, old in zip(shape, value.shape, strict=True)]
    return value.repeat(repeats)[tuple(slice(size) for size in shape)] if repeats else value


def build_model(
    config: ModelConfig,
    geometry: list[Tensor],
    num_classes: int = 0,
    pooled: bool = False,
    seconds: Tensor | None = None,
) -> HeartModel:
    """Build a model with random weights; see `HeartModel` for the arguments.

    Raises:
        HeartlmError: the number of codes differs between geometry and config.
    """
    if tuple(map(len, geometry)) != config.facet_sizes:
        raise HeartlmError(
            f"the tokenizer has facets of {tuple(map(len, geometry))} codes, the model expects {config.facet_sizes}"
        )
    if config.network == "waveform":
        return WaveformNetwork(config, geometry, num_classes)
    if config.joins_leads:
        return LeadsNetwork(config, geometry, num_classes)
    return HeartModel(config, geometry, num_classes, pooled, seconds)


def geometry_of(tensors: dict[str, Tensor], config: ModelConfig) -> list[Tensor]:
    """Return the coordinates of the codes of each facet, as saved with the model."""
    return [tensors[f"embedding.places_{facet}"] for facet in range(len(config.facet_sizes))]


def _split_facets(tensors: dict[str, Tensor], model: HeartModel) -> None:
    """Split the weights of all facets, as a model has them, into those of each, as models on disk have them."""
    # safetensors writes neither views of one memory nor transposed ones.
    if "embedding.project" in tensors:
        for facet, weight in enumerate(torch.split(tensors.pop("embedding.project"), model.embedding.num_coordinates)):
            tensors[f"embedding.project.{facet}.weight"] = weight.T.contiguous()
    if "facet_heads" in tensors:
        for facet, weight in enumerate(torch.split(tensors.pop("facet_heads"), list(model.config.facet_sizes))):
            tensors[f"facet_heads.{facet}.weight"] = weight.clone()


def _join_facets(tensors: dict[str, Tensor], num_facets: int) -> None:
    """Join the weights of single facets, in place; the inverse of `_split_facets`."""
    for name in ("embedding.project", "facet_heads"):
        parts = [f"{name}.{facet}.weight" for facet in range(num_facets)]
        if parts and all(part in tensors for part in parts):
            weights = [tensors.pop(part) for part in parts]
            tensors[name] = torch.cat([each.T for each in weights] if name == "embedding.project" else weights)


def _model_for(
    tensors: dict[str, Tensor], config: ModelConfig, num_classes: int, pooled: bool, seconds: Tensor | None
) -> HeartModel:
    """Return a model to load `tensors` into; it has facet heads only if these do, as shipped models do not."""
    model = build_model(config, geometry_of(tensors, config), num_classes, pooled, seconds)
    if isinstance(model, LeadsNetwork) and any(name.startswith("trees.") for name in tensors):
        model.trees = Trees(num_classes)
    if "facet_heads" not in tensors:
        model.facet_heads = None
    return model


def _read(folder: Path) -> tuple[dict[str, Tensor], ModelInfo]:
    arrays, info = read_weights(Path(folder))
    tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
    _join_facets(tensors, len(info.config.facet_sizes))
    try:
        # on the meta device, since config.json may describe sizes that exceed memory
        with torch.device("meta"):
            model = _model_for(tensors, info.config, len(info.classes), info.pooled, tensors.get("statistics.seconds"))
        model.load_state_dict(tensors, assign=True)
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise unfitting(folder, one_line(error)) from error
    return tensors, info
