"""What a recording was not examined for has no number, and Python finds what the command finds."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.analysis.findings import KINDS
from heartlm.analysis.limits import Limits
from heartlm.analysis.unexamined import too_short
from heartlm.cli.main import main
from heartlm.formats.write_wfdb import write_signals
from heartlm.storage.reading import read_json

TWELVE = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
BY_P_WAVES = {"AV block III", "AV block II", "Wenckebach", "junctional"}
OF_INTERVALS = {"AV block I", "LBBB", "RBBB", "wide QRS", "long QT"}


def written(
    folder: Path, leads: tuple[str, ...], seconds: float, rate_hz: float = 500.0, pr_s: float = 0.16, wide: bool = False
) -> Path:
    """A record of beats 0.8 s apart: P wave, QRS complex with a late end that is negative in V1, T wave."""
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    signals = np.random.default_rng(0).normal(0, 0.005, (len(leads), len(time_s)))
    for at in np.arange(0.7, seconds - 0.3, 0.8):
        for lead, name in enumerate(leads):
            end = (0.08, 0.03, -0.8 if name == "V1" else 0.8) if wide else (0.03, 0.012, -0.4)
            for place, width, height in ((-pr_s, 0.025, 0.15), (0, 0.012, 1), end, (0.3, 0.05, 0.25)):
                signals[lead] += height * np.exp(-(((time_s - at - place) / width) ** 2))
    files = write_signals(
        folder,
        "r",
        [np.round(signals * 1000).astype(np.int64)],
        signal_format="16",
        rate_hz=rate_hz,
        leads=list(leads),
        gain=[1000.0] * len(leads),
        baseline=[0] * len(leads),
        units=["mV"] * len(leads),
    )
    return files[-1].with_suffix("")


@pytest.mark.parametrize(
    ("case", "found", "unexamined"),
    [
        ({"leads": TWELVE, "seconds": 10, "pr_s": 0.28, "wide": True}, {"AV block I", "wide QRS"}, {"long QT"}),
        ({"leads": ("I", "II"), "seconds": 60, "wide": True}, {"wide QRS"}, {"LBBB", "RBBB", "long QT"}),
        ({"leads": ("I", "Resp"), "seconds": 60, "rate_hz": 90}, set(), OF_INTERVALS | BY_P_WAVES),
        (
            {"leads": ("I",), "seconds": 4.5},
            set(),
            {"AF", "flutter", "trigeminy", "quadrigeminy", "long QT", *BY_P_WAVES},
        ),
    ],
)
def test_python_and_the_command_find_the_same(
    tmp_path: Path, case: dict[str, object], found: set[str], unexamined: set[str]
) -> None:
    record, out = written(tmp_path, **case), tmp_path / "out"  # type: ignore[arg-type]
    assert main(["analyze", str(record), "--out", str(out), "--no-page"]) == 0
    content, findings = read_json(out / "r.json"), heartlm.load_model().analyze(record)
    summary = findings.summary()
    assert {kind for kind, num in summary["events"].items() if num} == found
    assert {kind for kind, num in summary["events"].items() if num is None} == unexamined
    assert findings.unexamined.keys() == unexamined
    assert {kind for kind, seconds in summary["seconds"].items() if seconds is None} == unexamined
    assert summary == content["summary"]
    assert list(findings.notes) == content["notes"]
    assert any("Resp" in note for note in findings.notes) == ("Resp" in findings.recording.lead_names)
    rows = [{key: None if value != value else value for key, value in row.items()} for row in findings.event_rows()]
    for row in rows:
        row |= {name: round(row[name], 3) for name in ("start_s", "duration_s")}
    assert rows == content["events"]
    assert (findings.waves and findings.waves.summary()) == content["waves"]
    with (out / "r.hours.csv").open() as stream:
        (hour,) = csv.DictReader(stream)
    assert {kind for kind in KINDS if not hour[kind]} == unexamined
    assert findings.report(tmp_path / "r.html").read_text().count("Not examined: ") == bool(unexamined)


def test_each_kind_needs_the_beats_and_seconds_of_its_rule() -> None:
    def missing(num_beats: int, rr_s: float = 0.8, seconds: int = 60, breaks: tuple[int, ...] = ()) -> set[str]:
        sample = np.round(np.arange(num_beats) * rr_s * 250).astype(np.int64)
        clear = ~np.isin(np.arange(max(0, num_beats - 1)), breaks)
        return set(too_short(sample, clear, 250.0, seconds, seconds, Limits()))

    assert missing(75) == set()
    assert missing(0) == set(KINDS) - OF_INTERVALS - {"VF", "asystole", "unreadable"}
    assert missing(8) == {"AF", "quadrigeminy"} and missing(8, seconds=9) == {"AF", "quadrigeminy", "flutter"}
    assert missing(12) == set() and missing(12, 0.5) == {"tachycardia"}, "75 and 120/min"
    assert "bradycardia" not in missing(4) and "bradycardia" in missing(4, 1.5), "75 and 40/min"
    assert missing(16, 0.5) == set() and missing(16, 0.5, breaks=(7,)) == {"AF", "quadrigeminy", "tachycardia"}
    assert missing(2) == set(KINDS) - OF_INTERVALS - {
        *("VF", "asystole", "unreadable", "couplet", "pause", "bradycardia", "tachycardia")
    }
    assert missing(3, seconds=3) >= {"VF", "asystole", "flutter"} and not {"VT", "SVT", "IVR"} & missing(3)
