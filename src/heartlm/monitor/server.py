"""The web page of a monitor: streams, one stream in full, alarms and their acknowledgement, broken connections.

The page is one file that draws on canvases. Four times a second it gets the status of all streams and the new samples
of the streams it shows over a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from heartlm.ecg.definitions import ALARMS
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.formats.read import read_recording
from heartlm.monitor.alarms import ALARM_FIELDS
from heartlm.monitor.connection import Connection
from heartlm.monitor.engine import Monitor, WatchedPatient
from heartlm.monitor.web import HEADERS, LivePage
from heartlm.storage.atomic import csv_field
from heartlm.storage.reading import parse_json

UPDATE_S = 0.25
MAX_SHOWN = 64
_MAX_ALARMS = 200
# Seconds that a tile of the wall has room for, at most; a stream in full has room for the history.
_FILLED_S = 10.0
_PIECE_BYTES = 1 << 16


@dataclass
class _View:
    """The streams that one browser shows.

    Attributes:
        shown: streams by name, with the number of samples up to which they were sent; None before the first were.
        full: the stream that is shown in full, with all leads, trend and alarms.
        full_sent: last minute of its trend and number of changes of its alarms when these were sent.
    """

    shown: dict[str, int | None] = field(default_factory=dict)
    full: str | None = None
    full_sent: tuple[int, int] | None = None


class Page(LivePage):
    """Serves the page of one monitor.

    Args:
        monitor: monitor to show.
        token: token that a request must contain; None on the loopback address.
        pseudonyms: show a hash instead of each name.
        connections: connections whose state is shown.
        own: state of the page's own connections, which is shown while there is a problem.
    """

    def __init__(
        self,
        monitor: Monitor,
        token: str | None = None,
        pseudonyms: bool = False,
        connections: Sequence[Connection] = (),
        own: Connection | None = None,
    ) -> None:
        super().__init__(token, own or Connection("page", monitor.log, lambda: 0))
        self.monitor, self.pseudonyms, self.connections = monitor, pseudonyms, connections
        self._html = (files("heartlm.monitor") / "page.html").read_text(encoding="utf-8")
        routes = [
            Route("/", self.guarded(self._page)),
            Route("/alarms.csv", self.guarded(self._table)),
            Route("/strips/{name}.svg", self.guarded(self._strip)),
            WebSocketRoute("/live", self.live),
        ]
        self.app = Starlette(routes=routes)

    def display_name(self, name: str) -> str:
        """Return the name of a stream on the page."""
        return f"P-{hashlib.sha256(name.encode()).hexdigest()[:8]}" if self.pseudonyms else name

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(self._html, headers=HEADERS)

    async def _table(self, request: Request) -> Response:
        """Send all alarms of the log as CSV, in pieces: the log may be that of years."""
        if (client := self.viewers.admit(request)) is None:
            return PlainTextResponse(f"{self.viewers.most} pages are open: close one\n", 503)
        headers = HEADERS | {"Content-Disposition": 'attachment; filename="alarms.csv"'}
        pieces = _csv_pieces(map(self._alarm, self.monitor.alarm_log.history()))
        return _Download(pieces, lambda: self.viewers.discard(client), headers)

    async def _strip(self, request: Request) -> Response:
        """Draw the strip of an alarm on paper."""
        name = request.path_params["name"]
        alarm = next((each for each in self.monitor.alarms.values() if each["strip"] == name), None)
        if alarm is None or self.monitor.folder is None:
            return PlainTextResponse(f"{name}: no such strip\n", 404)
        try:
            content = _drawn(self.monitor.folder / "strips" / name, self._alarm(alarm))
        except HeartlmError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return Response(content, media_type="image/svg+xml", headers=HEADERS)

    async def converse(self, socket: WebSocket) -> None:
        """Send updates, and handle requests in a task of its own."""
        view = _View()
        listener = asyncio.create_task(self._listen(socket, view))
        try:
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
                names = {self.display_name(name): name for name in self.monitor.patients}
                if isinstance(show := request.get("show"), list):
                    known = [names[each] for each in show[:MAX_SHOWN] if isinstance(each, str) and each in names]
                    view.shown = {name: view.shown.get(name) for name in known}
                if "full" in request:
                    full, before = request["full"], view.full
                    view.full, view.full_sent = names.get(full) if isinstance(full, str) else None, None
                    # Other leads of both are drawn.
                    view.shown |= {name: None for name in view.shown if name in (before, view.full)}
                if isinstance(key := request.get("acknowledge"), str):
                    self.monitor.acknowledge(self._key(key), str(request.get("by") or "unknown"))

    def _key(self, displayed: str) -> str:
        """Return the key of an alarm from the key on the page, which may contain a pseudonym."""
        return next((key for key, alarm in self.monitor.alarms.items() if self._alarm(alarm)["key"] == displayed), "")

    def _alarm(self, alarm: dict[str, Any]) -> dict[str, Any]:
        """Return an alarm with the name of its stream on the page."""
        name = self.display_name(alarm["stream"])
        return alarm | {"stream": name, "key": name + alarm["key"].removeprefix(alarm["stream"])}

    def _update(self, view: _View) -> dict[str, Any]:
        """Return one update of the page."""
        monitor, rank = self.monitor, {kind: place for place, kind in enumerate(ALARMS)}
        alarms = sorted(monitor.open_alarms(), key=lambda each: (rank[each["kind"]], -each["raised_s"]))
        worst = dict[str, dict[str, Any]]()
        for alarm in reversed(alarms):
            worst[alarm["stream"]] = alarm
        streams = [self._status(name, patient, worst.get(name)) for name, patient in monitor.patients.items()]
        past = list(monitor.alarms.values())[-_MAX_ALARMS:]
        known = [name for name in view.shown if name in monitor.patients]  # another worker may own it now
        signals = {self.display_name(name): signal for name in known if (signal := self._signal(name, view))}
        return {
            "full": self._full(view),
            "streams": streams,
            "open": [self._alarm(each) for each in alarms[:_MAX_ALARMS]],
            "past": [self._alarm(each) for each in reversed(past)],
            "signals": signals,
            "faults": sum(monitor.faults.values()),
            "refused": monitor.num_refused,
            "forgotten": monitor.num_forgotten,
            "connections": [each.to_json() for each in (*self.connections, *([self.own] if self.own.problem else []))],
        }

    def _status(self, name: str, patient: WatchedPatient, worst: dict[str, Any] | None) -> dict[str, Any]:
        rate = patient.rate_bpm
        return {
            "name": self.display_name(name),
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
        alarms = [alarm for alarm in self.monitor.alarms.values() if alarm["stream"] == view.full]
        changed = ("stop_s", "acknowledged", "strip")
        version = patient.trend.last, sum(1 + sum(alarm[name] is not None for name in changed) for alarm in alarms)
        if version == view.full_sent:
            return None
        view.full_sent = version
        events = [self._alarm(alarm) for alarm in alarms[-_MAX_ALARMS:]]
        return {"name": self.display_name(view.full), "trend": patient.trend.to_json(), "events": events}

    def _signal(self, name: str, view: _View) -> dict[str, Any] | None:
        """Return the new samples of the lead in use, or of all leads for the stream shown in full.

        At first, and after a new part of the stream began, these are the last seconds, with which its strip is filled.
        """
        patient, sent = self.monitor.patients[name], view.shown[name]
        history = patient.history
        is_first = sent is None or sent > patient.num_samples  # a new part of the stream counts from 0 again
        if sent is None or is_first:
            filled_s = math.inf if name == view.full else _FILLED_S
            sent = max(0, patient.num_samples - round(min(filled_s * patient.link.rate_hz, history.shape[1])))
        new = min(patient.num_samples - sent, history.shape[1])
        if new <= 0:
            return None
        step = max(1, round(patient.link.rate_hz / 125))  # the page draws about 125 samples a second
        first = patient.num_samples - new
        offset = -first % step  # the same samples are drawn for any division into updates
        in_use = patient.stream.rules.lead_in_use
        leads = range(len(history)) if name == view.full else (in_use,)
        drawn = history[list(leads), history.shape[1] - new + offset :: step]
        view.shown[name] = patient.num_samples
        values = [[None if math.isnan(value) else round(value, 3) for value in lead] for lead in drawn.tolist()]
        return {"hz": patient.link.rate_hz / step, "mv": values, "first": is_first}


class _Download(StreamingResponse):
    """A file in pieces, whose client is one of the viewers until it ends or breaks off: it may last."""

    def __init__(self, pieces: Iterator[str], ended: Callable[[], None], headers: dict[str, str]) -> None:
        super().__init__(pieces, media_type="text/csv", headers=headers)
        self.ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.ended()


def _csv_pieces(alarms: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield alarms as CSV, in pieces of some kilobytes."""
    piece = StringIO()
    writer = csv.writer(piece, lineterminator="\n")
    writer.writerow([*ALARM_FIELDS, "time", "acknowledged_by", "acknowledged_at"])
    for alarm in alarms:
        seen = alarm["acknowledged"] or {}
        values = [*(alarm.get(name) for name in ALARM_FIELDS), alarm["time"], seen.get("by"), seen.get("time")]
        writer.writerow([csv_field(value) for value in values])
        if piece.tell() > _PIECE_BYTES:
            yield piece.getvalue()
            piece.seek(0)
            piece.truncate()
    yield piece.getvalue()


def _drawn(path: Path, alarm: dict[str, Any]) -> str:
    """Return the strip of an alarm as SVG: rows of ten seconds at 25 mm/s and 10 mm/mV, with the time of the alarm.

    Raises:
        HeartlmError: the record is unreadable.
    """
    from heartlm.report.figures import drawn_rows, picture
    from heartlm.report.strip import Strip

    recording = read_recording(path.with_suffix(".hea"))
    start_s = alarm["raised_s"] - int(read_annotation_file(path.with_suffix(".alarm")).sample[0]) / recording.rate_hz
    stop_s = math.inf if alarm["stop_s"] is None else alarm["stop_s"]
    rhythms = [(alarm["start_s"], stop_s, alarm["kind"])]
    strip = Strip(recording.signal(), recording.rate_hz, recording.leads, start_s, rhythms=rhythms)
    title = f"{alarm['stream']}: {alarm['kind']}, raised at {alarm['raised_s']:.0f} s"
    return picture(drawn_rows(strip, title))
