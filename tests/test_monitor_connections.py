"""Connections of the monitor to real brokers and web servers: passwords, certificates, rights, later failures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Access, Connection, read_secret
from heartlm.monitor.engine import Monitor
from heartlm.monitor.models import LiveModels
from heartlm.monitor.mqtt import Mqtt
from heartlm.monitor.nats import Worker, subject_of
from heartlm.monitor.server import Page
from heartlm.monitor.stream import Ward
from heartlm.monitor.webhook import Webhook
from tests.brokers import Broker, free_port, program, working
from tests.conftest import Refused

mqtt = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
nats = pytest.importorskip("nats", reason="nats-py is not installed")

ROOT = Path(__file__).parent.parent
WAIT_S = 60.0
FRAME = b'{"rate_hz": 250, "start": 0, "mv": [0.1, 0.2]}'


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands of docs/monitor.md make: certificates, password, rights, configuration."""
    for name in ("mosquitto", "mosquitto_passwd", "openssl"):
        program(name)
    folder = tmp_path_factory.mktemp("certs")
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs/monitor.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (each for each in blocks if "mosquitto_passwd" in each)
    for pattern, replacement in [
        (r"^(apt-get|chown|systemctl) .*\n", ""),
        (r"/etc/mosquitto/(certs|conf\.d)", str(folder)),
        (r"rsa:3072", "rsa:2048"),
        (r"broker\.ward", "localhost"),
        (r"listener 8883", "listener PORT\nuser root"),  # else mosquitto cannot read a folder of root's tests
    ]:
        block, num_replaced = re.subn(pattern, replacement, block, flags=re.MULTILINE)
        assert num_replaced
    subprocess.run(["bash", "-e", "-c", block], check=True, capture_output=True)
    sender = "bed:secret of the bed\n"
    (folder / "bed").write_text(sender)
    subprocess.run([program("mosquitto_passwd"), "-U", folder / "bed"], check=True)
    with (folder / "passwords").open("a") as passwords, (folder / "rights").open("a") as rights:
        passwords.write((folder / "bed").read_text())
        rights.write("user bed\ntopic write heartlm/ecg/#\ntopic read heartlm/alarms/#\n")
    own = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=monitor"]
    issued = ["-extensions", "usr_cert", "-CA", "ca.pem", "-CAkey", "ca.key"]
    files = ["-keyout", "client.key", "-out", "client.pem"]
    subprocess.run(["openssl", *own, *issued, *files], cwd=folder, check=True, capture_output=True)
    other = ["-keyout", "other.key", "-out", "other.pem"]
    subprocess.run(["openssl", *own, *other], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def monitor(models: LiveModels, lines: list[str]) -> Monitor:
    return Monitor(Ward(models), log=lines.append)


@pytest.fixture
def broker(certs: Path) -> Iterator[Broker]:
    """Mosquitto with the configuration of docs/monitor.md."""
    with Broker("mosquitto", certs, (certs / "ward.conf").read_text()) as broker:
        yield broker


def password(folder: Path) -> str:
    return read_secret(folder / "monitor.password", "UNUSED") or ""


def let_in(folder: Path) -> Access:
    return Access("monitor", password(folder), ca=folder / "ca.pem")


def raise_alarm(monitor: Monitor, name: str) -> None:
    """Let a stream with a frame become silent, which is an alarm."""
    monitor.receive(FRAME, stream=name)
    monitor.check_silence(monitor.clock() + 60, [name])


async def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {WAIT_S:g} s"
        await asyncio.sleep(0.02)


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * WAIT_S))


