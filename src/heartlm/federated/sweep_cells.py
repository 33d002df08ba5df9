"""The grid of a sweep: which short studies there are, and which make no sense here."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from heartlm.federated.study_file import StudyConfig
from heartlm.federated.sweep_file import SweepConfig


@dataclass(frozen=True)
class Cell:
    """One short study.

    Attributes:
        config: G0 or G1.
        world_size: ranks.
        batch_size: samples of a local step.
        local_steps: of a client in a round.
        repeat: from 0.
    """

    config: str
    world_size: int
    batch_size: int
    local_steps: int
    repeat: int

    @property
    def name(self) -> str:
        """A folder's name."""
        return f"{self.config}-ranks-{self.world_size}-batch-{self.batch_size}-steps-{self.local_steps}-{self.repeat}"

    def study(self, sweep: SweepConfig, folder: Path) -> StudyConfig:
        """Its settings, written to `folder`."""
        study = replace(
            sweep.base(),
            out=folder / self.name,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            precision="fp32" if self.config == "G0" else "bf16",
            communicator="auto",
        )
        if sweep.clients_per_rank:
            study = replace(study, partition="iid", clients=self.world_size * sweep.clients_per_rank)
        return study


def cells_of(sweep: SweepConfig) -> Iterator[Cell]:
    """All cells, repeats outermost, so that what changes with the hour changes for all cells alike."""
    grid = itertools.product(
        range(sweep.repeats), sweep.configs, sweep.batch_sizes, sweep.local_steps, sweep.world_sizes
    )
    for repeat, config, batch_size, local_steps, world_size in grid:
        yield Cell(config, world_size, batch_size, local_steps, repeat)


def why_not(cell: Cell, sweep: SweepConfig) -> str | None:
    """Why a cell is not run; None where it is."""
    if cell.config == "G1" and not sweep.amp_on_cpu and computes_on_cpu(sweep):
        return "not run: bf16 gains nothing on a CPU; --amp-on-cpu measures it all the same"
    return None


def computes_on_cpu(sweep: SweepConfig) -> bool:
    """Whether the studies compute on CPUs; asked of the driver, so that torch need not be imported."""
    device = sweep.base().device
    if device != "auto" or importlib.util.find_spec("torch") is None:
        return device != "cuda"
    return not any(Path("/dev").glob("nvidia[0-9]*"))
