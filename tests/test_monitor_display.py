"""What the page of a monitor shows on a phone and on a wide screen, and its table of alarms, without a service."""

from __future__ import annotations

import csv
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from heartlm.monitor import alarm_log
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.engine import Monitor
from heartlm.monitor.models import LiveModels
from heartlm.monitor.server import Page, _View
from heartlm.monitor.stream import Ward
from tests.browser import open_page

HZ, TOKEN = 125, "0123456789abcdef"


def alarm(number: int, stream: str = "bed-1", kind: str = "VF", **fields: Any) -> dict[str, Any]:
    """An alarm on the page."""
    shown = {"key": f"{stream}/{kind}/{number}", "stream": stream, "kind": kind, "severity": "lethal", "start_s": 1.0}
    shown |= {"raised_s": 753.0, "stop_s": None, "confidence": 1.0, "count": 1, "acknowledged": None, "strip": None}
    return shown | {"time": "2026-01-02T12:34:56Z"} | fields


def update(num_seconds: float, mv: list[float], alarms: list[dict[str, Any]], first: bool) -> dict[str, Any]:
    samples = [mv[each % len(mv)] for each in range(round(num_seconds * HZ))]
    names = [f"bed-{number}" for number in range(1, 13)]
    stream = {"bpm": 92, "silent": False, "counts": {}, "beats": []}
    lethal = {"alarm": "VF", "severity": "lethal"}, {"alarm": None, "severity": None}
    streams = [{"name": name} | stream | lethal[name != "bed-1"] for name in names]
    counts = {"faults": 0, "refused": 0, "forgotten": 0, "full": None, "connections": []}
    signals = {name: {"hz": HZ, "mv": [samples], "first": first} for name in names}
    return {"streams": streams, "open": alarms, "past": alarms, "signals": signals} | counts


# A socket that delivers updates one after the other, a clock that stands still, and a loudspeaker that counts.
BEFORE = """<script>
class FakeSocket { constructor() { setTimeout(() =>
  UPDATES.forEach(each => this.onmessage({ data: JSON.stringify(each) })), 50); } send() {} }
window.WebSocket = FakeSocket;
window.AudioContext = class { currentTime = 0; destination = {};
  state = "suspended"; resume() { this.state = "running"; return Promise.resolve(); }
  createOscillator() { return { frequency: {}, connect: to => to, start() {}, stop() {} }; }
  createGain() { return { connect() {}, gain: { setValueAtTime() {}, linearRampToValueAtTime() {} } }; } };
sessionStorage.setItem("sound", SOUND);
requestAnimationFrame = () => 0;  // what is drawn is what filled the strips
</script>"""
AFTER = """<script>
setTimeout(() => {
  const top = each => Math.round(document.querySelector(each).getBoundingClientRect().top);
  const canvas = document.querySelector(".tile canvas"), [w, h] = [canvas.width, canvas.height];
  const pixels = canvas.getContext("2d").getImageData(0, 0, w, h).data, alpha = (x, y) => pixels[4 * (y * w + x) + 3];
  const columns = [...Array(w).keys()].filter(x => [...Array(h).keys()].some(y => alpha(x, y)));
  const rows = [...Array(h).keys()].filter(y => [...Array(w).keys()].some(x => alpha(x, y) > 100));
  const colour = each => getComputedStyle(document.querySelector(each)).color;
  Object.assign(document.documentElement.dataset, { shown: JSON.stringify({
    alarms: top("#open"), streams: top("#wall"), log: top("#past"),
    wide: document.documentElement.scrollWidth, drawn: columns.length / w, low: rows[0], high: rows.at(-1), h,
    scale: document.querySelector(".scale").textContent,
    lethal: colour(".lethal .bpm"), usual: colour(".tile:not(.lethal) .bpm"),
    text: document.querySelector("#open .alarm").textContent, sound: document.getElementById("sound").textContent,
    table: document.getElementById("table").getAttribute("href") }) });
}, 400);
</script>"""


def shown(folder: Path, width: int, updates: list[dict[str, Any]], sound: str = "off") -> dict[str, Any]:
    """What a browser of this width shows after the updates."""
    page = (files("heartlm.monitor") / "page.html").read_text(encoding="utf-8")
    before = BEFORE.replace("UPDATES", json.dumps(updates)).replace("SOUND", json.dumps(sound))
    file = folder / f"page-{width}-{sound}.html"
    file.write_text(page.replace("<script>", before + "<script>", 1) + AFTER, encoding="utf-8")
    found = open_page(file, folder, width=width, height=900, with_picture=False)
    return json.loads(found.data["shown"].replace("&quot;", '"')) | {"beeps": int(found.data.get("beeps", 0))}


