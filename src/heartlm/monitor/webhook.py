"""Alarms posted to a web address, with retries, as JSON or as FHIR Observations."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Access, Connection, is_loopback, reason_of, refuse_password
from heartlm.monitor.engine import Monitor
from heartlm.system.printable import printable

_FIRST_WAIT_S, _LONGEST_WAIT_S, _ANSWER_S = 0.5, 60.0, 10.0
_MAX_WAITING = 10_000
# Bytes of the header of an answer that are read, and characters of an address that are sent as they are.
_MAX_ANSWER, _QUERY = 8192, "%/:=&?~+!$,;'@()*[]"
# Client errors after which the same request may succeed: when the token or the address is mended, which all alarms wait
# for, or later (time limit, too early, too many requests).
_REPEATED = (401, 403, 404, 407, 408, 425, 429)


class Webhook:
    """Posts alarms as JSON in order. Each is repeated until the address answers with success or refuses it for good.

    Args:
        url: address.
        monitor: monitor whose alarms are posted.
        convert: returns the JSON values to post for an alarm.
        header: header that authorises the posts, such as `Authorization: Bearer TOKEN`.
        ca: certificates of the authorities that the address is checked against, PEM; None for the usual ones.

    Attributes:
        connection: state of the connection.

    Raises:
        HeartlmError: the address or the header is wrong.
    """

    def __init__(
        self,
        url: str,
        monitor: Monitor,
        convert: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        header: str | None = None,
        ca: Path | None = None,
    ) -> None:
        refuse_password("webhook", url)
        if not (match := re.match(r"(https?)://((\[[0-9a-f:.]+\]|[^][:/?#\s]+)(:\d+)?)(?![^/?#])", url)):
            raise HeartlmError(f"webhook: {url!r} found, an http or https address expected")
        fields = ["Content-Type: application/json", "User-Agent: heartlm", "Connection: close"]
        if header is not None:
            if not (found := re.fullmatch(r"([\w-]+):\s*([!-~](?:[ -~]*[!-~])?)\s*", header, re.ASCII)):
                raise HeartlmError("webhook_header: a line such as  Authorization: Bearer TOKEN  expected")
            fields.append(f"{found[1]}: {found[2]}")
        self._tls, self._convert = Access(ca=ca).tls(), convert
        self._target = _Target(url, fields)
        self.waiting = deque[dict[str, Any]](maxlen=_MAX_WAITING)
        # The log and the page show the host alone, as the rest of the address may contain a secret.
        scheme, host_and_port, host, _ = match.groups()
        self.connection = Connection(f"webhook {host_and_port}", monitor.log, lambda: len(self.waiting))
        if header is not None and scheme == "http" and not is_loopback(host.strip("[]")):
            monitor.log(f"{self.connection.name}: the header is sent unencrypted: https:// encrypts it")
        self._added = asyncio.Event()
        monitor.listeners.append(self._queue)

    async def connect(self) -> None:
        """Send a HEAD request. Only the lack of an answer and status 401 are errors, as it need not be allowed.

        Raises:
            HeartlmError: there is no such address, its certificate is not trusted, or it refuses the header.
        """
        problem, status = await self._request("HEAD")
        if problem is not None and status in (None, 401):
            raise HeartlmError(f"{self.connection.name}: {problem}")

    async def _request(self, method: str, body: str = "") -> tuple[str | None, int | None]:
        """Send a request, and return the problem, if there is one, and the status of the answer."""
        try:
            async with asyncio.timeout(_ANSWER_S):  # from the look-up of the address to the end of the header
                status, reason = await self._target.exchange(method, body.encode(), self._tls)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            if isinstance(error, asyncio.LimitOverrunError):
                return f"a header of more than {_MAX_ANSWER:,} bytes", None
            no_answer = isinstance(error, EOFError)
            return printable("connection closed without an answer" if no_answer else reason_of(error)), None
        if 200 <= status < 300:
            return None, status
        hint = " (--webhook-header)" if status in (401, 403) else ""
        hint = " (a redirection: give its target)" if status in (301, 302, 303, 307, 308) else hint
        return f"HTTP {status} {reason}{hint}", status

    def _queue(self, entry: dict[str, Any]) -> None:
        if len(self.waiting) == _MAX_WAITING:
            self.connection.fail(f"{_MAX_WAITING:,} alarms are waiting: the oldest is dropped")
        self.waiting.append(entry)
        self._added.set()

    async def run(self) -> None:
        """Post alarms until cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            if not self.waiting:
                self._added.clear()
                await self._added.wait()
            entry = self.waiting[0]
            problem, status = await self._request("POST", json.dumps(self._convert(entry)))
            is_refused = status is not None and 400 <= status < 500 and status not in _REPEATED
            if problem is not None and not is_refused:
                self.connection.fail(f"retrying: {problem}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            if self.waiting[0] is entry:  # else it was dropped meanwhile
                self.waiting.popleft()
            wait_s = _FIRST_WAIT_S
            if problem is None:
                self.connection.restore()
            else:
                self.connection.fail(f"alarm refused and left out: {problem}")


class _Target:
    """An address with what every request to it has. Each request has a connection of its own.

    A client of a library waits for each piece of an answer as long as for the first, and reads all of it; here only the
    status and the header are read, at most `_MAX_ANSWER` bytes of them.

    Args:
        url: http or https address.
        fields: lines of the header of requests.
    """

    def __init__(self, url: str, fields: list[str]) -> None:
        parts = urlsplit(url)
        self._is_secure, self._host = parts.scheme == "https", parts.hostname or ""
        self._port = parts.port or (443 if self._is_secure else 80)
        path = quote(parts.path or "/", _QUERY) + (f"?{quote(parts.query, _QUERY)}" if parts.query else "")
        host = self._host.encode("idna").decode() if ":" not in self._host else f"[{self._host}]"
        self._address, self._fields = f"{host}:{self._port}", [f"Host: {parts.netloc.encode('idna').decode()}", *fields]
        self._path, self._proxy = path, None
        proxy = getproxies().get(parts.scheme)
        if proxy and not proxy_bypass(self._address):
            self._proxy = urlsplit(proxy if "://" in proxy else f"http://{proxy}")

    async def exchange(self, method: str, body: bytes, tls: ssl.SSLContext) -> tuple[int, str]:
        """Send a request, by the proxy of the environment if there is one, and return status and reason."""
        proxy, name = self._proxy, self._host if self._is_secure else None
        host, port = (self._host, self._port) if proxy is None else (proxy.hostname, proxy.port or 80)
        secured: dict[str, Any] = {"ssl": tls, "server_hostname": name} if self._is_secure and proxy is None else {}
        reader, writer = await asyncio.open_connection(host, port, limit=_MAX_ANSWER, **secured)
        try:
            path, fields = self._path, [*self._fields, f"Content-Length: {len(body)}"]
            if proxy is not None:
                login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else None
                line = f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}" if login else None
                own = [line] if line else []
                if self._is_secure:
                    writer.write(_head(f"CONNECT {self._address} HTTP/1.1", [f"Host: {self._address}", *own]))
                    if (status := (await _status(reader))[0]) != 200:
                        raise ValueError(f"the proxy answers HTTP {status}")
                    await writer.start_tls(tls, server_hostname=name)
                else:
                    path, fields = f"http://{self._address}{path}", [*fields, *own]
            writer.write(_head(f"{method} {path} HTTP/1.1", fields) + body)
            while (answer := await _status(reader))[0] < 200:  # interim answers
                pass
            return answer
        finally:
            writer.transport.abort()  # closing TLS would wait for the server


