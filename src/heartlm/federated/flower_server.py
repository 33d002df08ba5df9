"""The server of a Flower federation: the rounds of heartlm, with clients that are elsewhere.

Aggregation, strategies, metrics and the study's folder are those of every other engine; Flower carries messages, starts
apps and knows which nodes there are. The server has no recordings of clients; it scores the global weights on the test
patients of the databases that it can read itself.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from heartlm.distributed.communicator import LocalCommunicator
from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import Aggregator
from heartlm.federated.federate import Evaluation, patients_of, run_rounds, strategy_of
from heartlm.federated.flower_fleet import Fleet
from heartlm.federated.flower_masks import RemoteMaskedMean
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.rounds import Rounds, Server
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.study_folder import StudyFolder
from heartlm.files import write_json
from heartlm.training.full_speed import at_full_speed
from heartlm.typed import typed

app = ServerApp()
"""What `flower-superlink` runs."""


@app.main()
@at_full_speed()
def main(grid: Grid, context: Context) -> None:
    """Run the study that the run's configuration names; `flower.json` in its folder says how that ended."""
    study = typed(FederatedConfig, json.loads(str(context.run_config["study"])))
    assert study.out is not None
    torch.set_num_threads(study.threads)
    error = None
    try:
        run_study(study, Fleet(grid, study, int(context.run_config["nodes"])))
    except HeartlmError as failure:
        error = str(failure)
    write_json(Path(f"{study.out}.flower.json"), {"error": error})


def run_study(study: FederatedConfig, fleet: Fleet) -> None:
    """Run the rounds of a study with the clients of a fleet, score and save.

    Raises:
        HeartlmError: no patient to test on, a folder that cannot be written, or training that diverged.
    """
    assert study.out is not None
    folder, communicator, meter = StudyFolder(study.out), LocalCommunicator(), CommunicationMeter()
    patients = patients_of(study)
    folder.start_study(study, {"clients": [vars(member) for member in fleet.members], "left_out": patients.left_out})
    learning = patients.learning(fleet.members, [], 0, 1)
    server = Server(learning.flat.on_host(), strategy_of(study))
    # Nodes compress and mask: the rest of privacy, and plain sums, are left to the server.
    num_parameters, uncompressed = len(learning.flat), replace(study, compression="none")
    aggregator = (
        RemoteMaskedMean(fleet, study, num_parameters, meter)
        if study.secure_sum
        else Aggregator(uncompressed, communicator, num_parameters, len(fleet.members), meter)
    )
    evaluation = Evaluation(learning, communicator)
    rounds = Rounds(study, fleet.members, fleet.clients(), server, aggregator, meter, evaluation)
    run_rounds(rounds, evaluation, folder, communicator)