@pytest.mark.parametrize("width", [500, 1280])  # the narrowest window of a headless Chromium, and a wide one
def test_alarms_come_first_and_strips_are_full_and_not_cut(tmp_path: Path, width: int) -> None:
    wave = [1.4 * math.sin(2 * math.pi * each / 40) for each in range(40)]  # 2.8 mV do not fit at 10 mm/mV
    alarms = [alarm(number) for number in range(30)]
    page = shown(tmp_path, width, [update(10, wave, alarms[:-1], True), update(0.25, wave, alarms, False)])
    if width < 700:
        assert page["alarms"] < page["streams"] < 450 + page["alarms"] and page["streams"] < page["log"]
        assert page["wide"] == width
    assert page["alarms"] < 150
    assert page["drawn"] > 0.9  # before any sample is drawn by time
    assert page["scale"] == "5 mm/mV" and 2 < page["low"] < page["high"] < page["h"] - 12  # where the scale stands
    assert page["lethal"] == "rgb(255, 123, 123)" and page["usual"] == "rgb(127, 224, 160)"
    assert "2026-01-02 " in page["text"] and ":56 (753 s)" in page["text"]
    assert page["sound"] == "sound off" and page["beeps"] == 0 and page["table"].endswith("/alarms.csv")


def test_new_lethal_alarms_sound_once_and_a_large_step_is_marked_as_cut(tmp_path: Path) -> None:
    first, warning = alarm(1), alarm(2, kind="run", severity="warning")
    acknowledged = alarm(3, acknowledged={"by": "nurse", "time": "2026-01-02T12:35:00Z"})
    alarms = [[first], [first, warning, acknowledged], [first, alarm(4)], [alarm(4)], [first], [alarm(4, count=2)]]
    large = [6.0] * 100 + [-6.0] * 300
    page = shown(tmp_path, 800, [update(5 * (not n), large, each, not n) for n, each in enumerate(alarms)], "on")
    assert page["beeps"] == 2  # a new one, and one that began again; the page was opened with the first
    assert page["sound"] == "sound on"
    assert page["scale"] == "2.5 mm/mV, cut"


def test_a_stream_is_sent_with_its_last_seconds_first(models: LiveModels) -> None:
    monitor, view = Monitor(Ward(models), log=lambda _: None), _View()
    page = Page(monitor)

    def receive(seconds: range) -> None:
        for second in seconds:
            values = [round(second + each / 1000, 3) for each in range(250)]
            message = {"stream": "bed", "rate_hz": 250, "start": 250 * second, "mv": [values, values]}
            monitor.receive(json.dumps(message).encode())

    def sent() -> tuple[bool, int, int]:
        signal = page._update(view)["signals"]["bed"]
        return signal["first"], len(signal["mv"]), len(signal["mv"][0])

    receive(range(40))
    view.shown = {"bed": None}
    assert sent() == (True, 1, 10 * HZ)
    receive(range(40, 41))
    assert sent() == (False, 1, HZ)
    view.full, view.shown = "bed", {"bed": None}
    assert sent() == (True, 2, 32 * HZ)  # all that is kept, in both leads


def raised(monitor: Monitor, stream: str, second: int) -> str:
    """Raise an alarm and end it after a second."""
    one = Alarm(stream, "pause", 250 * second, 250 * second, None, 0.5, 250.0)
    monitor._publish_once(one.to_json())
    monitor._publish_once(one.to_json() | {"stop_s": second + 1.0})
    return one.key


@pytest.mark.parametrize("in_folder", [True, False])
def test_all_alarms_of_the_log_are_a_table(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch, in_folder: bool
) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    monkeypatch.setattr(alarm_log, "_MAX_ALARMS", 20 if in_folder else 10_000)  # in memory
    monkeypatch.setattr("heartlm.monitor.server._PIECE_BYTES", 500)
    monitor = Monitor(Ward(models), tmp_path if in_folder else None, log=lambda _: None)
    keys = [raised(monitor, "=bed", second) for second in range(2000)]
    monitor.acknowledge(keys[-1], "nurse, night")
    page = Page(monitor, TOKEN)
    client = testclient.TestClient(page.app)
    assert client.get("/alarms.csv").status_code == 403
    answer = client.get(f"/alarms.csv?token={TOKEN}")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert [row["key"] for row in rows] == [f"'{key}" for key in keys]  # no formula in a spreadsheet
    assert {(row["stream"], row["kind"], row["severity"]) for row in rows} == {("'=bed", "pause", "warning")}
    assert [float(row["stop_s"]) - float(row["start_s"]) for row in rows] == [1.0] * len(keys)  # as they are now
    last = monitor.alarms[keys[-1]]
    assert (rows[-1]["acknowledged_by"], rows[-1]["acknowledged_at"]) == ("nurse, night", last["acknowledged"]["time"])
    assert rows[-1]["time"] == last["time"] and rows[0]["acknowledged_by"] == ""
    assert not page.viewers  # the download has ended
    hidden = testclient.TestClient(Page(monitor, TOKEN, pseudonyms=True).app).get(f"/alarms.csv?token={TOKEN}").text
    assert "bed" not in hidden and hidden.count("\n") == 2001
    page.viewers.update(("", number) for number in range(page.viewers.most))
    assert client.get(f"/alarms.csv?token={TOKEN}").status_code == 503
    monitor.close()
