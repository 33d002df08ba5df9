"""Messages between server and nodes, as records of Flower.

    server ─ query: who are your patients? ─► node ─► patients: names, databases, counts of beats
    server ─ train: global vector, tasks ─► node ─► for each client: delta, or that it was lost

Vectors travel as arrays of their own type, everything else as one text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from heartlm.errors import HeartlmError

Told = dict[str, Any]


def message(told: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> RecordDict:
    """The content of a message."""
    arrays = {name: Array(vector.numpy()) for name, vector in (vectors or {}).items()}
    return RecordDict({"told": ConfigRecord({"json": json.dumps(told)}), "vectors": ArrayRecord(arrays)})


def read(content: RecordDict) -> tuple[Told, dict[str, Tensor]]:
    """Return the arguments of `message` from its content.

    Raises:
        HeartlmError: the content is invalid, for example from another version of heartlm.
    """
    try:
        told = json.loads(str(content.config_records["told"]["json"]))
        arrays = content.array_records["vectors"]
    except (KeyError, ValueError) as error:
        raise HeartlmError(f"a message of another version of heartlm found ({error!r}): use one version") from error
    return told, vectors_of(arrays)


def vectors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """The vectors in a record, copied."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def kept_in(context: Context, name: str) -> dict[str, Tensor]:
    """What is kept on a node between messages under that name; it never leaves the node."""
    return vectors_of(context.state.array_records[name]) if name in context.state.array_records else {}


def keep_in(context: Context, name: str, kept: Mapping[str, Tensor]) -> None:
    """Keep vectors on a node until the next message."""
    context.state[name] = ArrayRecord({key: Array(value.numpy()) for key, value in kept.items()})