class Bed:
    """A sender that also receives the alarms."""

    def __init__(self, folder: Path, port: int) -> None:
        self.alarms = list[dict[str, Any]]()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self.client.username_pw_set("bed", "secret of the bed")
        self.client.tls_set(str(folder / "ca.pem"))
        self.client.on_message = lambda _client, _data, message: self.alarms.append(json.loads(message.payload))
        self.client.on_connect = lambda client, *_: client.subscribe("heartlm/alarms/#", qos=1)
        subscribed = threading.Event()
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.reconnect_delay_set(1, 1)
        self.client.connect("localhost", port)
        self.client.loop_start()
        assert subscribed.wait(WAIT_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_streams_and_alarms_with_tls_and_a_password_as_documented(
    certs: Path, broker: Broker, monitor: Monitor
) -> None:
    bed = Bed(certs, broker.port)

    async def watch() -> None:
        link = Mqtt(f"localhost:{broker.port}", monitor, let_in(certs))
        await link.connect()
        bed.client.publish("heartlm/ecg/bed/7", FRAME, qos=1)
        await until(lambda: "bed/7" in monitor.patients)
        raise_alarm(monitor, "bed/7")
        await until(lambda: bed.alarms and link.connection.to_json()["waiting"] == 0)
        assert link.connection.to_json()["problem"] is None
        link.close()

    run(watch())
    bed.close()
    assert [(alarm["stream"], alarm["kind"]) for alarm in bed.alarms] == [("bed/7", "signal lost")]


REFUSED_BY_MQTT = {
    "wrong password": ("localhost:PORT", {"user": "monitor", "password": "x"}, "refused: Not authorized (--user, "),
    "no user": ("localhost:PORT", {}, "refused: Not authorized"),
    "unknown authority": ("mqtts://localhost:PORT", {"ca": None}, "its certificate is not trusted: .*--ca"),
    "other name": ("127.0.0.1:PORT", {}, "not trusted: IP address mismatch, certificate is not valid for '127.0.0.1'$"),
    "no TLS": ("mqtt://localhost:PORT", {"ca": None}, "does the broker expect TLS"),
    "no broker": ("localhost:FREE", {}, "no connection: Connection refused$"),
    "no host": ("nowhere.invalid", {}, "no connection: .* not known"),
}


@pytest.mark.parametrize("case", REFUSED_BY_MQTT)
def test_a_refused_mqtt_connection_is_an_error_of_one_line(
    case: str, certs: Path, broker: Broker, monitor: Monitor
) -> None:
    address, options, text = REFUSED_BY_MQTT[case]
    address = address.replace("PORT", str(broker.port)).replace("FREE", str(free_port()))
    with pytest.raises(HeartlmError, match=f"^mqtt [^\n]*{re.escape(text) if '(' in text else text}") as error:
        run(Mqtt(address, monitor, Access(**{"ca": certs / "ca.pem"} | options)).connect())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("certificate", "text"),
    [(None, "certificate required .--client-certificate"), ("other", "unknown ca|decrypt error"), ("client", None)],
)
def test_a_client_certificate_instead_of_a_password(
    certs: Path, tmp_path: Path, monitor: Monitor, certificate: str | None, text: str | None
) -> None:
    config = (certs / "ward.conf").read_text()
    mutual = f"cafile {certs}/ca.pem\nrequire_certificate true\nuse_identity_as_username true"
    assert mutual.replace(str(certs), "/etc/mosquitto/certs").splitlines() == [
        line.strip()
        for line in re.findall(
            r"^    ((?:cafile|require_|use_identity).*)$", (ROOT / "docs/monitor.md").read_text(), re.M
        )
    ]
    files = (None, None) if certificate is None else (certs / f"{certificate}.pem", certs / f"{certificate}.key")

    async def connect(port: int) -> None:
        link = Mqtt(f"localhost:{port}", monitor, Access(None, None, None, certs / "ca.pem", *files))
        await link.connect()
        link.close()

    with (
        Broker("mosquitto", tmp_path, re.sub("^password_file .*$", mutual, config, flags=re.MULTILINE)) as broker,
        pytest.raises(HeartlmError, match=text) if text else nullcontext(),
    ):
        run(connect(broker.port))


def test_an_mqtt_subscription_without_the_right_is_an_error(certs: Path, tmp_path: Path, monitor: Monitor) -> None:
    plugins = [*Path("/usr/lib").glob("**/mosquitto_dynamic_security.so")]
    if not plugins:
        pytest.skip("mosquitto has no plugin dynamic_security")
    salt = b"twelve bytes"
    digest = base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)).decode()
    client = {"username": "monitor", "password": digest, "salt": base64.b64encode(salt).decode(), "iterations": 101}
    may = dict.fromkeys(("publishClientSend", "publishClientReceive", "unsubscribe"), True) | {"subscribe": False}
    (tmp_path / "dynsec.json").write_text(json.dumps({"defaultACLAccess": may, "clients": [client]}))
    config = f"listener PORT\nuser root\nplugin {plugins[0]}\nplugin_opt_config_file {tmp_path}/dynsec.json\n"
    with (
        Broker("mosquitto", tmp_path, config) as broker,
        pytest.raises(HeartlmError, match="subscription to heartlm/ecg/# refused: "),
    ):
        run(Mqtt(f"localhost:{broker.port}", monitor, Access("monitor", "right")).connect())


