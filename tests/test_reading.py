"""Findings in words: every kind is said, and all outputs have the same words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.analysis.findings import KINDS, Event, Findings
from heartlm.analysis.reading import SAID_ELSEWHERE
from heartlm.cli.main import main
from heartlm.delineation.delineate import delineate
from heartlm.delineation.intervals import measure
from heartlm.ecg.recording import RHYTHMS, Recording
from tests.test_delineate import heart_mv

RATE_HZ = 250


def found(symbol: str, rr_s: float = 0.8, events: tuple[Event, ...] = (), **fields: Any) -> Findings:
    """Findings of beats at a steady rate, without waves."""
    sample = (0.5 * RATE_HZ + np.arange(len(symbol)) * rr_s * RATE_HZ).astype(np.int64)
    num_samples = fields.pop("num_samples", int(len(symbol) * rr_s * RATE_HZ))
    recording = Recording(rate_hz=float(RATE_HZ), num_samples=num_samples, path=Path("1.hea"), lead_names=("II",))
    sure, readable = np.ones(len(symbol), np.float32), np.ones((1, 1), np.float32)
    return Findings(recording, (0,), sample, np.array(list(symbol)), sure, events, readable, **fields)


def event(kind: str, start_s: float, stop_s: float, confidence: float = 0.9, **fields: Any) -> Event:
    return Event(kind, round(start_s * RATE_HZ), round(stop_s * RATE_HZ), confidence, **fields)


@pytest.fixture(scope="module")
def sinus() -> Findings:
    """20 beats with P waves at 75/min."""
    beats_s = 0.5 + 0.8 * np.arange(20)
    recording = Recording.from_array(heart_mv(beats_s, 16.0, 250.0)[None], rate_hz=250.0, leads=["II"])
    waves = measure(delineate(recording, np.round(beats_s * 250).astype(np.int64)))
    assert waves.delineation.has_p.mean() > 0.8
    return replace(found("N" * 20), waves=waves)


def test_rhythm_rate_and_beats(sinus: Findings) -> None:
    assert sinus.reading() == "Sinus rhythm, 75/min."
    symbol = np.array(list("NNVNNVVNSN" + "N" * 10))
    of_beats = replace(sinus, symbol=symbol, events=(event("couplet", 4.4, 5.4, num_beats=2),))
    assert of_beats.reading() == (
        "Sinus rhythm, 75/min. Three ventricular beats with one couplet. One supraventricular beat."
    )


@pytest.mark.parametrize(("rr_s", "words"), [(1.3, "Sinus bradycardia, 46/min."), (0.5, "Sinus tachycardia, 120/min.")])
def test_slow_and_fast_sinus_rhythm(sinus: Findings, rr_s: float, words: str) -> None:
    assert replace(found("N" * 20, rr_s), waves=sinus.waves).reading() == words


def test_rhythm_without_p_waves_is_not_called_sinus(sinus: Findings) -> None:
    assert found("N" * 20).reading() == "Heart rate 75/min, rhythm not determined."
    assert sinus.waves is not None
    all_leads = sinus.waves.delineation.all_leads.copy()
    all_leads[:, 0] = -1
    waves = replace(sinus.waves, delineation=replace(sinus.waves.delineation, all_leads=all_leads))
    assert replace(sinus, waves=waves).reading() == "Rhythm without visible P waves, 75/min."


def test_fibrillation_of_all_or_some_of_the_time(sinus: Findings) -> None:
    whole = replace(sinus, events=(event("AF", 0.5, 15.8),))
    assert whole.reading() == "Atrial fibrillation, 75/min."
    part = replace(sinus, events=(event("AF", 1, 5, 0.5), event("AF", 7, 9, 0.4)))
    assert part.reading() == (
        "Sinus rhythm, 75/min. Possible atrial fibrillation 38 % of the time, two episodes, the longest 4.0 s."
    )


def test_paced_beats(sinus: Findings) -> None:
    assert replace(sinus, paced=np.ones(20, np.bool_)).reading() == "Paced rhythm, 75/min."
    few = replace(sinus, paced=np.arange(20) < 3)
    assert few.reading() == "Sinus rhythm, 75/min. Three paced beats."
    assert few.annotations().symbol.tolist() == ["/"] * 3 + ["N"] * 17
    assert few.brief()["paced_beats"] == few.summary()["num_paced"] == 3


def test_intervals_doubt_and_what_could_not_be_read(sinus: Findings) -> None:
    events = (
        event("LBBB", 0.5, 15, 0.9, interval_ms=138.0),
        event("long QT", 0.5, 15, 0.55, interval_ms=478.0),
        event("unreadable", 12, 16),
    )
    unlike = ("rate of 400/min",)
    assert replace(sinus, events=events, unlike=unlike, hum_hz={"II": (50.0,)}).reading() == (
        "Sinus rhythm, 75/min. Left bundle branch block, QRS 138 ms. Possible long QT, QTc 478 ms. 25 % of the "
        "recording could not be read. Mains hum removed: 50 Hz in II. Unlike the recordings that the models learned "
        "from, so expect more errors."
    )


def test_statements_of_all_leads(sinus: Findings) -> None:
    assert replace(sinus, stated={"NORM": 0.9, "SR": 0.9}).reading().endswith("suggest a normal ECG.")
    stated = {"MI": 0.9, "IMI": 0.8, "STTC": 0.6, "AFIB": 0.9}
    assert replace(sinus, stated=stated).reading() == (
        "Sinus rhythm, 75/min. All leads together suggest inferior infarct, changes of ST and T."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_is_said(sinus: Findings, kind: str) -> None:
    of_kind = event(kind, 4, 8, num_beats=4, rate_bpm=120.0, interval_ms=150.0)
    said = replace(sinus, events=(of_kind,)).reading() != sinus.reading()
    assert said == (kind not in SAID_ELSEWHERE - {"unreadable"})


def test_a_day_has_three_sentences() -> None:
    events = (
        event("VT", 100, 102, num_beats=6, rate_bpm=181.6),
        event("VT", 200, 202, num_beats=5, rate_bpm=150.0),
        event("pause", 300, 303),
        event("AV block I", 0, 4000, interval_ms=212.0),
    )
    day = found("N" * 6000 + "V" * 4, events=events)
    assert day.reading() == (
        "Heart rate mean 75/min, 75 to 75, rhythm not determined. Four ventricular beats (0.1 %); ventricular "
        "tachycardia twice, the longest six beats at up to 181/min; pause, 3.0 s. First degree AV block, PR 212 ms."
    )


def test_no_beats() -> None:
    assert found("", num_samples=2500).reading() == "No heartbeats found."
    assert found("N", num_samples=2500).reading() == "One heartbeat found."


def test_the_same_words_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = tmp_path / "ward"
    assert main(["data", "simulate", str(ward), "--patients", "1", "--minutes", "0.5"]) == 0
    assert main(["analyze", str(ward), "--out", str(tmp_path / "out"), "--processes", "1"]) == 0
    [result] = [path for path in (tmp_path / "out").glob("*.json") if path.with_suffix(".html").exists()]
    content = json.loads(result.read_text())
    words = content["brief"]["reading"]
    assert len(words) > 10
    assert words == content["summary"]["reading"]
    for name in (f"{result.stem}.html", "index.html", "summary.csv"):
        assert words in (tmp_path / "out" / name).read_text(), name
    capsys.readouterr()
    assert main(["analyze", str(ward / result.stem), "--out", str(tmp_path / "one"), "--processes", "1"]) == 0
    assert words in capsys.readouterr().out


def test_tracks_are_labels_at_the_rate_of_the_signal(sinus: Findings) -> None:
    findings = replace(sinus, symbol=np.array(list("NV" * 10)), paced=np.arange(20) == 2, events=(event("VT", 4, 8),))
    wave, beat, rhythm = findings.tracks()
    assert wave.shape == beat.shape == rhythm.shape == (findings.recording.num_samples,)
    assert [beat[at] for at in findings.sample[:4]] == [1, 3, 5, 3]
    assert beat[findings.sample[0] + 50] == 0
    assert [RHYTHMS[each] for each in np.unique(rhythm)] == ["N", "VT"]
    assert (rhythm[1000:2000] == RHYTHMS.index("VT")).all()
    assert findings.waves is not None
    delineation = findings.waves.delineation
    [lead] = delineation.tracks()
    onset, _, offset = delineation.waves[3, 0, 1]
    assert (lead[onset : offset + 1] == 2).all() and lead[onset - 1] != 2
    assert set(np.unique(lead)) == {0, 1, 2, 3}
