"""The folder of a federated study.

run.json         kind, start and end time
config.yaml      resolved settings
environment.json machine, versions, git revision
clients.json     clients, and excluded recordings
metrics.jsonl    a line for each round of a rank, each client of a round, each evaluation
state/round-N/   what the study resumes from: server.pt, and a file for each client that keeps something
models/last/     the final model
scores.json      its scores on the test patients
privacy.json     privacy guarantee of the clients, with differential privacy

Every client's state is written by the rank it is on. A state is complete once its server.pt is there, which the first
rank writes last and renames into place. Tensors are read with `weights_only`.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.fixed_point import FixedPoint
from heartlm.extensions.federated.rounds import Server
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.runs.run_folder import ResultFolder
from heartlm.storage.atomic import atomic_file
from heartlm.storage.typed import typed


class StudyFolder(ResultFolder):
    """The files of one federated study."""

    kind_of_folder, made_by = "federated study", "federate"

    def state(self, round_index: int) -> Path:
        """Folder of the state before round `round_index`."""
        return self.path / "state" / f"round-{round_index:06d}"

    def resumable(self) -> FederatedConfig:
        """The settings of an interrupted study.

        Raises:
            HeartlmError: there is none here, or it is finished.
        """
        if (kind := self.run_json.get("kind")) != "federated":
            raise HeartlmError(f"{self.path}: a {kind} run found, a federated study expected")
        self.check_unfinished()
        return typed(FederatedConfig, self.settings, self.config_file)

    def save_client(self, round_index: int, number: int, kept: dict[str, Tensor]) -> None:
        """Write what a client keeps before round `round_index`; nothing where it keeps nothing."""
        if kept:
            _save(self.state(round_index) / f"client-{number}.pt", kept)

    def save_server(self, server: Server) -> None:
        """Write what the server keeps, which makes the state complete; earlier ones are removed."""
        late = None if server.late is None else (server.late.whole, server.late.factor)
        state = {"vector": server.vector, "strategy": server.strategy.kept, "late": late}
        _save(self.state(server.round_index) / "server.pt", state)
        # Only now: a kill before this leaves two complete states, and the newer one is resumed.
        for folder in self.state(0).parent.glob("round-*"):
            if folder != self.state(server.round_index):
                shutil.rmtree(folder, ignore_errors=True)

    def last_round(self) -> int:
        """The round before which the newest complete state was saved; 0 where there is none."""
        states = self.state(0).parent.glob("round-*/server.pt")
        return max((int(path.parent.name.removeprefix("round-")) for path in states), default=0)

    def load_server(self, server: Server, round_index: int) -> None:
        """Restore `server` to its state before round `round_index`."""
        state = _load(self.state(round_index) / "server.pt")
        server.vector, server.strategy.kept, server.round_index = state["vector"], state["strategy"], round_index
        server.late = None if state["late"] is None else FixedPoint(*state["late"])

    def load_client(self, round_index: int, number: int) -> dict[str, Tensor]:
        """Return the state of a client before round `round_index`."""
        path = self.state(round_index) / f"client-{number}.pt"
        return _load(path) if path.exists() else {}


def _save(path: Path, state: dict[str, Any]) -> None:
    with atomic_file(path, "wb") as stream:
        torch.save(state, stream)


def _load(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise HeartlmError(f"{path} cannot be read ({error}): remove its folder, and resume again") from error
    return state
