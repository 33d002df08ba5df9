"""Connection to an MQTT broker: streams come in, alarms go out.

It uses MQTT 5, because with earlier versions a broker drops an alarm without permission and does not report it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from heartlm.errors import HeartlmError, needs
from heartlm.monitor.connection import Access, Connection, is_loopback, read_address, reason_of
from heartlm.monitor.engine import Monitor

TOPIC, ALARM_TOPIC = "heartlm/ecg/#", "heartlm/alarms"
_HINTS = {0x84: " (MQTT 5 is needed)", 0x86: " (--user, --password-file)", 0x87: " (--user, --password-file)"}
"""Options that may be wrong, by reason code: unsupported version, bad user name or password, not authorized."""
_START_S, _KEEP_ALIVE_S, _LONGEST_WAIT_S = 10.0, 10, 10


class Mqtt:
    """Connection to an MQTT broker. The methods `_on_...` run in the thread of paho, all others in the event loop.

    Args:
        address: host, host:port, `mqtt://HOST` or, with TLS, `mqtts://HOST`.
        monitor: receives the messages; its alarms are published.
        access: user, password and certificates.
        topic: topic filter of the messages. What its wildcards `+` and `#` match is the name of a stream. Without a
            wildcard, the messages contain the name.
        alarm_topic: the alarms of a stream are published to `ALARM_TOPIC/NAME`.
        client_id: name of this client at the broker; if it is empty, the broker chooses one.

    Attributes:
        connection: state of the connection.

    Raises:
        HeartlmError: an argument is wrong, or paho-mqtt is not installed.
    """

    def __init__(
        self,
        address: str,
        monitor: Monitor,
        access: Access,
        topic: str = TOPIC,
        alarm_topic: str = ALARM_TOPIC,
        client_id: str = "",
    ) -> None:
        with needs("monitor"):
            from paho.mqtt import client, enums
        host, port, self._has_tls = read_address("mqtt", address, {"mqtt": 1883, "mqtts": 8883}, access)
        levels = topic.split("/")
        partial = [level for level in levels if level not in ("+", "#") and set("+#") & set(level)]
        if not topic or topic.startswith("$") or partial or "#" in levels[:-1]:
            raise HeartlmError(f"topic: {topic!r} found, a filter such as heartlm/ecg/# or ward/+/ecg expected")
        if not alarm_topic or set("+#") & set(alarm_topic):
            raise HeartlmError(f"alarm_topic: {alarm_topic!r} found, a topic without + and # expected")
        if client.topic_matches_sub(topic, f"{alarm_topic}/name"):
            raise HeartlmError(f"alarm_topic: {alarm_topic!r} is part of --topic {topic!r}: choose another one")
        self._topic, self._alarm_topic, self._monitor = topic, alarm_topic, monitor
        groups = {"+": "([^/]*)", "#": "(.*)"}
        self._topic_pattern = re.compile("/".join(groups.get(level, re.escape(level)) for level in levels))
        self._num_waiting = 0
        self.connection = Connection(f"mqtt {host}:{port}", monitor.log, lambda: self._num_waiting)
        self._answered = self._refused = False
        self._socket_error: OSError | None = None
        self._client = client.Client(
            enums.CallbackAPIVersion.VERSION2, client_id, protocol=enums.MQTTProtocolVersion.MQTTv5
        )
        for event in ("connect", "subscribe", "connect_fail", "disconnect", "message", "publish", "log"):
            setattr(self._client, f"on_{event}", getattr(self, f"_on_{event}"))
        self._client.max_queued_messages_set(0)
        self._client.reconnect_delay_set(1, _LONGEST_WAIT_S)
        if access.user is not None:
            self._client.username_pw_set(access.user, access.password)
            if not self._has_tls and not is_loopback(host):
                monitor.log(f"{self.connection.name}: user and password are sent unencrypted: mqtts:// encrypts them")
        if self._has_tls:
            self._client.tls_set_context(access.tls())
        self._client.connect_async(host, port, _KEEP_ALIVE_S)
        monitor.listeners.append(self._publish)

    async def connect(self) -> None:
        """Connect and subscribe. From then on the connection is restored whenever it is lost.

        Raises:
            HeartlmError: there is no such broker, or it refuses the client or the subscription.
        """
        self._loop = asyncio.get_running_loop()
        self._start: asyncio.Future[str | None] = self._loop.create_future()
        self._client.loop_start()
        try:
            problem = await asyncio.wait_for(self._start, _START_S)
        except TimeoutError:
            problem = "no answer"
        if problem is not None:
            self.close()
            raise HeartlmError(f"{self.connection.name}: {problem}")

    def close(self) -> None:
        """Disconnect, after the messages that are being sent."""
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()

    def _fail(self, problem: str, reconnects: bool = True) -> None:
        if self._start.done():
            self.connection.fail(f"reconnecting: {problem}" if reconnects else problem)
        else:
            self._start.set_result(problem)

    def _succeed(self) -> None:
        if self._start.done():
            self.connection.restore()
        else:
            self._start.set_result(None)

    def _publish(self, entry: dict[str, Any]) -> None:
        name = entry["stream"].translate({ord(sign): "_" for sign in "/+#"})
        self._num_waiting += 1
        self._client.publish(f"{self._alarm_topic}/{name}", json.dumps(entry), qos=1)

    def _published(self, problem: str | None) -> None:
        self._num_waiting -= 1
        if problem is not None:
            self.connection.fail(f"alarm refused: {problem} (topic {self._alarm_topic}/NAME)")
        elif (self.connection.problem or "").startswith("alarm refused"):
            self.connection.restore()

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        self._answered, self._refused = True, code.is_failure
        if code.is_failure:
            self._in_loop(self._fail, f"refused: {code}{_HINTS.get(code.value, '')}")
        else:
            self._client.on_log = None  # otherwise paho formats a line for each message
            self._client.subscribe(self._topic, qos=1)

    def _on_subscribe(self, _client: Any, _data: Any, _number: Any, codes: Any, _properties: Any) -> None:
        if codes[0].is_failure:
            self._in_loop(self._fail, f"subscription to {self._topic} refused: {codes[0]}", False)
        else:
            self._in_loop(self._succeed)

    def _on_connect_fail(self, _client: Any, _data: Any) -> None:
        error = sys.exception() or OSError()  # paho calls this while it handles the error
        was_reset = self._has_tls and isinstance(error, ConnectionResetError)
        hint = ": does the broker use TLS at this port?" if was_reset else ""
        self._in_loop(self._fail, f"no connection: {reason_of(error)}{hint}")

    def _on_log(self, _client: Any, _data: Any, _level: Any, _text: Any) -> None:
        if isinstance(error := sys.exception(), OSError):  # paho logs an error of its socket while it handles it
            self._socket_error = error

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        error = self._socket_error and reason_of(self._socket_error)
        reason = error or ("" if str(code) == "Unspecified error" else str(code))
        hint = "" if self._answered or self._has_tls else "does the broker expect TLS (mqtts:// or --ca)?"
        if not self._refused:
            self._in_loop(self._fail, ": ".join(filter(None, ("connection closed", reason, hint))))
        self._answered, self._refused, self._socket_error = False, False, None
        self._client.on_log = self._on_log

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        match = self._topic_pattern.fullmatch(message.topic)
        name = "/".join(match.groups()) if match else ""
        stream = name if self._topic_pattern.groups else None
        source = f"MQTT {(stream or message.topic)[:64]}"
        self._in_loop(self._monitor.receive, bytes(message.payload), source, stream)

    def _on_publish(self, _client: Any, _data: Any, _number: Any, code: Any, _properties: Any) -> None:
        self._in_loop(self._published, str(code) if code.is_failure else None)
