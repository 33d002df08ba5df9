"""The monitor as a service that clients cannot take down: connections of the page, streams, requests, folders.

The page is that of a real process, with real sockets and TLS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.errors import HeartlmError
from heartlm.monitor.engine import Monitor
from heartlm.monitor.journal import MessageJournal
from heartlm.monitor.models import LiveModels
from heartlm.monitor.server import Page, _View
from heartlm.monitor.state import packed, unpacked
from heartlm.monitor.stream import Ward
from heartlm.monitor.webhook import Webhook
from heartlm.system.printable import printable

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
        assert len(list(Path(f"/proc/{it.process.pid}/fd").iterdir())) < descriptors // 2 + 20
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
                with it.connect() as connection, suppress(OSError):  # ENOTCONN is no ConnectionError
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
        # it is shown for longer than the time between two searches for idle connections, which also end problems
        assert all(json.loads(viewers[0].recv())["connections"] == shown for _ in range(8))
        viewers[1].close()

        def is_let_in() -> bool:
            with suppress(InvalidStatus), connect(address, origin=origin):  # type: ignore[arg-type]
                return True
            return False

        wait_for(is_let_in)
        assert it.end() == 0


def frame(name: str, second: int = 0, samples: int = 250, rate_hz: int = 250) -> bytes:
    mv = [0.1 * (sample % 7) for sample in range(samples)]
    return json.dumps({"stream": name, "rate_hz": rate_hz, "start": second * rate_hz, "mv": mv}).encode()


def test_streams_of_one_frame_make_room_and_keep_little(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of names stops no stream that sends, and no new one for longer than a name takes to be silent."""
    now, lines = [100.0], list[str]()
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    monitor = Monitor(Ward(models), tmp_path, lines.append, max_streams=50)
    monitor.clock = lambda: now[0]
    for second in range(20):
        monitor.receive(frame("bed", second))
        for number in range(30):
            monitor.receive(frame(f"x{second}-{number}", samples=10))
        monitor.run()
        now[0] += 1
    assert monitor.patients["bed"].num_samples == 20 * 250 and len(monitor.patients) <= 50
    assert monitor.num_refused + monitor.num_forgotten + len(monitor.patients) == 601 and monitor.num_forgotten >= 49
    assert lines == [
        "50 streams are watched, the most (--max-streams): silent ones that sent less than a second make room, "
        "others are refused"
    ]
    assert {entry["stream"] for entry in monitor.open_alarms()} <= set(monitor.patients)
    monitor.save()
    (snapshot,) = (tmp_path / "journal").glob("snapshot-*.state")
    names = set(monitor.patients)
    without = len(packed(monitor.state(names - {"bed"})))
    assert without < 50 * 4_000 and snapshot.stat().st_size < without + 600_000  # that of one with leads is 0.4 MB
    monitor.receive(frame("later", samples=10))
    now[0] += 6
    monitor.receive(frame("last", samples=10))
    names = set(monitor.patients)
    assert monitor.journal is not None
    monitor.journal.flush()  # and then it is killed
    again = Monitor(Ward(models), tmp_path, lines.append, max_streams=50)
    assert set(again.patients) == names and "last" in names
    again.close()


