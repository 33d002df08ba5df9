"""Annotating a recording: what the model says lands in a WFDB file that every reader reads back the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.databases.database import Database, open_database
from heartlm.ecg.matching import nearest
from heartlm.ecg.recording import Annotations, RhythmSpan
from heartlm.ecg.spans import joined_spans
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.formats.write_annotations import write_annotations
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.tasks.annotate import annotate
from heartlm.tasks.rhythm import rhythm_names
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import SampleTokenizer
from tests.conftest import shared_data
from tests.untrained import small_beat_tokenizer, untrained_run

RECORD = "s0001"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    folder = tmp_path_factory.mktemp("data") / "simdb"
    simulate_database(folder, SimulationConfig(patients=2, minutes=1, seed=4))
    return open_database(folder)


@pytest.fixture(scope="module")
def beats_run(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "beats", small_beat_tokenizer(database), task="beats")


def annotated(database: Database) -> Annotations:
    annotations = database.annotations(RECORD)
    assert annotations is not None
    return annotations


def test_beats_read_back_as_the_model_named_them(database, beats_run, tmp_path, capsys):
    assert main(["predict", str(beats_run), str(database.folder / RECORD), "--out", str(tmp_path)]) == 0
    found = annotate(beats_run, database, RECORD).found
    assert len(set(found.symbol.tolist())) > 1
    np.testing.assert_array_equal(found.sample, annotated(database).sample)
    by_wfdb = wfdb.rdann(str(tmp_path / RECORD), "hlm")
    np.testing.assert_array_equal(by_wfdb.sample, found.sample)
    assert by_wfdb.symbol == found.symbol.tolist()
    assert by_wfdb.fs == found.rate_hz
    own = read_annotation_file(tmp_path / f"{RECORD}.hlm")
    np.testing.assert_array_equal(own.sample, found.sample)
    np.testing.assert_array_equal(own.symbol, found.symbol)
    lines = capsys.readouterr().out.splitlines()
    counts = lines[1].split()
    assert sum(int(count) for count in counts[1::2]) == found.num_beats
    assert set(counts[::2]) == set(found.symbol.tolist())
    assert lines[-1] == str(tmp_path / f"{RECORD}.hlm")


def test_the_extension_of_the_record_does_not_matter(database, beats_run, tmp_path):
    for index, ending in enumerate(("", ".hea", ".dat")):
        out = tmp_path / str(index)
        assert main(["predict", str(beats_run), str(database.folder / f"{RECORD}{ending}"), "--out", str(out)]) == 0
    assert len({path.read_bytes() for path in tmp_path.glob("*/*.hlm")}) == 1


def test_detected_beats_and_another_lead(database, beats_run):
    detected = annotate(beats_run, database, RECORD, beats="detected")
    assert detected.known.source == "detected"
    assert detected.found.num_beats == detected.known.num_beats > 10
    other = annotate(beats_run, database, RECORD, lead="v1")
    assert other.lead_name == "V1"
    assert other.found.symbol.tolist() != annotate(beats_run, database, RECORD).found.symbol.tolist()


def test_rhythm_changes_carry_their_names(database, tmp_path, capsys):
    run = untrained_run(tmp_path / "af", RhythmTokenizer(), task="rhythm")
    assert main(["predict", str(run), str(database.folder / RECORD), "--out", str(tmp_path)]) == 0
    spans = annotate(run, database, RECORD).found.rhythms
    assert spans[-1].stop == database.recording(RECORD).num_samples
    assert all(before.stop == after.start for before, after in pairwise(spans))
    by_wfdb = wfdb.rdann(str(tmp_path / RECORD), "hlm")
    assert set(by_wfdb.symbol) == {"+"}
    assert [note.rstrip("\x00") for note in by_wfdb.aux_note] == [f"({span.name}" for span in spans]
    assert by_wfdb.sample.tolist() == [span.start for span in spans]
    assert "min (" in capsys.readouterr().out


def test_sample_tokens_name_the_beats_that_fall_on_them(database, tmp_path):
    run = untrained_run(tmp_path / "run", SampleTokenizer(), task="beats")
    found = annotate(run, database, RECORD).found
    np.testing.assert_array_equal(found.sample, annotated(database).sample)


def test_a_pretrained_run_is_refused_in_one_line(database, tmp_path, refused):
    run = untrained_run(tmp_path / "foundation", small_beat_tokenizer(database))
    assert "heartlm finetune" in refused("predict", run, database.folder / RECORD, "--out", tmp_path)
    assert not list(tmp_path.glob("*.hlm"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--lead", "V6"], "V6"),
        (["--annotator", "h.1"], "annotator"),
        (["--beats", "some"], "beats"),
        (["--checkpoint", "last"], "models/last"),
    ],
)
def test_impossible_options_name_what_is_wrong(database, beats_run, tmp_path, refused, options, named):
    assert named in refused("predict", beats_run, database.folder / RECORD, "--out", tmp_path, *options)


def test_reference_annotations_are_never_replaced(database, beats_run, refused):
    reference = database.folder / f"{RECORD}.atr"
    before = reference.read_bytes()
    where = ["--out", str(database.folder), "--annotator", "atr"]
    assert "exists already" in refused("predict", beats_run, database.folder / RECORD, *where)
    assert reference.read_bytes() == before


def test_its_own_file_is_replaced(tmp_path):
    first = Annotations(250.0, np.array([10, 20]), np.array(["N", "V"]))
    second = Annotations(250.0, np.array([30]), np.array(["S"]))
    for said in (first, second):
        path = write_annotations(tmp_path, "x", said)
    assert read_annotation_file(path).sample.tolist() == [30]
    assert [file.name for file in tmp_path.iterdir()] == ["x.hlm"]
    with pytest.raises(HeartlmError, match="nothing to write"):
        write_annotations(tmp_path, "x", Annotations(250.0, np.empty(0, np.int64), np.empty(0, "<U1")))


steps = st.lists(st.integers(1, 5_000_000) | st.integers(1, 2_000), min_size=1, max_size=40)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(steps=steps, data=st.data())
def test_any_beats_and_rhythms_read_back(tmp_path_factory, steps, data):
    sample = np.cumsum(steps)
    symbol = data.draw(st.lists(st.sampled_from("NSVF"), min_size=len(steps), max_size=len(steps)))
    starts = sorted(data.draw(st.sets(st.sampled_from(sample.tolist()), max_size=5)))
    spans = tuple(
        RhythmSpan(start, stop, name)
        for start, stop, name in zip(starts, [*starts[1:], int(sample[-1]) + 1], ["AFIB", "N"] * 3, strict=False)
    )
    written = Annotations(360.0, sample, np.array(symbol), spans)
    file = read_annotation_file(write_annotations(tmp_path_factory.mktemp("a"), "r", written))
    is_beat = file.symbol != "+"
    np.testing.assert_array_equal(file.sample[is_beat], sample)
    assert file.symbol[is_beat].tolist() == symbol
    assert [(int(file.sample[at]), text) for at, text in file.aux.items()] == [
        (span.start, f"({span.name}") for span in spans
    ]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, unique=True), st.lists(st.integers(-50, 1100)))
def test_nearest_is_nearest(places, wanted):
    places, wanted = np.sort(np.array(places, np.int64)), np.sort(np.array(wanted, np.int64))
    distance = np.abs(places[nearest(wanted, places)] - wanted)
    np.testing.assert_array_equal(distance, np.abs(places[None] - wanted[:, None]).min(axis=1, initial=10**9))


def test_spans_join_tokens_of_one_answer():
    positive = np.array([False, False, True, True, False])
    spans = joined_spans(rhythm_names(positive, "AFIB"), np.array([5, 10, 20, 30, 40]), 100)
    assert spans == (RhythmSpan(5, 20, "N"), RhythmSpan(20, 40, "AFIB"), RhythmSpan(40, 100, "N"))
    assert rhythm_names(positive, "N") == ["OTHER", "OTHER", "N", "N", "OTHER"]


def test_a_real_recording_gets_all_its_beats(beats_run, tmp_path, capsys):
    folder = shared_data("mitdb")
    assert main(["predict", str(beats_run), str(folder / "100"), "--out", str(tmp_path)]) == 0
    written = wfdb.rdann(str(tmp_path / "100"), "hlm")
    assert len(written.sample) == 2273
    assert set(written.symbol) <= set("NSVF")
    assert "2,273 beats (100.atr)" in capsys.readouterr().out
