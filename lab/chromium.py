"""A headless Chromium: where it is, how it is started, and a page in it that is driven by the DevTools protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
TIMEOUT_S = 120
_KEY_CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9, "Escape": 27}

Found = TypeVar("Found")


def chromium() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def wait_for(condition: Callable[[], Found], every_s: float = 0.2, most_s: float = TIMEOUT_S) -> Found:
    """What `condition` returns, as soon as it is true."""
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(every_s)
    raise AssertionError(f"not within {most_s:g} s")


class Tab:
    """A page, by the address of its debugger."""

    def __init__(self, debugger: str) -> None:
        from websockets.sync.client import connect

        self.socket = connect(debugger, max_size=None, legacy=True)
        self.numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self.socket.recv(TIMEOUT_S))).get("id") != number:
            pass
        return answer["result"]

    def value(self, script: str, awaited: bool = False) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=awaited)
        return answer["result"].get("value")

    def press(self, *keys: str, modifiers: int = 0) -> None:
        """Press keys one after the other; `modifiers` are those of the protocol: 2 Ctrl, 8 Shift."""
        for key in keys:
            pressed = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": _KEY_CODES.get(key, 0)}
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **({} if modifiers & 2 else text))
            self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def picture(self, path: Path) -> None:
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser(Tab):
    """A headless Chromium with a page."""

    def __init__(self, address: str, profile: Path, width: int, height: int) -> None:
        import requests

        name = chromium()
        assert name is not None, "no Chromium on PATH"
        options = [f"--window-size={width},{height}", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen([name, *FLAGS, *options, address], stderr=subprocess.DEVNULL)
        ports = profile / "DevToolsActivePort"
        port = wait_for(lambda: ports.exists() and (ports.read_text().splitlines() or [""])[0], 0.02)
        self.pages = f"http://127.0.0.1:{port}/json"
        pages = wait_for(lambda: [each for each in requests.get(self.pages).json() if each["type"] == "page"], 0.05)
        super().__init__(pages[0]["webSocketDebuggerUrl"])

    def open(self, address: str) -> Tab:
        """A further page."""
        import requests

        return Tab(requests.put(f"{self.pages}/new?{quote(address)}").json()["webSocketDebuggerUrl"])

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)
