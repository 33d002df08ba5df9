"""The section about waves on the page of a recording."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.analysis.findings import Findings
from heartlm.delineation.median_beats import median_beats
from heartlm.ecg.recording import Recording
from heartlm.report.holter import holter_page
from heartlm.report.holter_waves import waves_context
from tests.browser import find_chromium
from tests.synthetic_leads import WAVES
from tests.test_delineate import REGULAR_S, heart_mv
from tests.test_report_holter import opened


def findings_of(signal: np.ndarray, symbols: str = "N", leads: str = "I aVF") -> Findings:
    recording = Recording.from_array(signal, rate_hz=250.0, leads=leads.split())
    waves = heartlm.delineate(recording)
    beats = waves.delineation.beats
    symbol = np.resize(np.array(list(symbols)), len(beats))
    sure, quality = np.ones(len(beats), np.float32), np.ones((1, 3), np.float32)
    return Findings(recording, (0,), beats, symbol, sure, (), quality, waves=waves)


def two_leads() -> np.ndarray:
    heart = heart_mv(REGULAR_S, 30, 250.0)
    return np.stack([0.5 * heart, heart])


def test_intervals_stand_next_to_what_is_usual() -> None:
    slow_pr = tuple((after_s - 0.15 * (after_s < -0.1), mv, width_s) for after_s, mv, width_s in WAVES)
    heart = heart_mv(np.arange(1.0, 29.0, 1.1), 30, 250.0, slow_pr)
    for signal, verdict in ((two_leads(), ""), (np.stack([heart, heart]), "above")):
        context = waves_context(findings_of(signal))
        assert context is not None
        rows = {row["name"]: row for row in context["rows"]}
        assert rows["PR"]["verdict"] == verdict and rows["PR"]["usual"] == "120 to 200 ms"
        assert rows["PR"]["beats"] >= 24 and re.fullmatch(r"\d+ to \d+", rows["PR"]["spread"])
        assert rows["Frontal axis"]["value"].endswith("°") and rows["P"]["usual"] == "up to 120 ms"


def test_the_median_beat_is_that_of_normal_beats_with_its_marks() -> None:
    findings = findings_of(two_leads())
    assert findings.waves is not None
    delineation = findings.waves.delineation
    beats = {beat.lead: beat for beat in median_beats(delineation, findings.symbol == "N")}
    assert list(beats) == ["I", "aVF"]
    foot = beats["aVF"]
    assert foot.values_mv.max() > 0.8 and np.abs(foot.values_mv[:20]).max() < 0.05
    np.testing.assert_allclose(beats["I"].values_mv, 0.5 * foot.values_mv, atol=0.02)
    order = foot.marks_s.ravel()
    assert (np.diff(order) > 0).all() and order[0] < -0.15 < 0.3 < order[-1]
    assert len(findings.waves.median_beats()) == len(beats)
    assert median_beats(delineation, np.zeros(delineation.num_beats, np.bool_)) == []


def test_intervals_are_those_of_normal_beats() -> None:
    wide = tuple((after_s, mv, 3 * width_s if abs(after_s) < 0.05 else width_s) for after_s, mv, width_s in WAVES)
    normal, ventricular = heart_mv(REGULAR_S[::2], 30, 250.0), heart_mv(REGULAR_S[1::2], 30, 250.0, wide)
    mixed = findings_of(np.stack([normal + ventricular] * 2), "NV")
    alone = mixed.normal_waves()
    assert alone is not None and mixed.waves is not None
    width, of_all = (each.summary()["intervals"]["qrs_ms"] for each in (alone, mixed.waves))
    assert width["beats"] == (mixed.symbol == "N").sum() and width["median"] < of_all["quartiles"][1] - 20
    context = waves_context(mixed)
    assert context is not None
    row = next(row for row in context["rows"] if row["name"] == "QRS")
    assert row["beats"] == width["beats"] and row["value"] == f"{width['median']:.0f} ms"


@pytest.mark.slow
def test_trends_of_a_longer_recording_follow_its_intervals() -> None:
    beats_s = np.concatenate([np.arange(1.0, 400.0, 0.9), np.arange(400.0, 800.0, 0.6)])
    heart = heart_mv(beats_s, 801, 250.0)
    context = waves_context(findings_of(np.stack([0.5 * heart, heart])))
    assert context is not None and [title for title, _, _ in context["trends"]] == [
        "QTc over time",
        "PR over time",
        "ST level over time",
    ]
    (_, _, qtc), (_, _, pr), (_, _, st) = context["trends"]
    assert (
        ">Bazett<" in qtc
        and ">Framingham<" in qtc
        and ">PR<" in pr
        and ">aVF<" in st
        and "minutes since the start" in st
    )
    curves = re.findall(r'd="M([\d.]+) ([\d.]+)l([^"]*)" class="curve stroke-accent"', qtc)
    rises = np.cumsum([float(step) for step in curves[0][2].split()[1::2]])
    assert rises[2] > -3 and rises[-1] < -20  # QT is the same, RR falls: QTc rises, and y with it
    short = waves_context(findings_of(two_leads()))
    assert short is not None and short["trends"] == []


def test_the_page_has_the_section_only_with_waves() -> None:
    page = holter_page(findings_of(two_leads()))
    section = page.partition('<section id="waves">')[2].partition("</section>")[0]
    assert section.count("<svg") == 2 and section.count("<title>QRS ") == 2 and 'href="#waves"' in page
    recording = Recording.from_array(two_leads(), rate_hz=250.0, leads=["I", "aVF"])
    none = np.empty(0, np.int64)
    empty = Findings(
        recording, (0,), none, none.astype("<U1"), none.astype(np.float32), (), np.ones((1, 3), np.float32)
    )
    assert '<section id="waves">' not in holter_page(empty)


def test_a_narrow_window_needs_no_scrolling_and_long_names_cover_nothing(tmp_path: Path) -> None:
    find_chromium()
    found = findings_of(two_leads())
    named = replace(found.recording, lead_names=("ECG MLII", "sig 0, fmt 508"))
    waves = found.waves
    assert waves is not None
    found = replace(
        found, recording=named, waves=replace(waves, delineation=replace(waves.delineation, recording=named))
    )
    opened(holter_page(found), tmp_path / "narrow.html", 500)
