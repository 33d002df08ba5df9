"""Beats, rhythms, vectors and results as pandas frames, and annotations and vectors of frames."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm import Annotations, Embeddings, Recording
from heartlm.ecg.recording import RhythmSpan
from heartlm.errors import HeartlmError

pandas = pytest.importorskip("pandas")

KNOWN = Annotations(
    250.0,
    np.array([100, 340, 700]),
    np.array(["N", "V", "|"]),
    (RhythmSpan(0, 500, "N"), RhythmSpan(500, 900, "AFIB")),
    source="frame",
)


def assert_same(left: Annotations, right: Annotations) -> None:
    assert left.sample.dtype == np.int64 and left.sample.tolist() == right.sample.tolist()
    assert left.symbol.dtype == "<U1" and left.symbol.tolist() == right.symbol.tolist()
    assert (left.rhythms, left.beats_labelled, left.rate_hz) == (right.rhythms, right.beats_labelled, right.rate_hz)


def test_annotations_come_back_from_their_frames() -> None:
    frame = KNOWN.to_frame()
    assert frame["rhythm"].tolist() == ["N", "N", "AFIB"] and frame["time_s"].tolist() == [0.4, 1.36, 2.8]
    assert_same(Annotations.from_frame(frame, 250, KNOWN.rhythms_frame()), KNOWN)
    seconds = KNOWN.rhythms_frame().drop(columns=["start", "stop"])
    shuffled = frame.drop(columns="sample").iloc[[2, 0, 1]]
    assert_same(Annotations.from_frame(shuffled, 250, seconds.iloc[::-1]), KNOWN)


def test_beats_without_symbols_are_not_labelled() -> None:
    bare = Annotations.from_frame(KNOWN.to_frame()[["sample"]], 250)
    assert not bare.beats_labelled and bare.rhythms == () and "symbol" not in bare.to_frame()
    assert (bare.beat_classes() == -1).all()


def test_rhythms_may_be_named_in_words() -> None:
    rhythms = pandas.DataFrame({"start": [5], "stop": [50], "name": ["atrial fibrillation"]})
    assert Annotations.from_frame(KNOWN.to_frame(), 250, rhythms).rhythms == (RhythmSpan(5, 50, "AFIB"),)


@pytest.mark.parametrize(
    ("beats", "rhythms", "message"),
    [
        ({"place": [1]}, None, "column time_s: missing; there are place"),
        ({"sample": [1, -1]}, None, "column sample: a value is missing, negative"),
        ({"time_s": [1, None]}, None, "column time_s: a value is missing"),
        ({"sample": ["one"]}, None, "column sample: numbers expected"),
        ({"sample": [1], "symbol": ["x"]}, None, "symbol: 'x' found"),
        ({"sample": [1]}, {"start": [1], "stop": [2], "name": ["waltz"]}, "name: 'waltz' found"),
        ({"sample": [1]}, {"start": [1], "stop": [1], "name": ["N"]}, "N from 1 to 1: empty"),
        ({"sample": [1]}, {"start": [1, 3], "stop": [4, 9], "name": ["N", "AFIB"]}, "AFIB from 3 to 9"),
        ({"sample": [1]}, {"start": [1], "name": ["N"]}, "column duration_s: missing"),
    ],
)
def test_what_cannot_be_is_refused(beats: dict, rhythms: dict | None, message: str) -> None:
    with pytest.raises(HeartlmError, match=message):
        Annotations.from_frame(pandas.DataFrame(beats), 250, None if rhythms is None else pandas.DataFrame(rhythms))


def test_a_recording_with_annotations_of_a_frame_is_written_with_them(tmp_path: Path) -> None:
    recording = Recording.from_array(np.sin(np.arange(1000) / 20), rate_hz=250, leads="II", record_id="own")
    known = replace(KNOWN, symbol=np.array(["N", "V", "N"]))
    header = recording.with_annotations(known).to_wfdb(tmp_path)
    read = heartlm.open_recording(header.with_suffix("")).annotations
    assert read is not None and read.sample.tolist() == [100, 340, 700] and read.symbol.tolist() == ["N", "V", "N"]
    assert read.rhythms[-1] == RhythmSpan(500, 900, "AFIB")
    with pytest.raises(HeartlmError, match=r"of 360 Hz"):
        recording.with_annotations(replace(KNOWN, rate_hz=360.0))
    with pytest.raises(HeartlmError, match=r"samples 0 to 1200"):
        recording.with_annotations(replace(KNOWN, sample=np.array([5, 6, 1200])))
    assert recording.with_annotations(None).annotations is None


def test_embeddings_come_back_from_their_frame_and_file(tmp_path: Path) -> None:
    vectors = np.arange(24, dtype=np.float32).reshape(2, 12)
    text = {name: np.array(["a", ""]) for name in ("database", "record", "patient", "lead", "beat_class", "rhythm")}
    known = Embeddings(vectors, **text, sample=np.array([3, 9]), time_s=np.array([0.5, 1.5]))
    file = pandas.read_parquet(known.write(tmp_path / "x.parquet"))
    known.to_frame().to_csv(tmp_path / "x.csv", index=False)
    pandas.testing.assert_frame_equal(file, known.to_frame())
    for frame in (known.to_frame(), file, pandas.read_csv(tmp_path / "x.csv")):
        again = Embeddings.from_frame(frame)
        assert again.vectors.dtype == np.float32 and (again.vectors == vectors).all()
        for name, column in known.columns().items():
            assert getattr(again, name).dtype.kind == column.dtype.kind
            assert getattr(again, name).tolist() == column.tolist(), name
    bare = Embeddings.from_frame(pandas.DataFrame({"v0": [1, 2], "v1": [3, 4]}))
    assert bare.vectors.tolist() == [[1, 3], [2, 4]] and bare.patient.tolist() == ["", ""]
    for wrong in ({"v1": [1.0]}, {"v0": ["x"]}, {"v0": [1.0], "sample": ["x"]}, {}):
        with pytest.raises(HeartlmError, match="frame: "):
            Embeddings.from_frame(pandas.DataFrame(wrong))


def test_waves_of_each_lead_are_a_frame() -> None:
    time_s = np.arange(2500) / 250
    lead = np.exp(-(((time_s % 0.8) - 0.4) ** 2) / 0.0004)
    recording = Recording.from_array(np.stack([lead, -lead]), rate_hz=250, leads=["II", "V1"])
    waves = heartlm.delineate(recording)
    assert re.fullmatch(r"<Intervals of \d+ beats in II, V1; .*QRS \d+.* ms>", repr(waves))
    frame = waves.leads_frame()
    nothing = heartlm.delineate(np.zeros(2500), [300, 900], rate_hz=250)
    for of_found, of_none in ((waves.to_frame(), nothing.to_frame()), (frame, nothing.leads_frame())):
        assert of_found.dtypes.to_dict() == of_none.dtypes.to_dict()
    assert nothing.to_frame()["pr_ms"].isna().all() and nothing.leads_frame()["t_peak"].isna().all()
    assert len(frame) == 2 * len(waves.to_frame()) > 10 and set(frame["lead"]) == {"II", "V1"}
    assert (frame["r_mv"][frame["lead"] == "II"].dropna() > 0.5).all()
