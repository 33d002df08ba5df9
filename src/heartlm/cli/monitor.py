"""`heartlm monitor`: watch live ECG streams, and raise alarms on a page, in files and over the network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heartlm.cli.options import existing, parse
from heartlm.errors import HeartlmError, needs, require
from heartlm.system.progress import say

# Interval between polls of the streams, and time limit for sending the last alarms at the end, in seconds.
_POLL_S, _LAST_ALARMS_S = 0.1, 10.0
_BROKER = ("mqtt", "nats")
# Options that are only used with one of the others.
_NEEDS = {
    **dict.fromkeys(("topic", "alarm_topic"), ("mqtt",)),
    **dict.fromkeys(("client_id", "user", "client_certificate"), _BROKER),
    **dict.fromkeys(("webhook_header", "fhir"), ("webhook",)),
    "ca": (*_BROKER, "webhook"),
    "password_file": ("user",),
    "client_key": ("client_certificate",),
    "tls_key": ("tls_certificate",),
    "credentials": ("nats",),
}


@dataclass(frozen=True)
class MonitorOptions:
    """Options of `heartlm monitor`.

    Attributes:
        replay: folder of recordings to replay as streams.
        streams: number of replayed streams, by default one per recording; with more, recordings are used again.
        speed: replay speed: seconds of signal per second.
        lines: read messages from standard input, one per line, and stop at its end.
        mqtt: MQTT broker, as host, host:port or, with TLS, mqtts://host; messages come from --topic, alarms go to
            --alarm-topic.
        topic: MQTT topic filter of the messages; what its wildcards + and # match is the name of a stream.
        alarm_topic: MQTT topic under which the alarms of a stream have the topic ALARM_TOPIC/NAME.
        lsl: read the streams of type ECG in the Lab Streaming Layer.
        nats: NATS broker with JetStream, as host, host:port or, with TLS, tls://host; monitors with the same broker
            share its streams and take over the streams of a monitor that fails.
        client_id: name of this monitor at the broker, by default made from the host name and process id.
        user: user at the broker; the password comes from --password-file or the environment variable HEARTLM_PASSWORD.
        password_file: file with the password.
        credentials: credentials file of a NATS user.
        ca: certificates of the authorities that broker and webhook are checked against, PEM; by default those of the
            system. A broker without a scheme in its address is then used with TLS.
        client_certificate: certificate of this monitor for the broker, PEM.
        client_key: key of this certificate, PEM, unless the same file contains it.
        out: folder for the journal, the alarm log and a strip of each alarm; with the same folder, a restarted monitor
            continues where it stopped.
        max_streams: streams that are watched at the same time; messages of further ones are refused and counted.
        forget_h: hours without a message after which a stream is forgotten.
        rules: YAML file of alarm rules, or second-opinion.
        webhook: URL to which each alarm is posted as JSON.
        webhook_header: file with a header that authorises the posts, such as Authorization: Bearer TOKEN; by default
            the environment variable HEARTLM_WEBHOOK_HEADER.
        fhir: post alarms as FHIR Observations.
        page: serve the web page.
        open: open the page in a browser.
        host: address of the page; any address except loopback needs a certificate and a token.
        port: port of the page; 0 selects a free one.
        tls_certificate: certificate of the page, PEM.
        tls_key: key of the certificate, PEM.
        token: file with the token that requests to the page must contain.
        pseudonyms: show hashes instead of stream names.
        beats: causal beat model: a shipped model or a run folder.
        print_alarms: print each alarm as text, as a JSON line, or not at all.
    """

    replay: Path | None = None
    streams: int | None = None
    speed: float = 1.0
    lines: bool = False
    mqtt: str | None = None
    topic: str = "heartlm/ecg/#"
    alarm_topic: str = "heartlm/alarms"
    lsl: bool = False
    nats: str | None = None
    client_id: str | None = None
    user: str | None = None
    password_file: Path | None = None
    credentials: Path | None = None
    ca: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    out: Path | None = None
    max_streams: int = 5_000
    forget_h: float = 12.0
    rules: Path | None = None
    webhook: str | None = None
    webhook_header: Path | None = None
    fhir: bool = False
    page: bool = True
    open: bool = False
    host: str = "127.0.0.1"
    port: int = 8765
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    token: Path | None = None
    pseudonyms: bool = False
    beats: Path = Path("beats-causal")
    print_alarms: Literal["text", "json", "none"] = "text"


def run(arguments: Sequence[str]) -> int:
    """Watch live ECG streams and raise alarms within seconds: on a page, in files, by MQTT and webhooks.

    Examples:
        heartlm monitor --replay mitdb --streams 20
        heartlm monitor --mqtt broker.ward --user monitor --password-file password --ca ca.pem --out ward
        heartlm monitor --nats broker.ward:4222 --client-id a
        sensor | heartlm monitor --lines --webhook https://alarms.example/ecg
    """
    options = parse(MonitorOptions, arguments, "monitor", run)
    token = _read_token(options)
    import torch

    from heartlm.monitor.alarms import read_rules
    from heartlm.monitor.engine import Monitor, tune_garbage_collector
    from heartlm.monitor.models import LiveModels
    from heartlm.monitor.stream import Ward
    from heartlm.storage.atomic import sole_holder

    torch.set_num_threads(1)
    tune_garbage_collector()
    common, rules_by_patient = read_rules(options.rules)
    models = LiveModels(options.beats)
    with contextlib.ExitStack() as stack:
        if options.out is not None:
            in_use = f"out: {options.out}: another monitor writes there: choose another --out"
            stack.enter_context(sole_holder(options.out / "lock", in_use))
        monitor = stack.enter_context(
            contextlib.closing(
                Monitor(Ward(models, common, rules_by_patient), options.out, say, options.max_streams, options.forget_h)
            )
        )
        if options.print_alarms != "none":
            monitor.listeners.append(_print_text if options.print_alarms == "text" else _print_json)
        return asyncio.run(_watch(options, monitor, token))


def _read_token(options: MonitorOptions) -> str | None:
    """Check the options, and return the token of the page.

    Raises:
        HeartlmError: options contradict each other, or the page would be open to other machines.
    """
    from heartlm.monitor.connection import is_loopback, read_secret

    local_source = options.replay or options.lines or options.mqtt or options.lsl
    if not (local_source or options.nats):
        raise HeartlmError("nothing to watch: give --replay FOLDER, --lines, --mqtt HOST, --lsl or --nats HOST")
    if options.nats and (local_source or options.out):
        raise HeartlmError("nats: the broker stores streams and state: give neither another source nor --out")
    for name, others in _NEEDS.items():
        is_given = getattr(options, name) != getattr(MonitorOptions, name)
        if is_given and not any(getattr(options, each) for each in others):
            raise HeartlmError(f"{name}: needs --{' or --'.join(others).replace('_', '-')}")
    require(options, lambda number: number >= 1, "at least 1", "streams", "max_streams")
    require(options, lambda hours: 0 < hours <= 8760, "above 0 and at most 8760", "forget_h")
    require(options, lambda speed: 0 < speed <= 1000, "above 0 and at most 1000", "speed")
    require(options, lambda port: 0 <= port <= 65535, "0 to 65535", "port")
    if options.replay is not None:
        existing(options.replay, "replay")
    if not options.page:
        return None
    if not is_loopback(options.host) and not (options.tls_certificate and options.tls_key and options.token):
        raise HeartlmError(
            f"host: {options.host} found: others can reach it, so --tls-certificate, --tls-key and --token are needed"
        )
    token = None if options.token is None else (read_secret(options.token, "") or "").strip()
    if token is not None and len(token) < 16:
        raise HeartlmError(f"{options.token}: {len(token)} characters found, a token of at least 16 expected")
    return token


async def _watch(options: MonitorOptions, monitor: Any, token: str | None) -> int:
    from heartlm.monitor import sources
    from heartlm.monitor.connection import Access, Connection, read_secret
    from heartlm.monitor.mqtt import Mqtt
    from heartlm.monitor.webhook import Webhook, observation

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    tasks, connections = list[asyncio.Task[None]](), list[Connection]()
    server, broker, lines = None, None, None
    password = None if options.user is None else read_secret(options.password_file, "HEARTLM_PASSWORD")
    if options.user is not None and password is None:
        raise HeartlmError("user: needs --password-file or the environment variable HEARTLM_PASSWORD")
    access = Access(
        options.user, password, options.credentials, options.ca, options.client_certificate, options.client_key
    )
    name = options.client_id or f"{re.sub('[^A-Za-z0-9]', '_', socket.gethostname())[:50]}-{os.getpid()}"
    if options.webhook:
        header = read_secret(options.webhook_header, "HEARTLM_WEBHOOK_HEADER")
        webhook = Webhook(options.webhook, monitor, observation if options.fhir else dict, header, options.ca)
        await webhook.connect()
        connections.append(webhook.connection)
        tasks.append(asyncio.create_task(webhook.run()))
    if options.nats:
        from heartlm.monitor.nats import Worker

        logging.getLogger("asyncio").setLevel(logging.ERROR)  # nats-py lets it warn whenever a TLS connection ends
        worker = Worker(monitor, options.nats, name, access)
        await worker.connect()
        connections.append(worker.connection)
        tasks.append(asyncio.create_task(worker.run()))
    if options.mqtt:
        broker = Mqtt(options.mqtt, monitor, access, options.topic, options.alarm_topic, name)
        await broker.connect()
        connections.append(broker.connection)
    if options.page:
        shown = [*connections, *([monitor.disk] if monitor.disk else [])]
        server, acceptor = await _serve(options, monitor, token, shown)
        tasks += [asyncio.create_task(server.main_loop()), asyncio.create_task(acceptor.run())]
    if options.replay is not None:
        streams = sources.replay_streams(options.replay, options.streams)
        tasks.append(asyncio.create_task(sources.replay(monitor, streams, options.speed)))
    if options.lsl:
        tasks.append(asyncio.create_task(sources.read_lsl(monitor)))
    if options.lines:
        lines = asyncio.create_task(sources.read_lines(monitor))
    while not stop.is_set() and not (lines and lines.done()):
        for task in tasks:
            if task.done():
                task.result()
        if not options.nats:  # a NATS worker judges on its own, with the broker's time
            monitor.run()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)
    if lines is not None and lines.done():
        lines.result()
    if not options.nats:
        monitor.run()
    end = loop.time() + _LAST_ALARMS_S
    while any(each.waiting() for each in connections) and loop.time() < end:
        await asyncio.sleep(_POLL_S)
    if broker is not None:
        broker.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if server is not None:
        await server.shutdown()
    return 0


async def _serve(
    options: MonitorOptions, monitor: Any, token: str | None, connections: Sequence[Any]
) -> tuple[Any, Any]:
    """Start the server of the page, and return it with what accepts its connections.

    Raises:
        HeartlmError: the address cannot be used, or a package is missing.
    """
    with needs("monitor"):
        import uvicorn

        from heartlm.monitor.acceptor import BACKLOG, Acceptor
        from heartlm.monitor.connection import Connection
        from heartlm.monitor.server import Page
    listening = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    # A restarted monitor gets its port although connections of the earlier one are still in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise HeartlmError(f"port: {options.host}:{options.port} cannot be used ({error.strerror})") from None
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{host}:{listening.getsockname()[1]}"
    page = Page(monitor, token, options.pseudonyms, connections, Connection(f"page {address}", monitor.log, lambda: 0))
    config = uvicorn.Config(
        page.app,
        log_config=None,
        log_level="error",  # each invalid request is a warning
        http="h11",  # unlike httptools it limits the size of headers
        proxy_headers=False,  # the address of a viewer is that of its socket
        lifespan="off",
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
        ws_max_size=1 << 16,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one, too
        listening.close()
        files = " and ".join(str(path) for path in (options.tls_certificate, options.tls_key) if path)
        text = f"tls_certificate: {files}: {error.strerror}, a certificate in PEM format and its key expected"
        raise HeartlmError(text) from None
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[])  # uvicorn's own sockets accept without bounds

    make_http: Any = config.http_protocol_class  # its parameters are those of uvicorn

    def protocol() -> asyncio.Protocol:
        http: asyncio.Protocol = make_http(config=config, server_state=server.server_state, app_state={})
        return http

    acceptor = Acceptor(listening, protocol, config.ssl, page.viewers.__contains__, page.own)
    address = f"{'https' if options.tls_certificate else 'http'}://{address}/"
    say(f"page: {address}")
    if options.open:
        import webbrowser

        webbrowser.open(address if token is None else f"{address}?token={token}")
    return server, acceptor


def _print_text(entry: dict[str, Any]) -> None:
    if entry["strip"] is None and entry["acknowledged"] is None:
        time_s, event = (entry["raised_s"], "raised") if entry["stop_s"] is None else (entry["stop_s"], "ended")
        event += f", {entry['count']} times" if entry["count"] > 1 else ""
        print(f"{entry['stream']}  {time_s:,.0f} s  {entry['severity']}  {entry['kind']} {event}", flush=True)


def _print_json(entry: dict[str, Any]) -> None:
    import json

    print(json.dumps(entry), flush=True)
