"""JupyterLab on a node of a cluster, reached through a tunnel; see docs/jupyterlab.md."""

from __future__ import annotations

from pathlib import Path

from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.script import batch_script
from heartlm.cluster.topology import Topology


def notebook_script(topology: Topology, profile: SiteProfile, name: str, logs: Path, port: int) -> str:
    """Return a script that serves JupyterLab on one node until the time limit; its output has the address and token."""
    return batch_script(
        fragment("jupyter", port=port),
        topology,
        profile,
        title="JupyterLab",
        name=name,
        logs=logs,
        module="jupyterlab",
        ranks=False,
        stops=False,
    )


def tunnel(port: int, profile: SiteProfile) -> str:
    """Return the command that forwards JupyterLab's port to the local machine, and the address to open."""
    login = profile.login or "USER@LOGIN-NODE"
    return (
        f"on your own machine, with NODE as the job's output names it:\n"
        f"    ssh -N -L {port}:NODE:{port} {login}\n"
        f"then open the address with the token in the job's output, with localhost instead of the node"
    )
