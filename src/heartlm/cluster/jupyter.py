"""JupyterLab on a node of a cluster, reached through a tunnel: docs/jupyterlab.md tells the whole way."""

from __future__ import annotations

from pathlib import Path

from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.script import body, header, text_of
from heartlm.cluster.topology import Topology


def notebook_script(
    topology: Topology, profile: SiteProfile, name: str, logs: Path, port: int, python: str = "python"
) -> str:
    """A script that serves JupyterLab on one node until the time is up; what it prints has the address and token."""
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash"]
    lines.append(f"# JupyterLab on {topology.words}, profile {profile.name}.")
    here = profile.scheduler == "none"
    if not here:
        lines += header(topology, profile, name=name, output=logs / f"{name}-%j.out", stops=False)
    what = [
        "# What to run; the token in the address it prints keeps others out.",
        *([] if here else ["chmod go= /dev/stdout || true # the job's output, whatever the umask"]),
        "command=(",
        "    --no-browser",
        *(["    --ip=localhost"] if here else ['    "--ip=$(hostname)"']),
        f"    --port={port}",
        "    --port-retries=0",
        ")",
        *([] if here else [f'echo "JupyterLab will be at $(hostname):{port}"']),
    ]
    return text_of([*lines, "", *body(what, topology, profile, python=python, module="jupyterlab", ranks=False)])


def tunnel(port: int, profile: SiteProfile, here: bool) -> str:
    """The command that brings JupyterLab's port to one's own machine, and what to open then."""
    if here:
        return f"open the address with the token that JupyterLab printed: http://localhost:{port}/lab?token=…"
    login = profile.login or "USER@LOGIN-NODE"
    return (
        f"on your own machine, with NODE as the job's output names it:\n"
        f"    ssh -N -L {port}:NODE:{port} {login}\n"
        f"then open the address with the token in the job's output, with localhost instead of the node"
    )
