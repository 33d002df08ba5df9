"""A node of a Flower federation: it has patients, hosts the clients that are made of them, and sends updates only.

`flower-supernode` starts this app in a process of its own for every message, so what clients keep between rounds (the
moments of their optimisers, what compression still owes) is in the node's context, which never leaves the node. Which
recordings are the node's own is said where it is started, with  --node-config 'databases="/data/mitdb"' (several are
separated by colons), or  corpus="/data/corpus" ; nodes without it look where the study says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from heartlm.federated.aggregate import compressed
from heartlm.federated.client import ClientLost
from heartlm.federated.federate import patients_of
from heartlm.federated.flower_masks import announce, masked_sum
from heartlm.federated.flower_messages import (
    Told,
    keep_in,
    kept_in,
    members_of,
    message,
    patients_told,
    read,
    tasks_of,
    update_told,
)
from heartlm.federated.local import LocalClient
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.tiny import TinyPatients
from heartlm.training.full_speed import at_full_speed
from heartlm.typed import typed

app = ClientApp()
"""What `flower-supernode` runs."""


@app.query()
def who(asked: Message, context: Context) -> Message:
    """Send the patients of this node."""
    told, _ = read(asked.content)
    patients = patients_of(_study(told, context))
    return Message(message(patients_told(patients.patients())), reply_to=asked)


@app.train()
@at_full_speed()
def train(asked: Message, context: Context) -> Message:
    """Let the clients of this node take their local steps."""
    told, vectors = read(asked.content)
    study, members, tasks = _study(told, context), members_of(told), tasks_of(told)
    torch.set_num_threads(study.threads)
    patients = patients_of(study)
    if isinstance(patients, TinyPatients):  # its beats weigh as they do in all nodes together; the server scores
        patients.class_counts, patients.test = np.array(told["class_counts"]), []
    learning = patients.learning(members, list(tasks), 0, 1)
    answers, deltas = dict[str, Told](), dict[str, Tensor]()
    for number, task in tasks.items():
        member, kept = members[number], kept_in(context, f"client-{number}")
        client = LocalClient(number, member.name, member.num_samples, learning, study, kept)
        try:
            update = client.train(vectors["global"], task)
        except ClientLost as error:
            answers[str(number)] = {"lost": str(error)}
            continue
        keep_in(context, f"client-{number}", client.kept)
        answers[str(number)] = update_told(update)
        if study.secure_sum:
            answers[str(number)] |= {"public_key": announce(number, update.delta, context)}
        else:
            deltas[str(number)] = _sent(update.delta, study, number, task.round_index, context)
    return Message(message({"updates": answers}, deltas), reply_to=asked)


@app.train("mask")
def mask(asked: Message, context: Context) -> Message:
    """Add up what this node's clients changed, under their masks, and forget the keys."""
    told, _ = read(asked.content)
    samples = {int(number): num_samples for number, num_samples in told["num_samples"].items()}
    total = masked_sum(_study(told, context), told, samples, context)
    return Message(message({}, {"masked": total}), reply_to=asked)


def _sent(delta: Tensor, study: FederatedConfig, number: int, round_index: int, context: Context) -> Tensor:
    """A delta as it leaves the node: float64 `[P]`, or the bytes of a compressed message."""
    if study.compression == "none":
        return delta
    kept = kept_in(context, f"owed-{number}")
    owed = {number: kept["owed"].numpy()} if kept else {}
    message_bytes = compressed(delta, study, number, round_index, owed)
    if number in owed:
        keep_in(context, f"owed-{number}", {"owed": torch.from_numpy(owed[number])})
    return torch.from_numpy(np.frombuffer(message_bytes, np.uint8).copy())


def _study(told: Mapping[str, object], context: Context) -> FederatedConfig:
    """The study that the server speaks of, on the recordings of this node."""
    settings = told["study"]
    assert isinstance(settings, dict)
    study = typed(FederatedConfig, settings)
    databases, corpus = (context.node_config.get(name) for name in ("databases", "corpus"))
    if databases is not None:
        study = replace(study, databases=str(databases).split(":"))
    return study if corpus is None else replace(study, corpus=Path(str(corpus)))