def test_a_stream_that_is_silent_for_hours_is_forgotten(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lines = [100.0], list[str]()
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    monitor = Monitor(Ward(models), tmp_path, lines.append, forget_h=2)
    monitor.clock = lambda: now[0]
    for name in ("gone", "bed"):
        monitor.receive(frame(name))
    now[0] += 7190
    monitor.receive(frame("bed", 1))
    monitor.run()
    assert set(monitor.patients) == {"gone", "bed"}
    assert [entry["stream"] for entry in monitor.open_alarms()] == ["gone"]
    now[0] += 11
    monitor.receive(frame("bed", 2))
    monitor.run()
    assert set(monitor.patients) == {"bed"} == set(monitor.ward.streams) and not monitor.open_alarms()
    assert lines == ["gone: no message for 2 h: forgotten"]
    assert Page(monitor)._update(_View())["forgotten"] == 1
    monitor.receive(frame("gone"))  # it may come back
    assert "gone" in monitor.patients
    monitor.close()


def test_a_damaged_snapshot_is_replaced_by_the_one_before(tmp_path: Path, models: LiveModels) -> None:
    """Cut anywhere, also between two streams, or with a damaged length."""
    monitor = Monitor(Ward(models), tmp_path)
    for second in range(3):
        for name in "ab":
            monitor.receive(frame(name, second))
        monitor.run()
        monitor.save()
    last = sorted((tmp_path / "journal").glob("snapshot-*.state"))[-1]
    content = last.read_bytes()
    monitor.journal = None  # it is killed
    first_end = 17 + 8 + int.from_bytes(content[17:25], "little")
    huge = content[:17] + b"\xff" * 8 + content[25:]
    for damaged in (content[:-8], content[:first_end], content[:5], b"", huge, content[:-99] + b"x" + content[-98:]):
        last.write_bytes(damaged)
        pieces, messages = MessageJournal(tmp_path / "journal").recover()
        assert [next(iter(piece)) for piece in pieces] == ["a", "b"] and len(list(messages)) == 2
    last.write_bytes(content)
    pieces, messages = MessageJournal(tmp_path / "journal").recover()
    assert len(list(pieces)) == 2 and not list(messages)


def test_a_snapshot_is_written_stream_by_stream(tmp_path: Path, models: LiveModels) -> None:
    """The memory that it needs does not grow with the number of streams."""
    import tracemalloc

    monitor, peaks = Monitor(Ward(models), tmp_path), list[int]()
    for num in (4, 20):
        for number in range(num):
            monitor.receive(frame(f"{num}-{number}"))
        monitor.run()
        tracemalloc.start()
        monitor.save()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
    monitor.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["a"].pop("link"),
        lambda state: state["a"]["stream"].pop("rules"),
        lambda state: state.update(a={"x": 1}),
        lambda state: state.update(a=3),
        lambda state: state["a"]["stream"].update(num_seconds="x"),
        lambda state: state["a"]["link"].update(next="x"),
        lambda state: state["a"]["stream"]["leads"][0].update(memory=np.zeros(3, np.uint8)),
        lambda state: state["a"]["trend"].update(last=None),
        lambda state: state["a"].update(without_strip=[{"x": 1}]),
    ],
)
def test_other_fields_in_a_valid_snapshot_are_one_line(
    change: Callable[[dict[str, Any]], Any], tmp_path: Path, models: LiveModels
) -> None:
    monitor = Monitor(Ward(models))
    monitor.receive(frame("a"))
    monitor.run()
    state = unpacked(packed(monitor.state(["a"])))
    change(state)
    MessageJournal(tmp_path / "journal").snapshot([state])
    with pytest.raises(HeartlmError, match=r"state of .*: choose another --out") as error:
        Monitor(Ward(models), tmp_path)
    assert "\n" not in str(error.value)


ALARM = {
    "key": "a/VF/1",
    "stream": "a",
    "kind": "VF",
    "severity": "lethal",
    "start_s": 1,
    "raised_s": 1,
    "stop_s": None,
}
ALARM |= {"confidence": 1, "time": "2026", "strip": None, "acknowledged": None}
WRONG = [{"kind": "VX"}, {"start_s": "1"}, {"stop_s": "x"}, {"strip": "../x"}, {"acknowledged": 1}, {"key": None}]


@pytest.mark.parametrize(
    "line", ['{"key":"x"}', "[]", "3", '{"key": "x"', "null", *(json.dumps(ALARM | each) for each in WRONG)]
)
def test_what_is_no_alarm_in_the_log_is_left_out(line: str, tmp_path: Path, models: LiveModels) -> None:
    lines = list[str]()
    (tmp_path / "alarms.jsonl").write_text(line + "\n")
    monitor = Monitor(Ward(models), tmp_path, lines.append)
    assert not monitor.alarms and lines == [f"{tmp_path / 'alarms.jsonl'}: 1 line without an alarm left out"]
    monitor.receive(frame("a"))
    monitor.run()
    assert Page(monitor)._update(_View())["streams"]
    monitor.close()


def test_two_rates_under_one_id_and_many_sources_fill_no_log(models: LiveModels) -> None:
    lines = list[str]()
    monitor = Monitor(Ward(models), log=lines.append)
    for second in range(20):
        monitor.receive(frame("bed", second, rate_hz=250))
        monitor.receive(frame("bed", second, rate_hz=500))
        monitor.run()
    assert len(lines) == 5 and all("leads: changed from" in line for line in lines)
    assert Page(monitor)._update(_View())["streams"][0]["counts"]["new formats"] == 39
    for number in range(3000):
        monitor.receive(b"nonsense", f"MQTT {number}")
    assert len(monitor.faults) <= 1001 and sum(monitor.faults.values()) == 3000 and len(lines) < 1020


