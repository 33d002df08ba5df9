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

from heartlm.errors import HeartlmError, needs
from heartlm.extensions.cluster.spawn import Processes, free_ports, last_line
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.reading import read_json

START_WITHIN_S = 60.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
APP = Path(__file__).with_name("flower")
"""The app of every study, without settings."""


def run_with_flower(study: FederatedConfig) -> Path:
    """Run a study with Flower, on this machine unless it names a SuperLink; return its folder.

    Raises:
        HeartlmError: Flower is not installed, a setting is not for it, or the study failed; the logs are then kept.
    """
    with needs("flower"):
        importlib.metadata.version("flwr")  # importing it here would take a while
    study.check()
    assert study.out is not None, "it was checked"
    if study.out.exists() and (study.out.is_file() or any(study.out.iterdir())):
        raise HeartlmError(f"out: {study.out} holds something already: choose another --out")
    work = Path(tempfile.mkdtemp(prefix="heartlm-flower-"))
    (work / "run.toml").write_text(run_config(study), encoding="utf-8")
    environment = dict(os.environ) | QUIET
    with Processes(work / "logs") as running:
        connection = study.superlink or _start_federation(study, work, running, environment)
        _submit(study.out, work, connection, environment)
    shutil.rmtree(work)
    return study.out


def run_config(study: FederatedConfig) -> str:
    """Return the settings of the app for a study, as TOML."""
    # Text in JSON is text in TOML, too: the inner call makes the text, the outer one quotes it.
    return f"study = {json.dumps(json.dumps(study.to_yaml()))}\nnodes = {study.nodes}\n"


def _start_federation(study: FederatedConfig, work: Path, running: Processes, environment: dict[str, str]) -> str:
    """Start a SuperLink and its nodes on this machine; add to the environment of all that talk to it.

    Returns:
        The name of the SuperLink in Flower's configuration.
    """
    programs, home = Path(sys.executable).parent, work / "home"
    environment |= {"FLWR_HOME": str(home), "PATH": f"{programs}{os.pathsep}{environment.get('PATH', '')}"}
    port, *node_ports = free_ports(1 + study.nodes)
    home.mkdir()
    link = f'[superlink]\ndefault = "heartlm"\n[superlink.heartlm]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(link, encoding="utf-8")
    address: list[str | Path] = ["--insecure", "--host", "127.0.0.1", "--port"]
    command = [programs / "flower-superlink", *address, str(port), "--disable-runtime-dependency-installation"]
    running.start("superlink", command, environment)
    running.wait_for_port(port, START_WITHIN_S)
    for node, node_port in enumerate(node_ports):
        command = [programs / "flower-supernode", *address, str(node_port), "--superlink", f"127.0.0.1:{port}"]
        running.start(f"supernode-{node}", command, environment)
    return "heartlm"


def _submit(out: Path, work: Path, connection: str, environment: dict[str, str]) -> None:
    """Run the app to its end, and see how that was."""
    program, log, ended = Path(sys.executable).parent / "flwr", work / "run.log", Path(f"{out}.flower.json")
    ended.unlink(missing_ok=True)
    command = [str(program), "run", str(APP), connection, "--stream", "--run-config", str(work / "run.toml")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    with log.open("w", encoding="utf-8") as kept, run:
        for line in run.stdout or []:
            kept.write(line)
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
