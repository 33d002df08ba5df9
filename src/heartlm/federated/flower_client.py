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

from heartlm.federated.aggregate import WeightedUpdate, compressed, mask_context, numbers_of, with_privacy
from heartlm.federated.client import ClientLost, ClientTask, Update
from heartlm.federated.flower_messages import Told, keep_in, kept_in, message, read
from heartlm.federated.local import LocalClient, patients_of
from heartlm.federated.partition import Member
from heartlm.federated.privacy import secret_generator
from heartlm.federated.secure_sum import MaskingClient
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.tiny import TinyPatients
from heartlm.training.learner import at_full_speed
from heartlm.typed import typed

app = ClientApp()
"""What `flower-supernode` runs."""


@app.query()
def who(asked: Message, context: Context) -> Message:
    """Send the patients of this node."""
    told, _ = read(asked.content)
    patients = patients_of(_study(told, context)).patients()
    every = [{**vars(patient), "class_counts": patient.class_counts.tolist()} for patient in patients]
    return Message(message({"patients": every}), reply_to=asked)


@app.train()
@at_full_speed()
def train(asked: Message, context: Context) -> Message:
    """Train the clients of this node."""
    told, vectors = read(asked.content)
    study, members = _study(told, context), typed(list[Member], told["members"])
    tasks = {int(number): task for number, task in typed(dict[str, ClientTask], told["tasks"]).items()}
    torch.set_num_threads(study.threads)
    patients = patients_of(study)
    if isinstance(patients, TinyPatients):  # its beats weigh as they do in all nodes together; the server scores
        patients.class_counts, patients.test = np.array(told["class_counts"]), []
    learning = patients.learning(members, list(tasks), 0, 1)
    answers, deltas = dict[str, Told](), dict[str, Tensor]()
    for number, task in tasks.items():
        client = LocalClient(number, members[number], learning, study, kept_in(context, f"client-{number}"))
        try:
            update = client.train(vectors["global"], task)
        except ClientLost as error:
            answers[str(number)] = {"lost": str(error)}
            continue
        keep_in(context, f"client-{number}", client.kept)
        answers[str(number)] = {name: value for name, value in vars(update).items() if name != "delta"}
        if study.secure_sum:
            # The delta and a new private key stay on the node until all public keys are known.
            masking = MaskingClient(str(number))
            key = torch.from_numpy(np.frombuffer(masking.private_bytes(), np.uint8).copy())
            keep_in(context, f"masks-{number}", {"delta": update.delta, "key": key})
            answers[str(number)] |= {"public_key": masking.public_key.hex()}
        else:
            deltas[str(number)] = _sent(update.delta, study, number, task.round_index, context)
    return Message(message({"updates": answers}, deltas), reply_to=asked)


@app.train("mask")
def mask(asked: Message, context: Context) -> Message:
    """Add up what this node's clients changed, under their masks, and forget the keys."""
    told, _ = read(asked.content)
    study, noise = _study(told, context), secret_generator()
    keys = {name: bytes.fromhex(key) for name, key in told["public_keys"].items()}
    total: Tensor | None = None
    for name, weight in told["weights"].items():
        kept = kept_in(context, f"masks-{name}")
        del context.state[f"masks-{name}"]
        update = Update(kept["delta"], told["num_samples"][name], 0, 0.0, 0.0)
        weighted = with_privacy(WeightedUpdate(int(name), weight, update), study, len(keys), noise)
        masking = MaskingClient(name, kept["key"].numpy().tobytes())
        masked = torch.from_numpy(masking.masked(numbers_of(weighted), keys, mask_context(study, told["round"])))
        total = masked if total is None else total + masked
    assert total is not None, "nodes are asked for clients of theirs"
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
