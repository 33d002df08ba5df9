"""Trainings of a study as SLURM jobs: one script per training is submitted, waited for, and read from its run folder.

Trainings run one after the other: concurrent ones on a cluster would share links and disks.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.profile import SiteOptions, load_site
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.script import render
from heartlm.extensions.cluster.submit import run_job
from heartlm.extensions.cluster.topology import Topology
from heartlm.extensions.scaling.cell import StudyCell
from heartlm.extensions.scaling.grid import Resources

ANY = 1 << 20
"""A limit that never applies; SLURM itself refuses requests that it cannot satisfy."""


class SlurmTrainer:
    """Trainer of cells through SLURM, one after the other.

    Args:
        profile: site profile: a name or a file.
        device: cpu or cuda.
        timeout_s: time limit of a job in seconds.

    Raises:
        HeartlmError: the profile is invalid or incomplete, or SLURM is not available here.

    Attributes:
        place: available resources: no limits.
    """

    def __init__(self, profile: str, device: str, timeout_s: float) -> None:
        self.profile, self.device, self.timeout_s = load_site(profile, SiteOptions()), device, timeout_s
        if shutil.which("sbatch") is None:
            raise HeartlmError("slurm: no sbatch found, so no SLURM here: leave it out to measure on this machine")
        self.place = Resources(ANY, None if device == "cpu" else ANY, ANY)

    def train(self, cell: StudyCell, fields: Sequence[Mapping[str, Any]], logs: Path) -> tuple[str | None, float]:
        """Train with the settings in `fields`; return the reason of a failure or None, and the run time in s."""
        (settings,) = fields  # a cluster does not start two jobs at the same moment, so there are no copies
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        return self.run(RunFile(cell.stage, plain), cell.ranks, cell.nodes, cell.cpus_per_task, logs)

    def run(self, run: RunFile, ranks: int, nodes: int, cpus_per_rank: int, logs: Path) -> tuple[str | None, float]:
        """Run a command on `ranks` ranks in all; return the reason of a failure or None, and the run time in s."""
        logs.mkdir(parents=True, exist_ok=True)
        per_node = ranks // nodes
        gpus = per_node if self.device == "cuda" else 0
        shape = Topology(nodes, gpus, per_node, per_node * cpus_per_rank, math.ceil(self.timeout_s))
        return run_job(logs / "job.sh", render(run, shape, self.profile, name="study", logs=logs))

    def probe(self, cell: StudyCell) -> float | None:
        """Return None: the speed is unknown because the cell is trained elsewhere."""
        return None
