"""Recordings from arrays, frames and MNE, and back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

from heartlm.api import delineate, open_recording
from heartlm.databases.database import open_database, opened
from heartlm.ecg.recording import Annotations, Note, Patient, Recording, RhythmSpan
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from tests.conftest import shared_data

RATE_HZ = 250.0
SIGNAL = np.stack([np.sin(np.arange(5000) / 20), 0.5 * np.cos(np.arange(5000) / 9)]).round(3)
START = datetime(2024, 5, 1, 10, 0, 0, 500_000)


def test_arrays() -> None:
    recording = Recording.from_array(SIGNAL, rate_hz=250, leads=["II", "V5"], start=START, record_id="x7")
    assert (recording.rate_hz, recording.leads, recording.units) == (250.0, ("II", "V5"), ("mV", "mV"))
    assert (recording.num_samples, recording.start, recording.record_id) == (5000, START, "x7")
    np.testing.assert_array_equal(recording.signal(10, 20, ["v5"]), SIGNAL[1:, 10:20].astype(np.float32))
    raw = Recording.from_array((200 * SIGNAL[0] + 1024).round().astype(np.int16), rate_hz=250, units="200(1024)/mV")
    np.testing.assert_allclose(raw.signal()[0], SIGNAL[0], atol=0.003)
    assert raw.leads == ("lead 1",)
    both = Recording.from_array(SIGNAL * [[1000], [1]], rate_hz=250, units=["uV", "mV"])
    np.testing.assert_allclose(both.signal(), SIGNAL, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "settings", "reason"),
    [
        (np.ones((200, 90)), {"rate_hz": 250}, r"shape \[200, 90\], expected numbers \[num_leads, num_samples\]"),
        (SIGNAL, {}, "rate_hz: not given"),
        (SIGNAL, {"rate_hz": 0}, "rate_hz is 0"),
        (SIGNAL, {"rate_hz": 250, "leads": ["I"]}, "leads I asked for"),
        (SIGNAL, {"rate_hz": 250, "leads": ["lead 1"]}, "1 names for 2 leads"),
        (SIGNAL, {"rate_hz": 250, "units": "furlong"}, "'furlong' found"),
        (np.array(["a"]), {"rate_hz": 250}, "expected numbers"),
        ([[1, 2], [3]], {"rate_hz": 250}, r"x: numbers \[num_leads, num_samples\] expected"),
        (np.zeros((0, 0)), {"rate_hz": 250}, r"shape \[0, 0\]"),
        (SIGNAL, {"rate_hz": "x"}, "rate_hz is 'x'"),
        (SIGNAL, {"rate_hz": [250]}, r"rate_hz is \[250\]"),
        (SIGNAL, {"rate_hz": True}, "rate_hz is True"),
        (SIGNAL, {"rate_hz": np.float64("nan")}, "rate_hz is nan"),
        (SIGNAL, {"rate_hz": 250, "leads": 5}, "leads: 5 found"),
        (SIGNAL, {"rate_hz": 250, "leads": ["I", None]}, "leads: None found"),
        (SIGNAL, {"rate_hz": 250, "units": b"mV"}, "units: b'mV' found"),
        (SIGNAL, {"rate_hz": 250, "start": "2024-05-01"}, "start: '2024-05-01' found"),
        (SIGNAL, {"rate_hz": 250, "record_id": 5}, "record_id: 5 found"),
    ],
)
def test_arrays_that_do_not_fit(x: np.ndarray, settings: dict[str, object], reason: str) -> None:
    with pytest.raises(HeartlmError, match=reason):
        Recording.from_array(x, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"start": "a"}, "samples 'a' to None"),
        ({"start": None}, "samples None to None"),
        ({"stop": 2.5}, "samples 0 to 2.5"),
        ({"start_s": "a"}, "seconds 'a' to None"),
        ({"stop_s": float("nan")}, "seconds None to nan"),
        ({"leads": 5}, "no lead 5; it has 2, counted from 0"),
        ({"leads": "V9"}, "no lead 'V9'"),
        ({"leads": [None]}, "no lead None"),
        ({"leads": [0.5]}, "no lead 0.5"),
    ],
)
def test_sections_that_are_none(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(HeartlmError, match=reason):
        Recording.from_array(SIGNAL, rate_hz=250).signal(**section)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (({"sample": [1]}, "x"), "rate_hz is 'x'"),
        (({"sample": [1]}, None), "rate_hz is None"),
        (([1, 2], 250), "beats: list found, a pandas frame expected"),
        (({}, 250), "column time_s: missing; there are none"),
        (({"sample": [1]}, 250, 5), "rhythms: int found"),
    ],
)
def test_annotations_need_frames_and_a_rate(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(HeartlmError, match=reason):
        Annotations.from_frame(*arguments)


def test_no_rate_is_no_statement_about_a_recording() -> None:
    with pytest.raises(HeartlmError, match="rate_hz is nan"):
        open_recording("record", rate_hz=float("nan"))


def test_an_array_is_analysed_as_a_file_is() -> None:
    from heartlm import api

    record = api.open_recording(shared_data("mitdb/100.hea"))
    signal = record.signal(0, 36000)
    own = Recording.from_array(signal, rate_hz=record.rate_hz, leads=record.leads)
    np.testing.assert_array_equal(api.detect_beats(own), api.detect_beats(record)[: len(api.detect_beats(own))])


def test_frames_and_back() -> None:
    pandas = pytest.importorskip("pandas")
    recording = Recording.from_array(SIGNAL, rate_hz=130.63, leads=["II", "V5"], start=START)
    frame = recording.to_frame()
    assert list(frame.columns) == ["II", "V5"]
    assert (frame.index.name, frame.index[130]) == ("time_s", pytest.approx(130 / 130.63))
    again = Recording.from_array(frame)
    assert (again.rate_hz, again.leads, again.units, again.start) == (130.63, ("II", "V5"), ("mV", "mV"), START)
    np.testing.assert_array_equal(again.signal(), recording.signal())
    part = recording.to_frame(1000, 2000, ["V5"])
    assert part.index[0] == pytest.approx(1000 / 130.63)
    np.testing.assert_array_equal(part["V5"], recording.signal(1000, 2000, ["V5"])[0])

    when = pandas.date_range("2024-05-01 10:00", periods=5000, freq="4ms")
    timed = pandas.DataFrame({"ecg [uV]": 1000 * SIGNAL[0], "X [mg]": SIGNAL[1]}, index=when).drop(when[2000:2100])
    recording = Recording.from_array(timed)
    assert (recording.rate_hz, recording.leads, recording.units) == (250, ("ecg", "X"), ("mV", "mg"))
    assert recording.start == datetime(2024, 5, 1, 10)
    np.testing.assert_allclose(recording.signal(leads=["ecg"])[0, 2100:], SIGNAL[0, 2100:], atol=1e-6)
    assert np.isnan(recording.signal(2000, 2100)).all()
    assert Recording.from_array(timed, leads="ecg").leads == ("ecg",)
    with pytest.raises(HeartlmError, match="states no sampling rate"):
        Recording.from_array(pandas.Series(SIGNAL[0], name="I"))
    series = Recording.from_array(pandas.Series(SIGNAL[0], name="I"), rate_hz=250)
    np.testing.assert_array_equal(series.signal()[0], SIGNAL[0].astype(np.float32))


def test_a_frame_keeps_units_that_are_no_voltages(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    recording = replace(Recording.from_array(SIGNAL, rate_hz=250, leads=["II", "Resp"]), units=("mV", "NU"))
    frame = recording.to_frame()
    assert Recording.from_array(frame).units == ("mV", "NU")
    assert Recording.from_array(frame, leads="ii").leads == ("II",)
    assert Recording.from_array(frame, leads=["x", "y"]).leads == ("x", "y")
    with pytest.raises(HeartlmError, match="leads V9 asked for"):
        Recording.from_array(frame, leads="V9")
    frame.attrs["start"] = "noon"
    with pytest.raises(HeartlmError, match=r"^array: start: 'noon' found"):
        Recording.from_array(frame)


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    pytest.importorskip("pandas")
    frame = Recording.from_array(SIGNAL, rate_hz=250, leads=["II", "II"]).to_frame()
    with pytest.raises(HeartlmError, match="column II: there are several of this name"):
        Recording.from_array(frame)


def test_leads_by_index() -> None:
    recording = Recording.from_array(SIGNAL, rate_hz=250)
    np.testing.assert_array_equal(recording.signal(0, 9, np.arange(2)), recording.signal(0, 9))  # type: ignore[arg-type]
    for index in (2, -1):
        with pytest.raises(HeartlmError, match=f"no lead {index}; it has 2, counted from 0"):
            recording.signal(leads=[index])


def test_wfdb_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    signal, reads = SIGNAL.astype(np.float32), 0

    def samples(start: int, stop: int, leads: Sequence[int]) -> np.ndarray:
        nonlocal reads
        reads += 1
        if reads == 3:  # after both leads were measured
            raise OSError("the disk failed")
        return signal[list(leads), start:stop]

    beat = Annotations(RATE_HZ, np.array([100]), np.array(["N"]))
    recording = replace(Recording.from_array(SIGNAL, rate_hz=RATE_HZ), samples=samples).with_annotations(beat)
    with pytest.raises(HeartlmError, match="the disk failed"):
        recording.to_wfdb(tmp_path, "r")
    assert not list(tmp_path.iterdir())
    recording.to_wfdb(tmp_path, "r")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.atr", "r.dat", "r.hea"]
    (tmp_path / "r.hea").unlink()
    with pytest.raises(HeartlmError, match=r"r\.atr exists already"):  # the annotations of another record
        recording.to_wfdb(tmp_path, "r")


def test_wfdb_is_exact_for_whole_steps(tmp_path: Path) -> None:
    adu = np.random.default_rng(0).integers(-1500, 1500, (4, 3000))
    signal = np.stack([adu[0] / 1000, adu[1] / 200, adu[2] / 341.3333, 5 + adu[3] / 2000.0]).astype(np.float32)
    signal[0, 100:200] = np.nan
    notes = Annotations(
        RATE_HZ, np.array([100, 300]), np.array(["N", "V"]), (RhythmSpan(0, 3000, "AFIB"),), notes=(Note(5, 5, "x"),)
    )
    recording = Recording(
        record_id="r",
        rate_hz=RATE_HZ,
        num_samples=3000,
        lead_names=("I", "MLII", "V 5", "X"),
        units=("mV", "mV", "mV", ""),
        path=tmp_path / "source",
        comments=("first line",),
        start=START,
        patient=Patient("Ada", "7", "female", age=33),
        samples=lambda start, stop, leads: signal[list(leads), start:stop],
        read_annotations=lambda recording: notes,
    )
    header = recording.to_wfdb(tmp_path / "out")
    assert header == tmp_path / "out" / "r.hea"
    again = open_database(header.parent).recording("r")
    np.testing.assert_array_equal(again.signal(), signal)
    assert (again.rate_hz, again.leads, again.units) == (RATE_HZ, ("I", "MLII", "V 5", "X"), ("mV", "mV", "mV", "NU"))
    assert (again.start, again.age, again.patient.sex) == (START, 33, "female")
    assert "Ada" not in header.read_text()
    assert again.comments[0] == "first line"
    assert again.annotations is not None
    assert (again.annotations.sample.tolist(), again.annotations.rhythms) == ([100, 300], notes.rhythms)
    reference = wfdb.rdrecord(str(header.with_suffix("")))
    np.testing.assert_allclose(reference.p_signal.T, signal, atol=1e-6)
    assert (reference.base_time, reference.base_date) == (START.time(), START.date())
    again.refuse_if_damaged()
    with pytest.raises(HeartlmError, match=r"r\.hea exists already"):
        recording.to_wfdb(tmp_path / "out")
    with pytest.raises(HeartlmError, match="name: 'a b' found"):
        recording.to_wfdb(tmp_path / "out", "a b")


def test_wfdb_of_other_samples_has_fine_steps(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    signal = np.stack(
        [random.normal(0, 0.3, 4000), 100 + random.normal(0, 1e-4, 4000), np.zeros(4000), np.full(4000, 7.3)]
    )
    recording = Recording.from_array(signal, rate_hz=500, start=time(23, 59))
    again = read_recording(recording.to_wfdb(tmp_path, "r"))
    for lead, own in zip(signal.astype(np.float32), again.signal(), strict=True):
        assert np.abs(lead - own).max() <= max(np.ptp(lead) / 60_000, 1e-6 * np.abs(lead).max())
    assert again.start == time(23, 59)


def test_mne_and_back() -> None:
    mne = pytest.importorskip("mne")
    recording = Recording.from_array(SIGNAL, rate_hz=250, leads=["II", "V5"], start=START)
    raw = recording.to_mne()
    assert (raw.info["sfreq"], raw.ch_names, raw.get_channel_types()) == (250, ["II", "V5"], ["ecg", "ecg"])
    np.testing.assert_allclose(raw.get_data(), SIGNAL / 1000, atol=1e-9)
    raw.set_annotations(mne.Annotations([1.5], [0.5], ["button"], orig_time=raw.info["meas_date"]))
    again = Recording.from_mne(raw)
    assert (again.rate_hz, again.leads, again.units, again.start) == (250, ("II", "V5"), ("mV", "mV"), START)
    np.testing.assert_allclose(again.signal(), SIGNAL, atol=1e-6)
    np.testing.assert_allclose(again.signal(100, 200, ["V5"]), SIGNAL[1:, 100:200], atol=1e-6)
    assert again.annotations is not None
    assert [(note.start, note.stop, note.text) for note in again.annotations.notes] == [(375, 500, "button")]
    cropped = Recording.from_mne(raw.crop(tmin=1))
    assert cropped.annotations is not None
    assert (cropped.annotations.notes, cropped.start) == ((Note(125, 250, "button"),), START + timedelta(seconds=1))
    np.testing.assert_allclose(cropped.signal(), SIGNAL[:, 250:], atol=1e-6)


def test_frames_need_pandas_and_arrays_do_not() -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['mne'] = None\n"
        "import numpy as np, json\nfrom heartlm.ecg.recording import Recording\n"
        "recording, messages = Recording.from_array(np.zeros(100), rate_hz=250), []\n"
        "for call in (recording.to_frame, recording.to_mne):\n"
        "    try:\n        call()\n    except Exception as error:\n        messages.append(str(error))\n"
        "print(json.dumps(messages))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frame, mne = json.loads(ended.stdout)
    assert "pip install 'heartlm[pandas]'" in frame
    assert "pip install 'heartlm[mne]'" in mne


def test_a_wfdb_record_and_its_annotation(tmp_path: Path) -> None:
    names = {"units": ["mV", "mmHg"], "sig_name": ["II", "ABP"], "comments": ["40 F"], "write_dir": str(tmp_path)}
    both, day = SIGNAL * [[1], [60]], {"base_date": START.date(), "base_time": START.time()}
    wfdb.wrsamp("w", fs=250, p_signal=both.T, fmt=["16", "16"], **names, **day)
    wfdb.wrann("w", "atr", np.array([10, 400, 900]), ["+", "N", "V"], aux_note=["(B", "", ""], write_dir=str(tmp_path))
    annotation = wfdb.rdann(str(tmp_path / "w"), "atr")
    for physical in (True, False):
        recording = Recording.from_wfdb(wfdb.rdrecord(str(tmp_path / "w"), physical=physical), annotation)
        np.testing.assert_allclose(recording.signal(leads="ii")[0], SIGNAL[0], atol=1e-4)
        assert (recording.leads, recording.units) == (("II", "ABP"), ("mV", "mmHg"))
        assert (recording.rate_hz, recording.start, recording.comments) == (250, START, ("40 F",))
        found = recording.annotations
        assert found is not None and found.sample.tolist() == [400, 900] and found.symbol.tolist() == ["N", "V"]
        assert found.rhythms == (RhythmSpan(10, 5000, "B"),)
    assert opened(wfdb.rdrecord(str(tmp_path / "w"))).annotations is None
    with pytest.raises(HeartlmError, match="has no samples"):
        Recording.from_wfdb(wfdb.rdheader(str(tmp_path / "w")))
    with pytest.raises(HeartlmError, match="record: list found"):
        Recording.from_wfdb([])


def test_what_is_in_memory_is_taken_where_a_path_is() -> None:
    frame = Recording.from_array(SIGNAL, rate_hz=250, leads=["II", "V5"]).to_frame()
    for source in (SIGNAL, SIGNAL.tolist(), frame, Recording.from_frame(frame)):
        given = {} if hasattr(source, "columns") or isinstance(source, Recording) else {"rate_hz": 250}
        recording = opened(source, **given)
        assert recording.rate_hz == 250
        np.testing.assert_array_equal(recording.signal(leads=1), SIGNAL[1:].astype(np.float32))
    beats = np.arange(300, 4700, 200)
    waves, same = delineate(SIGNAL, beats, rate_hz=250), Recording.from_array(SIGNAL, rate_hz=250)
    np.testing.assert_array_equal(waves.delineation.waves, delineate(same, beats).delineation.waves)
    with pytest.raises(HeartlmError, match="rate_hz: not given"):
        delineate(SIGNAL)
    with pytest.raises(HeartlmError, match=r"rate_hz: 360 given, but array has 250 Hz"):
        opened(Recording.from_array(SIGNAL, rate_hz=250), 360)
    with pytest.raises(HeartlmError, match="recording: int found; a path"):
        delineate(208)
    with pytest.raises(HeartlmError, match="path: 208 found, a path expected"):
        open_recording(208)  # type: ignore[arg-type]