def test_an_alarm_that_the_broker_refuses_is_a_problem(
    certs: Path, tmp_path: Path, monitor: Monitor, lines: list[str]
) -> None:
    rights = (certs / "rights").read_text().replace("topic write heartlm/alarms/#", "", 1)
    (tmp_path / "rights").write_text(rights)
    config = re.sub("acl_file .*", f"acl_file {tmp_path}/rights", (certs / "ward.conf").read_text())

    async def watch() -> None:
        link = Mqtt(f"localhost:{broker.port}", monitor, let_in(certs))
        await link.connect()
        raise_alarm(monitor, "bed")
        await until(lambda: link.connection.problem)
        state = link.connection.to_json()
        assert state["problem"] == "alarm refused: Not authorized (topic heartlm/alarms/NAME)"
        assert (state["errors"], state["waiting"]) == (1, 0)
        link.close()

    with Broker("mosquitto", tmp_path, config) as broker:
        run(watch())
    assert lines == [f"mqtt localhost:{broker.port}: alarm refused: Not authorized (topic heartlm/alarms/NAME)"]


@pytest.mark.slow
def test_a_broker_that_refuses_later_is_shown_until_it_lets_the_monitor_in_again(
    certs: Path, tmp_path: Path, broker: Broker, monitor: Monitor, lines: list[str]
) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    rest = (certs / "passwords").read_text().splitlines()
    other = f"monitor:x\n{rest[1]}\n".replace("monitor:x", rest[1].replace("bed:", "monitor:"))
    (tmp_path / "passwords").write_text(other)
    bed = Bed(certs, broker.port)

    async def watch() -> None:
        link = Mqtt(f"localhost:{broker.port}", monitor, let_in(certs))
        await link.connect()
        page = testclient.TestClient(Page(monitor, "0123456789abcdef", connections=[link.connection]).app)

        def shown() -> dict[str, Any]:
            with page.websocket_connect(
                "/live?token=0123456789abcdef", headers={"origin": "http://testserver"}
            ) as live:
                return json.loads(live.receive_text())["connections"][0]  # type: ignore[no-any-return]

        assert shown()["problem"] is None and shown()["name"] == f"mqtt localhost:{broker.port}"
        broker.stop()
        await until(lambda: link.connection.problem)
        raise_alarm(monitor, "bed")
        await until(lambda: "Connection refused" in (link.connection.problem or ""))
        assert shown()["waiting"] == 1 and shown()["since"].endswith("Z")
        config = broker.config.read_text()
        broker.write(re.sub("password_file .*", f"password_file {tmp_path}/passwords", config))
        broker.process = broker.start()
        await until(lambda: "Not authorized" in (link.connection.problem or ""))
        assert shown()["problem"] == "reconnecting: refused: Not authorized (--user, --password-file)"
        broker.stop()
        broker.write(config)
        broker.process = broker.start()
        await until(lambda: link.connection.problem is None)
        await until(lambda: shown()["waiting"] == 0)
        link.close()

    run(watch())
    bed.close()
    assert lines[-1] == f"mqtt localhost:{broker.port}: works again"
    problems = [line.partition(": ")[2] for line in lines]
    assert all(before != after for before, after in pairwise(problems))  # a line for each change, not for each attempt


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_without_mqtt_5_is_an_error(answer: bytes, monitor: Monitor) -> None:
    """An MQTT 3.1.1 broker refuses the version; a web server and one that closes the connection are none."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(100)
                client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        expected = "MQTT 5 is needed" if answer.startswith(b"\x20") else "connection closed"
        with pytest.raises(HeartlmError, match=expected):
            run(Mqtt(f"127.0.0.1:{server.getsockname()[1]}", monitor, Access()).connect())


NATS = """
listen: 127.0.0.1:PORT
jetstream { store_dir: FOLDER/store }
"""
LOGIN = 'authorization { users: [{ user: monitor, password: "right" PERMISSIONS }] }\n'
TLS = "tls { cert_file: CERTS/broker.pem, key_file: CERTS/broker.key, ca_file: CERTS/ca.pem VERIFY }\n"
RIGHT = {"user": "monitor", "password": "right"}
NATS_CASES = {
    "right": (LOGIN, "localhost:PORT", RIGHT, None),
    "wrong password": (LOGIN, "localhost:PORT", RIGHT | {"password": "x"}, "refused: Authorization Violation .--user"),
    "no user": (LOGIN, "localhost:PORT", {}, "refused: Authorization Violation"),
    "right with TLS": (LOGIN + TLS, "localhost:PORT", RIGHT | {"ca": "ca.pem"}, None),
    "unknown authority": (LOGIN + TLS, "tls://localhost:PORT", RIGHT, "certificate is not trusted: .*--ca"),
    "other name": (TLS, "127.0.0.1:PORT", {"ca": "ca.pem"}, "not trusted: IP address mismatch"),
    "TLS that the broker does not offer": (LOGIN, "tls://localhost:PORT", RIGHT, "does not use TLS at this port$"),
    "client certificate": (
        TLS.replace("VERIFY", ", verify: true"),
        "localhost:PORT",
        {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"},
        None,
    ),
    "no client certificate": (
        TLS.replace("VERIFY", ", verify: true"),
        "localhost:PORT",
        {"ca": "ca.pem"},
        "certificate",
    ),
    "no right": (
        LOGIN.replace("PERMISSIONS", ', permissions: { publish: "other" }'),
        "localhost:PORT",
        RIGHT,
        "permissions violation for publish",
    ),
    "no broker": ("", "localhost:FREE", {}, "Connection refused"),
    "no JetStream": ("NO", "localhost:PORT", {}, "JetStream is off"),
}


def nats_server(folder: Path, certs: Path, config: str) -> Broker:
    config = "listen: 127.0.0.1:PORT\n" if config == "NO" else NATS + config
    for name, value in {"FOLDER": folder, "CERTS": certs, "VERIFY": "", "PERMISSIONS": ""}.items():
        config = config.replace(name, str(value))
    return Broker("nats-server", folder, config)


async def watched(broker: Broker, monitor: Monitor, **login: str) -> None:
    """Send a frame by NATS, and wait until the monitor has it."""
    sender = await nats.connect(f"localhost:{broker.port}", **login)
    await sender.publish(subject_of("bed"), FRAME)
    await until(lambda: "bed" in monitor.patients)
    await sender.close()


@pytest.mark.parametrize("case", NATS_CASES)
def test_nats_is_connected_or_refused_with_one_line(case: str, certs: Path, tmp_path: Path, monitor: Monitor) -> None:
    config, address, options, text = NATS_CASES[case]
    paths = {name: certs / options[name] for name in ("ca", "certificate", "key") if name in options}

    async def connect(address: str) -> None:
        worker = Worker(monitor, address, "one", Access(**options | paths))
        async with working(worker):
            await until(lambda: len(worker.partitions) > 1)
            assert worker.connection.to_json()["problem"] is None

    refused = pytest.raises(HeartlmError, match=f"(?i)^nats (localhost|127.0.0.1):[^\n]*{text}")
    with nats_server(tmp_path, certs, config) as broker, refused if text else nullcontext():
        run(connect(address.replace("PORT", str(broker.port)).replace("FREE", str(free_port()))))


@pytest.mark.slow
def test_a_nats_broker_that_refuses_later_is_shown_until_it_lets_the_monitor_in_again(
    certs: Path, tmp_path: Path, monitor: Monitor, lines: list[str]
) -> None:

    async def watch() -> None:
        config, login = broker.config.read_text(), {"user": "monitor", "password": "right"}
        worker = Worker(monitor, f"localhost:{broker.port}", "one", Access(**login))
        async with working(worker):
            await until(lambda: len(worker.partitions) == 64)
            broker.write(config.replace("right", "other"))
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: "refused: Authorization Violation" in (worker.connection.problem or ""))
            broker.write(config)
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: worker.connection.problem is None)
            await watched(broker, monitor, **login)

    with nats_server(tmp_path, certs, LOGIN) as broker:
        run(watch())
    assert lines[-1] == f"nats localhost:{broker.port}: works again"


def signed(claims: dict[str, Any], issuer: Any) -> str:
    """A JSON web token as NATS uses it (nkeys, ed25519)."""
    claims |= {"iss": issuer.public_key.decode(), "iat": int(time.time())}
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return (text + b"." + base64.urlsafe_b64encode(issuer.sign(text)).rstrip(b"=")).decode()


@pytest.mark.slow
def test_nats_credentials_that_expire_are_read_again(
    certs: Path, tmp_path: Path, monitor: Monitor, lines: list[str]
) -> None:
    """The broker ends the connection of an expired user with an error, after which nats-py gives up."""
    nkeys = pytest.importorskip("nkeys", reason="nkeys is not installed")

    def seed(number: int, prefix: int) -> bytes:
        return bytes(nkeys.encode_seed(hashlib.sha256(bytes([number])).digest(), prefix))

    prefixes = nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER
    seeds = [seed(number, prefix) for number, prefix in enumerate(prefixes)]
    operator, system, account, user = (nkeys.from_seed(bytearray(each)) for each in seeds)
    names = [each.public_key.decode() for each in (operator, system, account, user)]
    unlimited = ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage")
    limits = dict.fromkeys((*unlimited, "streams", "consumer"), -1) | {"wildcards": True}

    def claims(number: int, **own: Any) -> dict[str, Any]:
        return {"sub": names[number], "nats": {"version": 2, **own}}

    def credentials(seconds: int) -> str:
        token = claims(3, type="user", subs=-1, data=-1, payload=-1) | {"exp": int(time.time()) + seconds}
        return (
            f"-----BEGIN NATS USER JWT-----\n{signed(token, account)}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seeds[3].decode()}\n------END USER NKEY SEED------\n"
        )

    accounts = {
        names[1]: signed(claims(1, type="account", limits=limits | {"mem_storage": 0, "disk_storage": 0}), operator),
        names[2]: signed(claims(2, type="account", limits=limits), operator),
    }
    config = f"operator: {signed(claims(0, type='operator', system_account=names[1]), operator)}\nresolver: MEMORY\n"
    config += f"resolver_preload {json.dumps(accounts)}\n"
    (tmp_path / "user.creds").write_text(good := credentials(4))

    async def watch() -> None:
        damaged = good.replace(seeds[3].decode(), seeds[3].decode()[::-1])
        for text, fault in (
            ("", "a credentials file of"),
            (good.partition("\n\n")[0], "a credentials"),
            (damaged, "seed"),
        ):
            (tmp_path / "bad.creds").write_text(text)
            with pytest.raises(HeartlmError, match=f"bad.creds: .*{fault}"):
                await Worker(
                    monitor, f"localhost:{broker.port}", "one", Access(credentials=tmp_path / "bad.creds")
                ).connect()
        worker = Worker(monitor, f"localhost:{broker.port}", "one", Access(credentials=tmp_path / "user.creds"))
        async with working(worker):
            await until(lambda: len(worker.partitions) == 64)
            await until(lambda: "refused: " in (worker.connection.problem or ""))
            (tmp_path / "user.creds").write_text(credentials(600))
            await until(lambda: worker.connection.problem is None)
            await watched(broker, monitor, user_credentials=str(tmp_path / "user.creds"))

    with nats_server(tmp_path, certs, config) as broker:
        run(watch())
    assert lines[-1] == f"nats localhost:{broker.port}: works again"


class Receiver(BaseHTTPRequestHandler):
    """Takes alarms with the right header, and answers with the status of the server's list first."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 204  # type: ignore[attr-defined]
        if self.headers["Authorization"] != "Bearer right":
            status = 401
        if status == 204:
            self.server.alarms.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.send_response(405 if self.headers["Authorization"] == "Bearer right" else 401)
        self.end_headers()

    def do_GET(self) -> None:  # what a redirected POST becomes
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver(certs: Path) -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Receiver)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / "broker.pem", certs / "broker.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.alarms, server.statuses = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "header", "ca", "text"),
    [
        (
            "https://localhost:PORT/ecg?key=hidden",
            "Authorization: Bearer wrong",
            True,
            "HTTP 401 Unauthorized .--webhook-header",
        ),
        (
            "https://localhost:PORT/ecg?key=hidden",
            "Authorization: Bearer right",
            False,
            "certificate is not trusted: .*--ca",
        ),
        (
            "https://127.0.0.1:PORT/ecg?key=hidden",
            "Authorization: Bearer right",
            True,
            "not trusted: IP address mismatch",
        ),
        ("https://localhost:FREE/ecg?key=hidden", "Authorization: Bearer right", True, "Connection refused"),
        ("https://nowhere.invalid/ecg?key=hidden", "Authorization: Bearer right", True, "not known"),
    ],
)
def test_a_webhook_that_cannot_work_is_an_error_of_one_line(
    url: str, header: str, ca: bool, text: str, certs: Path, receiver: Any, monitor: Monitor
) -> None:
    url = url.replace("PORT", str(receiver.server_port)).replace("FREE", str(free_port()))
    hook = Webhook(url, monitor, header=header, ca=certs / "ca.pem" if ca else None)
    with pytest.raises(HeartlmError, match=f"^webhook [^\n]*{text}") as error:
        run(hook.connect())
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example?key=hidden", "hooks.example"),
        ("https://hooks.example#hidden", "hooks.example"),
        ("http://[::1]:8080/hidden", "[::1]:8080"),
    ],
)
def test_the_log_shows_the_host_of_a_webhook_alone(url: str, shown: str, monitor: Monitor, lines: list[str]) -> None:
    hook = Webhook(url, monitor, header="Authorization: Bearer right")
    assert hook.connection.name == f"webhook {shown}" and not lines


