"""Alarms posted to a web address, with retries, as JSON or as FHIR Observations."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Access, Connection, is_loopback, reason_of, refuse_password
from heartlm.monitor.engine import Monitor

_FIRST_WAIT_S, _LONGEST_WAIT_S, _ANSWER_S = 0.5, 60.0, 10.0
_MAX_WAITING = 10_000
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
        headers = {"Content-Type": "application/json"}
        if header is not None:
            if not (fields := re.fullmatch(r"([\w-]+):\s*([!-~](?:[ -~]*[!-~])?)\s*", header, re.ASCII)):
                raise HeartlmError("webhook_header: a line such as  Authorization: Bearer TOKEN  expected")
            headers[fields[1]] = fields[2]
        Access(ca=ca).tls()  # checks the file: requests would only fail when it posts
        self._url, self._convert = url, convert
        self._verify = True if ca is None else str(ca)
        self._session = requests.Session()
        self._session.headers.update(headers)
        self._session.auth = lambda request: request  # otherwise requests replaces the header by a login of ~/.netrc
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
        problem, status = await asyncio.to_thread(self._request, "HEAD")
        if problem is not None and status in (None, 401):
            raise HeartlmError(f"{self.connection.name}: {problem}")

    def _request(self, method: str, body: str | None = None) -> tuple[str | None, int | None]:
        """Send a request, and return the problem, if there is one, and the status of the answer."""
        try:
            # requests follows a redirection of a POST with a GET, which loses the alarm.
            answer = self._session.request(
                method, self._url, data=body, timeout=_ANSWER_S, verify=self._verify, allow_redirects=False
            )
        except requests.RequestException as error:
            return reason_of(_cause(error)), None
        status = answer.status_code
        if 200 <= status < 300:
            return None, status
        hint = " (--webhook-header)" if status in (401, 403) else ""
        hint = " (a redirection: give its target)" if answer.is_redirect else hint
        return f"HTTP {status} {answer.reason}{hint}", status

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
            problem, status = await asyncio.to_thread(self._request, "POST", json.dumps(self._convert(entry)))
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


def _cause(error: BaseException) -> BaseException:
    """Return the error of the socket or of TLS in an error of requests, whose text contains the whole address."""
    while True:
        inner = (error.__cause__, getattr(error, "reason", None), *error.args)
        if (cause := next((each for each in inner if isinstance(each, Exception)), None)) is None:
            return error
        error = cause


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
