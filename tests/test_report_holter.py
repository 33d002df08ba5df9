"""The page of one recording: its numbers are those of the findings, and it holds for odd recordings too."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heartlm.analysis.events import USUAL_LIMITS
from heartlm.analysis.findings import KINDS, Event, Findings
from heartlm.analysis.limits import Limits
from heartlm.databases.database import open_database
from heartlm.ecg.definitions import definitions
from heartlm.ecg.recording import Patient, Recording
from heartlm.report.holter import context, holter_page
from heartlm.report.holter_charts import time_ticks
from heartlm.report.holter_index import index_page
from heartlm.report.numbers import elapsed
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from tests.browser import find_chromium, open_page, print_page
from tests.conftest import shared_data

RATE_HZ = 250


def recording_of(signal: NDArray[np.float32], lead_names: Sequence[str], asked: list[tuple[int, int]]) -> Recording:
    def read(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        asked.append((start, stop))
        return signal[list(leads), start:stop]

    return Recording(
        record_id="100",
        patient_id="p100",
        database="simdb",
        rate_hz=float(RATE_HZ),
        num_samples=signal.shape[1],
        lead_names=tuple(lead_names),
        units=("mV",) * len(lead_names),
        path=Path("100.hea"),
        samples=read,
    )


@pytest.fixture(scope="module")
def simulated() -> Findings:
    """Three minutes of a simulated patient, with an event of every kind; too few intervals for HRV."""
    config = SimulationConfig(minutes=3, noise=0.3)
    signal, annotations = simulate_recording(config, 3)
    sample = annotations.sample
    symbol = np.array(["NSVF"[place % 4 if place % 9 == 0 else 0] for place in range(len(sample))])
    events = [Event(kind, 3000 * n, 3000 * n + 900, 0.8, 4, 60.0 + n) for n, kind in enumerate(KINDS, 1)]
    events += [Event("couplet", 44_990, 45_000, 0.7, 2, 180.0), Event("AF", 0, 500, 0.9, 3, 110.0)]
    return Findings(
        recording_of(signal, config.leads, []),
        (0, 1),
        sample,
        symbol,
        np.full(len(sample), 0.876, np.float32),
        tuple(sorted(events, key=lambda event: event.start)),
        np.full((2, 18), 0.95, np.float32),
        ("lead V1: 12 % is noisy",),
        {"heartlm": "0.0"},
    )


def nothing_found(recording: Recording) -> Findings:
    none = np.empty(0)
    leads = tuple(range(recording.num_leads))
    return Findings(recording, leads, none.astype(np.int64), none.astype("<U1"), none.astype(np.float32), (), none)


def words_of(page: str) -> str:
    """The text of a page without style, scripts and drawings."""
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_numbers_are_those_of_the_findings(simulated: Findings):
    words, summary = words_of(holter_page(simulated)), simulated.summary()
    assert f"Fastest {summary['fastest_bpm']:.0f}/min" in words
    assert f"Longest RR {summary['longest_rr_s']:.2f} s" in words
    num_v = summary["beats"]["V"]
    assert f"Ventricular Beats {num_v} ({100 * num_v / summary['num_beats']:.1f} %)" in words
    assert "Burden: 3.2 % of the readable time, 5.6 s in 2 episodes." in words
    for note in (*simulated.notes, "Research software, not a medical device."):
        assert note in words


def test_findings_stand_in_order_of_danger_and_each_kind_has_its_strips(simulated: Findings):
    shown = context(simulated)
    assert [row["kind"] for row in shown["findings"]] == list(KINDS)
    assert [section["kind"] for section in shown["strips"]] == list(KINDS)
    assert {section["kind"]: len(section["figures"]) for section in shown["strips"]}["AF"] == 2


def test_times_are_clock_times_with_the_time_since_the_start_beside_them(simulated: Findings):
    def words_with(start: datetime | time | None, **patient: Any) -> str:
        recording = replace(simulated.recording, start=start, patient=Patient(**patient))
        return words_of(holter_page(replace(simulated, recording=recording)))

    words = words_with(datetime(2024, 3, 1, 23, 58, 30), name="A B", birth_date=date(1960, 2, 1), sex="male")
    assert "Name A B Sex male Born 1960-02-01 Age 64 years Start 2024-03-01 23:58:30" in words
    assert "2024-03-01 23:58:42 +0:12" in words  # VF
    assert "2024-03-02 00:01:18 (+2:48), 3.6 s" in words  # the strip of the unreadable part
    words = words_with(datetime(2024, 3, 1, 13, 0, 0))
    assert "13:00:12 +0:12" in words and "2024-03-01 13:00:12" not in words and "Name" not in words
    words = words_with(time(23, 58, 30))
    assert "Start 23:58:30" in words and "23:58:42 +0:12" in words and "day 2 00:01:18 (+2:48)" in words
    words = words_with(None)
    assert "Start not stated" in words and "+0:12" in words and "those since its start" in words


def test_axes_over_time_have_round_clock_times(simulated: Findings):
    def ticks(start: datetime | time | None, hours: float) -> list[str]:
        recording = replace(simulated.recording, start=start, num_samples=round(hours * 3600 * RATE_HZ))
        places, _ = time_ticks(recording)
        assert all(0 <= place <= 3600 * hours for place, _ in places)
        return [words for _, words in places]

    assert ticks(None, 0.05) == ["0:00", "0:30", "1:00", "1:30", "2:00", "2:30", "3:00"]
    assert ticks(time(22, 47, 12, 500_000), 2.5) == ["23:00", "23:30", "day 2", "00:30", "01:00"]
    assert ticks(datetime(2024, 2, 29, 21), 5) == ["21:00", "22:00", "23:00", "2024-03-01", "01:00", "02:00"]
    assert ticks(time(22, 47, 58), 0.003) == ["22:47:58", "22:48:00", "22:48:02", "22:48:04", "22:48:06", "22:48:08"]


def test_strips_are_read_as_slices_within_the_recording(simulated: Findings):
    asked: list[tuple[int, int]] = []
    recording = simulated.recording
    page = holter_page(replace(simulated, recording=recording_of(recording.signal(), recording.lead_names, asked)))
    assert page.count('class="strip sheet"') == len(asked)
    assert len(asked) + page.count('class="reference"') == len(KINDS) + 2 + 3
    assert {stop - start for start, stop in asked} == {7 * RATE_HZ}
    assert min(start for start, _ in asked) == 0
    assert max(stop for _, stop in asked) == recording.num_samples


def test_beats_of_a_strip_bear_their_class_and_probability(simulated: Findings):
    drawing = context(simulated)["extremes"][0]["drawing"]
    start = int(np.diff(simulated.sample)[simulated.readable()].argmax())
    assert drawing.count(">87</text>") >= 2
    assert f"{simulated.symbol[start]}</text>" in drawing
    assert drawing.count('class="lead-name"') == 2


def short_findings(names: Sequence[str], seconds: int) -> Findings:
    signal, annotations = simulate_recording(SimulationConfig(minutes=0.5), 1)
    recording = recording_of(np.resize(signal, (len(names), seconds * RATE_HZ)), names, [])
    sample = annotations.sample[annotations.sample < seconds * RATE_HZ]
    found = replace(nothing_found(recording), sample=sample, symbol=np.full(len(sample), "N"))
    return replace(found, probability=np.ones(len(sample), np.float32))


@pytest.mark.parametrize("num_leads", [1, 9])
def test_a_short_recording_is_drawn_whole_in_rows_that_fit_paper(num_leads: int):
    found = short_findings([f"L{place}" for place in range(num_leads)], 10)
    shown = context(found)
    assert [row["drawing"].count('class="lead-name"') for row in shown["whole"]] == [num_leads] * 2
    assert [row["title"] for row in shown["whole"]] == ["0 to 5 s", "5 to 10 s"]
    assert not shown["strips"] and not shown["hours"] and shown["hrv"]["sdnn_ms"] is None
    assert "Heart rate and rhythm" not in words_of(holter_page(found))


TWELVE = ["V6", "II", "I", "III", "aVR", "ECG aVL", "aVF", "V1", "V2", "V3", "v4", "V5"]


@pytest.mark.parametrize(
    ("seconds", "rows"), [(8, ["0 to 8 s"]), (10, ["0 to 10 s"]), (25, ["0 to 10 s", "10 to 20 s", "15 to 25 s"])]
)
def test_twelve_leads_are_drawn_in_three_lanes_of_four_with_a_rhythm_strip(seconds: int, rows: list[str]):
    shown = context(short_findings([*TWELVE, "Vx"], seconds))
    assert [row["title"] for row in shown["whole"]] == rows
    for row in shown["whole"]:
        names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="lead-name">(.*?)<', row["drawing"])
        lanes = [[name for _, y, name in names if y == lane] for lane in dict.fromkeys(y for _, y, _ in names)]
        assert lanes == [
            ["I", "aVR", "V1", "v4"],
            ["II", "ECG aVL", "V2", "V5"],
            ["III", "aVF", "V3", "V6"],
            ["II"],
            ["Vx"],
        ]
        quarter = min(seconds, 10) / 4
        expected = [4, *(100 * (0.4 + number * quarter) + 4 for number in (1, 2, 3))]
        assert [float(x) for x, _, _ in names[:4]] == pytest.approx(expected, abs=0.4)
    assert not any(row["is_twelve"] for row in context(short_findings(TWELVE[:-1], 10))["whole"])
    assert not context(short_findings(TWELVE, 5))["whole"][0]["is_twelve"]


def test_what_describes_the_recording_is_named_by_its_head_and_not_by_strips():
    found = short_findings(["II", "V5"], 10)
    num, symbol = found.recording.num_samples, found.symbol.copy()
    symbol[[2, 3, 5]] = "S"
    events = Event("AV block I", 0, num, 0.9, interval_ms=230.0), Event("VT", 100, 900, 0.9)
    page = words_of(holter_page(found := replace(found, symbol=symbol, events=events)))
    drawings = "".join(row["drawing"] for row in context(found)["whole"])
    assert ">VT</text>" in drawings and "AV block I" not in drawings and "AV block I" in page
    assert found.summary()["num_s_couplets"] == 1 and "Conclusion" in page


def test_a_strip_that_shows_another_event_too_is_drawn_once(simulated: Findings):
    event = Event("VT", 20_000, 20_300, 0.8, 3, 150.0)
    near = replace(event, kind="couplet", start=20_100, stop=20_200)
    far = replace(event, kind="AF", start=30_000, stop=44_000)
    sections = context(replace(simulated, events=(event, near, far)))["strips"]
    vt, af, couplet = (section["figures"][0] for section in sections)
    assert couplet["shown_in"] == vt["number"] and not couplet.get("drawing") and af["drawing"]
    words = words_of(holter_page(replace(simulated, events=(event, near, far))))
    assert f"2 beats, 150/min : see strip {vt['number']}".replace("2 beats", "3 beats") in words
    beyond = replace(near, start=20_900, stop=21_100)  # partly in the margin of the strip of VT
    assert context(replace(simulated, events=(event, beyond)))["strips"][1]["figures"][0]["drawing"]


def test_the_page_defines_events_by_the_limits_of_the_analysis(simulated: Findings):
    assert definitions(vars(USUAL_LIMITS)) == simulated.kinds == KINDS
    kinds = definitions(vars(Limits(pause_s=2.5, bradycardia_bpm=45, tachycardia_beats=20, run_beats=4)))
    words = words_of(holter_page(replace(simulated, kinds=kinds)))
    assert "2.5 s or more between two beats" in words and "below 45/min over 5 beats or more" in words
    assert "4 or more ventricular beats in a row at 100/min" in words and "above 100/min over 20 beats" in words


def test_a_rate_below_a_limit_is_not_rounded_up_to_it(simulated: Findings):
    slow = Event("IVR", 20_000, 20_300, 0.8, 3, 99.7)
    found = replace(simulated, events=(slow, replace(slow, kind="VT", rate_bpm=199.7)))
    assert [row["rate_bpm"] for row in context(found)["findings"]] == [200, 99]
    assert context(found)["strips"][1]["figures"][0]["title"].endswith("99/min")


def test_disputed_events_come_last_and_show_every_lead(simulated: Findings):
    fast = Event("VT", 20_000, 20_300, 0.4, 3, 190.0, disputed=True)
    sure = Event("VT", 30_000, 30_300, 0.8, 3, 150.0)
    recording = recording_of(np.resize(simulated.recording.signal(), (3, 45_000)), ["I", "II", "V1"], [])
    found = replace(simulated, recording=recording, leads=(1, 0, 2), events=(fast, sure))
    (row,) = context(found)["findings"]
    assert (row["num"], row["num_disputed"], row["worst_s"]) == (2, 1, 120.0)
    first, second = context(found)["strips"][0]["figures"]
    assert first["note"] == "confidence 40\u202f%, disputed by another lead" and "disputed" not in second["note"]
    assert [each["drawing"].count('class="lead-name"') for each in (first, second)] == [3, 2]
    assert "2 1 disputed" in words_of(holter_page(found))


def test_the_page_of_a_folder_has_a_row_with_a_link_for_each_recording(simulated: Findings):
    name = '<b>"a#b'
    hostile = replace(simulated, recording=replace(simulated.recording, record_id=name), events=(), unlike=("noise",))
    page = index_page([simulated.summary(), hostile.summary()], ["torn: no <file>"], simulated.kinds)
    assert re.findall(r'<a href="(.*?)">', page) == ["100.html", "%3Cb%3E%22a%23b.html"]
    words = words_of(page)
    assert "2 recordings" in words and "VF 1 , asystole 1 , VT 1" in words and "torn: no &lt;file&gt;" in words
    assert "patient p100 unlike the recordings" in words and "none Rate:" in words
    assert page.count('<tr class="danger">') == 1 and "<b>&quot;a" not in page
    assert "http" not in re.sub(r"https?://www\.w3\.org", "", page)


def test_hostile_names_are_escaped(simulated: Findings):
    name = '"><script>alert(1)</script>'
    recording = replace(simulated.recording, record_id=name, patient_id=name, lead_names=(name, "V1"))
    page = holter_page(replace(simulated, recording=recording, notes=(name,), made_by={name: name}))
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    assert "http" not in re.sub(r"https?://www\.w3\.org", "", page)


@pytest.mark.parametrize("num_beats", [0, 1, 2, 9])
@pytest.mark.parametrize("seconds", [0, 10, 600])
def test_few_beats_and_no_signal(num_beats: int, seconds: int):
    recording = recording_of(np.full((2, seconds * RATE_HZ), np.nan, np.float32), ["I", "II"], [])
    num_beats = min(num_beats, seconds)
    sample = np.arange(num_beats, dtype=np.int64) * 200
    found = replace(nothing_found(recording), sample=sample, symbol=np.full(num_beats, "N"))
    words = words_of(holter_page(replace(found, probability=np.full(num_beats, np.nan, np.float32))))
    assert f"All {num_beats}" in words and "nan" not in words.lower()


def test_annotations_without_a_signal(simulated: Findings):
    bare = replace(simulated.recording, samples=None, lead_names=(), num_samples=simulated.recording.num_samples)
    words = words_of(holter_page(replace(simulated, recording=bare, leads=())))
    assert "annotations only, so there is no signal to draw" in words


def test_a_day_of_beats_stays_light():
    rng = np.random.default_rng(0)
    sample = np.cumsum(rng.normal(0.86, 0.05, 100_000) * RATE_HZ).astype(np.int64)
    num = int(sample[-1]) + 1
    beat = np.sin(np.arange(RATE_HZ)).astype(np.float32)

    def read(start: int, stop: int, leads: Sequence[int]) -> NDArray[np.float32]:
        assert stop - start <= 7 * RATE_HZ
        return np.stack([np.resize(beat, stop - start)] * len(leads))

    recording = replace(recording_of(np.zeros((3, 0), np.float32), ["a", "b", "c"], []), num_samples=num, samples=read)
    symbol = rng.choice(list("NSVF"), len(sample), p=[0.01, 0.9, 0.08, 0.01])
    starts = np.sort(rng.integers(0, num - 5000, 4000))
    events = [
        Event(list(KINDS)[place % len(KINDS)], int(start), int(start) + 5000, 0.9, 20, 100.0)
        for place, start in enumerate(starts)
    ]
    quality = np.ones((3, num // (10 * RATE_HZ)), np.float32)
    probability = np.full(len(sample), 0.9, np.float32)
    page = holter_page(Findings(recording, (2, 0, 1), sample, symbol, probability, tuple(events), quality))
    assert len(page) < 3e6
    assert page.count('class="strip sheet"') + page.count('class="reference"') == 3 * len(KINDS) + 3


OVERLAPS = """<script>
addEventListener("load", () => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const boxes = [...svg.querySelectorAll("text")].map((each) => [each.textContent, each.getBoundingClientRect()]);
    boxes.forEach(([words, a], place) => {
      for (const [others, b] of boxes.slice(place + 1))
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4) found.push(words + " / " + others);
    });
  }
  const scrolls = [...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1);
  document.documentElement.dataset.scrolls = scrolls.length;
  document.documentElement.dataset.unsaid = scrolls.filter(
    (each) => !getComputedStyle(each, "::before").content.includes("scroll")).length;
  document.documentElement.dataset.unfolded = scrolls.filter((each) => each.querySelector(".folds")).length;
  const cut = [...document.querySelectorAll("main, table, figure, svg.sheet, .block, dd")].filter(
    (each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".scroll"));
  document.documentElement.dataset.overlaps = found.join("; ");
  document.documentElement.dataset.cut = cut.length;
});
</script>"""


def real_findings(database: str, name: str) -> Findings:
    """Beats and rhythms of a real recording as its annotators saw them, in place of what models find."""
    opened = open_database(shared_data(database))
    recording = opened.recording(name)
    annotations = opened.annotations(name, recording)
    assert annotations is not None
    index = annotations.beat_classes()
    symbol = np.where((index >= 0) & (index < 4), np.array(list("NSVFN"))[index], "N")
    named = {"AFIB": "AF", "VT": "VT", "VFL": "VF", "VFIB": "VF", "B": "bigeminy", "T": "trigeminy", "SVTA": "SVT"}
    sample, events = annotations.sample, []
    spans = [(named[span.name], span.start, span.stop) for span in annotations.rhythms if span.name in named]
    gaps = np.flatnonzero(np.diff(sample) > 2 * recording.rate_hz)
    for kind, start, stop in sorted([*spans, *(("pause", sample[n], sample[n + 1]) for n in gaps)], key=lambda e: e[1]):
        num = int(((sample >= start) & (sample < stop)).sum())
        rate = 60 * num * recording.rate_hz / (stop - start) if num > 1 else math.nan
        events.append(Event(kind, int(start), int(stop), 0.9, num, rate))
    found = replace(nothing_found(recording), sample=sample, symbol=symbol, events=tuple(events))
    quality = np.ones((recording.num_leads, int(recording.duration_s // 10)), np.float32)
    return replace(found, probability=np.full(len(sample), 0.9, np.float32), quality=quality)


def opened(html: str, file: Path, width: int) -> dict[str, str]:
    """The `data-` attributes of a page in the browser at this width; fails if it overflows or texts overlap."""
    file.write_text(html.replace("</body>", OVERLAPS + "</body>"))
    page = open_page(file, file.parent, width=width)
    assert (page.data["ready"], page.data["errors"]) == ("true", "0")
    assert int(page.data["drawings"]) == html.count("<svg ")
    assert (page.data["overflow"], page.data["cut"], page.data["overlaps"]) == ("0", "0", "")
    assert page.data["unsaid"] == "0"
    return page.data


def words_on_paper(pdf: Path) -> list[tuple[float, float, list[tuple[str, float, float]]]]:
    """Width and height of each page in points, and its words with their left and lower edges."""
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext not found (poppler-utils)")
    text = subprocess.run(["pdftotext", "-bbox", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    pages = []
    for width, height, content in re.findall(r'<page width="([\d.]+)" height="([\d.]+)">(.*?)</page>', text, re.DOTALL):
        words = re.findall(r'<word xMin="([\d.]+)" yMin="[\d.]+" xMax="[\d.]+" yMax="([\d.]+)">(.*?)</word>', content)
        pages.append((float(width), float(height), [(word, float(x), float(y)) for x, y, word in words]))
    return pages


@pytest.mark.slow
@pytest.mark.parametrize(("database", "name", "most"), [("mitdb", "203", 9), ("mitdb", "232", 8), ("cudb", "cu01", 5)])
def test_a_real_browser_draws_and_prints_it(database: str, name: str, most: int, tmp_path: Path):
    find_chromium()
    html = holter_page(real_findings(database, name))
    assert opened(html, tmp_path / f"{name}.html", 1280)["scrolls"] == "0"
    phone = opened(html, tmp_path / f"{name}.html", 390)
    assert phone["unfolded"] == "0" and int(phone["scrolls"]) > html.count('class="strip sheet"')
    pages = words_on_paper(print_page(tmp_path / f"{name}.html", tmp_path))
    assert 3 <= len(pages) <= most
    for number, (width, height, words) in enumerate(pages, 1):
        assert (round(width), round(height)) == (595, 842)
        content = [lower for _, _, lower in words if lower < height - 40]  # above the foot of the page
        assert max(content) > 0.5 * height or number == len(pages)


@pytest.mark.slow
def test_twelve_leads_are_printed_to_scale_on_landscape_paper(tmp_path: Path):
    find_chromium()
    opened(html := holter_page(short_findings(TWELVE, 10)), tmp_path / "twelve.html", 1280)
    opened(html, tmp_path / "twelve.html", 390)
    first, second = words_on_paper(print_page(tmp_path / "twelve.html", tmp_path))
    assert [round(each) for each in (*first[:2], *second[:2])] == [595, 842, 842, 595]
    ticks = [left for word, left, _ in second[2] if re.fullmatch(r"\+0:0\d", word)]
    assert np.diff(ticks) == pytest.approx(25 / 25.4 * 72, abs=0.1) and len(ticks) == 10


@pytest.mark.slow
def test_a_real_browser_draws_the_page_of_a_folder(simulated: Findings, tmp_path: Path):
    find_chromium()
    html = index_page([simulated.summary()] * 30, ["torn: no file"], simulated.kinds)
    for width in (390, 1280):
        assert opened(html, tmp_path / "index.html", width)["scrolls"] == "0"


def test_clock_carries_rounded_seconds():
    assert [elapsed(59.999, 2), elapsed(3599.6), elapsed(187.25, 2), elapsed(90_187)] == [
        "+1:00.00",
        "+1:00:00",
        "+3:07.25",
        "+25:03:07",
    ]
