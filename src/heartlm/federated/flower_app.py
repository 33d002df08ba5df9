"""A federated study as a Flower app: on this machine, or on a SuperLink that others run.

    this process ─ flwr run ─► SuperLink ─┬─ SuperNode 0 ─► client app
                                   │      └─ SuperNode 1 ─► client app
                               server app ─► folder of the study

SuperLink, SuperNodes and apps are processes of their own. On this machine they talk over the loopback device, which
other machines cannot reach; Flower sends no usage data and looks for no updates.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from heartlm.distributed.spawn import Processes, free_ports, last_line
from heartlm.errors import HeartlmError, needs
from heartlm.federated.study_file import FederatedConfig
from heartlm.files import read_json

START_WITHIN_S = 60.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
CONNECTION = "heartlm"
"""Name of the SuperLink of this machine in Flower's configuration."""

APP = """\
[project]
name = "heartlm-study"
version = "1.0.0"
description = "A federated study of heartlm"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "heartlm"

[tool.flwr.app.components]
serverapp = "heartlm.federated.flower_server:app"
clientapp = "heartlm.federated.flower_client:app"

[tool.flwr.app.config]
study = {study}
nodes = {nodes}
"""
"""All of the app: its code is the heartlm that is installed on every node."""


def run_with_flower(study: FederatedConfig) -> Path:
    """Run a study with Flower, on this machine unless it names a SuperLink; return its folder.

    Raises:
        HeartlmError: Flower is not installed, a setting is not for it, or the study failed; the logs are then kept.
    """
    with needs("flower"):
        importlib.metadata.version("flwr")  # importing it here would take a while
    study.check()
    if study.out is None:
        raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")
    if study.out.exists() and (study.out.is_file() or any(study.out.iterdir())):
        raise HeartlmError(f"out: {study.out} holds something already: choose another --out")
    work = Path(tempfile.mkdtemp(prefix="heartlm-flower-"))
    write_app(study, work / "app")
    if study.superlink is not None:
        _submit(study, work, study.superlink, dict(os.environ) | QUIET)
    else:
        with Processes(work / "logs") as running:
            _submit(study, work, CONNECTION, _federation(study, work, running))
    shutil.rmtree(work)
    return study.out


def write_app(study: FederatedConfig, folder: Path) -> None:
    """Write the Flower app of a study into `folder`."""
    folder.mkdir(parents=True)
    settings = {**study.to_yaml(), "engine": "flower"}
    text = APP.format(study=json.dumps(json.dumps(settings)), nodes=study.nodes)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def _federation(study: FederatedConfig, work: Path, running: Processes) -> dict[str, str]:
    """Start a SuperLink and its nodes on this machine; the environment of all that talk to it."""
    programs = Path(sys.executable).parent
    environment = dict(os.environ) | QUIET
    environment |= {"FLWR_HOME": str(work / "home"), "PATH": f"{programs}{os.pathsep}{environment.get('PATH', '')}"}
    port, *node_ports = free_ports(1 + study.nodes)
    (work / "home").mkdir(parents=True)
    address = f'address = "127.0.0.1:{port}"\ninsecure = true'
    (work / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\n{address}\n', encoding="utf-8"
    )
    link = ["--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    running.start("superlink", [programs / "flower-superlink", *link], environment)
    running.wait_for_port(port, START_WITHIN_S)
    for node, node_port in enumerate(node_ports):
        here = ["--insecure", "--host", "127.0.0.1", "--port", str(node_port), "--superlink", f"127.0.0.1:{port}"]
        running.start(f"supernode-{node}", [programs / "flower-supernode", *here], environment)
    return environment


def _submit(study: FederatedConfig, work: Path, connection: str, environment: dict[str, str]) -> None:
    """Run the app to its end, and see how that was."""
    program, log = Path(sys.executable).parent / "flwr", work / "run.log"
    ended = Path(f"{study.out}.flower.json")
    ended.unlink(missing_ok=True)
    with log.open("w", encoding="utf-8") as kept:
        command = [str(program), "run", str(work / "app"), connection, "--stream"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        assert run.stdout is not None
        with run:
            for line in run.stdout:
                kept.write(line)
                kept.flush()
                if line.startswith("round "):
                    print(line, end="", file=sys.stderr, flush=True)
    if not ended.exists():
        raise HeartlmError(
            f"the Flower app did not end well: {last_line(log) or 'it printed nothing'}  (all it said is in {work})"
        )
    error = read_json(ended)["error"]
    ended.unlink()
    if error is not None:
        raise HeartlmError(error)
