"""The grid of cells of a study on given resources. Imports no torch.

    stages × databases × windows × precisions × scalings  ─► groups, each with one baseline training
        × CPUs per task × nodes × ranks × bucket sizes    ─► cells of a group
                                                          ─► ceiling cells: the limit of the machine itself

All cells of a group are measured in sequence, then the next group, and then everything again for the next repeat.
Cells that are compared are thus close together in time, and the repeats of a cell are far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from heartlm.extensions.cluster.cells import Resources
from heartlm.extensions.scaling.cell import StudyCell
from heartlm.extensions.scaling.study import ScalingStudyConfig


@dataclass(frozen=True)
class StudyGrid:
    """Cells to measure, in order, and cells that do not fit.

    Attributes:
        groups: cells that belong together; the first cell of each group has one rank.
        references: one-rank cells, measured once, for global batches that no first cell of a group has.
        skipped: cells that do not fit, with the reason.
    """

    groups: list[list[StudyCell]]
    references: list[StudyCell]
    skipped: list[tuple[StudyCell, str]]

    def measurements(self, repeats: int) -> Iterator[tuple[StudyCell, int]]:
        """Yield every cell and repeat in measuring order."""
        for repeat in range(repeats):
            for group in self.groups:
                if repeat == 0:
                    yield from ((cell, 0) for cell in self.references if cell.work[:-1] == group[0].work[:-1])
                yield from ((cell, repeat) for cell in group)


def grid_of(config: ScalingStudyConfig, resources: Resources) -> StudyGrid:
    """Return the grid of a study for the given resources."""
    groups: list[list[StudyCell]] = []
    skipped: list[tuple[StudyCell, str]] = []
    kinds = itertools.product(config.stages, config.databases, config.windows, config.precisions, config.scalings)
    for stage, database, window, precision, scaling in kinds:
        group: dict[StudyCell, None] = {}
        one = StudyCell(stage, database, window, precision=precision, scaling=scaling, accumulation=config.accumulation)
        for cell in _layouts(config, one):
            if reason := _unfit(cell, resources):
                skipped.append((cell, reason))
                continue
            group |= dict.fromkeys((cell.base, cell))
            copies = cell.ranks if config.slurm is None and cell.nodes == 1 else 1
            if config.ceiling and copies > 1:
                group[cell.ceiling] = None
            if config.prediction:
                part = replace(cell.base, global_batch=cell.global_batch // cell.ranks)
                group |= dict.fromkeys((part, replace(part, copies=copies)))
        if group:
            groups.append(list(group))
    cells = [cell for group in groups for cell in group]
    alone = {cell.work for cell in cells if cell.ranks == cell.copies == 1}
    references = {
        replace(cell.base, global_batch=cell.global_batch, accumulation=cell.ranks * cell.accumulation): None
        for cell in cells
        if cell.work not in alone
    }
    return StudyGrid(groups, list(references), skipped)


def _layouts(config: ScalingStudyConfig, one: StudyCell) -> Iterable[StudyCell]:
    """Yield the unique cells of a group; bucket sizes apply neither to one rank nor to sharded ranks."""
    together = math.lcm(*config.ranks) * config.accumulation if one.scaling == "strong" else config.accumulation
    windows = max(1, round(config.batch_tokens / one.window / together)) * together
    cells: dict[StudyCell, None] = {}
    for cpus, nodes, ranks, parallel, cap in itertools.product(
        config.cpus_per_task, config.nodes, config.ranks, config.parallels, config.buckets_mb
    ):
        batch = windows if one.scaling == "strong" else windows * ranks
        if ranks == 1:
            parallel = "ddp"
        cap = cap if ranks > 1 and parallel == "ddp" else StudyCell.bucket_cap_mb
        cell = replace(one, cpus_per_task=cpus, nodes=nodes, ranks=ranks, parallel=parallel)
        cells[replace(cell, bucket_cap_mb=cap, global_batch=batch)] = None
    return cells


def _unfit(cell: StudyCell, resources: Resources) -> str | None:
    """Return the reason why a cell cannot be measured here, or None."""
    per_node = -(-cell.ranks // cell.nodes)
    if cell.ranks % cell.nodes:
        return f"{cell.ranks} ranks do not divide among {cell.nodes} nodes"
    if cell.nodes > resources.num_nodes:
        return f"{cell.nodes} nodes asked for, {resources.num_nodes} here"
    if per_node * cell.cpus_per_task > resources.num_cores:
        return f"{per_node} ranks of {cell.cpus_per_task} CPUs on a node of {resources.num_cores}"
    if resources.num_devices is not None and per_node > resources.num_devices:
        return f"{per_node} ranks on a node of {resources.num_devices} GPUs"
    return None
