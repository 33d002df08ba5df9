"""Tensors of a model in `model.safetensors` and its description in `config.json`, as NumPy arrays. Imports no torch."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.models.info import ModelInfo
from heartlm.storage.atomic import recover_folder
from heartlm.storage.reading import read_json, refuse_irregular
from heartlm.storage.typed import typed

SCHEMA_VERSION = 1

Tensors = dict[str, NDArray[Any]]


def read_weights(folder: Path) -> tuple[Tensors, ModelInfo]:
    """Read the model in `folder`; numbers of half precision become float32.

    Raises:
        HeartlmError: the model is missing, has another schema version, or is damaged.
    """
    from safetensors import SafetensorError, safe_open

    recover_folder(folder)
    info = read_info(folder / "config.json")
    path = folder / "model.safetensors"
    refuse_irregular(path)
    tensors = Tensors()
    try:
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118 - a file is no mapping
                kind = file.get_slice(name).get_dtype()
                if kind.startswith(("F", "BF")) and kind not in ("F16", "F32"):
                    kind = kind.replace("BF", "bfloat").replace("F", "float")
                    raise HeartlmError(
                        f"{path}: {name}: numbers of type {kind} found, float32 or float16 expected: train again"
                    )
                tensors[name] = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise HeartlmError(f"{path} cannot be read ({one_line(error)}): train again") from error
    for name, each in tensors.items():
        if each.dtype.kind == "f":
            if not np.isfinite(each).all():
                raise HeartlmError(f"{path}: {name}: infinite numbers or NaN found: train again")
            tensors[name] = each.astype(np.float32, copy=False)
    facets = [f"embedding.places_{facet}" for facet in range(len(info.config.facet_sizes))]
    if not all(name in tensors for name in facets):
        raise HeartlmError(f"{path}: the geometry of the {info.tokenizer_kind} tokenizer is missing: train again")
    blocks = {name.split(".")[2] for name in tensors if name.startswith("trunk.blocks.")}
    if len(blocks) != info.config.depth or any(tensors[name].ndim != 2 for name in facets):
        raise unfitting(folder, f"{len(blocks)} blocks found")
    return tensors, info


def write_weights(folder: Path, tensors: bytes, info: ModelInfo) -> None:
    """Write `model.safetensors`, with `tensors` as content, and `config.json` to an existing folder, not atomically."""
    (folder / "model.safetensors").write_bytes(tensors)
    described = {"schema_version": SCHEMA_VERSION, **asdict(info)}
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def unfitting(folder: Path, reason: str) -> HeartlmError:
    """Return the error of a model whose tensors are not those of its description."""
    return HeartlmError(f"{folder}: tensors do not fit config.json ({reason}): train again")


def read_info(path: Path) -> ModelInfo:
    """Read `config.json`.

    Raises:
        HeartlmError: it is missing, has another schema version, or a field is invalid.
    """
    described = read_json(path, dict[str, Any])
    version = described.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise HeartlmError(
            f"{path}: model of schema version {version}, this heartlm reads {SCHEMA_VERSION}: train again"
        )
    info = typed(ModelInfo, described, path)
    try:
        info.check()
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}: train again") from error
    try:
        return replace(info, config=info.config.resolve())
    except HeartlmError as error:
        raise HeartlmError(f"{path}: config: {error}") from error


def one_line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return textwrap.shorten(str(error), 200, placeholder=" …")


class Weights:
    """Tensors of a model, each taken once in the shape that the description of the model states.

    Args:
        tensors: of the whole model.
        prefix: start of the names of those to take.
    """

    def __init__(self, tensors: Tensors, prefix: str = "", taken: set[str] | None = None) -> None:
        self._tensors, self._prefix, self._taken = tensors, prefix, set[str]() if taken is None else taken

    def under(self, prefix: str) -> Weights:
        """Return the tensors whose names continue with `prefix`."""
        return Weights(self._tensors, self._prefix + prefix, self._taken)

    def has(self, prefix: str) -> bool:
        """Return whether there is a tensor whose name continues with `prefix`."""
        return any(name.startswith(self._prefix + prefix) for name in self._tensors)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the tensor `name`, () if it is missing."""
        return self._tensors[self._prefix + name].shape if self._prefix + name in self._tensors else ()

    def take(self, name: str, *shape: int) -> NDArray[Any]:
        """Return the tensor `name`.

        Raises:
            ValueError: it is missing, or has another shape.
        """
        name = self._prefix + name
        if name not in self._tensors:
            raise ValueError(f"{name} is missing")
        tensor = self._tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{name} has the shape {tensor.shape}, not {shape}")
        self._taken.add(name)
        return tensor

    def drop(self, prefix: str) -> None:
        """Count the tensors whose names continue with `prefix` as taken: inference does not need them."""
        self._taken.update(name for name in self._tensors if name.startswith(self._prefix + prefix))

    def check_all_taken(self) -> None:
        """Raise a ValueError that names a tensor that no layer has taken."""
        if left := sorted(self._tensors.keys() - self._taken):
            raise ValueError(f"{left[0]} is not part of the network")