def _head(line: str, fields: list[str]) -> bytes:
    return "\r\n".join([line, *fields, "\r\n"]).encode()


async def _status(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Read the status line and the header of an answer.

    Raises:
        ValueError: this is no HTTP.
    """
    answer = await reader.readuntil(b"\r\n\r\n")
    line = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if not (found := re.match(r"HTTP/1\.\d ([1-9]\d\d)(?: (.*))?$", line, re.ASCII | re.DOTALL)):
        raise ValueError("the answer is no HTTP")
    return int(found[1]), printable((found[2] or "").strip()[:100])


def observation(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an alarm as a FHIR R4 Observation (https://hl7.org/fhir/R4/observation.html).

    The kind of alarm is a text, as no code of a terminology has exactly its definition.
    """
    return {
        "resourceType": "Observation",
        "identifier": [{"system": "urn:heartlm:alarm", "value": entry["key"]}],
        "status": "preliminary" if entry["stop_s"] is None else "final",
        "category": [
            {"coding": [{"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": "procedure"}]}
        ],
        "code": {"text": f"ECG alarm: {entry['kind']}"},
        "subject": {"identifier": {"system": "urn:heartlm:stream", "value": entry["stream"]}},
        "effectiveDateTime": entry["time"],
        "valueString": entry["severity"],
        "component": [
            {"code": {"text": name}, "valueQuantity": {"value": entry[field], "unit": unit}}
            for name, field, unit in (("start in the stream", "start_s", "s"), ("confidence", "confidence", "1"))
        ],
    }
