"""What server and nodes say to each other, as records of Flower.

    server ─ query: who are your patients? ─► node ─► patients: names, databases, counts of beats
    server ─ train: global vector, tasks ─► node ─► for each client: delta, or that it was lost

Vectors travel as arrays of their own type, everything else as one text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.federated.client import ClientTask, Update
from heartlm.federated.partition import Member, PatientCounts

Told = dict[str, Any]


def message(told: Mapping[str, Any], vectors: Mapping[str, Tensor] | None = None) -> RecordDict:
    """The content of a message."""
    arrays = {name: Array(vector.numpy()) for name, vector in (vectors or {}).items()}
    return RecordDict({"told": ConfigRecord({"json": json.dumps(told)}), "vectors": ArrayRecord(arrays)})


def read(content: RecordDict) -> tuple[Told, dict[str, Tensor]]:
    """What `message` was made of.

    Raises:
        HeartlmError: it is no such content: another version of heartlm speaks.
    """
    try:
        told = json.loads(str(content.config_records["told"]["json"]))
        arrays = content.array_records["vectors"]
    except (KeyError, ValueError) as error:
        raise HeartlmError(f"a message of another version of heartlm found ({error!r}): use one version") from error
    return told, vectors_of(arrays)


def patients_told(patients: Sequence[PatientCounts]) -> Told:
    """What a node says of its patients: no sample, but how many of each class there are."""
    every = [{**vars(patient), "class_counts": patient.class_counts.tolist()} for patient in patients]
    return {"patients": every}


def patients_of(told: Told) -> list[PatientCounts]:
    """The patients that a node spoke of."""
    return [
        PatientCounts(each["name"], each["database"], each["num_samples"], np.array(each["class_counts"], np.int64))
        for each in told["patients"]
    ]


def tasks_told(tasks: Mapping[int, ClientTask], members: Sequence[Member]) -> Told:
    """What clients of a node are asked to do, and who all clients are."""
    return {
        "tasks": {str(number): asdict(task) for number, task in tasks.items()},
        "members": [vars(member) for member in members],
    }


def tasks_of(told: Told) -> dict[int, ClientTask]:
    """What clients, by number, are asked to do."""
    return {int(number): ClientTask(**task) for number, task in told["tasks"].items()}


def members_of(told: Told) -> list[Member]:
    """Who all clients are."""
    return [Member(each["name"], tuple(each["patients"]), each["num_samples"]) for each in told["members"]]


def vectors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """The vectors in a record, copied."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def kept_in(context: Context, name: str) -> dict[str, Tensor]:
    """What is kept on a node between messages under that name; it never leaves the node."""
    return vectors_of(context.state.array_records[name]) if name in context.state.array_records else {}


def keep_in(context: Context, name: str, kept: Mapping[str, Tensor]) -> None:
    """Keep vectors on a node until the next message."""
    context.state[name] = ArrayRecord({key: Array(value.numpy()) for key, value in kept.items()})


def update_told(update: Update) -> Told:
    """An update but for its delta."""
    numbers = {name: value for name, value in vars(update).items() if name != "delta"}
    return {**numbers, "loss": update.loss if update.num_steps else None}


def update_of(told: Told, delta: Tensor) -> Update:
    """An update from what `update_told` gives."""
    return Update(**{**told, "delta": delta, "loss": float("nan") if told["loss"] is None else told["loss"]})
