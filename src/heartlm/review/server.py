"""The server of `heartlm review`: the recordings of a folder, each opened once for all windows that show it.

page ─► WebSocket ─► question by name ─► Review (beats, families, events, corrections), Pyramid (signal)
  └◄── answers, and the new revision after each correction, to all windows of the recording
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from heartlm.ecg.leads import ecg_leads
from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Connection
from heartlm.monitor.web import HEADERS, LivePage
from heartlm.review import answers
from heartlm.review.answers import Answer, pack
from heartlm.review.pyramid import FACTOR, FIRST, MISSING, NUM_LEVELS, UNIT_MV, Pyramid
from heartlm.review.records import Records
from heartlm.review.review import Changed, Review
from heartlm.review.spread import CLASSES
from heartlm.storage.reading import parse_json
from heartlm.storage.typed import typed
from heartlm.system.progress import say

WATCH_S = 2.0
"""Time between two looks for changes by other processes."""
MOST_OPEN = 4
"""Recordings that stay open while no window shows them."""
LONGEST_WAVES_S = 60.0
"""Longest stretch whose waves are delineated on demand."""
_PAGE = files("heartlm.review") / "page"
_TYPES = {".js": "text/javascript", ".css": "text/css"}
# Files of the page hold nothing of a recording, so they are served without the token.
_PAGE_HEADERS = HEADERS | {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
}


Result = TypeVar("Result")


@dataclass(eq=False)
class _Opened:
    """A recording that is open.

    Attributes:
        name: its name in the list.
        review: its beats, families and events, and corrections of them.
        pyramid: its signal.
        lock: is held by what uses `review`.
        windows: pages that show it.
    """

    name: str
    review: Review
    pyramid: Pyramid
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    windows: set[WebSocket] = field(default_factory=set)


class ReviewServer(LivePage):
    """Serves the page of a review.

    Args:
        records: the recordings.
        token: token that a request must contain.
        own: state of the connections.
    """

    def __init__(self, records: Records, token: str, own: Connection) -> None:
        super().__init__(token, own)
        self.records = records
        self._opened = dict[str, asyncio.Task[_Opened]]()
        self._engine = ThreadPoolExecutor(1, "review")  # reviews; signals are read by other threads
        self._analysis = asyncio.Lock()
        self._builds = set[asyncio.Task[None]]()
        self._answers = {
            name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")
        }
        routes = [
            Route("/", self.guarded(self._index)),
            Route("/page/{name}", self._file),
            Route("/report/{name:path}", self.guarded(self._report)),
            WebSocketRoute("/live", self.live),
        ]
        self.app = Starlette(routes=routes)

    async def _index(self, request: Request) -> Response:
        return HTMLResponse((_PAGE / "index.html").read_text(encoding="utf-8"), headers=_PAGE_HEADERS)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(Path(name).suffix)
        if kind is None or name not in {each.name for each in _PAGE.iterdir()}:
            return PlainTextResponse("no such file\n", 404)
        return Response((_PAGE / name).read_bytes(), media_type=kind, headers=_PAGE_HEADERS)

    async def _report(self, request: Request) -> Response:
        """Write the results of a recording with its corrections, and show its page."""
        name = request.path_params["name"]
        try:
            opened = await self._open(name)
            written = await self._with_review(opened, opened.review.write)
        except HeartlmError as error:
            return PlainTextResponse(f"{error}\n", 503)
        page = next(path for path in written if path.suffix == ".html")
        return HTMLResponse(page.read_text(encoding="utf-8"), headers=HEADERS)

    async def close(self) -> None:
        """End the work in the background; corrections are in the journals."""
        self.records.close()
        for task in self._opened.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().pyramid.close()
        await asyncio.gather(*self._builds, return_exceptions=True)
        self._engine.shutdown()

    async def _open(self, name: str) -> _Opened:
        """Return the recording of this name; it is opened, and analysed if it was not yet.

        Raises:
            HeartlmError: there is none, or it cannot be analysed or read.
        """
        if name not in self.records.names:
            raise HeartlmError(f"{name}: no such recording here")
        if name not in self._opened or (self._opened[name].done() and self._opened[name].exception()):
            self._forget()
            self._opened[name] = asyncio.create_task(self._make(name))
        return await asyncio.shield(self._opened[name])

    async def _make(self, name: str) -> _Opened:
        async with self._analysis:  # one at a time needs all cores
            await asyncio.to_thread(self.records.analyse, name)
        review = await asyncio.get_running_loop().run_in_executor(self._engine, self.records.open, name)
        pyramid = await asyncio.to_thread(Pyramid, review.recording, self.records.out)

        async def build() -> None:
            try:
                await asyncio.to_thread(pyramid.build)
            except HeartlmError as error:  # what is shown of it says the same
                say(str(error))

        task = asyncio.create_task(build())
        self._builds.add(task)
        task.add_done_callback(self._builds.discard)
        return _Opened(name, review, pyramid)

    def _forget(self) -> None:
        """Close recordings that no window shows, the one opened first before others."""
        for name, task in list(self._opened.items()):
            if len(self._opened) < MOST_OPEN or not task.done():
                continue
            if task.exception() is not None or not task.result().windows:
                if task.exception() is None:
                    task.result().pyramid.close()
                del self._opened[name]

    async def _with_review(self, opened: _Opened, do: Callable[..., Result], *arguments: Any) -> Result:
        async with opened.lock:
            return await asyncio.get_running_loop().run_in_executor(self._engine, do, *arguments)

    async def converse(self, socket: WebSocket) -> None:
        """Answer each question of a window in a task of its own, so that signal does not wait for corrections."""
        window = _Window(socket)
        try:
            while True:
                try:
                    asked = parse_json(await socket.receive_text())
                except (ValueError, KeyError):  # KeyError: bytes
                    continue
                if not isinstance(asked, dict):
                    continue
                while len(window.tasks) >= _MOST_TASKS:
                    await asyncio.wait(window.tasks, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._answer(window, asked))
                window.tasks.add(task)
                task.add_done_callback(window.tasks.discard)
        finally:
            for task in window.tasks:
                task.cancel()
            if window.opened is not None:
                window.opened.windows.discard(socket)

    async def _answer(self, window: _Window, asked: dict[str, Any]) -> None:
        number = asked.get("id")
        try:
            answer = self._answers.get(str(asked.get("ask")))
            if answer is None:
                raise HeartlmError(f"{asked.get('ask')!r}: no such question")
            found, arrays = await answer(window, asked)
            found |= {"id": number}
            content: str | bytes = pack(found, arrays) if arrays else json.dumps(found, allow_nan=False)
        except HeartlmError as error:
            content = json.dumps({"id": number, "error": str(error)})
        except Exception as error:  # a defect: the page must not wait for ever
            content = json.dumps({"id": number, "error": f"{type(error).__name__}: {error}"})
            say(f"{asked.get('ask')}: {error!r}")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # RuntimeError: the window is closed
            if isinstance(content, str):
                await window.socket.send_text(content)
            else:
                await window.socket.send_bytes(content)

    async def _on_list(self, window: _Window, asked: dict[str, Any]) -> Answer:
        about = await asyncio.to_thread(lambda: [[name, self.records.about(name)] for name in self.records.names])
        return {"title": self.records.title, "recordings": about}, {}

    async def _on_open(self, window: _Window, asked: dict[str, Any]) -> Answer:
        name = typed(str, asked.get("name"), "name")
        opened = await self._open(name)
        if window.opened is not None:
            window.opened.windows.discard(window.socket)
        opened.windows.add(window.socket)
        window.opened = opened
        review, recording = opened.review, opened.review.recording
        start = recording.clock_time(0)
        return {
            "name": name,
            "record": recording.record_id,
            "leads": list(recording.lead_names),
            "ecg": list(ecg_leads(recording)),
            "rate_hz": recording.rate_hz,
            "num_samples": recording.num_samples,
            "start": start,
            "level_mv": opened.pyramid.level_mv.round(4).tolist(),
            "unit_mv": UNIT_MV,
            "missing": MISSING,
            "first": FIRST,
            "factor": FACTOR,
            "num_levels": NUM_LEVELS,
            "symbols": CLASSES,
            "kinds": dict(review.automatic.kinds),
            "family_leads": list(review.automatic.leads),
            "reviewer": review.reviewer,
            "revision": review.revision,
        }, {}

    async def _on_signal(self, window: _Window, asked: dict[str, Any]) -> Answer:
        pyramid, leads = window.shown.pyramid, typed(list[int], asked.get("leads"), "leads")
        level, start, num = (typed(int, asked.get(name), name) for name in ("level", "start", "num"))
        values, complete = await asyncio.to_thread(pyramid.read, level, start, num, leads)
        return {"complete": complete}, {"values": values}

    async def _about_review(self, window: _Window, asked: dict[str, Any]) -> Answer:
        return await self._with_review(window.shown, getattr(answers, asked["ask"]), window.shown.review)

    _on_beats = _on_events = _on_families = _on_question = _about_review

    async def _on_doubtful(self, window: _Window, asked: dict[str, Any]) -> Answer:
        review, after = window.shown.review, typed(int, asked.get("after"), "after")
        return {"sample": await self._with_review(window.shown, review.next_doubtful, after)}, {}

    async def _on_waves(self, window: _Window, asked: dict[str, Any]) -> Answer:
        recording = window.shown.review.recording
        start, stop = (typed(int, asked.get(name), name) for name in ("start", "stop"))
        if not 0 <= start < stop <= recording.num_samples or (stop - start) / recording.rate_hz > LONGEST_WAVES_S:
            raise HeartlmError(f"waves: shown of {LONGEST_WAVES_S:g} s at most: zoom in")
        return await self._with_review(window.shown, answers.waves, window.shown.review, start, stop)

    async def _on_change(self, window: _Window, asked: dict[str, Any]) -> Answer:
        """Apply a correction, `undo` or `redo`, unless another window was faster; then tell all windows."""
        opened, change = window.shown, typed(dict[str, Any], asked.get("change"), "change")
        revision, review = typed(int, asked.get("revision"), "revision"), opened.review
        steps = {"undo": review.undo, "redo": review.redo}
        done: Changed | None
        if step := steps.get(str(change.get("do"))):
            done = await self._with_review(opened, step, revision)
        else:
            done = await self._with_review(opened, review.apply, change | {"revision": revision})
        await self._tell(opened, window.socket)
        text = f"nothing to {change['do']}" if done is None else done.text
        return {"revision": review.revision, "text": text}, {}

    async def _tell(self, opened: _Opened, but: WebSocket | None = None) -> None:
        """Send the revision to the windows of a recording."""
        text = json.dumps({"revision": opened.review.revision, "name": opened.name})
        for socket in opened.windows - {but}:
            if socket.client_state is WebSocketState.CONNECTED:
                with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                    await socket.send_text(text)

    async def watch(self) -> None:
        """Look for changes by other processes, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            for task in list(self._opened.values()):
                if task.done() and not task.exception() and task.result().windows:
                    opened = task.result()
                    with contextlib.suppress(HeartlmError):  # the next change says it
                        if await self._with_review(opened, opened.review.catch_up):
                            await self._tell(opened)


# Questions of one window that are answered at the same time.
_MOST_TASKS = 16


@dataclass(eq=False)
class _Window:
    """A page that is open.

    Attributes:
        socket: its connection.
        opened: the recording that it shows.
        tasks: its questions that are being answered.
    """

    socket: WebSocket
    opened: _Opened | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def shown(self) -> _Opened:
        """The recording.

        Raises:
            HeartlmError: none is open.
        """
        if self.opened is None:
            raise HeartlmError("open a recording first")
        return self.opened
