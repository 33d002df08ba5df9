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
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.flower_fleet import Fleet
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.atomic import write_json
from heartlm.storage.typed import typed

app = ServerApp()
"""What `flower-superlink` runs."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study that the run's configuration names; `flower.json` in its folder says how that ended."""
    study = typed(FederatedConfig, json.loads(str(context.run_config["study"])))
    error = None
    try:
        federate(study, fleet=Fleet(grid, study, int(context.run_config["nodes"])))
    except HeartlmError as failure:
        error = str(failure)
    write_json(Path(f"{study.out}.flower.json"), {"error": error})
