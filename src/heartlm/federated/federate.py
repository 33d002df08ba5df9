"""A federated study from its settings to its scores: puts clients, server and ranks together."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import ExactMean
from heartlm.federated.client import Between
from heartlm.federated.communicator import Communicator
from heartlm.federated.communicators import communicator_of
from heartlm.federated.local import Learning, LocalClient
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.partition import partition
from heartlm.federated.rounds import Line, Rounds, Server
from heartlm.federated.strategy import Adaptive, OuterSGD, Strategy
from heartlm.federated.study_file import StudyConfig
from heartlm.federated.study_folder import StudyFolder
from heartlm.federated.tiny import TinyPatients, tiny_learning


@dataclass(frozen=True)
class Outcome:
    """What came of a study.

    Attributes:
        folder: of the study.
        scores: of the final model on the test patients; empty on all ranks but the first.
        is_first: whether this rank speaks for all.
    """

    folder: Path
    scores: dict[str, Any]
    is_first: bool

    def told(self) -> str:
        """One line of it."""
        return f"{self.folder}: {shown(self.scores)}"


def shown(scores: Mapping[str, Any]) -> str:
    """Scores in words."""
    return ", ".join(f"{key} {value:.3f}" for key, value in scores.items() if isinstance(value, float))


def federate(study: StudyConfig, changed: Sequence[str] = ()) -> Outcome:
    """Run a study, or resume one with the settings called `changed` as in `study`.

    Raises:
        HeartlmError: an impossible setting, unusable recordings, a folder that cannot be written, ranks that do not
            meet, or training that diverged.
    """
    study, folder = _settings(study, changed)
    torch.set_num_threads(study.threads)
    torch.set_flush_denormal(True)  # denormal gradients slow a CPU down tenfold
    communicator = communicator_of(study)
    try:
        scores = _run(study, folder, communicator)
    except BaseException:
        communicator.abort()
        raise
    finally:
        torch.set_flush_denormal(False)
    communicator.close()
    return Outcome(folder.path, scores, communicator.rank == 0)


def _settings(study: StudyConfig, changed: Sequence[str]) -> tuple[StudyConfig, StudyFolder]:
    if study.resume is None:
        study.check()
        if study.out is None:
            raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")
        return study, StudyFolder(study.out)
    folder = StudyFolder(study.resume)
    values = {name: getattr(study, name) for name in changed}
    return replace(folder.resumable(), resume=study.resume, **values), folder


def strategy_of(study: StudyConfig) -> Strategy:
    """The optimiser of the server that `study` names."""
    if study.strategy in ("fedadam", "fedyogi"):
        yogi = study.strategy == "fedyogi"
        return Adaptive(study.server_rate, study.server_beta, study.beta2, study.tau, yogi=yogi)
    return OuterSGD(study.server_rate, study.server_beta, nesterov=study.strategy == "diloco")


def clients_of_rank(num_clients: int, rank: int, size: int) -> range:
    """Numbers of the clients that rank `rank` of `size` simulates."""
    return range(rank, num_clients, size)


def _run(study: StudyConfig, folder: StudyFolder, communicator: Communicator) -> dict[str, Any]:
    rank, size = communicator.rank, communicator.size
    patients = TinyPatients(study)
    members = partition(patients.patients(), study)
    mine = clients_of_rank(len(members), rank, size)
    if rank == 0 and study.resume is None:
        folder.start(study, {"clients": [vars(member) for member in members], "left_out": patients.left_out})
    learning: Learning = tiny_learning(study, patients, members, mine, rank, size)
    server = Server(learning.flat.on_host(), strategy_of(study))
    clients = {
        number: LocalClient(number, members[number].name, members[number].num_samples, learning, study, {})
        for number in mine
    }
    if study.resume is not None and (first := folder.last_round()):
        folder.load_server(server, first)
        for number, client in clients.items():
            client.load_state(folder.load_client(first, number))
    communicator.gather_objects(None)  # all have read before the first writes
    if rank == 0:
        folder.truncate_metrics(server.round_index)
    meter = CommunicationMeter()
    aggregator = ExactMean(communicator, len(learning.flat), round(study.bucket_mib * 2**20), meter)
    evaluation = _Evaluation(learning, communicator)
    rounds = Rounds(study, members, clients, server, aggregator, meter, evaluation, rank)
    rounds.run(lambda: _save(rounds, folder, communicator))
    scores = evaluation.final(server.vector)
    if rank == 0:
        learning.save(folder.model)
        folder.finish(scores)
    return learning.summary(scores) if rank == 0 else {}


def _save(rounds: Rounds, folder: StudyFolder, communicator: Communicator) -> None:
    """Save where the study stands; every rank writes the state of its own clients."""
    server = rounds.server
    for number, client in rounds.clients.items():
        folder.save_client(server.round_index, number, client.state())
    lines = [line for part in communicator.gather_objects(rounds.lines) for line in part]
    rounds.lines.clear()
    if communicator.rank == 0:
        folder.add_lines(sorted(lines, key=lambda line: (line["round"], line["kind"], line.get("rank", 0))))
        folder.save_server(server)
        for line in lines:
            if line["kind"] == "evaluation":
                told = shown({key: value for key, value in line.items() if key not in ("kind", "round")})
                print(f"round {line['round'] + 1}/{rounds.study.rounds}  {told}", file=sys.stderr, flush=True)


class _Evaluation:
    """Scores weights on all ranks together, each its part."""

    def __init__(self, learning: Learning, communicator: Communicator) -> None:
        self._learning, self._communicator = learning, communicator

    def __call__(self, vector: Tensor, between: Between, last: bool) -> Line:
        return self._scores(vector, between, final=False)

    def final(self, vector: Tensor) -> Line:
        return self._scores(vector, lambda: None, final=True)

    def _scores(self, vector: Tensor, between: Between, final: bool) -> dict[str, Any]:
        self._learning.flat.load(vector)
        part = self._learning.evaluate(self._communicator.rank, self._communicator.size, between)
        parts = self._communicator.gather_objects(part)
        return self._learning.scores(parts, final) if self._communicator.rank == 0 else {}
