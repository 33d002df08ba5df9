"""The server of a Flower federation: the rounds of heartlm, with clients that are elsewhere.

Aggregation, strategies, metrics and the study's folder are those of every other engine; Flower carries messages, starts
apps and knows which nodes there are. The server has no recordings of clients; it scores the global weights on the test
patients of the databases that it can read itself.

With masked sums the server sees sums of nodes under masks, and the sum of all without:

    train ─► node keeps deltas and private keys, sends public keys ─► server
    mask  ─► all public keys ─► node: deltas × weights, in fixed point, under masks, added up ─► server: the sum

Clients that died while they trained have sent no key and are in no mask. A node that stops between the two messages
costs the round: it is abandoned, and nothing is sent again. With privacy, clients bound their updates and add their
part of the noise before the masks, so the server sees only the noise of the sum.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from heartlm.distributed.communicator import Communicator
from heartlm.errors import HeartlmError
from heartlm.federated.aggregate import Aggregator, PendingMean, WeightedUpdate
from heartlm.federated.federate import evaluate, run_rounds, strategy_of
from heartlm.federated.flower_fleet import Fleet
from heartlm.federated.local import patients_of
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.rounds import Rounds, Server
from heartlm.federated.secure_sum import RoundAbandoned
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.study_folder import StudyFolder
from heartlm.files import write_json
from heartlm.training.learner import at_full_speed
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
    folder, communicator, meter = StudyFolder(study.out), Communicator(), CommunicationMeter()
    patients = patients_of(study)
    folder.start_study(study, {"clients": [vars(member) for member in fleet.members], "left_out": patients.left_out})
    learning = patients.learning(fleet.members, [], 0, 1)
    server = Server(learning.flat.on_host(), strategy_of(study))
    mean = partial(RemoteMaskedMean, fleet) if study.secure_sum else Aggregator
    aggregator = mean(study, communicator, len(learning.flat), len(fleet.members), meter)
    scoring = partial(evaluate, learning, communicator)
    rounds = Rounds(study, fleet.members, fleet, server, aggregator, meter, scoring)
    run_rounds(rounds, learning, folder, communicator)


class RemoteMaskedMean(Aggregator):
    """The mean of a round from sums that nodes masked; `fleet` has the clients, the rest is as of `Aggregator`."""

    def __init__(self, fleet: Fleet, *rest: Any) -> None:
        super().__init__(*rest)
        self._fleet = fleet

    def start(self, round_index: int, updates: Sequence[WeightedUpdate], asked_samples: int) -> PendingMean:
        """Let nodes mask and add up the updates that they keep."""
        totals = self._sum.whole.zero_()
        try:
            totals = self._fleet.masked_sum(round_index, {each.client: each.weight for each in updates})
        except RoundAbandoned as error:
            print(f"round {round_index + 1}: {error}", file=sys.stderr)
        if self._privacy is not None:
            self.rounds_of.update(each.client for each in updates)
            asked_samples = len(updates)
        return PendingMean(totals, asked_samples, self._meter)
