"""The clients of a study behind a Flower grid: all nodes are asked at once, and each client looks like a local one.

    Rounds ─ train(client 0) ─► fleet ─ tasks of the whole round ─► nodes, side by side
           ─ train(client 1) ─► (is there already)

`Rounds` asks client after client; the first question of a round goes out to all nodes that host a client of the round,
and the answers to the others are there by then. A node that does not answer in time has lost its clients of the round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import decompressed
from heartlm.federated.client import ClientLost, ClientTask, Update, sample_clients
from heartlm.federated.flower_messages import Told, message, read
from heartlm.federated.partition import Member, PatientCounts, partition
from heartlm.federated.secure_sum import unmasked_sum
from heartlm.federated.study_file import FederatedConfig

POLL_S = 0.2


class Fleet:
    """All clients of a study, wherever they are.

    Args:
        grid: of Flower.
        study: settings.
        num_nodes: to wait for.

    Raises:
        HeartlmError: fewer nodes came, one did not answer, or a client's patients are spread over nodes.

    Attributes:
        patients: of all nodes, by name.
        members: the clients of the study.
        home: node of each client, by its number.
    """

    def __init__(self, grid: Grid, study: FederatedConfig, num_nodes: int) -> None:
        self._grid, self._study = grid, study
        self._settings = study.to_yaml()
        give_up_s = time.monotonic() + study.timeout_s
        while len(nodes := sorted(grid.get_node_ids())) < num_nodes:
            if time.monotonic() > give_up_s:
                raise HeartlmError(f"{len(nodes)} nodes came within {study.timeout_s:g} s, {num_nodes} expected")
            time.sleep(POLL_S)
        answers = self._asked("query", {node: message({"study": self._settings}) for node in nodes}, group="who")
        silent = [node for node in nodes if node not in answers]
        if silent:
            raise HeartlmError(f"node {silent[0]}: no answer to who its patients are; see the log of its SuperNode")
        patients = dict[int, dict[str, PatientCounts]]()
        for node, (told, _) in answers.items():
            counted = [{**each, "class_counts": np.array(each["class_counts"], np.int64)} for each in told["patients"]]
            patients[node] = {each["name"]: PatientCounts(**each) for each in counted}
        every = {name: patient for node in nodes for name, patient in patients[node].items()}
        self.patients: list[PatientCounts] = [every[name] for name in sorted(every)]
        self.members = partition(self.patients, study)
        self.home = homes(self.members, [set(patients[node]) for node in nodes], nodes)
        self._round_index, self._answers = -1, dict[int, Update | str]()
        self._public_keys = dict[int, str]()

    def clients(self) -> dict[int, RemoteClient]:
        """Every client, by number."""
        return {number: RemoteClient(self, number) for number in range(len(self.members))}

    def answer(self, number: int, global_vector: Tensor, task: ClientTask) -> Update:
        """Return the update of client `number` in the round of its task.

        Raises:
            ClientLost: the client failed, or its node did not respond.
        """
        if task.round_index != self._round_index:
            self._public_keys.clear()
            self._answers = self._train(global_vector, sample_clients(self._study, self.members, task.round_index))
            self._round_index = task.round_index
        answer = self._answers.get(number, "its node did not answer")
        if isinstance(answer, str):
            raise ClientLost(answer)
        return answer

    def _train(self, global_vector: Tensor, asked: Mapping[int, ClientTask]) -> dict[int, Update | str]:
        counts = np.sum([patient.class_counts for patient in self.patients], axis=0).tolist()
        contents, members = dict[int, RecordDict](), [vars(member) for member in self.members]
        for node in sorted({self.home[number] for number in asked}):
            tasks = {str(number): vars(task) for number, task in asked.items() if self.home[number] == node}
            told = {"study": self._settings, "class_counts": counts, "members": members, "tasks": tasks}
            contents[node] = message(told, {"global": global_vector})
        round_index = next(iter(asked.values())).round_index
        found = dict[int, Update | str]()
        for told, deltas in self._asked("train", contents, group=str(round_index)).values():
            for number, answer in told["updates"].items():
                if "public_key" in answer:
                    self._public_keys[int(number)] = answer.pop("public_key")
                if "lost" in answer:
                    found[int(number)] = answer["lost"]
                    continue
                delta = deltas.get(number, torch.zeros(0, dtype=torch.float64))  # masked ones stay on their nodes
                if self._study.compression != "none":
                    delta = decompressed(delta.numpy().tobytes())
                found[int(number)] = Update(**answer, delta=delta)
        return found

    def masked_sum(self, round_index: int, weights: Mapping[int, float]) -> Tensor:
        """The sum over clients of weighted delta and samples, int64 `[P + 1]`, none of which is seen here.

        Args:
            round_index: from 0.
            weights: of the clients that are in the sum, by number.

        Raises:
            RoundAbandoned: a node did not send its part, so masks do not cancel.
        """
        keys = {str(number): self._public_keys[number] for number in weights}
        contents = dict[int, RecordDict]()
        for node in sorted({self.home[number] for number in weights}):
            mine = {str(number): weight for number, weight in weights.items() if self.home[number] == node}
            samples = {number: self.members[int(number)].num_samples for number in mine}
            told = {"round": round_index, "public_keys": keys, "weights": mine, "num_samples": samples}
            contents[node] = message({"study": self._settings, **told})
        answers = self._asked("train.mask", contents, group=f"{round_index}-mask")
        sent = {str(node): vectors["masked"].numpy() for node, (_, vectors) in answers.items()}
        return torch.from_numpy(unmasked_sum(sent, [str(node) for node in contents]))

    def _asked(
        self, kind: str, contents: Mapping[int, RecordDict], group: str
    ) -> dict[int, tuple[Told, dict[str, Tensor]]]:
        """Ask nodes side by side; the answers of those that gave one in time."""
        sent = [Message(content, node, kind, group_id=group) for node, content in contents.items()]
        waiting = set(self._grid.push_messages(sent))
        give_up_s = time.monotonic() + self._study.timeout_s
        found = dict[int, tuple[Told, dict[str, Tensor]]]()
        while waiting and time.monotonic() < give_up_s:
            for reply in self._grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                node = reply.metadata.src_node_id
                if reply.has_error():
                    print(f"node {node}: {reply.error.reason}", file=sys.stderr)
                else:
                    found[node] = read(reply.content)
            if waiting:
                time.sleep(POLL_S)
        return found


@dataclass(frozen=True)
class RemoteClient:
    """A client on some node.

    Attributes:
        fleet: all clients.
        number: of this one in the study.
        kept: nothing: what it keeps never leaves its node.
    """

    fleet: Fleet
    number: int
    kept: dict[str, Tensor] = field(default_factory=dict)

    def train(self, global_vector: Tensor, task: ClientTask) -> Update:
        """Train the client on its node.

        Raises:
            ClientLost: the client failed, or its node did not respond.
        """
        return self.fleet.answer(self.number, global_vector, task)


def homes(members: Sequence[Member], patients: Sequence[Iterable[str]], nodes: Sequence[int]) -> dict[int, int]:
    """The node of each client: one that has all its patients; those that several could host are dealt out.

    Args:
        members: clients.
        patients: names of those that each of `nodes` has.
        nodes: their numbers.

    Raises:
        HeartlmError: a client has patients of several nodes, which would have to move recordings.
    """
    found = dict[int, int]()
    there = [set(names) for names in patients]
    for number, member in enumerate(members):
        able = [node for node, names in zip(nodes, there, strict=True) if names.issuperset(member.patients)]
        if not able:
            raise HeartlmError(
                f"partition: client {member.name} has patients of several nodes, and recordings stay where they are; "
                "partition 'patient' keeps them there, 'database' where each node has databases of its own"
            )
        found[number] = able[number % len(able)]
    return found
