"""The monitor as a service that clients cannot take down: connections of the page, streams, requests, folders.

The page is that of a real process, with real sockets and TLS.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 60.0
TOKEN = "0123456789abcdef"


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {TIMEOUT_S:g} s")


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two simulated recordings."""
    folder = tmp_path_factory.mktemp("ward") / "ward"
    simulate = ["data", "simulate", str(folder), "--patients", "2", "--minutes", "0.5", "--seed", "5"]
    subprocess.run([sys.executable, "-m", "heartlm", *simulate], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key."""
    pytest.importorskip("cryptography")
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=localhost")
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    folder = tmp_path_factory.mktemp("tls")
    (folder / "page.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "page.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    (folder / "token").write_text(TOKEN)
    return folder / "page.pem", folder / "page.key"


class Service:
    """A running `heartlm monitor` with its page.

    Attributes:
        process: the process.
        port: port of the page.
        log: file of its standard error.
    """

    def __init__(self, arguments: list[str], folder: Path, descriptors: int | None = None) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", "heartlm", "monitor", "--port", "0", "--print-alarms", "none", *arguments]
        limit = (descriptors, descriptors) if descriptors else resource.getrlimit(resource.RLIMIT_NOFILE)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stderr=log, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            )
        address = wait_for(lambda: [line for line in self.lines() if line.startswith("page: ")] or self._ended())[0]
        self.port = int(address.rstrip("/").rpartition(":")[2])

    def _ended(self) -> None:
        assert self.process.poll() is None, self.log.read_text()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def get(self, path: str, context: ssl.SSLContext | None = None, headers: str = "") -> bytes:
        """Return the answer to a request."""
        with ExitStack() as stack:
            connection = stack.enter_context(self.connect())
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
            request = f"GET {path} HTTP/1.1\r\nHost: localhost:{self.port}\r\nConnection: close\r\n{headers}\r\n"
            connection.sendall(request.encode())
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def service(*arguments: Any, **options: Any) -> Iterator[Service]:
    running = Service([str(each) for each in arguments], **options)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@contextmanager
def more_descriptors(number: int) -> Iterator[None]:
    """Let this process open some more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        pytest.skip(f"at most {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("descriptors", "connections", "tls"),
    [
        (200, 300, True),
        pytest.param(200, 300, False, marks=pytest.mark.slow),
        pytest.param(1024, 1100, True, marks=pytest.mark.slow),
        pytest.param(1024, 1100, False, marks=pytest.mark.slow),
    ],
)
def test_idle_connections_stop_neither_page_nor_journal(
    descriptors: int, connections: int, tls: bool, ward: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """More of them than the monitor may open files."""
    (tmp_path / "rules.yaml").write_text(
        "tachycardia_bpm: 20\ntachycardia_beats: 3\n"
    )  # an alarm, and a strip, of each
    arguments = ["--replay", ward, "--speed", "8", "--out", tmp_path / "out", "--rules", tmp_path / "rules.yaml"]
    context, path = None, "/"
    if tls:
        files = ["--tls-certificate", certificate[0], "--tls-key", certificate[1]]
        arguments += [*files, "--token", certificate[0].with_name("token")]
        context, path = ssl.create_default_context(cafile=str(certificate[0])), f"/?token={TOKEN}"
    with (
        more_descriptors(2000),
        ExitStack() as stack,
        service(*arguments, folder=tmp_path, descriptors=descriptors) as it,
    ):
        for _ in range(connections):
            stack.enter_context(it.connect())
        journal = tmp_path / "out" / "journal" / "messages-000000.log"
        size = journal.stat().st_size
        for _ in range(3):  # they are still open as far as their client knows
            assert it.get(path, context).startswith(b"HTTP/1.1 200")
        wait_for(lambda: journal.stat().st_size > size + 10_000)
        assert len(os.listdir(f"/proc/{it.process.pid}/fd")) < descriptors // 2 + 20
        strips = tmp_path / "out" / "strips"
        wait_for(lambda: len(list(strips.glob("*.hea"))) >= 2)
        assert it.end() == 0
        lines = [line for line in it.lines() if not line.startswith("page: ")]
        assert len(lines) == 1 and "connections send no request: the oldest are closed" in lines[0]


def test_requests_that_never_end_or_are_none_are_closed_without_a_line(ward: Path, tmp_path: Path) -> None:
    """One comes byte by byte; a WebSocket that the page shows stays open."""
    with service("--replay", ward, folder=tmp_path) as it, it.connect() as slow, it.connect() as viewer:
        upgrade = ["GET /live HTTP/1.1", f"Host: localhost:{it.port}", f"Origin: http://localhost:{it.port}"]
        upgrade += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        upgrade += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "\r\n"]
        viewer.sendall("\r\n".join(upgrade).encode())
        assert viewer.recv(1 << 16).startswith(b"HTTP/1.1 101")
        slow.sendall(b"GET / HTTP/1.1\r\n")
        for no_request in (b"\xff" * 300, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 30_000, b"\x16\x03\x01"):
            for _ in range(10):
                with it.connect() as connection, suppress(ConnectionError):
                    connection.sendall(no_request)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1 << 16)
        slow.settimeout(0.2)
        received: bytes | None = None
        end = time.monotonic() + TIMEOUT_S
        with suppress(ConnectionError):
            while received is None and time.monotonic() < end:
                slow.sendall(b"X")
                with suppress(TimeoutError):
                    received = slow.recv(100)
            assert received == b""
        for _ in range(3):
            assert viewer.recv(1 << 20)
        assert it.get("/").startswith(b"HTTP/1.1 200") and it.end() == 0
        assert len(it.lines()) == 1


def test_pages_beyond_the_limit_are_refused_and_reported(ward: Path, tmp_path: Path) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with service("--replay", ward, folder=tmp_path, descriptors=128) as it, ExitStack() as stack:
        address, origin = f"ws://localhost:{it.port}/live", f"http://localhost:{it.port}"
        viewers = [stack.enter_context(connect(address, origin=origin)) for _ in range(16)]  # type: ignore[arg-type]
        with pytest.raises(InvalidStatus), connect(address, origin=origin):  # type: ignore[arg-type]
            pass
        shown = wait_for(lambda: json.loads(viewers[0].recv())["connections"])
        assert shown[0]["problem"] == "16 pages are open: no further one is shown"
        viewers[1].close()

        def is_let_in() -> bool:
            with suppress(InvalidStatus), connect(address, origin=origin):  # type: ignore[arg-type]
                return True
            return False

        wait_for(is_let_in)
        assert it.end() == 0
