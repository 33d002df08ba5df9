"""The web page of a monitor: all streams, one stream in full, alarms and their acknowledgement.

The page is one file that draws on canvases. Four times a second it gets the status of all streams and the new samples
of the streams it shows over a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from heartlm.files import parse_json
from heartlm.monitor.alarms import SEVERITIES
from heartlm.monitor.engine import Monitor, WatchedPatient

UPDATE_S = 0.25
MAX_SHOWN = 64
_MAX_ALARMS = 200
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass
class _View:
    """The streams that one browser shows.

    Attributes:
        shown: streams by name, with the number of samples up to which they were sent.
        full: the stream that is shown in full, with all leads, trend and alarms.
        full_sent: last minute of its trend and number of its events when these were sent.
    """

    shown: dict[str, int] = field(default_factory=dict)
    full: str | None = None
    full_sent: tuple[int, int] | None = None


class Page:
    """Serves the page of one monitor.

    Args:
        monitor: monitor to show.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._html = (files("heartlm.monitor") / "page.html").read_text(encoding="utf-8")
        self.app = Starlette(routes=[Route("/", self._page), WebSocketRoute("/live", self._live)])

    def _allowed(self, connection: HTTPConnection) -> bool:
        """Return whether a request names this machine: other host names are refused, against DNS rebinding."""
        return connection.headers.get("host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")

    async def _page(self, request: Request) -> Response:
        if not self._allowed(request):
            return PlainTextResponse("host: 127.0.0.1 or localhost expected\n", 403)
        return HTMLResponse(self._html, headers=_HEADERS)

    async def _live(self, socket: WebSocket) -> None:
        origin = urlsplit(socket.headers.get("origin", ""))
        if not self._allowed(socket) or origin.netloc != socket.headers.get("host"):
            await socket.close(1008)
            return
        await socket.accept()
        view = _View()
        listener = asyncio.create_task(self._listen(socket, view))
        try:
            with contextlib.suppress(WebSocketDisconnect):
                while not listener.done():
                    await socket.send_text(json.dumps(self._update(view)))
                    await asyncio.sleep(UPDATE_S)
        finally:
            listener.cancel()

    async def _listen(self, socket: WebSocket, view: _View) -> None:
        """Handle requests of the page: show streams, show one in full, acknowledge an alarm."""
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                try:
                    request = parse_json(await socket.receive_text())
                except ValueError:
                    continue
                if not isinstance(request, dict):
                    continue
                names = self.monitor.patients
                if isinstance(show := request.get("show"), list):
                    known = [each for each in show[:MAX_SHOWN] if isinstance(each, str) and each in names]
                    view.shown = {name: view.shown.get(name, self._first_sample(name)) for name in known}
                if "full" in request:
                    full = request["full"]
                    view.full, view.full_sent = full if isinstance(full, str) and full in names else None, None
                if isinstance(key := request.get("acknowledge"), str):
                    self.monitor.acknowledge(key, str(request.get("by") or "unknown"))

    def _first_sample(self, name: str) -> int:
        """Return the sample two seconds ago, from which a stream is drawn when it is first shown."""
        patient = self.monitor.patients[name]
        return max(0, patient.num_samples - round(2 * patient.link.rate_hz))

    def _update(self, view: _View) -> dict[str, Any]:
        """Return one update of the page."""
        monitor, rank = self.monitor, {kind: place for place, kind in enumerate(SEVERITIES)}
        alarms = sorted(monitor.open_alarms(), key=lambda each: (rank[each["kind"]], -each["raised_s"]))
        worst = dict[str, dict[str, Any]]()
        for alarm in reversed(alarms):
            worst[alarm["stream"]] = alarm
        streams = [self._status(name, patient, worst.get(name)) for name, patient in monitor.patients.items()]
        past = list(monitor.alarms.values())[-_MAX_ALARMS:]
        known = [name for name in view.shown if name in monitor.patients]  # another worker may own it now
        signals = {name: signal for name in known if (signal := self._signal(name, view))}
        return {
            "full": self._full(view),
            "streams": streams,
            "open": alarms[:_MAX_ALARMS],
            "past": past[::-1],
            "signals": signals,
            "faults": sum(monitor.faults.values()),
        }

    def _status(self, name: str, patient: WatchedPatient, worst: dict[str, Any] | None) -> dict[str, Any]:
        rate = patient.rate_bpm
        return {
            "name": name,
            "bpm": None if rate is None or patient.silent else round(rate),
            "silent": patient.silent or patient.stream.rules.lost,
            "alarm": worst and worst["kind"],
            "severity": worst and worst["severity"],
            "counts": dict(patient.link.counts),
            "beats": [[round(time_s, 2), symbol] for time_s, symbol in patient.beats],
        }

    def _full(self, view: _View) -> dict[str, Any] | None:
        """Return trend and alarms of the stream shown in full; None if they have not changed."""
        patient = self.monitor.patients.get(view.full or "")
        if view.full is None or patient is None:
            return None
        own = [each for each in self.monitor.alarms.values() if each["stream"] == view.full]
        version = patient.trend.last, sum(1 + (each["stop_s"] is not None) for each in own)
        if version == view.full_sent:
            return None
        view.full_sent = version
        return {"name": view.full, "trend": patient.trend.to_json(), "events": own[-_MAX_ALARMS:]}

    def _signal(self, name: str, view: _View) -> dict[str, Any] | None:
        """Return the new samples of the lead in use, or of all leads for the stream shown in full."""
        patient = self.monitor.patients[name]
        history = patient.history
        new = min(patient.num_samples - view.shown[name], history.shape[1])
        if new <= 0:
            return None
        step = max(1, round(patient.link.rate_hz / 125))
        first = patient.num_samples - new
        offset = -first % step  # the same samples are drawn for any division into updates
        in_use = patient.stream.rules.lead_in_use
        leads = range(len(history)) if name == view.full else (in_use,)
        own = history[list(leads), history.shape[1] - new + offset :: step]
        view.shown[name] = patient.num_samples
        values = [[None if math.isnan(value) else round(value, 3) for value in lead] for lead in own.tolist()]
        return {"hz": patient.link.rate_hz / step, "mv": values}
