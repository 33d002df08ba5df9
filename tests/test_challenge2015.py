"""`studies/challenge2015.py`: verdicts on small recordings like those of the Challenge, and on two of them."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from studies.challenge2015 import COLUMNS, KINDS, main, read_case, score
from tests.conftest import shared_data

ALARM = 300 * 250


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of results, which is not that of the checkout."""
    monkeypatch.setattr("sys.argv", [str(tmp_path / "challenge2015.py")])
    return tmp_path / "results"


@pytest.fixture(scope="module")
def sinus() -> np.ndarray:
    """5:30 of two leads in sinus rhythm."""
    return simulate_recording(SimulationConfig(minutes=5.5, seed=5), 5)[0]


def stopped(signal_mv: np.ndarray, second: int) -> np.ndarray:
    """The same heart, which stands still from a second on."""
    out = signal_mv.copy()
    rest = out[:, second * 250 :]
    rest[:] = 0.005 * np.random.default_rng(0).normal(size=rest.shape)
    return out


def write(folder: Path, name: str, signal_mv: np.ndarray, *comments: str, unit: str = "mV") -> None:
    folder.mkdir(exist_ok=True)
    wfdb.wrsamp(
        name,
        fs=250,
        units=[unit, unit, "NU"],
        sig_name=["II", "V", "PLETH"],
        p_signal=np.vstack([signal_mv, np.sin(np.arange(signal_mv.shape[1]))]).T.astype(float),
        fmt=["16"] * 3,
        comments=list(comments),
        write_dir=str(folder),
    )


def verdicts(out: Path) -> dict[str, dict[str, str]]:
    return {row["record"]: row for row in csv.DictReader(out.open())}


def test_an_alarm_counts_that_was_raised_or_lasted_shortly_before_five_minutes(
    sinus: np.ndarray, tmp_path: Path, results: Path
):
    folder, out = tmp_path / "training", tmp_path / "verdicts.csv"
    write(folder, "a1s", stopped(sinus, 288)[:, :ALARM], "Asystole", "True alarm")
    write(folder, "a2l", stopped(sinus, 300), "Asystole", "False alarm")
    write(folder, "a3s", stopped(sinus, 288)[:, :ALARM], "Asystole", "False alarm")
    write(folder, "b4s", sinus[:, :ALARM], "Bradycardia", "True alarm")
    write(folder, "x5s", sinus[:, :ALARM], "Asystole")
    write(folder, "x6s", sinus[:, : ALARM - 1], "Asystole", "True alarm")
    write(folder, "x7s", sinus[:, :ALARM], "Asystole", "True alarm", unit="NU")
    write(folder, "x8s", sinus[:, :ALARM], "Asystole", "True alarm")
    (folder / "x8s.dat").unlink()
    assert main([str(folder), "--out", str(out)]) == 0
    found = verdicts(out)
    assert tuple(found["a1s"]) == COLUMNS
    assert {name: row["verdict"] for name, row in found.items()} == {
        "a1s": "TP",
        "a2l": "TN",
        "a3s": "FP",
        "b4s": "FN",
        **dict.fromkeys(("x5s", "x6s", "x7s", "x8s"), "unreadable"),
    }
    assert "asystole" in found["a1s"]["alarms of the last seconds"]
    assert found["a2l"]["true"] == "false" and found["b4s"]["kind"] == "extreme bradycardia"
    assert "comments Asystole found" in found["x5s"]["reason"] and "299.996 s" in found["x6s"]["reason"]
    assert "no ECG lead" in found["x7s"]["reason"] and "missing" in found["x8s"]["reason"]
    text = (results / "challenge2015.md").read_text()
    assert "| asystole | 1 | 0 | 1 | 1 | 100.0 | 50.0 | 66.7 |" in text
    assert "| all | 1 | 1 | 1 | 1 | 50.0 | 50.0 | 25.0 |" in text
    assert "8 recordings, of which 4 cannot be read" in text


def test_headers_name_the_five_kinds_of_the_challenge(sinus: np.ndarray, tmp_path: Path):
    for name, kind in KINDS.items():
        write(tmp_path, "v1s", sinus[:, :ALARM], name, "True alarm")
        case = read_case(tmp_path / "v1s.hea", "v1s")
        assert case.kinds == (kind,) and case.signal_mv.shape == (2, ALARM)
    assert KINDS["Ventricular_Flutter_Fib"] == "VF" and KINDS["Ventricular_Tachycardia"] == "VT"


def test_a_missed_alarm_costs_five_times_a_false_one():
    rows = [(name, "VT", "", verdict, "", "") for name, verdict in enumerate(["TP"] * 6 + ["FN"] + ["FP"] * 2 + ["TN"])]
    (of_kind, of_all) = score(rows).rows  # 7 / (9 + 5)
    assert of_kind == ("VT", 6, 1, 2, 1, "85.7", "33.3", "50.0") and of_all == ("all", *of_kind[1:])


@pytest.mark.parametrize("fault", ["no folder", "no recording", "none readable", "no room"])
def test_errors_of_the_user_are_one_line(
    fault: str, sinus: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, out = tmp_path / "training", tmp_path / "verdicts.csv"
    if fault == "none readable":
        write(folder, "x1s", sinus[:, :ALARM])
    elif fault == "no room":
        write(folder, "a1s", sinus[:, :ALARM], "Asystole", "False alarm")
        out.mkdir()
    elif fault == "no recording":
        folder.mkdir()
    assert main([str(folder), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("challenge2015.py: ") and error.count("\n") == 1


def test_recordings_of_the_challenge(tmp_path: Path):
    for path in (path for name in ("a103l", "v102s") for path in shared_data("formats").glob(f"{name}.*")):
        shutil.copy(path, tmp_path)
    assert main([str(tmp_path), "--out", str(tmp_path / "verdicts.csv")]) == 0
    found = verdicts(tmp_path / "verdicts.csv")
    assert {name: (row["kind"], row["true"]) for name, row in found.items()} == {
        "a103l": ("asystole", "false"),
        "v102s": ("VT", "false"),
    }
    assert all(row["verdict"] in ("TN", "FP") for row in found.values())
    with pytest.raises(HeartlmError, match="comments"):
        read_case(shared_data("formats") / "100_3chan.hea", "100_3chan")
