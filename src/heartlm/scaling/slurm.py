"""Trainings of a study as jobs of SLURM: one script a training, queued, waited for, and read from its run folder.

Trainings wait for each other here, too: side by side on one cluster they would share links and disks.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cluster.profile import SiteProfile, load_profile
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.script import render
from heartlm.cluster.submit import follow, submit
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError
from heartlm.scaling.cell import StudyCell
from heartlm.scaling.grid import Resources

ANY = 1 << 20
"""What SLURM has is for SLURM to say: it refuses what it cannot give."""


@dataclass(frozen=True)
class SlurmTrainer:
    """Trains cells through SLURM, one after the other.

    Attributes:
        profile: of the site.
        device: cpu or cuda.
        timeout_s: time limit of a job.
        place: whatever the cluster has.
    """

    profile: SiteProfile
    device: str
    timeout_s: float
    place: Resources

    @classmethod
    def of(cls, profile: str, device: str, timeout_s: float) -> SlurmTrainer:
        """With the site profile of that name, or file.

        Raises:
            HeartlmError: there is none, it is incomplete, or of a site without SLURM.
        """
        site = load_profile(profile)
        site.check()
        if site.scheduler != "slurm":
            raise HeartlmError(f"slurm: {profile} is a site without SLURM: leave it out to measure on this machine")
        if shutil.which("sbatch") is None:
            raise HeartlmError("slurm: no sbatch found, so no SLURM here: leave it out to measure on this machine")
        return cls(site, device, timeout_s, Resources(ANY, None if device == "cpu" else ANY, ANY))

    def train(self, cell: StudyCell, fields: Sequence[Mapping[str, Any]], logs: Path) -> tuple[str | None, float]:
        """Train as `fields` say; return why that failed, if it did, and how many seconds the job ran."""
        (settings,) = fields  # a cluster gives no two jobs the same moment, so there are no copies
        logs.mkdir(parents=True, exist_ok=True)
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        python = "python" if self.profile.container != "none" else sys.executable
        script = logs / "job.sh"
        text = render(
            RunFile(cell.stage, plain), self._topology(cell), self.profile, name="study", logs=logs, python=python
        )
        script.write_text(text, encoding="utf-8")
        state = follow(submit(script), lambda line: None)
        reason = (
            None if state.state == "COMPLETED" else f"{state.words} with status {state.status}: {state.last_line()}"
        )
        return reason, state.run_s

    def probe(self, cell: StudyCell) -> float | None:
        """Unknown: the cell is trained elsewhere."""
        return None

    def _topology(self, cell: StudyCell) -> Topology:
        per_node = cell.ranks // cell.nodes
        gpus = per_node if self.device == "cuda" else 0
        return Topology(cell.nodes, gpus, per_node, per_node * cell.cpus_per_task, math.ceil(self.timeout_s))
