"""Settings of a sweep over federated studies, and its grid of studies. Imports no torch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.typed import typed

SWEPT = ("out", "batch_size", "local_steps", "rounds", "precision", "communicator", "save_every", "evaluate_every")
"""Fields of a study that the sweep sets."""


@dataclass
class SweepConfig:
    """Settings of a sweep: one short study for every cell of the grid.

    Attributes:
        out: the folder of the sweep; an interrupted sweep is continued.
        study: settings shared by all studies, the fields of heartlm federate, for example {corpus: corpora/mitdb}.
        configs: precisions; G0 is fp32, G1 is bf16 (AMP), for GPUs.
        world_sizes: numbers of ranks.
        batch_sizes: samples per local step.
        local_steps: local steps per client and round.
        clients_per_rank: clients per rank, with patients assigned at random; 0 keeps the partition of the study.
        rounds: rounds per study; the first is a warm-up and is excluded from figures if there are more.
        repeats: repeats of every cell.
        slurm: site profile (a name or a file) to run every study as a SLURM job; by default studies run locally.
        nodes: nodes per job, if they divide the number of ranks.
        cpus_per_rank: CPUs per rank of a job.
        timeout_s: seconds after which a study counts as hung.
    """

    out: Path | None = None
    study: dict[str, Any] = field(default_factory=dict)
    configs: list[Literal["G0", "G1"]] = field(default_factory=lambda: ["G0"])
    world_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    batch_sizes: list[int] = field(default_factory=lambda: [256])
    local_steps: list[int] = field(default_factory=lambda: [50])
    clients_per_rank: int = 1
    rounds: int = 5
    repeats: int = 5
    slurm: str | None = None
    nodes: int = 1
    cpus_per_rank: int = 1
    timeout_s: float = 1800.0

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        if self.out is None:
            raise HeartlmError("out: nothing found, a folder for the sweep expected: give --out FOLDER")
        for name in ("configs", "world_sizes", "batch_sizes", "local_steps"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise HeartlmError(f"{name}: {values} found, different values expected")
        counts = ("world_sizes", "batch_sizes", "local_steps", "rounds", "repeats", "nodes", "cpus_per_rank")
        require(self, lambda value: value >= 1, "at least 1", *counts)
        require(self, lambda value: value >= 0, "at least 0", "clients_per_rank")
        require(self, lambda value: value > 0, "more than 0", "timeout_s")
        for name in SWEPT:
            if name in self.study:
                raise HeartlmError(f"study: {name} found, which the sweep sets itself")
        try:
            self.base().check()
        except HeartlmError as error:
            raise HeartlmError(f"study: {error}") from error

    def base(self) -> FederatedConfig:
        """Return the study that all cells share.

        Raises:
            HeartlmError: a field is unknown or has the wrong type.
        """
        study = typed(FederatedConfig, self.study)
        return replace(study, out=self.out, rounds=self.rounds, save_every=self.rounds, evaluate_every=0)


@dataclass(frozen=True)
class SweepCell:
    """One short study.

    Attributes:
        repeat: number of the repeat, from 0.
        config: G0 or G1.
        batch_size: samples per local step.
        local_steps: local steps per client and round.
        world_size: number of ranks.
    """

    repeat: int
    config: str
    batch_size: int
    local_steps: int
    world_size: int

    @property
    def name(self) -> str:
        """Name of the folder of the study."""
        return f"{self.config}-ranks-{self.world_size}-batch-{self.batch_size}-steps-{self.local_steps}-{self.repeat}"

    def study(self, sweep: SweepConfig, folder: Path) -> FederatedConfig:
        """Return the settings of the study, with its output below `folder`."""
        study = replace(
            sweep.base(),
            out=folder / self.name,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            precision="fp32" if self.config == "G0" else "bf16",
            communicator="torch" if self.world_size > 1 else "local",
        )
        if sweep.clients_per_rank:
            study = replace(study, partition="iid", clients=self.world_size * sweep.clients_per_rank)
        return study


def cells_of(sweep: SweepConfig) -> list[SweepCell]:
    """All cells, repeats outermost, so that slow changes of the machine affect all cells alike."""
    grid = range(sweep.repeats), sweep.configs, sweep.batch_sizes, sweep.local_steps, sweep.world_sizes
    return [SweepCell(*each) for each in itertools.product(*grid)]
