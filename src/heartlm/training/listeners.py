"""Programs that are shown the metrics of a run while it trains: TensorBoard, MLflow, Weights & Biases.

Each is opened at the first metrics of a session, on the first rank alone, and may fail: the log then drops it. Where
they write is theirs to know, by their own environment variables.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from heartlm.errors import needs
from heartlm.runs.run_folder import RunFolder

PROJECT = "heartlm"
"""Experiment of MLflow and project of Weights & Biases, unless `MLFLOW_EXPERIMENT_NAME` or `WANDB_PROJECT` is set."""


class Listener(ABC):
    """A program that is shown metrics.

    Args:
        folder: folder of the run.
        step: step of the first metrics; those from here on are of a session before this one, if the run was resumed.
    """

    title: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: RunFolder, step: int) -> None: ...

    @abstractmethod
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show numbers by name, such as `train/loss`."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Show that the session ends, and whether the run is complete."""


class TensorBoard(Listener):
    """Events in the run folder."""

    title = "TensorBoard"

    def __init__(self, folder: RunFolder, step: int) -> None:
        with needs("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._board: Any = SummaryWriter(str(folder.path / "tensorboard"), purge_step=step)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write a point of each series."""
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)
        self._board.flush()

    def close(self, finished: bool) -> None:
        """Close the file."""
        self._board.close()


class MLflow(Listener):
    """A run of the tracking server that `MLFLOW_TRACKING_URI` names; the same one if the training was resumed."""

    title = "MLflow"

    def __init__(self, folder: RunFolder, step: int) -> None:
        with needs("mlflow"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client: Any = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        tags = {"heartlm.run": run_key(folder)}
        earlier = self._client.search_runs([experiment], f"tags.`heartlm.run` = '{tags['heartlm.run']}'")
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(experiment, run_name=folder.path.name, tags=tags).info.run_id
        params = [Param(key, str(value)) for key, value in shown_settings(folder).items()]
        self._client.log_batch(self._run, params=params)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log a batch of metrics."""
        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[self._metric(*each, now_ms, step) for each in numbers.items()])

    def close(self, finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WeightsAndBiases(Listener):
    """A run of Weights & Biases, or with `WANDB_MODE=offline` one in `wandb/` of the run folder."""

    title = "Weights & Biases"

    def __init__(self, folder: RunFolder, step: int) -> None:
        with needs("wandb"):
            import wandb
        self._run: Any = wandb.init(
            dir=str(folder.path),
            id=run_key(folder),
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.path.name,
            config=shown_settings(folder),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of a step; those of a step before the last, as after a resume, are ignored there."""
        self._run.log(dict(numbers), step=step)

    def close(self, finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if finished else 1)


LISTENERS: dict[str, type[Listener]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
"""By the name of the setting that switches each on."""


def run_key(folder: RunFolder) -> str:
    """Return a name of the run that is the same in each of its sessions, and of no other run."""
    about = folder.run_json
    return hashlib.sha256(json.dumps([about["name"], about["created"], about["command"]]).encode()).hexdigest()[:16]


def shown_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings that are set, and what the run is of."""
    about = {key: folder.run_json.get(key) for key in ("kind", "task", "parent", "num_parameters", "manifest_hash")}
    return {key: value for key, value in {**folder.settings, **about}.items() if value is not None}
