"""Which communicator a study gets."""

from __future__ import annotations

import os

from heartlm.errors import HeartlmError
from heartlm.federated.communicator import Communicator, LocalCommunicator
from heartlm.federated.study_file import StudyConfig

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""What mpiexec (Open MPI, MPICH) and srun --mpi=pmix set."""


def communicator_of(study: StudyConfig) -> Communicator:
    """Meet the other ranks as `study` says.

    Raises:
        HeartlmError: they cannot be met, or a package is missing.
    """
    kind = study.communicator if study.communicator != "auto" else _found()
    if kind == "local":
        return LocalCommunicator()
    raise HeartlmError(f"communicator: {kind!r} found")


def _found() -> str:
    if any(name in os.environ for name in MPI_VARIABLES):
        return "mpi"
    return "torch" if "WORLD_SIZE" in os.environ else "local"
