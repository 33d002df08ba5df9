"""Settings of a study, and the grid of cells that follows from them. Imports no torch.

    stages × databases × windows × precisions × scalings  ─► groups, each with one training to compare with
        × CPUs per task × nodes × ranks × bucket sizes    ─► cells of a group
                                                          ─► beside them: what the machine itself allows

Cells of a group are measured one after the other, then the next group, and all of it again for the next repeat: what
is compared lies close together in time, and the repeats of a cell lie far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from heartlm.errors import HeartlmError
from heartlm.scaling.cell import Cell
from heartlm.training.meters import Meters


@dataclass
class StudyConfig:
    """Settings of a study.

    Attributes:
        out: the folder of the study; a study that was interrupted goes on there.
        databases: name and corpus folder of each, for example {mitdb: corpora/mitdb}.
        stages: what to train.
        windows: tokens a window.
        ranks: processes that train together, of all nodes: GPUs, or CPU ranks.
        nodes: machines; more than one needs SLURM.
        cpus_per_task: cores, and threads, of a rank.
        precisions: of matrix products.
        buckets_mb: MiB of gradients that are sent together.
        scalings: strong keeps the global batch, weak gives every rank a batch of that size.
        batch_tokens: tokens of a global batch (of a rank's batch when weak); every window width gets about as many, in
            windows that all of `ranks` can share.
        accumulation: micro-batches of a rank and step.
        steps: steps that count; batches of small corpora are prepared for 8 steps at once, so multiples of 8 are fair.
        warm_up: steps before them that do not.
        repeats: measurements of each cell.
        again: how often one is taken again, at most, when the machine had not its usual speed before or after it.
        ceiling: measure, too, what independent trainings reach side by side; only on this machine.
        copies: so many independent trainings of one rank side by side, too; on fewer GPUs they share them.
        prediction: measure, too, one rank at the batch that each of several gets, alone and side by side, so that their
            time can be predicted.
        depth: transformer blocks of the model.
        width: of the model; by default it follows from depth.
        task: of fine-tuning.
        seed: of all trainings.
        device: where to train.
        compile: compile the blocks of the model; warm_up must be long enough for it.
        slurm: a site profile, by name or YAML file: train as jobs of that cluster; by default on this machine.
        tolerance: how far, relatively, the loss of any step may be from that of one rank; by default 1e-4 in fp32 and
            2e-2 in bf16.
        timeout_s: seconds after which a training counts as hung.
        max_core_hours: stop before the study has cost more.
        max_node_hours: stop before the study has cost more.
    """

    out: Path | None = None
    databases: dict[str, str] = field(default_factory=dict)
    stages: list[Literal["pretrain", "finetune"]] = field(default_factory=lambda: ["pretrain"])
    windows: list[int] = field(default_factory=lambda: [128])
    ranks: list[int] = field(default_factory=lambda: [1, 2])
    nodes: list[int] = field(default_factory=lambda: [1])
    cpus_per_task: list[int] = field(default_factory=lambda: [1])
    precisions: list[Literal["fp32", "bf16"]] = field(default_factory=lambda: ["fp32"])
    buckets_mb: list[float] = field(default_factory=lambda: [25.0])
    scalings: list[Literal["strong", "weak"]] = field(default_factory=lambda: ["strong"])
    batch_tokens: int = 4096
    accumulation: int = 1
    steps: int = 8
    warm_up: int = 3
    repeats: int = 3
    again: int = 2
    ceiling: bool = True
    copies: list[int] = field(default_factory=list)
    prediction: bool = False
    depth: int = 4
    width: int | None = None
    task: Literal["beats", "rhythm"] = "beats"
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    compile: bool = False
    slurm: str | None = None
    tolerance: float | None = None
    timeout_s: float = 900.0
    max_core_hours: float | None = None
    max_node_hours: float | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        for name in ("databases", "stages", "windows", "ranks", "nodes", "cpus_per_task", "precisions", "scalings"):
            if not getattr(self, name):
                raise HeartlmError(f"{name}: nothing found, at least one expected")
        for name in ("windows", "ranks", "nodes", "cpus_per_task", "copies"):
            self._at_least(1, name, *getattr(self, name))
        for name in ("batch_tokens", "accumulation", "steps", "repeats", "depth", "width"):
            self._at_least(1, name, getattr(self, name))
        self._at_least(Meters.WARM_UP_STEPS, "warm_up", self.warm_up)
        self._at_least(0, "again", self.again)
        for name in ("tolerance", "timeout_s", "max_core_hours", "max_node_hours"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise HeartlmError(f"{name}: {value} found, more than 0 expected")
        if any(not cap > 0 for cap in self.buckets_mb) or not self.buckets_mb:
            raise HeartlmError(f"buckets_mb: {self.buckets_mb} found, sizes of more than 0 MiB expected")
        for name in self.databases:
            if not name.replace("_", "").isalnum():
                raise HeartlmError(f"databases: {name!r} found, a name of letters, digits and _ expected")

    def folder(self) -> Path:
        """Where the study lies.

        Raises:
            HeartlmError: the settings do not say.
        """
        if self.out is None:
            raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")
        return Path(self.out)

    def tolerance_of(self, cell: Cell) -> float:
        """How far the losses of a cell may be from those of one rank, relatively."""
        return self.tolerance or (1e-4 if cell.precision == "fp32" else 2e-2)

    @staticmethod
    def _at_least(least: int, name: str, *values: int | None) -> None:
        for value in values:
            if value is not None and value < least:
                raise HeartlmError(f"{name}: {value} found, at least {least} expected")


@dataclass(frozen=True)
class Place:
    """What there is to train on.

    Attributes:
        num_cores: this process may use.
        num_devices: GPUs; None where training is on CPUs.
        num_nodes: machines.
    """

    num_cores: int
    num_devices: int | None = None
    num_nodes: int = 1


@dataclass(frozen=True)
class Grid:
    """What is to be measured, in order, and what cannot be.

    Attributes:
        groups: cells that belong together; the first of each has one rank.
        references: for cells whose global batch no group's first cell has: one rank with that batch, measured once.
        skipped: cells that do not fit, with the reason.
    """

    groups: list[list[Cell]]
    references: list[Cell]
    skipped: list[tuple[Cell, str]]

    def measurements(self, repeats: int) -> Iterator[tuple[Cell, int]]:
        """Every cell and repeat, in the order in which they are measured."""
        for repeat in range(repeats):
            for group in self.groups:
                if repeat == 0:
                    yield from ((cell, 0) for cell in self.references if cell.work[:-1] == group[0].work[:-1])
                yield from ((cell, repeat) for cell in group)

    def count(self, repeats: int) -> int:
        """How many measurements there are."""
        return repeats * sum(map(len, self.groups)) + len(self.references)


def grid_of(config: StudyConfig, place: Place) -> Grid:
    """The grid of a study where it is to be measured."""
    groups: list[list[Cell]] = []
    skipped: list[tuple[Cell, str]] = []
    kinds = itertools.product(config.stages, config.databases, config.windows, config.precisions, config.scalings)
    for stage, database, window, precision, scaling in kinds:
        group: dict[Cell, None] = {}
        one = Cell(stage, database, window, precision=precision, scaling=scaling, accumulation=config.accumulation)
        for cell in _layouts(config, one):
            if reason := _unfit(cell, place):
                skipped.append((cell, reason))
                continue
            group |= dict.fromkeys((cell.base, cell))
            if config.ceiling and config.slurm is None and cell.ranks > 1 and cell.nodes == 1:
                group[cell.ceiling] = None
            group |= dict.fromkeys(_copies(cell, config, place, skipped))
            if config.prediction:
                part = replace(cell.base, global_batch=cell.global_batch // cell.ranks)
                group |= dict.fromkeys((part, replace(part, copies=cell.ranks if cell.nodes == 1 else 1)))
        if group:
            groups.append(list(group))
    cells = [cell for group in groups for cell in group]
    return Grid(groups, _references(cells), skipped)


def _layouts(config: StudyConfig, one: Cell) -> Iterator[Cell]:
    """Cells of a group, each once; buckets mean nothing to one rank."""
    together = math.lcm(*config.ranks) * config.accumulation if one.scaling == "strong" else config.accumulation
    windows = max(1, round(config.batch_tokens / one.window / together)) * together
    seen = set()
    for cpus, nodes, ranks, cap in itertools.product(
        config.cpus_per_task, config.nodes, config.ranks, config.buckets_mb
    ):
        batch = windows if one.scaling == "strong" else windows * ranks
        cap = cap if ranks > 1 else Cell.bucket_cap_mb
        cell = replace(one, cpus_per_task=cpus, nodes=nodes, ranks=ranks, bucket_cap_mb=cap, global_batch=batch)
        if cell not in seen:
            seen.add(cell)
            yield cell


def _copies(cell: Cell, config: StudyConfig, place: Place, skipped: list[tuple[Cell, str]]) -> Iterator[Cell]:
    """Copies of a cell of one rank that were asked for and fit; the others are noted."""
    for number in config.copies if cell.ranks == 1 and config.slurm is None else []:
        copies = replace(cell, copies=number)
        if copies.num_cores > place.num_cores:
            skipped.append((copies, f"{number} trainings of {cell.cpus_per_task} CPUs on a node of {place.num_cores}"))
        elif number > 1:
            yield copies


def _unfit(cell: Cell, place: Place) -> str | None:
    """Why a cell cannot be measured here; None where it can."""
    per_node = -(-cell.ranks // cell.nodes)
    if cell.ranks % cell.nodes:
        return f"{cell.ranks} ranks do not divide among {cell.nodes} nodes"
    if cell.nodes > place.num_nodes:
        return f"{cell.nodes} nodes asked for, {place.num_nodes} here"
    if per_node * cell.cpus_per_task > place.num_cores:
        return f"{per_node} ranks of {cell.cpus_per_task} CPUs on a node of {place.num_cores}"
    if place.num_devices is not None and per_node > place.num_devices:
        return f"{per_node} ranks on a node of {place.num_devices} GPUs"
    return None


def _references(cells: list[Cell]) -> list[Cell]:
    alone = {cell.work for cell in cells if cell.ranks == cell.copies == 1}
    missing: dict[Cell, None] = {}
    for cell in cells:
        if cell.work not in alone:
            missing[replace(cell.base, global_batch=cell.global_batch, accumulation=cell.ranks * cell.accumulation)] = (
                None
            )
    return list(missing)
