"""The page of `heartlm review` in a real Chromium: corrections, a killed server, two windows, a phone, keys alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.chromium import Browser, Tab, wait_for
from tests.browser import find_chromium
from tests.reviewed import FALSE_VT, TRUE_V, beat_places, drawn, store

TOKEN = "0123456789abcdef"
FALSE_EVENT = f"VT@{beat_places()[FALSE_VT[0]]}"
AF_EVENT = f"AF@{beat_places()[160]}"
SYMBOLS = f"{list(FALSE_VT)}.map(at => String.fromCharCode(heartlm.beats.symbol[at])).join('')"
STATES = "Object.fromEntries(heartlm.events.map(each => [each.id, each.state]))"


class Served:
    """`heartlm review` of a folder, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.data, self.out, self.token = folder / "data", folder / "out", folder / "token"
        for name in ("steps", "windows", "keys"):
            store(drawn(self.data, name), self.out)
        self.token.write_text(TOKEN)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        options = ["--out", str(self.out), "--no-open", "--port", str(self.port), "--token", str(self.token)]
        command = [sys.executable, "-m", "heartlm", "review", str(self.data), *options, "--reviewer", "A. B."]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.address = self.process.stderr.readline().removeprefix("page: ").strip()
        assert self.address == f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def journal(self, name: str) -> list[dict[str, Any]]:
        lines = (self.out / f"{name}.review.jsonl").read_text().splitlines()
        return [entry["change"] for line in lines if "change" in (entry := json.loads(line))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    find_chromium()
    server = Served(tmp_path_factory.mktemp("review"))
    yield server
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


@pytest.fixture(scope="module")
def browser(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = Browser(served.address, tmp_path_factory.mktemp("profile"), 1300, 900)
    yield chromium
    chromium.close()


def until(condition: Callable[[], Any]) -> Any:
    return wait_for(condition, 0.02, 30)


def at_rest(tab: Tab) -> None:
    """Wait until all of the present revision is shown."""
    rest = """document.body?.dataset.view === 'review' && !heartlm.frame && !heartlm.begun &&
        document.documentElement.dataset.settled === String(heartlm.revision)"""
    until(lambda: tab.value(rest))


def go(tab: Tab, address: str) -> None:
    tab.call("Page.bringToFront")  # other pages are not drawn
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=address)
    at_rest(tab)


def changed(tab: Tab, *keys: str) -> None:
    """Press keys, and wait for the revision after them."""
    before = tab.value("heartlm.revision")
    tab.press(*keys)
    until(lambda: tab.value("heartlm.revision") > before)
    at_rest(tab)


def test_corrections_are_shown_at_once_and_kept_through_a_killed_server(served: Served, browser: Browser) -> None:
    until(lambda: browser.value("document.querySelectorAll('#list .rows button').length") == 3)
    browser.value("document.querySelectorAll('#list .rows button')[1].click()")  # sorted by name
    at_rest(browser)
    assert browser.value("document.getElementById('record').textContent") == "steps"
    assert browser.value(SYMBOLS) == "VVVVV" and browser.value(STATES)[FALSE_EVENT] == "automatic"
    family = f"heartlm.beats.family[{FALSE_VT[1]}]"
    browser.value(f"document.querySelector(`[data-family='${{{family}}}']`).click()")
    changed(browser, "n")
    assert "N" in browser.value(SYMBOLS)
    browser.value("heartlm.goto(heartlm.beats.sample[100])")
    for at in FALSE_VT:  # what the family left over
        browser.value(f"heartlm.chooseBeat({at})")
        if browser.value(f"heartlm.beats.symbol[{at}]") == ord("V"):
            changed(browser, "n")
    assert browser.value(SYMBOLS) == "NNNNN" and FALSE_EVENT not in browser.value(STATES)
    assert f"V {len(TRUE_V)}" in browser.value("document.getElementById('counts').textContent")
    changed(browser, "u")
    assert "V" in browser.value(SYMBOLS)
    changed(browser, "r")
    assert browser.value(SYMBOLS) == "NNNNN"
    browser.value(f"heartlm.chooseEvent('{AF_EVENT}')")
    at_rest(browser)
    browser.value("document.querySelector('.event.chosen button:last-child').click()")
    until(lambda: browser.value(STATES)[AF_EVENT] == "refused")
    at_rest(browser)
    revision = browser.value("heartlm.revision")
    served.kill()
    until(lambda: "no connection" in browser.value("document.getElementById('status').textContent"))
    served.start()
    until(lambda: browser.value("heartlm.wire.isOpen && heartlm.revision") == revision)
    at_rest(browser)
    go(browser, f"{served.address}#steps")
    assert browser.value(SYMBOLS) == "NNNNN" and browser.value(STATES)[AF_EVENT] == "refused"
    assert browser.value("heartlm.revision") == revision
    report = "fetch(`report/steps${location.search}`).then(answer => answer.text())"
    text = browser.value(report, awaited=True)
    assert "Reviewed, 5 beats and 1 event changed." in text and (served.out / "steps.reviewed.hlm").is_file()
    assert served.journal("steps")[-1]["state"] == "refused"


def test_a_second_window_follows_and_does_not_overwrite(served: Served, browser: Browser) -> None:
    address = f"{served.address}#windows"
    go(browser, address)
    other = browser.open(address)
    at_rest(other)
    browser.call("Page.bringToFront")
    browser.value(f"heartlm.chooseBeat({TRUE_V[0]})")
    changed(browser, "s")
    symbol = f"String.fromCharCode(heartlm.beats.symbol[{TRUE_V[0]}])"
    until(lambda: other.value(symbol) == "S")
    other.value("heartlm.pushed = () => {}")  # a window that has not heard of the next change
    changed(browser, "f")
    assert other.value(symbol) == "S"
    other.call("Page.bringToFront")
    other.value(f"heartlm.chooseBeat({TRUE_V[0]}, {{ moves: false }})")
    other.press("n")
    until(lambda: other.value("document.getElementById('status').className") == "error")
    assert "another window changed it" in other.value("document.getElementById('status').textContent")
    until(lambda: other.value(symbol) == "F")
    assert [change["symbol"] for change in served.journal("windows")] == ["S", "F"]
    other.call("Page.close")


def test_keys_alone_do_all_of_it(served: Served, browser: Browser) -> None:
    go(browser, f"{served.address}#keys")
    browser.press("?")
    assert browser.value("document.getElementById('keys').open")
    assert browser.value("document.querySelectorAll('#keys dt').length") > 30
    browser.press("Enter")  # the focus is on Close
    until(lambda: not browser.value("document.getElementById('keys').open"))
    browser.press("e")
    assert browser.value("heartlm.event").startswith("couplet@")
    changed(browser, "c")
    assert browser.value(STATES)[browser.value("heartlm.event")] == "confirmed"
    browser.press("e")
    assert browser.value("heartlm.event") == FALSE_EVENT
    changed(browser, "n")  # its beats
    assert browser.value(SYMBOLS) == "NNNNN" and FALSE_EVENT not in browser.value(STATES)
    changed(browser, "u")
    browser.press("E", "e")
    assert browser.value("heartlm.event") == FALSE_EVENT
    changed(browser, "z")
    assert browser.value(STATES)[FALSE_EVENT] == "refused"
    browser.press("E", "d")
    until(lambda: browser.value("heartlm.beat") in FALSE_VT)
    browser.press("ArrowLeft", "ArrowRight")
    beat = browser.value("heartlm.beat")
    changed(browser, "x")
    assert browser.value("heartlm.beats.sample.length") == len(beat_places()) - 1
    changed(browser, "i")
    assert browser.value("heartlm.beats.sample.length") == len(beat_places())
    assert browser.value(f"heartlm.beats.source[{beat}]") == 2
    changed(browser, "v")
    assert browser.value(f"heartlm.beats.symbol[{beat}]") == ord("V")
    browser.press("ArrowRight", modifiers=8)
    browser.press("ArrowRight", modifiers=8)
    assert browser.value("heartlm.marked.size") == 3
    browser.value("document.getElementById('kind').value = 'SVT'")
    changed(browser, "a")
    assert browser.value("heartlm.events.filter(each => each.state === 'added').map(each => each.kind)") == ["SVT"]
    changed(browser, "u")
    browser.press("Home", "k", ".", ".", ".", ".", ".")
    at_rest(browser)
    assert browser.value("heartlm.strip.caliperText") == "50 ms, 1200/min"
    browser.press("k", "w")
    until(lambda: int(browser.value("document.documentElement.dataset.waves") or 0) > 5)
    browser.press("3")
    at_rest(browser)
    ink = """(() => { const c = document.querySelector('.lines canvas'), g = c.getContext('2d');
        return g.getImageData(0, 0, c.width, c.height).data.filter((v, at) => at % 4 === 3 && v).length; })()"""
    assert browser.value(ink) > 20_000
    browser.press("-", "-", "-", "-", "-", "-", "-", "-", "-", "-")
    at_rest(browser)
    assert browser.value("Math.round(heartlm.view.spp * heartlm.stripWidth())") == pytest.approx(
        beat_places()[-1] + 500, abs=2
    )
    browser.press("1", "ArrowDown")
    at_rest(browser)
    assert browser.value("heartlm.families.chosen.size") == 1
    browser.press("j")
    at_rest(browser)
    num = browser.value("document.querySelectorAll('#gallery .beats button').length")
    assert num == browser.value("heartlm.question.beats.length") > 1
    first = browser.value("heartlm.question.beats")
    browser.value("document.querySelector('#gallery .beats button').click()")
    changed(browser, "f")
    assert browser.value("document.querySelector('#gallery .beats b').textContent") == "F"
    changed(browser, "y")
    shown = {"beats": first[1:], "symbol": "N"}
    assert sorted(served.journal("keys")[-1]["beats"]) == sorted(shown["beats"])
    assert browser.value("heartlm.question.beats") != first


def test_a_phone_scrolls_one_way_only(served: Served, browser: Browser) -> None:
    browser.resize(390, 844, mobile=True)
    go(browser, f"{served.address}#keys")
    for view in ("families", "events", "disclosure"):
        browser.value(f"document.getElementById('tab-{view}').click()")
        at_rest(browser)
        assert browser.value("document.documentElement.scrollWidth") == 390, view
    strip = "document.getElementById('strip').getBoundingClientRect()"
    assert browser.value(f"{strip}.width") > 360
