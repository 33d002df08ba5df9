"""The page of a monitor in a real Chromium: streams drawn, an alarm shown and acknowledged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.chromium import Browser, wait_for
from tests.brokers import OPEN, Broker
from tests.browser import find_chromium

pytestmark = pytest.mark.slow


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[str]:
    """The address of a page that shows 64 streams, of which some fibrillate."""
    find_chromium()
    folder = tmp_path / "ward"
    simulate = ["data", "simulate", str(folder), "--patients", "26", "--minutes", "1.5", "--seed", "5"]
    subprocess.run([sys.executable, "-m", "heartlm", *simulate], check=True, stdout=subprocess.DEVNULL)
    options = ["--replay", str(folder), "--streams", "64", "--speed", "2", "--port", "0", "--print-alarms", "none"]
    options += ["--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "heartlm", "monitor", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    yield line.removeprefix("page: ").strip()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_the_wall_is_drawn_and_alarms_are_acknowledged(ward: str, tmp_path: Path) -> None:
    browser = Browser(ward, tmp_path / "profile", 1600, 1000)
    try:
        wait_for(lambda: browser.value("document.documentElement.dataset.streams") == "64")
        wait_for(lambda: int(browser.value("document.documentElement.dataset.drawn") or 0) == 64)
        press, sound = "document.getElementById('sound').click()", "document.getElementById('sound').textContent"
        browser.value(press)  # a script's click, after which browsers stay silent
        assert browser.value(sound) == "sound on after a click"
        browser.call("Runtime.evaluate", expression="document.body.click()", userGesture=True)
        wait_for(lambda: browser.value(sound) == "sound on")
        assert browser.value("document.querySelectorAll('.tile canvas').length") == 64
        coloured = """[...document.querySelectorAll('.tile canvas')].filter(c =>
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0)).length"""
        wait_for(lambda: browser.value(coloured) == 64)
        wait_for(lambda: browser.value("document.querySelectorAll('#open .lethal').length > 0"))
        kind = browser.value("document.querySelector('#open .lethal .state').textContent")
        assert kind in ("VF", "VT", "asystole", "extreme bradycardia", "extreme tachycardia")
        first = "[...document.querySelectorAll('.tile')].sort((a, b) => a.style.order - b.style.order)[0].className"
        assert "lethal" in browser.value(first)  # the most urgent stream comes first
        browser.value("document.querySelector('#open .lethal button').click()")
        wait_for(lambda: int(browser.value("document.documentElement.dataset.acknowledged")) >= 1)
        assert "acknowledged by page" in browser.value("document.getElementById('past').textContent")
        browser.value("[...document.querySelectorAll('.tile')].find(each => each.style.order === '0').click()")
        wait_for(lambda: "last beats" in browser.value("document.querySelector('.tile.full .more').textContent"))
        drawn = """[...document.querySelectorAll('.tile.full canvas')].map(c => c.className + ':' +
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0)).join()"""
        wait_for(lambda: browser.value(drawn) == "strip:true,strip:true,trend:true")
        wait_for(lambda: browser.value("document.querySelectorAll('.tile.full .events .alarm').length > 0"))
        wait_for(lambda: browser.value("document.querySelectorAll('#open .alarm a').length > 0"))
        strip = """(() => { const request = new XMLHttpRequest(), link = document.querySelector('#open .alarm a');
            request.open('GET', link.href, false); request.send(); return request.responseText; })()"""
        assert "raised at" in browser.value(strip)  # the strip of an alarm on paper
        table = strip.replace("document.querySelector('#open .alarm a')", "document.getElementById('table')")
        assert browser.value(table).startswith("key,stream,kind,severity,start_s,") and ",lethal," in browser.value(
            table
        )
        browser.picture(tmp_path / "wall.png")
        assert (tmp_path / "wall.png").stat().st_size > 50_000
        print("frames a second:", browser.value("document.documentElement.dataset.fps"))
    finally:
        browser.close()


def test_a_broken_connection_is_a_red_bar(tmp_path: Path) -> None:
    find_chromium()
    broker = Broker("mosquitto", tmp_path, OPEN)
    port = broker.port
    command = [sys.executable, "-m", "heartlm", "monitor", "--mqtt", f"127.0.0.1:{port}", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    browser = Browser(process.stderr.readline().removeprefix("page: ").strip(), tmp_path / "profile", 900, 600)
    text = "document.getElementById('connections').textContent"
    colour = "getComputedStyle(document.querySelector('#connections div')).backgroundColor"
    try:
        wait_for(lambda: browser.value(text) == f"mqtt 127.0.0.1:{port}: connected")
        broker.stop()
        wait_for(lambda: "reconnecting: no connection: Connection refused, since 20" in browser.value(text))
        assert browser.value(colour) == "rgb(140, 28, 28)"
        browser.picture(tmp_path / "broken.png")
        broker.process = broker.start()
        wait_for(lambda: f"127.0.0.1:{port}: connected, errors: " in browser.value(text))
        assert browser.value(colour) == "rgba(0, 0, 0, 0)"
    finally:
        browser.close()
        broker.stop()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