class Answering:
    """A web server of one connection at a time, whose answers are bytes with pauses."""

    def __init__(self, pieces: Iterator[bytes], pause_s: float = 0.0) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port, self.sent = self.listening.getsockname()[1], 0
        self.requests, self._pieces, self._pause_s = list[bytes](), pieces, pause_s
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self.listening.accept()
                with connection, suppress(OSError):
                    self.requests.append(connection.recv(1 << 16))
                    for piece in self._pieces:
                        connection.sendall(piece)
                        self.sent += len(piece)
                        time.sleep(self._pause_s)


def answer_of(pieces: Iterator[bytes], pause_s: float = 0.0) -> tuple[Answering, str | None, int | None]:
    """Return what a webhook makes of an answer."""
    server = Answering(pieces, pause_s)
    lines = list[str]()
    hook = Webhook(f"http://127.0.0.1:{server.port}/ecg?a=b", Monitor(Ward(None), log=lines.append))  # type: ignore[arg-type]
    problem, status = asyncio.run(asyncio.wait_for(hook._request("POST", "{}"), TIMEOUT_S))
    server.listening.close()
    return server, problem, status


def test_an_answer_of_single_bytes_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heartlm.monitor.webhook._ANSWER_S", 0.5)
    for begin in (b"", b"HTTP/1.1 200 OK\r\nX: "):
        pieces = itertools.chain([begin] if begin else [], itertools.repeat(b"H"))
        assert answer_of(pieces, 0.05)[1:] == ("no answer", None)


def test_little_of_an_answer_is_read() -> None:
    server, problem, status = answer_of(itertools.repeat(b"HTTP/1.1 200 OK\r\n" * 4096))
    assert (problem, status) == ("a header of more than 8,192 bytes", None) and server.sent < 20 << 20
    endless = itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * (1 << 20)))
    server, problem, status = answer_of(endless)
    assert (problem, status) == (None, 200) and server.sent < 20 << 20


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 503 \x1b[2Jno\x07\x9b way\r\n\r\n", (r"HTTP 503 \x1b[2Jno\x07\x9b way", 503)),
        (b"HTTP/1.1 204\r\n\r\n", (None, 204)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\na: b\r\n\r\n", (None, 200)),
        (b"SSH-2.0\r\n\r\n", ("the answer is no HTTP", None)),
        (b"", ("connection closed without an answer", None)),
    ],
)
def test_the_reason_of_a_webhook_is_printable(answer: bytes, expected: tuple[str | None, int | None]) -> None:
    server, *found = answer_of(iter([answer]))
    assert tuple(found) == expected
    assert server.requests[0].startswith(b"POST /ecg?a=b HTTP/1.1\r\n") and server.requests[0].endswith(b"\r\n\r\n{}")


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Answering(iter([b"HTTP/1.1 204 No Content\r\n\r\n", b""]))
    monkeypatch.setenv("http_proxy", f"http://u:p@127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    hook = Webhook("http://alarms.invalid/ecg", Monitor(Ward(None), log=lambda _: None))  # type: ignore[arg-type]
    assert asyncio.run(hook._request("POST", "{}")) == (None, 204)
    assert proxy.requests[0].startswith(b"POST http://alarms.invalid:80/ecg HTTP/1.1\r\nHost: alarms.invalid\r\n")
    assert b"\r\nProxy-Authorization: Basic dTpw\r\n" in proxy.requests[0]


def test_foreign_text_does_not_control_the_terminal(tmp_path: Path) -> None:
    """In what is printed, in log lines of libraries, in tracebacks and in one-line errors, which stay one line."""
    program = """if True:
        import logging, sys
        import heartlm.cli.main as cli
        from heartlm.errors import HeartlmError
        from heartlm.system.progress import say
        name = "a\\x1b[2J\\x9b1m\\u202eb\\ud800"
        def run(arguments):
            print(name)
            logging.warning(name)
            say(name + "\\nheartlm: forged")
            if arguments == ["defect"]:
                raise ValueError(name)
            raise HeartlmError(name + "\\nheartlm: forged")
        import heartlm.cli.demo
        heartlm.cli.demo.run = run
        cli.run_process()
    """
    for arguments, status in (["demo", "user"], 2), (["demo", "defect"], 1):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=False)
        text = (done.stdout + done.stderr).decode()
        assert done.returncode == status, text
        assert all(line.isprintable() for line in text.splitlines())
        assert text.count(r"a\x1b[2J\x9b1m\u202eb\ud800") >= 4 and "\nheartlm: forged" not in text


def test_a_printable_text_is_unchanged() -> None:
    assert printable("Ärztin 心電圖 µV") == "Ärztin 心電圖 µV" and printable("44\u202f259") == "44\u202f259"
    assert printable("a\nb\u2028\x85") == r"a\nb\u2028\x85" and printable("a\tb\x00", kept="\t") == "a\tb\\x00"
