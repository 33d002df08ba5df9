"""Trainings of a study as jobs of SLURM: one script a training, queued, waited for, and read from its run folder.

Trainings wait for each other here, too: side by side on one cluster they would share links and disks.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.cluster.profile import load_slurm_profile
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.script import render
from heartlm.cluster.submit import run_job
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError
from heartlm.scaling.cell import StudyCell
from heartlm.scaling.grid import Resources

ANY = 1 << 20
"""SLURM itself refuses what it cannot give."""


class SlurmTrainer:
    """Trains cells through SLURM, one after the other.

    Args:
        profile: of the site, by name or file.
        device: cpu or cuda.
        timeout_s: time limit of a job.

    Raises:
        HeartlmError: the profile is none, incomplete, or of a site without SLURM; or SLURM is not here.

    Attributes:
        place: whatever the cluster has.
    """

    def __init__(self, profile: str, device: str, timeout_s: float) -> None:
        self.profile, self.device, self.timeout_s = load_slurm_profile(profile), device, timeout_s
        if shutil.which("sbatch") is None:
            raise HeartlmError("slurm: no sbatch found, so no SLURM here: leave it out to measure on this machine")
        self.place = Resources(ANY, None if device == "cpu" else ANY, ANY)

    def train(self, cell: StudyCell, fields: Sequence[Mapping[str, Any]], logs: Path) -> tuple[str | None, float]:
        """Train as `fields` say; return why that failed, if it did, and how many seconds the job ran."""
        (settings,) = fields  # a cluster gives no two jobs the same moment, so there are no copies
        logs.mkdir(parents=True, exist_ok=True)
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        per_node = cell.ranks // cell.nodes
        gpus = per_node if self.device == "cuda" else 0
        shape = Topology(cell.nodes, gpus, per_node, per_node * cell.cpus_per_task, math.ceil(self.timeout_s))
        text = render(
            RunFile(cell.stage, plain), shape, self.profile, name="study", logs=logs, python=self.profile.python
        )
        return run_job(logs / "job.sh", text)

    def probe(self, cell: StudyCell) -> float | None:
        """Unknown: the cell is trained elsewhere."""
        return None
