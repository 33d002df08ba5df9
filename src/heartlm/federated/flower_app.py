"""A federated study as a Flower app: on this machine, or on a SuperLink that others run.

    this process ─ flwr run ─► SuperLink ─ TLS ─┬─ SuperNode 0 ─► client app
                                   │            └─ SuperNode 1 ─► client app
                               server app ─► folder of the study

SuperLink, SuperNodes and apps are processes of their own. On this machine they talk over the loopback device, with
a certificate made for the run; Flower sends no usage data and looks for no updates.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from heartlm.distributed.spawn import Processes, free_ports, last_line, processes
from heartlm.errors import HeartlmError, needs
from heartlm.federated.study_file import FederatedConfig
from heartlm.files import read_json

START_WITHIN_S = 60.0
CERTIFICATE_DAYS = 7
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
        with processes(work / "logs") as running:
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
    programs, (certificate, key) = Path(sys.executable).parent, make_certificate(work / "certificates")
    environment = dict(os.environ) | QUIET
    environment |= {"FLWR_HOME": str(work / "home"), "PATH": f"{programs}{os.pathsep}{environment.get('PATH', '')}"}
    port, *node_ports = free_ports(1 + study.nodes)
    lines = [
        f'[superlink]\ndefault = "{CONNECTION}"',
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"',
        f"root-certificates = {json.dumps(str(certificate))}",
    ]
    (work / "home").mkdir(parents=True)
    (work / "home" / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tls = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(certificate)]
    link = ["--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    running.start("superlink", [programs / "flower-superlink", *tls, *link], environment)
    running.wait_for_port(port, START_WITHIN_S)
    for node, node_port in enumerate(node_ports):
        link = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", str(certificate)]
        here = ["--host", "127.0.0.1", "--port", str(node_port), *tls]
        running.start(f"supernode-{node}", [programs / "flower-supernode", *link, *here], environment)
    return environment


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost and 127.0.0.1 into `folder`, and its private key, readable by its owner only.

    Returns:
        The PEM files of the certificate, which clients trust, and of the key.

    Raises:
        HeartlmError: the package cryptography is not installed.
    """
    with needs("flower"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    private_key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(private_key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private_key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return certificate, key


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
