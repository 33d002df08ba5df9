"""Messages between server and nodes, as records of Flower.

    server ─ query: who are your patients? ─► node ─► patients: names, databases, counts of beats
    server ─ train: global vector, tasks ─► node ─► for each client: delta, or that it was lost

Vectors travel as arrays of their own type, everything else as one text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from heartlm.errors import HeartlmError

Fields = dict[str, Any]


def message(fields: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> RecordDict:
    """The content of a message."""
    arrays = ArrayRecord(torch_state_dict=dict(vectors or {}))
    return RecordDict({"told": ConfigRecord({"json": json.dumps(fields)}), "vectors": arrays})


def read(content: RecordDict) -> tuple[Fields, dict[str, Tensor]]:
    """Return the arguments of `message` from its content.

    Raises:
        HeartlmError: the content is invalid, for example from another version of heartlm.
    """
    try:
        fields = json.loads(str(content.config_records["told"]["json"]))
        return fields, content.array_records["vectors"].to_torch_state_dict()
    except (KeyError, ValueError) as error:
        raise HeartlmError(f"a message of another version of heartlm found ({error!r}): use one version") from error
