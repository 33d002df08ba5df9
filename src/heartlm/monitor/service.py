"""The service of a monitor: its sources, its judgement ten times a second, and where its alarms go.

replay, lines, LSL, MQTT, NATS ─► Monitor (journal, models, rules) ─► listeners, page, webhook, MQTT
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.monitor import sources
from heartlm.monitor.alarms import read_rules
from heartlm.monitor.config import MonitorConfig, read_token
from heartlm.monitor.connection import Access, Connection, read_secret
from heartlm.monitor.engine import Listener, Monitor, tune_garbage_collector
from heartlm.monitor.models import LiveModels
from heartlm.monitor.mqtt import Mqtt
from heartlm.monitor.stream import Ward
from heartlm.monitor.webhook import Webhook, observation
from heartlm.storage.atomic import locked
from heartlm.system.cores import limit_threads
from heartlm.system.progress import say

# Interval between polls of the streams, and time limit for sending the last alarms at the end, in seconds.
_POLL_S, _LAST_ALARMS_S = 0.1, 10.0


def watch(config: MonitorConfig, listeners: Sequence[Listener] = ()) -> int:
    """Watch streams until a signal or, with `lines`, the end of the input; return the exit status of the command.

    Args:
        config: settings.
        listeners: are called with each change of an alarm.

    Raises:
        HeartlmError: settings contradict each other, a source or broker cannot be used, or another monitor writes to
            the same folder.
    """
    token = read_token(config)
    limit_threads(1)
    tune_garbage_collector()
    common, rules_by_patient = read_rules(config.rules)
    models = LiveModels(config.beats)
    with contextlib.ExitStack() as stack:
        if config.out is not None:
            in_use = f"out: {config.out}: another monitor writes there: choose another --out"
            stack.enter_context(locked(config.out / "lock", in_use))
        ward = Ward(models, common, rules_by_patient)
        monitor = Monitor(ward, config.out, say, config.max_streams, config.forget_h)
        stack.enter_context(contextlib.closing(monitor))
        monitor.listeners.extend(listeners)
        return asyncio.run(_watch(config, monitor, token))


async def _watch(config: MonitorConfig, monitor: Monitor, token: str | None) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, stop.set)
    tasks, connections = list[asyncio.Task[None]](), list[Connection]()
    server, broker, lines = None, None, None
    password = None if config.user is None else read_secret(config.password_file, "HEARTLM_PASSWORD")
    if config.user is not None and password is None:
        raise HeartlmError("user: needs --password-file or the environment variable HEARTLM_PASSWORD")
    access = Access(config.user, password, config.credentials, config.ca, config.client_certificate, config.client_key)
    name = config.client_id or f"{re.sub('[^A-Za-z0-9]', '_', socket.gethostname())[:50]}-{os.getpid()}"
    if config.webhook:
        header = read_secret(config.webhook_header, "HEARTLM_WEBHOOK_HEADER")
        webhook = Webhook(config.webhook, monitor, observation if config.fhir else dict, header, config.ca)
        await webhook.connect()
        connections.append(webhook.connection)
        tasks.append(asyncio.create_task(webhook.run()))
    if config.nats:
        from heartlm.monitor.nats import Worker

        logging.getLogger("asyncio").setLevel(logging.ERROR)  # nats-py lets it warn whenever a TLS connection ends
        worker = Worker(monitor, config.nats, name, access)
        await worker.connect()
        connections.append(worker.connection)
        tasks.append(asyncio.create_task(worker.run()))
    if config.mqtt:
        broker = Mqtt(config.mqtt, monitor, access, config.topic, config.alarm_topic, name)
        await broker.connect()
        connections.append(broker.connection)
    if config.page:
        shown = [*connections, *([monitor.disk] if monitor.disk else [])]
        server, acceptor = await _serve(config, monitor, token, shown)
        tasks += [asyncio.create_task(server.main_loop()), asyncio.create_task(acceptor.run())]
    if config.replay is not None:
        streams = sources.replay_streams(config.replay, config.streams, monitor)
        tasks.append(asyncio.create_task(sources.replay(monitor, streams, config.speed)))
    if config.lsl:
        tasks.append(asyncio.create_task(sources.read_lsl(monitor)))
    if config.lines:
        lines = asyncio.create_task(sources.read_lines(monitor))
    while not stop.is_set() and not (lines and lines.done()):
        for task in tasks:
            if task.done():
                task.result()
        if not config.nats:  # a NATS worker judges on its own, with the broker's time
            monitor.run()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)
    if lines is not None and lines.done():
        lines.result()
    if not config.nats:
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
    config: MonitorConfig, monitor: Monitor, token: str | None, connections: Sequence[Any]
) -> tuple[Any, Any]:
    """Start the server of the page, and return it with what accepts its connections.

    Raises:
        HeartlmError: the address cannot be used.
    """
    from heartlm.monitor.server import Page
    from heartlm.monitor.web import listen, serve

    listening, address = listen(config.host, config.port)
    page = Page(monitor, token, config.pseudonyms, connections, Connection(f"page {address}", monitor.log, lambda: 0))
    served = await serve(
        page.app, listening, page.viewers.__contains__, page.own, config.tls_certificate, config.tls_key
    )
    address = f"{'https' if config.tls_certificate else 'http'}://{address}/"
    say(f"page: {address}")
    if config.open:
        import webbrowser

        webbrowser.open(address if token is None else f"{address}?token={token}")
    return served
