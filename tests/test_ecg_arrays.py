from __future__ import annotations

import json
from datetime import datetime, time
from pathlib import Path

import numpy as np
import pytest

from heartlm.databases.database import open_database
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from heartlm.formats.stated import Stated

SIGNAL = np.round(np.stack([np.sin(np.arange(500) / 20), np.cos(np.arange(500) / 9)]), 4)


def write_csv(path: Path, header: str, columns: list[np.ndarray]) -> None:
    rows = [",".join(f"{value:.4f}" for value in row) for row in np.stack(columns, axis=1)]
    path.write_text("\n".join([header, *rows]) + "\n")


def test_csv_with_a_time_column_states_its_own_rate(tmp_path: Path) -> None:
    write_csv(tmp_path / "r.csv", "time,MLII,V5", [np.arange(500) / 360, *SIGNAL])
    recording = read_recording(tmp_path / "r.csv")
    assert (recording.rate_hz, recording.lead_names, recording.units) == (360.0, ("MLII", "V5"), ("mV", "mV"))
    np.testing.assert_allclose(recording.signal(), SIGNAL, atol=1e-6)
    np.testing.assert_array_equal(recording.signal(10, 20, [1]), recording.signal()[1:, 10:20])


def test_csv_with_a_sidecar_and_gaps(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("I,II\n1000,2\n,3\n3000,nan\n")
    (tmp_path / "r.json").write_text(json.dumps({"rate_hz": 250, "units": ["uV", "mmHg"]}))
    recording = read_recording(tmp_path / "r.csv")
    assert recording.units == ("mV", "mmHg")
    np.testing.assert_allclose(recording.signal(), [[1, np.nan, 3], [2, 3, np.nan]])


def test_the_sidecar_states_the_start(tmp_path: Path) -> None:
    write_csv(tmp_path / "r.csv", "time,MLII", [np.arange(500) / 360, SIGNAL[0]])
    assert read_recording(tmp_path / "r.csv").start is None
    starts = {
        "2024-03-01 13:00:00": datetime(2024, 3, 1, 13),
        "2024-03-01T13:00:00+01:00": datetime(2024, 3, 1, 13),
        "13:00": time(13),
    }
    for text, start in starts.items():
        (tmp_path / "r.json").write_text(json.dumps({"start": text}))
        assert read_recording(tmp_path / "r.csv").start == start
    (tmp_path / "r.json").write_text(json.dumps({"start": "noon"}))
    with pytest.raises(HeartlmError, match=r"r\.json: start: 'noon' found, expected a time"):
        read_recording(tmp_path / "r.csv")


def test_numpy_files(tmp_path: Path) -> None:
    path = tmp_path / "r.npy"
    np.save(path, SIGNAL * 1000)
    (tmp_path / "r.json").write_text(json.dumps({"rate_hz": 128, "units": "uV", "lead_names": ["a", "b"]}))
    recording = read_recording(path)
    assert (recording.rate_hz, recording.lead_names, recording.num_samples) == (128.0, ("a", "b"), 500)
    np.testing.assert_allclose(recording.signal(), SIGNAL, atol=1e-6)


def test_the_units_of_a_sidecar_are_those_of_the_leads_that_are_chosen(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", SIGNAL * [[1], [1000]])
    write_csv(tmp_path / "s.csv", "a,b", [SIGNAL[0], 1000 * SIGNAL[1]])
    facts = {"rate_hz": 128, "units": ["mV", "uV"], "lead_names": ["a", "b"]}
    for name in ("r", "s"):
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    for path in (tmp_path / "r.npy", tmp_path / "s.csv"):
        with Stated(leads=("b",)).used():
            recording = read_recording(path)
        assert (recording.leads, recording.units) == (("b",), ("mV",))
        np.testing.assert_allclose(recording.signal()[0], SIGNAL[1], atol=1e-6)


def test_a_single_lead_may_be_a_plain_row(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", SIGNAL[0])
    (tmp_path / "r.json").write_text('{"rate_hz": 128}')
    assert read_recording(tmp_path / "r.npy").lead_names == ("lead 1",)


@pytest.mark.parametrize(
    ("array", "sidecar", "reason"),
    [
        (np.ones((200, 90)), '{"rate_hz": 128}', r"shape \[200, 90\], expected numbers \[num_leads, num_samples\]"),
        (np.array(["x"]), '{"rate_hz": 128}', "expected numbers"),
        (SIGNAL, '{"rate_hz": 0}', "rate_hz is 0"),
        (SIGNAL, '{"rate_hz": 128, "lead_names": ["a"]}', "1 lead names for the 2 leads"),
        (SIGNAL, '{"rate_hz": 128, "units": ["mV"]}', "1 units for the 2 leads"),
        (1000 * SIGNAL, '{"rate_hz": 128}', "states no unit, and values that vary by .* are no millivolts"),
        (SIGNAL, "[]", "fields with their values expected"),
    ],
)
def test_bad_numpy(tmp_path: Path, array: np.ndarray, sidecar: str, reason: str) -> None:
    np.save(tmp_path / "r.npy", array)
    (tmp_path / "r.json").write_text(sidecar)
    with pytest.raises(HeartlmError, match=reason):
        read_recording(tmp_path / "r.npy")


def test_an_error_of_numpy_names_no_address(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", SIGNAL)
    content = (tmp_path / "r.npy").read_bytes()
    (tmp_path / "r.npy").write_bytes(content.replace(b"False", b"f(1) "))
    with pytest.raises(HeartlmError, match=r"r\.npy: not readable as .* <ast\.Call>\); fetch it again$"):
        read_recording(tmp_path / "r.npy")


def test_a_database_takes_recordings_and_leaves_tables_alone(tmp_path: Path) -> None:
    write_csv(tmp_path / "timed.csv", "time,I", [np.arange(500) / 100, SIGNAL[0]])
    np.save(tmp_path / "array.npy", SIGNAL)
    (tmp_path / "array.json").write_text('{"rate_hz": 128}')
    np.save(tmp_path / "weights.npy", SIGNAL)
    (tmp_path / "labels.csv").write_text("record,label\na,1\n")
    database = open_database(tmp_path)
    assert database.record_ids == ("array", "timed")
    assert database.recording("timed").rate_hz == 100


def test_rows_that_are_samples_are_transposed_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "r.npy", SIGNAL.T)
    (tmp_path / "r.json").write_text('{"rate_hz": 128}')
    repair = "an array of [500, 2] is taken as [num_samples, num_leads] and transposed"
    for recording in (read_recording(tmp_path / "r.npy"), Recording.from_array(SIGNAL.T, rate_hz=128)):
        assert recording.repairs == (repair,)
        np.testing.assert_allclose(recording.signal(), SIGNAL, rtol=1e-6)
    assert repair in capsys.readouterr().err


@pytest.mark.parametrize(("name", "rate_hz"), [("ecg", 500), ("tracings", 400)])
def test_hdf5_of_databases(tmp_path: Path, name: str, rate_hz: float) -> None:
    h5py = pytest.importorskip("h5py")
    signal = np.zeros((12, 4096), np.float32)
    signal[:, 48:-48] = np.random.default_rng(0).normal(0, 0.3, (12, 4000))
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file[name] = signal.astype(np.float16) if name == "ecg" else signal.T[np.newaxis]
        file["exam_id"] = np.array([7])
    recording = open_database(tmp_path).recording("r")
    assert (recording.rate_hz, recording.num_leads, recording.leads[6]) == (rate_hz, 12, "V1")
    np.testing.assert_allclose(recording.signal()[:, 48:-48], signal[:, 48:-48], atol=2e-3)
    assert np.isnan(recording.signal()[:, :48]).all()
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["tracings"] = np.stack([signal.T, signal.T])
    with pytest.raises(HeartlmError, match="2 recordings of several patients"):
        read_recording(tmp_path / "r.h5")
