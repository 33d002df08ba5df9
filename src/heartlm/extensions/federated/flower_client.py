"""A node of a Flower federation: it has patients, hosts the clients that are made of them, and sends updates only.

`flower-supernode` starts this app in a process of its own for every message, so what clients keep between rounds (the
moments of their optimisers) is in the node's context, which never leaves the node. Which
recordings are the node's own is said where it is started, with  --node-config 'databases="/data/mitdb"' (several are
separated by colons), or  corpus="/data/corpus" ; nodes without it look where the study says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from heartlm.extensions.federated.aggregate import add_up, with_privacy
from heartlm.extensions.federated.client import ClientTask, Update
from heartlm.extensions.federated.flower_messages import Fields, message, read
from heartlm.extensions.federated.local import LocalClients
from heartlm.extensions.federated.models import patients_of
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.privacy import secret_generator
from heartlm.extensions.federated.secure_sum import MaskingClient
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.typed import typed
from heartlm.training.learner import at_full_speed

app = ClientApp()
"""What `flower-supernode` runs."""


@app.query()
def report_patients(request: Message, context: Context) -> Message:
    """Send the patients of this node."""
    fields, _ = read(request.content)
    patients = patients_of(_study(fields, context)).patients()
    return Message(message({"patients": [vars(patient) for patient in patients]}), reply_to=request)


@app.train()
@at_full_speed()
def train(request: Message, context: Context) -> Message:
    """Train the clients of this node."""
    fields, vectors = read(request.content)
    study, members = _study(fields, context), typed(list[Member], fields["members"])
    tasks = {int(number): task for number, task in typed(dict[str, ClientTask], fields["tasks"]).items()}
    torch.set_num_threads(study.threads)
    patients = patients_of(study)
    patients.use_on_node(fields["class_counts"])
    kept = {number: _load_kept(context, f"client-{number}") for number in tasks}
    clients = LocalClients(study, members, patients.learning(members, list(tasks), 0, 1), kept)
    answers, deltas = dict[str, Fields](), dict[str, Tensor]()
    for number, update in clients.train(vectors["global"], tasks).items():
        if isinstance(update, str):
            answers[str(number)] = {"lost": update}
            continue
        _save_kept(context, f"client-{number}", clients.kept[number])
        answers[str(number)] = {name: value for name, value in vars(update).items() if name != "delta"}
        if study.secure_sum:
            # The delta and a new private key stay on the node until all public keys are known.
            masking = MaskingClient(str(number))
            key = torch.frombuffer(bytearray(masking.private_bytes()), dtype=torch.uint8)
            _save_kept(context, f"masks-{number}", {"delta": update.delta, "key": key})
            answers[str(number)] |= {"public_key": masking.public_key.hex()}
        else:
            deltas[str(number)] = update.delta
    return Message(message({"updates": answers}, deltas), reply_to=request)


@app.train("mask")
def mask(request: Message, context: Context) -> Message:
    """Add up what this node's clients changed, under their masks, and forget the keys."""
    fields, _ = read(request.content)
    study, noise = _study(fields, context), secret_generator()
    keys = {name: bytes.fromhex(key) for name, key in fields["public_keys"].items()}
    total = torch.tensor(0)
    for name, num_samples in fields["num_samples"].items():
        kept = _load_kept(context, f"masks-{name}")
        del context.state[f"masks-{name}"]
        update = with_privacy(Update(kept["delta"], num_samples, 0, 0.0, 0.0), study, len(keys), noise)
        numbers = torch.zeros(len(update.delta) + 1, dtype=torch.int64)
        add_up(numbers, [update], fields["asked_samples"])
        masking = MaskingClient(name, kept["key"].numpy().tobytes())
        round_name = f"seed {study.seed} round {fields['round']}".encode()
        total = total + torch.from_numpy(masking.masked(numbers.numpy(), keys, round_name))
    return Message(message({}, {"masked": total}), reply_to=request)


def _load_kept(context: Context, name: str) -> dict[str, Tensor]:
    """What is kept on this node between messages under that name; it never leaves the node."""
    return context.state.array_records[name].to_torch_state_dict() if name in context.state else {}


def _save_kept(context: Context, name: str, kept: Mapping[str, Tensor]) -> None:
    context.state[name] = ArrayRecord(torch_state_dict=dict(kept))


def _study(fields: Fields, context: Context) -> FederatedConfig:
    """The study that the server speaks of, on the recordings of this node."""
    study = typed(FederatedConfig, fields["study"])
    databases, corpus = (context.node_config.get(name) for name in ("databases", "corpus"))
    if databases is not None:
        study = replace(study, databases=str(databases).split(":"))
    return study if corpus is None else replace(study, corpus=Path(str(corpus)))
