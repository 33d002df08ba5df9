"""Settings of the engine that does the work on recordings. This module imports little, so that `--help` is fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from heartlm.errors import HeartlmError, require
from heartlm.system.cores import usable_cpus

LIMIT_S = 3600.0
"""Default of the time that the work on one recording may take."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where the work on recordings is done; the results do not depend on it.

    Attributes:
        engine: processes of this machine; a Dask cluster; or MPI, for a command that was started by
            mpiexec -n N python -m mpi4py.futures PATH_OF_HEARTLM.
        scheduler: address of a Dask scheduler, such as tcp://node1:8786, or slurm:PROFILE, which starts the workers as
            SLURM jobs by a site profile; by default Dask workers on this machine.
        processes: number of recordings that are worked on in parallel; by default one per core, or all workers of the
            cluster.
        limit_s: time in seconds after which a worker is ended that is not done with a recording. The recording is tried
            once more, then left out.
    """

    engine: Literal["processes", "dask", "mpi"] = "processes"
    scheduler: str | None = None
    processes: int | None = None
    limit_s: float = LIMIT_S

    def check_engine(self) -> None:
        """Raise a HeartlmError that names the first invalid option."""
        require(self, lambda value: value >= 1, "at least 1", "processes")
        require(self, lambda value: value > 0, "more than 0", "limit_s")
        if self.engine not in ("processes", "dask", "mpi"):
            raise HeartlmError(f"engine: {self.engine!r} found, one of processes, dask, mpi expected")
        if self.scheduler is not None and self.engine != "dask":
            raise HeartlmError(f"scheduler: {self.scheduler} found, nothing expected: give it with --engine dask")

    def processes_for(self, num_items: int, usual: int | None = None) -> int:
        """Return the number of processes for `num_items`, at least 1: if none is given, `usual` or one per core."""
        return min(self.processes or usual or len(usable_cpus()), max(1, num_items))


@dataclass(frozen=True, kw_only=True)
class PartOptions(EngineOptions):
    """Where the work is done, of commands that can do a part of it.

    Attributes:
        part: do a part of the recordings, such as 3/64: the third of each 64. Each part is a command of its own, on any
            machine that shares the folders. The same command without --part then does what is left and joins the parts.
    """

    part: str | None = None

    def check_engine(self) -> None:
        """Raise a HeartlmError that names the first invalid option."""
        super().check_engine()
        _ = self.part_of

    @property
    def part_of(self) -> tuple[int, int]:
        """Index of the part, from 0, and number of parts.

        Raises:
            HeartlmError: `part` is not a part.
        """
        if self.part is None:
            return 0, 1
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.part)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise HeartlmError(f"part: {self.part!r} found, a part such as 3/64 expected, from 1/64 to 64/64")
        return int(match[1]) - 1, int(match[2])


ONE_PROCESS = PartOptions(processes=1)
"""All work is done in this process."""
