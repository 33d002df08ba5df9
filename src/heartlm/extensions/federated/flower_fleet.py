"""The clients of a study on the nodes behind a Flower grid.

    Rounds ─ train(tasks of a round) ─► fleet ─► nodes, side by side ─► updates

A node that does not answer in time has lost its clients of the round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.client import ClientTask, Update
from heartlm.extensions.federated.flower_messages import Fields, message, read
from heartlm.extensions.federated.partition import Member, PatientCounts, partition
from heartlm.extensions.federated.secure_sum import RoundAbandoned, unmasked_sum
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.typed import typed

POLL_S = 0.2
LEAST_CLIENTS = 2
"""A masked sum of fewer clients would show an update, so nothing is sent, and the global weights stay as they are."""


class Fleet:
    """All clients of a study, wherever they are.

    Args:
        grid: of Flower.
        study: settings.
        num_nodes: to wait for.

    Raises:
        HeartlmError: fewer nodes came, one did not answer, or a client's patients are spread over nodes.

    Attributes:
        members: the clients of the study.
        home: node of each client, by its number.
        kept: nothing: what clients keep never leaves their node.
    """

    def __init__(self, grid: Grid, study: FederatedConfig, num_nodes: int) -> None:
        self._grid, self._study = grid, study
        self._settings = study.to_yaml()
        give_up_s = time.monotonic() + study.timeout_s
        while len(nodes := sorted(grid.get_node_ids())) < num_nodes:
            if time.monotonic() > give_up_s:
                raise HeartlmError(f"{len(nodes)} nodes came within {study.timeout_s:g} s, {num_nodes} expected")
            time.sleep(POLL_S)
        answers = self._ask("query", {node: message({"study": self._settings}) for node in nodes}, group="who")
        silent = [node for node in nodes if node not in answers]
        if silent:
            raise HeartlmError(f"node {silent[0]}: no answer to who its patients are; see the log of its SuperNode")
        patients = {node: typed(list[PatientCounts], fields["patients"]) for node, (fields, _) in answers.items()}
        every = {patient.name: patient for node in nodes for patient in patients[node]}
        self._class_counts = np.sum([patient.class_counts for patient in every.values()], axis=0).tolist()
        self.members = partition(list(every.values()), study)
        self.home = homes(self.members, [{each.name for each in patients[node]} for node in nodes], nodes)
        self.kept, self._public_keys = dict[int, dict[str, Tensor]](), dict[int, str]()

    def train(self, global_vector: Tensor, tasks: Mapping[int, ClientTask]) -> dict[int, Update | str]:
        """Train clients on their nodes; see `Clients`."""
        members = [vars(member) for member in self.members]
        common = {"study": self._settings, "class_counts": self._class_counts, "members": members}
        contents = dict[int, RecordDict]()
        for node in sorted({self.home[number] for number in tasks}):
            tasks_of_node = {str(number): vars(task) for number, task in tasks.items() if self.home[number] == node}
            contents[node] = message(common | {"tasks": tasks_of_node}, {"global": global_vector})
        round_index = next(iter(tasks.values())).round_index
        updates: dict[int, Update | str] = dict.fromkeys(tasks, "its node did not answer")
        self._public_keys.clear()
        for fields, deltas in self._ask("train", contents, group=str(round_index)).values():
            for number, answer in fields["updates"].items():
                if "lost" in answer:
                    updates[int(number)] = answer["lost"]
                    continue
                delta = deltas.get(number, torch.zeros(0, dtype=torch.float64))  # masked ones stay on their nodes
                if self._study.secure_sum:
                    self._public_keys[int(number)] = answer.pop("public_key")
                updates[int(number)] = Update(**answer, delta=delta)
        return updates

    def masked_sum(self, round_index: int, clients: Collection[int], asked_samples: int) -> Tensor:
        """Return the sum over clients of weighted deltas and of samples, int64 `[P + 1]`, none of which is seen here.

        It is 0 if the sum would show an update, or a node did not send its part, so that masks do not cancel.

        Args:
            round_index: from 0.
            clients: numbers of the clients that are in the sum.
            asked_samples: of all clients sampled in the round.
        """
        keys = {str(number): self._public_keys[number] for number in clients}
        common = {"study": self._settings, "round": round_index, "public_keys": keys, "asked_samples": asked_samples}
        contents = dict[int, RecordDict]()
        for node in sorted({self.home[number] for number in clients}):
            num_samples = {number: self.members[number].num_samples for number in clients if self.home[number] == node}
            contents[node] = message(common | {"num_samples": num_samples})
        try:
            if len(clients) < LEAST_CLIENTS:
                raise RoundAbandoned(f"{len(clients)} clients are left, nothing is sent")
            answers = self._ask("train.mask", contents, group=f"{round_index}-mask")
            sent = {str(node): vectors["masked"].numpy() for node, (_, vectors) in answers.items()}
            return torch.from_numpy(unmasked_sum(sent, [str(node) for node in contents]))
        except RoundAbandoned as error:
            print(f"round {round_index + 1}: {error}", file=sys.stderr)
            return torch.zeros(1, dtype=torch.int64)

    def _ask(
        self, kind: str, contents: Mapping[int, RecordDict], group: str
    ) -> dict[int, tuple[Fields, dict[str, Tensor]]]:
        """Ask nodes side by side; the answers of those that gave one in time."""
        sent = [Message(content, node, kind, group_id=group) for node, content in contents.items()]
        answers = dict[int, tuple[Fields, dict[str, Tensor]]]()
        for reply in self._grid.send_and_receive(sent, timeout=self._study.timeout_s):
            node = reply.metadata.src_node_id
            if reply.has_error():
                print(f"node {node}: {reply.error.reason}", file=sys.stderr)
            else:
                answers[node] = read(reply.content)
        return answers


def homes(members: Sequence[Member], patients: Sequence[set[str]], nodes: Sequence[int]) -> dict[int, int]:
    """The node of each client: one that has all its patients; those that several could host are dealt out.

    Args:
        members: clients.
        patients: names of those that each of `nodes` has.
        nodes: their numbers.

    Raises:
        HeartlmError: a client has patients of several nodes, which would have to move recordings.
    """
    home = dict[int, int]()
    for number, member in enumerate(members):
        possible = [node for node, names in zip(nodes, patients, strict=True) if names.issuperset(member.patients)]
        if not possible:
            raise HeartlmError(
                f"partition: client {member.name} has patients of several nodes, and recordings stay where they are; "
                "partition 'patient' keeps them there, 'database' where each node has databases of its own"
            )
        home[number] = possible[number % len(possible)]
    return home