@pytest.mark.parametrize("url", ["https://", "https://[::1", "https://a b/", "ftp://a"])
def test_what_is_no_web_address_is_one_line(url: str, monitor: Monitor) -> None:
    with pytest.raises(HeartlmError, match="an http or https address expected"):
        Webhook(url, monitor)


def test_errors_of_a_webhook_are_counted_and_its_header_is_not_replaced(
    certs: Path, receiver: Any, monitor: Monitor, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certs / "other.pem"))
    receiver.statuses += [503, 503, 302]

    async def send() -> None:
        url = f"https://localhost:{receiver.server_port}/ecg?key=hidden"
        hook = Webhook(url, monitor, header="Authorization: Bearer right", ca=certs / "ca.pem")
        await hook.connect()
        work = asyncio.create_task(hook.run())
        raise_alarm(monitor, "bed")
        problems = list[str]()
        while hook.waiting:
            state = hook.connection.to_json()
            problems += [state["problem"]] if state["problem"] not in (None, *problems[-1:]) else []
            assert state["waiting"] == 1
            await asyncio.sleep(0.01)
        await until(lambda: hook.connection.problem is None)
        assert [re.sub(" .*HTTP", " HTTP", each) for each in problems] == [
            "retrying: HTTP 503 Service Unavailable",
            "retrying: HTTP 302 Found (a redirection: give its target)",
        ]
        assert hook.connection.num_errors == 3
        work.cancel()

    run(send())
    assert [alarm["stream"] for alarm in receiver.alarms] == ["bed"]
    assert [line.partition(": ")[2] for line in lines[-1:]] == ["works again"] and not any("hidden" in x for x in lines)


