"""Run a federated study from its settings to its scores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heartlm.distributed.parallel import is_peer_failure, reason_of
from heartlm.distributed.ranks import ReportedByPeer
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.aggregate import Aggregator
from heartlm.extensions.federated.communicator import CollectiveError, Communicator, agreed
from heartlm.extensions.federated.joining import communicator_of
from heartlm.extensions.federated.local import LocalClients
from heartlm.extensions.federated.models import patients_of
from heartlm.extensions.federated.partition import partition
from heartlm.extensions.federated.rounds import Rounds, Server
from heartlm.extensions.federated.scores import summary
from heartlm.extensions.federated.strategy import strategy_of
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.extensions.federated.study_folder import StudyFolder
from heartlm.storage.atomic import write_json
from heartlm.training.learner import at_full_speed

if TYPE_CHECKING:
    from heartlm.extensions.federated.flower_fleet import Fleet


@dataclass(frozen=True)
class StudyOutcome:
    """The result of a study.

    Attributes:
        folder: folder of the study.
        scores: scores of the final model on the test patients; empty except on rank 0.
    """

    folder: Path
    scores: dict[str, Any]


@at_full_speed()
def federate(study: FederatedConfig, changed: Sequence[str] = (), fleet: Fleet | None = None) -> StudyOutcome:
    """Run a study, or resume one, with the settings named in `changed` taken from `study`.

    Args:
        study: settings.
        changed: names of the settings to change when a study is resumed.
        fleet: clients on the nodes of a federation; by default the clients train in this process and the other ranks.

    Raises:
        HeartlmError: a setting is invalid, recordings are unusable, the folder cannot be written, the rendezvous of
            ranks failed, or training diverged.
    """
    if study.resume is not None:
        values = {name: getattr(study, name) for name in changed}
        study = replace(StudyFolder(study.resume).resumable(), resume=study.resume, **values)
    study.check()
    path = study.resume or study.out
    assert path is not None, "it was checked"
    folder = StudyFolder(path)
    communicator = communicator_of(study.communicator, study.device, study.threads, study.timeout_s)
    try:
        rounds = agreed(communicator, lambda: ready(study, folder, communicator, fleet))
        scores = run_rounds(rounds, folder)
    except (CollectiveError, ReportedByPeer):
        raise
    except Exception as error:
        rank = communicator.rank
        if isinstance(error, RuntimeError) and is_peer_failure(error):
            raise HeartlmError(
                f"rank {rank} lost another rank ({reason_of(error)}): continue with --resume {folder.path}"
            ) from error
        if communicator.size > 1:  # the other ranks would wait for this one
            print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            communicator.abort()
        raise
    communicator.close()
    return StudyOutcome(folder.path, scores)


def ready(study: FederatedConfig, folder: StudyFolder, communicator: Communicator, fleet: Fleet | None) -> Rounds:
    """Return the rounds of this rank, restored if resumed; else write the files of a new study."""
    rank, size = communicator.rank, communicator.size
    patients = patients_of(study)
    members = partition(patients.patients(), study) if fleet is None else fleet.members
    mine = range(rank, len(members) if fleet is None else 0, size)
    learning = patients.learning(members, mine, rank, size)
    server = Server(learning.flat.on_host(), strategy_of(study))
    clients = fleet or LocalClients(study, members, learning, {number: {} for number in mine})
    masked_sum = fleet.masked_sum if fleet is not None and study.secure_sum else None
    aggregator = Aggregator(study, communicator, len(learning.flat), len(members), masked_sum)
    if study.resume is None and rank == 0:
        folder.write_settings(study.to_yaml())
        about = {"clients": [vars(member) for member in members], "left_out": patients.left_out}
        write_json(folder.path / "clients.json", about)
        folder.write_about({"kind": "federated"})
    if study.resume is not None and (first := folder.last_round()):
        folder.load_server(server, first)
        aggregator.replay_accounting(members, first)
        clients.kept = {number: folder.load_client(first, number) for number in mine}
    return Rounds(study, members, clients, server, aggregator, learning, communicator)


def run_rounds(rounds: Rounds, folder: StudyFolder) -> dict[str, Any]:
    """Run the remaining rounds, score and save; return the summary of the scores on rank 0."""
    if rounds.communicator.rank == 0:
        folder.truncate_metrics(rounds.server.round_index - 1, "round")
    rounds.run(lambda: _save(rounds, folder))
    scores = rounds.evaluate(final=True)
    if rounds.communicator.rank != 0:
        return {}
    rounds.learning.save(folder.path / "models" / "last")
    rounds.aggregator.write_privacy(folder.path)
    write_json(folder.path / "scores.json", scores)
    folder.finish()
    return summary(scores)


def _save(rounds: Rounds, folder: StudyFolder) -> None:
    """Save the state of the study; every rank writes the state of its own clients."""
    server = rounds.server
    # Clients before the server: a state is complete once it has server.pt. Gathering waits for the clients of all.
    for number, kept in rounds.clients.kept.items():
        folder.save_client(server.round_index, number, kept)
    lines = [line for part in rounds.communicator.gather_objects(rounds.lines) for line in part]
    rounds.lines.clear()
    if rounds.communicator.rank == 0:
        for line in sorted(lines, key=lambda line: (line["round"], line["kind"], line.get("rank", 0))):
            folder.add_metrics({key: None if value != value else value for key, value in line.items()})
        folder.save_server(server)
