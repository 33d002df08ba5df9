"""The page of a monitor: a wall of streams, one stream in full, alarms and their acknowledgement.

The page is one file and draws on plain canvases. It is told by a WebSocket: four times a second how all streams are,
and the new samples of those that it shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
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

TICK_S = 0.25
MOST_SHOWN = 64
_MOST_ALARMS = 200
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass
class _View:
    """What one browser shows.

    Attributes:
        shown: streams by name, with the number of samples that were sent.
        full: the stream that is shown in full, with all leads, trend and alarms.
        told: of which minute of the trend, and of how many alarms, it was told last.
    """

    shown: dict[str, int] = field(default_factory=dict)
    full: str | None = None
    told: tuple[int, int] | None = None


class Page:
    """Serves the page of one monitor.

    Args:
        monitor: what to show.
        token: that a visitor must know, None on the loopback address.
        pseudonyms: show a hash in place of each name.
    """

    def __init__(self, monitor: Monitor, token: str | None = None, pseudonyms: bool = False) -> None:
        self.monitor, self.token, self.pseudonyms = monitor, token, pseudonyms
        self._html = (files("heartlm.monitor") / "page.html").read_text(encoding="utf-8")
        self.app = Starlette(routes=[Route("/", self._page), WebSocketRoute("/live", self._live)])

    def shown(self, name: str) -> str:
        """What the page calls a stream."""
        return f"P-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if self.pseudonyms else name

    def _allowed(self, connection: HTTPConnection) -> bool:
        if self.token is not None:
            return hmac.compare_digest(connection.query_params.get("token", "").encode(), self.token.encode())
        # A page without a token is for this machine: another name for its address may be a trap of another site.
        host = connection.headers.get("host", "").rpartition(":")[0]
        return host in ("127.0.0.1", "localhost", "[::1]")

    async def _page(self, request: Request) -> Response:
        if not self._allowed(request):
            return PlainTextResponse("token: add ?token=... to the address\n", 403)
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
            while not listener.done():
                await socket.send_text(json.dumps(self._tick(view)))
                await asyncio.sleep(TICK_S)
        except WebSocketDisconnect:
            pass
        finally:
            listener.cancel()

    async def _listen(self, socket: WebSocket, view: _View) -> None:
        """Do what the page asks: show streams, from their last sample on, one in full; acknowledge an alarm."""
        try:
            while True:
                try:
                    wish = parse_json(await socket.receive_text())
                except ValueError:
                    continue
                if not isinstance(wish, dict):
                    continue
                names = {self.shown(name): name for name in self.monitor.patients}
                if isinstance(show := wish.get("show"), list):
                    wanted = [names[each] for each in show[:MOST_SHOWN] if isinstance(each, str) and each in names]
                    view.shown = {name: view.shown.get(name, self._begin(name)) for name in wanted}
                if "full" in wish:
                    full = wish["full"]
                    view.full, view.told = names.get(full) if isinstance(full, str) else None, None
                if isinstance(key := wish.get("acknowledge"), str):
                    self.monitor.acknowledge(self._key(key), str(wish.get("by") or "unknown"))
        except WebSocketDisconnect:
            pass

    def _begin(self, name: str) -> int:
        """Two seconds back: a sweep that begins with something to draw."""
        patient = self.monitor.patients[name]
        return max(0, patient.num_samples - round(2 * patient.link.rate_hz))

    def _key(self, shown: str) -> str:
        if not self.pseudonyms:
            return shown
        return next((key for key, alarm in self.monitor.alarms.items() if self._alarm(alarm)["key"] == shown), "")

    def _alarm(self, alarm: dict[str, Any]) -> dict[str, Any]:
        name = self.shown(alarm["stream"])
        return alarm | {"stream": name, "key": name + alarm["key"].removeprefix(alarm["stream"])}

    def _tick(self, view: _View) -> dict[str, Any]:
        monitor, rank = self.monitor, {kind: place for place, kind in enumerate(SEVERITIES)}
        alarms = sorted(monitor.open_alarms(), key=lambda each: (rank[each["kind"]], -each["raised_s"]))
        worst = dict[str, dict[str, Any]]()
        for alarm in reversed(alarms):
            worst[alarm["stream"]] = alarm
        streams = [self._status(name, patient, worst.get(name)) for name, patient in monitor.patients.items()]
        past = list(monitor.alarms.values())[-_MOST_ALARMS:]
        known = [name for name in view.shown if name in monitor.patients]  # another worker may have taken one over
        signals = {self.shown(name): signal for name in known if (signal := self._signal(name, view))}
        return {
            "full": self._full(view),
            "streams": streams,
            "open": [self._alarm(each) for each in alarms[:_MOST_ALARMS]],
            "past": [self._alarm(each) for each in reversed(past)],
            "signals": signals,
            "faults": sum(monitor.faults.values()),
        }

    def _status(self, name: str, patient: WatchedPatient, worst: dict[str, Any] | None) -> dict[str, Any]:
        rate = patient.rate_bpm
        return {
            "name": self.shown(name),
            "bpm": None if rate is None or patient.silent else round(rate),
            "silent": patient.silent or patient.stream.rules.lost,
            "alarm": worst and worst["kind"],
            "severity": worst and worst["severity"],
            "counts": dict(patient.link.counts),
            "beats": [[round(time_s, 2), symbol] for time_s, symbol in patient.beats],
        }

    def _full(self, view: _View) -> dict[str, Any] | None:
        """Trend and alarms of the stream in full, where something of them is new."""
        patient = self.monitor.patients.get(view.full or "")
        if view.full is None or patient is None:
            return None
        own = [each for each in self.monitor.alarms.values() if each["stream"] == view.full]
        told = patient.trend.last, sum(1 + (each["stop_s"] is not None) for each in own)
        if told == view.told:
            return None
        view.told = told
        events = [self._alarm(each) for each in own[-_MOST_ALARMS:]]
        return {"name": self.shown(view.full), "trend": patient.trend.to_json(), "events": events}

    def _signal(self, name: str, view: _View) -> dict[str, Any] | None:
        """New samples of the lead in use; of all leads of the stream in full."""
        patient = self.monitor.patients[name]
        history = patient.history
        new = min(patient.num_samples - view.shown[name], history.shape[1])
        if new <= 0:
            return None
        step = max(1, round(patient.link.rate_hz / 125))
        first = patient.num_samples - new
        offset = -first % step  # always the same samples, however they are cut
        in_use = patient.stream.rules.lead_in_use
        leads = range(len(history)) if name == view.full else (in_use,)
        own = history[list(leads), history.shape[1] - new + offset :: step]
        view.shown[name] = patient.num_samples
        values = [[None if math.isnan(value) else round(value, 3) for value in lead] for lead in own.tolist()]
        return {"hz": patient.link.rate_hz / step, "mv": values}
