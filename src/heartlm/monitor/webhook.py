"""Alarms posted to a web address, with retries, as JSON or as FHIR Observations."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from heartlm.monitor.engine import Monitor

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 60.0
_MAX_WAITING = 10_000


class Webhook:
    """Posts alarms as JSON in order. Each is repeated until the address answers with success.

    Args:
        url: address.
        monitor: monitor whose alarms are posted.
        convert: returns the JSON values to post for an alarm.
    """

    def __init__(self, url: str, monitor: Monitor, convert: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> None:
        self.url, self._convert, self._log = url, convert, monitor.log
        self.waiting = deque[dict[str, Any]](maxlen=_MAX_WAITING)
        self._added = asyncio.Event()
        monitor.listeners.append(self._queue)

    def _queue(self, entry: dict[str, Any]) -> None:
        if len(self.waiting) == _MAX_WAITING:
            self._log(f"{self.url}: {_MAX_WAITING:,} alarms are waiting: the oldest is dropped")
        self.waiting.append(entry)
        self._added.set()

    async def run(self) -> None:
        """Post alarms until cancelled."""
        import requests

        wait_s, session = _FIRST_WAIT_S, requests.Session()
        while True:
            if not self.waiting:
                self._added.clear()
                await self._added.wait()
            body = json.dumps(self._convert(self.waiting[0]))
            try:
                answer = await asyncio.to_thread(
                    session.post, self.url, data=body, headers={"Content-Type": "application/json"}, timeout=10
                )
                answer.raise_for_status()
            except requests.RequestException as error:
                self._log(f"{self.url}: {type(error).__name__}, trying again in {wait_s:g} s")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            self.waiting.popleft()
            wait_s = _FIRST_WAIT_S


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
            for name, field, unit in (
                ("start in the stream", "start_s", "s"),
                ("confidence", "confidence", "1"),
            )
        ],
    }
