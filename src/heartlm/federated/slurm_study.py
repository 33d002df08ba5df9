"""One federated study as a job of SLURM: the batch script of every other training, with `heartlm federate` in it."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heartlm.cluster.profile import SiteProfile, load_profile
from heartlm.cluster.script import body, header, text_of
from heartlm.cluster.submit import follow, submit
from heartlm.cluster.topology import Topology
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class SlurmLauncher:
    """Runs studies through SLURM, one after the other: side by side they would share links.

    Attributes:
        profile: of the site.
        nodes: of a job, where the ranks divide among them; else 1.
        cpus_per_rank: of a job.
        timeout_s: time limit of a job.
        on_gpus: every rank wants a GPU.
        say: told of every change of a job.
    """

    profile: SiteProfile
    nodes: int
    cpus_per_rank: int
    timeout_s: float
    on_gpus: bool
    say: Callable[[str], object] = lambda line: None

    @classmethod
    def of(cls, profile: str, nodes: int, cpus_per_rank: int, timeout_s: float, on_gpus: bool) -> SlurmLauncher:
        """With the site profile of that name, or file.

        Raises:
            HeartlmError: there is none, it is incomplete, or of a site without SLURM.
        """
        site = load_profile(profile)
        site.check()
        if site.scheduler != "slurm" or shutil.which("sbatch") is None:
            raise HeartlmError(f"slurm: {profile} found, but no SLURM is here: leave it out to run on this machine")
        return cls(site, nodes, cpus_per_rank, timeout_s, on_gpus)

    def run(self, config: Path, world_size: int, log: Path) -> str | None:
        """Run the study of the file `config` on so many ranks; return why that failed, if it did."""
        script = log.with_suffix(".sh")
        script.write_text(self.script(config, world_size, log.parent), encoding="utf-8")
        state = follow(submit(script), self.say)
        if state.state == "COMPLETED":
            return None
        return f"{state.words} with status {state.status}: {state.last_line()}"

    def script(self, config: Path, world_size: int, logs: Path) -> str:
        """The batch script of a study."""
        nodes = self.nodes if world_size % self.nodes == 0 else 1
        per_node = world_size // nodes
        gpus = per_node if self.on_gpus else 0
        shape = Topology(nodes, gpus, per_node, per_node * self.cpus_per_rank, math.ceil(self.timeout_s))
        python = "python" if self.profile.container != "none" else sys.executable
        output = logs / f"{config.stem}-%j.out"
        lines = ["#!/bin/bash -l" if self.profile.modules else "#!/bin/bash"]
        lines += [f"# heartlm federate on {shape.words}, profile {self.profile.name}."]
        lines += header(shape, self.profile, name="federate", output=output, stops=False)
        what = ["# What to run.", f"command=(federate {shlex.quote(str(config.resolve()))} --communicator=torch)"]
        if world_size == 1:
            what = [what[0], f"command=(federate {shlex.quote(str(config.resolve()))} --communicator=local)"]
        return text_of([*lines, "", *body(what, shape, self.profile, python=python, ranks=world_size > 1)])