def test_an_alarm_that_a_webhook_refuses_for_good_is_left_out(
    certs: Path, receiver: Any, monitor: Monitor, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if the token, the address or the time may be the reason. The alarms after it are sent in order."""
    monkeypatch.setattr("heartlm.monitor.webhook._FIRST_WAIT_S", 0.01)
    receiver.statuses += [400, 429, 408, 425, 500, 401, 403, 404, 204, 422, 413]

    async def send() -> None:
        hook = Webhook(
            f"https://localhost:{receiver.server_port}/",
            monitor,
            header="Authorization: Bearer right",
            ca=certs / "ca.pem",
        )
        work = asyncio.create_task(hook.run())
        for stream in "abcde":
            raise_alarm(monitor, stream)
        await until(lambda: not hook.waiting and hook.connection.problem is None)
        assert hook.connection.num_errors == 10
        work.cancel()

    run(send())
    assert [alarm["stream"] for alarm in receiver.alarms] == ["b", "e"]
    assert [line.partition(": ")[2] for line in lines if "left out" in line] == [
        "alarm refused and left out: HTTP 400 Bad Request",
        "alarm refused and left out: HTTP 422 Unprocessable Entity",
        "alarm refused and left out: HTTP 413 Request Entity Too Large",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--mqtt", "localhost:PORT", "--ca", "ca.pem", "--user", "monitor", "--password-file", "wrong"],
            "Not authorized",
        ),
        (["--nats", "localhost:FREE"], "nats localhost:FREE: Connection refused"),
        (["--lines", "--webhook", "http://localhost:FREE/"], "webhook localhost:FREE: Connection refused"),
    ],
)
def test_the_command_ends_with_status_2_and_one_line(
    arguments: list[str], text: str, certs: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(certs)
    (certs / "wrong").write_text("wrong password\n")
    ports = {"PORT": str(broker.port), "FREE": str(free_port())}
    for name, port in ports.items():
        arguments, text = [each.replace(name, port) for each in arguments], text.replace(name, port)
    assert text in refused("monitor", *arguments, "--no-page")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mqtt", "mqtt://monitor:secret@a"], "an address without user and password"),
        (["--nats", "nats://monitor:secret@a"], "an address without user and password"),
        (["--lines", "--webhook", "https://monitor:secret@a/"], "an address without user and password"),
        (["--mqtt", "http://a"], "mqtts://HOST expected"),
        (["--mqtt", "a:70000"], "host:port"),
        (["--mqtt", "a", "--user", "b", "--password-file", "nowhere"], "nowhere: No such file"),
        (["--mqtt", "a", "--user", "b"], "user: needs --password-file or the environment variable"),
        (["--mqtt", "a", "--password-file", "b"], "password_file: needs --user"),
        (["--mqtt", "a", "--ca", "nowhere"], "ca: nowhere: No such file"),
        (["--mqtt", "a", "--ca", str(Path(__file__))], "no certificate"),
        (["--mqtt", "a", "--client-key", "b"], "needs --client-certificate"),
        (["--mqtt", "a", "--client-certificate", str(Path(__file__))], "client_certificate: "),
        (["--mqtt", "mqtt://a", "--client-certificate", "b"], "needs TLS"),
        (["--mqtt", "a", "--credentials", "b"], "credentials: needs --nats"),
        (["--nats", "a", "--client-id", "a b"], "client_id: "),
        (["--nats", "a", "--topic", "b"], "topic: needs --mqtt"),
        (["--mqtt", "a", "--topic", "a/#/b"], "topic: 'a/#/b' found"),
        (["--mqtt", "a", "--topic", "a+"], "topic: "),
        (["--mqtt", "a", "--alarm-topic", "a/#"], "alarm_topic: "),
        (["--mqtt", "a", "--topic", "#"], "is part of --topic"),
        (["--lines", "--webhook-header", "a"], "webhook_header: needs --webhook"),
        (
            ["--lines", "--webhook", "https://a", "--webhook-header", str(Path(__file__))],
            "webhook_header: a line such as",
        ),
    ],
)
def test_wrong_options_of_connections_end_with_status_2(arguments: list[str], text: str, refused: Refused) -> None:
    error = refused("monitor", *arguments)
    assert text in error and "secret" not in error


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("of the file \n")
    monkeypatch.setenv("HEARTLM_PASSWORD", "of the environment")
    assert read_secret(tmp_path / "password", "HEARTLM_PASSWORD") == "of the file "
    assert read_secret(None, "HEARTLM_PASSWORD") == "of the environment"
    monkeypatch.delenv("HEARTLM_PASSWORD")
    assert read_secret(None, "HEARTLM_PASSWORD") is None
    (tmp_path / "password").write_text("\n")
    with pytest.raises(HeartlmError, match="empty"):
        read_secret(tmp_path / "password", "HEARTLM_PASSWORD")
    assert "of the file" not in repr(Access("a", "of the file"))


def test_a_connection_logs_changes_and_counts_all_errors() -> None:
    lines = list[str]()
    link = Connection("mqtt a:1", lines.append, lambda: 2)
    for problem in ("no connection", "no connection", "refused"):
        link.fail(problem)
    state = link.to_json()
    assert (state["problem"], state["errors"], state["waiting"]) == ("refused", 3, 2)
    link.restore()
    link.restore()
    assert lines == ["mqtt a:1: no connection", "mqtt a:1: refused", "mqtt a:1: works again"]
    assert link.to_json()["problem"] is None and link.to_json()["errors"] == 3


def test_a_password_for_another_machine_is_not_sent_unencrypted_without_a_line(
    monitor: Monitor, lines: list[str]
) -> None:
    access = Access("monitor", "secret")
    Mqtt("broker.ward", monitor, access)
    Worker(monitor, "broker.ward", "one", access)
    Webhook("http://alarms.ward/", monitor, header="Authorization: Bearer secret")
    assert len(lines) == 3 and all("unencrypted" in line and "secret" not in line for line in lines)
    Mqtt("localhost", monitor, access)
    Mqtt("mqtts://broker.ward", monitor, access)
    assert len(lines) == 3
