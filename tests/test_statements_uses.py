"""The shipped model statements outside of findings: vectors, files for other runtimes, long recordings."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import heartlm
from heartlm import HeartlmError, Model, Recording
from heartlm.cli.main import main
from heartlm.corpus.config import TokenizeConfig
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Annotations
from heartlm.inference.beat_summary import NUM_FEATURES, beat_summary
from heartlm.inference.statements import statement_probabilities
from heartlm.models.heart import HeartModel
from heartlm.models.store import load_model
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.leads import PLACES, places_of
from tests.conftest import Refused
from tests.synthetic_leads import beat_times_s, ecg_mv
from tests.test_monitor_export import check_facts

RATE_HZ = 250
GAINS = {"I": 0.7, "II": 1.0, "V1": -0.4, "V2": -0.2, "V3": 0.3, "V4": 0.8, "V5": 0.8, "V6": 0.6}


def recorded(seconds: float, seed: int = 1) -> Recording:
    """Return a recording of eight leads in memory."""
    time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    mv = ecg_mv(time, beat_times_s(seconds + 2, seed))
    noise = np.random.default_rng(seed).normal(0, 0.01, (len(GAINS), len(time)))
    leads = np.array(list(GAINS.values()))[:, None] * mv + noise
    return Recording.from_array(leads, rate_hz=RATE_HZ, leads=list(GAINS), record_id=f"r{seed}")


def with_leads(recording: Recording, names: list[str]) -> Recording:
    """Return the recording with some of its leads, in this order."""
    chosen = recording.signal(leads=[recording.lead_index(name) for name in names])
    return Recording.from_array(chosen, rate_hz=RATE_HZ, leads=names, record_id=recording.record_id)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.set_num_threads(1)
    return heartlm.load_model("statements", device="cpu")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded(13)


# --- vectors ----------------------------------------------------------------------------------------------------------


def test_a_recording_is_one_vector_of_all_its_leads_in_any_order(model: Model, recording: Recording) -> None:
    embedded = model.embed(recording)
    (vector,) = embedded.vectors
    assert embedded.lead.tolist() == ["+".join(GAINS)]
    assert np.array_equal(vector, model.embed(with_leads(recording, [*GAINS][::-1])).vectors[0])
    for names in (["II"], ["V5", "II"], ["patch"]):
        source = with_leads(recording, ["II"] if names == ["patch"] else names)
        (other,) = model.embed(replace(source, lead_names=tuple(names))).vectors
        assert other.shape == vector.shape
        assert not np.allclose(other, vector, atol=0.01)


def test_a_vector_is_the_mean_over_windows_of_what_the_head_reads(model: Model, recording: Recording) -> None:
    none = Annotations(RATE_HZ, np.empty(0, np.int64), np.empty(0, "<U1"))
    codes = model.tokenizer.encode(Lead(none, recording.signal(), 0, recording.lead_names)).codes.astype(np.int64)
    windows = [torch.from_numpy(codes[first : first + 600])[None] for first in (0, 200, 400, 600, 700)]
    network = load_model(model.weights)[0]
    with torch.inference_mode():
        features = [network.features(window)[0] for window in windows]  # type: ignore[operator]
        (first_block,) = network.trunk.blocks[:1]
        early = first_block(network.stem(*_voltages(network, windows[0])))  # type: ignore[operator]
    np.testing.assert_allclose(model.embed(recording).vectors[0], torch.stack(features).mean(dim=0), atol=1e-4)
    by_window = model.embed(recording, level="window")
    assert by_window.time_s.tolist() == [0.0, 6.0, 12.0]
    np.testing.assert_allclose(by_window.vectors[0], features[0], atol=1e-4)
    members = early.view(network.config.members, -1, early.shape[2])
    expected = torch.cat([members.mean(dim=2), members.amax(dim=2)], dim=1).flatten()
    np.testing.assert_allclose(model.embed(recording, "window", layer=0).vectors[0], expected, atol=1e-4)


def _voltages(network: HeartModel, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = codes[..., :18]
    return network.embedding.places_0[:, 0][places].transpose(1, 2), (places != 0).any(dim=1)


def test_the_command_writes_the_vectors_of_a_folder_and_of_a_corpus(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, vectors = tmp_path / "leads", list[np.ndarray]()
    for seed in (1, 2):
        recorded(8, seed).to_wfdb(folder)
        vectors.append(model.embed(folder / f"r{seed}").vectors[0])
    heartlm.tokenize(folder, tmp_path / "corpus", TokenizeConfig(tokenizer="leads", processes=1))
    for source in (folder, tmp_path / "corpus"):
        assert main(["embed", "statements", str(source), "--out", str(tmp_path / "x.npz")]) == 0
        assert "2 vectors of 512 numbers, 2 recordings" in capsys.readouterr().out
        with np.load(tmp_path / "x.npz") as kept:
            np.testing.assert_allclose(kept["vectors"], vectors, atol=1e-4)
            assert kept["record"].tolist() == ["r1", "r2"]


def test_vectors_that_a_model_of_all_leads_does_not_have_are_refused(model: Model, recording: Recording) -> None:
    with pytest.raises(HeartlmError, match="beat found, window or recording expected"):
        model.embed(recording, level="beat")
    with pytest.raises(HeartlmError, match="layer: 4 found, -1 to 3 expected"):
        model.embed(recording, layer=4)


# --- files for other runtimes -----------------------------------------------------------------------------------------


def test_a_file_for_onnx_answers_as_torch(model: Model, tmp_path: Path) -> None:
    """With all leads and with some, with gaps, and with and without the summary that the trees read."""
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "statements.onnx"
    assert main(["export", "statements", "--out", str(path), "--batch-size", "3", "--rate-hz", str(RATE_HZ)]) == 0
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    check_facts(session, "statements")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["thresholds"]) == list(model.info.thresholds)
    assert (json.loads(facts["leads"]), facts["rate_hz"], facts["heartlm"]) == ([*PLACES], "250", heartlm.__version__)
    assert {each.name: each.shape for each in session.get_inputs()} == {
        "samples_mv": [3, 18, 10 * RATE_HZ],
        "summary": [3, NUM_FEATURES],
    }
    whole = recorded(10)
    gap = whole.signal().copy()
    gap[2, 700:900], gap[:, :40] = np.nan, np.nan
    sources = whole, with_leads(whole, ["V5", "II"]), Recording.from_array(gap, rate_hz=RATE_HZ, leads=[*GAINS])
    samples, summaries, expected = np.full((3, 18, 10 * RATE_HZ), np.nan, np.float32), [], []
    for number, source in enumerate(sources):
        signal = source.signal()
        peaks = detect_beats(signal[-1] if number == 2 else signal[1], RATE_HZ)
        beats = Annotations(RATE_HZ, peaks, np.full(len(peaks), "Q", "<U1"))
        codes = model.tokenizer.encode(Lead(beats, signal, 0, source.lead_names)).codes
        for index, place in places_of(source.lead_names).items():
            samples[number, place] = signal[index]
        summary = beat_summary(codes)
        assert (summary is None) == (number == 1)
        summaries.append(np.full(NUM_FEATURES, np.nan, np.float32) if summary is None else summary)
        expected += statement_probabilities(model.network, [codes], model.info.window)
    (found,) = session.run(None, {"samples_mv": samples, "summary": np.stack(summaries)})
    assert np.abs(found - expected).max() < 1e-4
    assert np.ptp(found, axis=0).max() > 0.1  # the recordings differ
    (alone,) = session.run(None, {"samples_mv": samples, "summary": np.full_like(summaries, np.nan)})
    assert np.abs(alone[1] - expected[1]).max() < 1e-4
    assert np.abs(alone[0] - expected[0]).max() > 0.01  # the trees count


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--int8"], "int8: a model of statements is exported by --to onnx only, without int8"),
        (["--to", "executorch"], "to: executorch: a model of statements"),
        (["--rate-hz", "9"], "rate_hz: 9 found, 62 to 4000 expected"),
    ],
)
def test_what_no_file_of_statements_has_is_refused(
    tmp_path: Path, refused: Refused, extra: list[str], expected: str
) -> None:
    path = tmp_path / ("s.pte" if "executorch" in extra else "s.onnx")
    assert expected in refused("export", "statements", "--out", path, *extra)
    assert not path.exists()


# --- long recordings --------------------------------------------------------------------------------------------------


def test_a_long_recording_has_a_row_for_each_ten_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fast rhythm in the second half is stated of the pieces that have it, and a piece is judged as if alone."""
    slow, fast = (recorded(40, seed).signal() for seed in (1, 2))
    time = np.arange(80 * RATE_HZ) / RATE_HZ
    beats_s = np.concatenate([np.arange(0.5, 40, 0.9), np.arange(40.2, 80, 0.42)])
    mv = ecg_mv(time, beats_s)[None] * np.array(list(GAINS.values()))[:, None]
    mv += np.hstack([slow, fast]) * 0.01
    whole = Recording.from_array(mv.astype(np.float32), rate_hz=RATE_HZ, leads=[*GAINS], record_id="long")
    whole.to_wfdb(tmp_path / "leads")
    assert main(["predict", "statements", str(tmp_path / "leads/long"), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    table = list(csv.DictReader((tmp_path / "long.statements.csv").open()))
    pieces = list(csv.DictReader((tmp_path / "long.statements.pieces.csv").open()))
    assert [(float(row["start_s"]), float(row["stop_s"])) for row in pieces] == [
        (s, s + 10.0) for s in range(0, 80, 10)
    ]
    for name, expected in {"SR": [True] * 4 + [False] * 4, "PVC": [False] * 4 + [True] * 4}.items():
        (row,) = (row for row in table if row["statement"] == name)
        found = np.array([float(piece[name]) for piece in pieces])
        assert (found >= float(row["threshold"])).tolist() == expected
        assert (float(row["share"]), float(row["first_s"])) == (0.5, 10 * expected.index(True))
        assert float(row["probability"]) == pytest.approx(found.mean(), abs=1e-3)
        assert f"  {name}: " in printed
    assert "(50.0% of the time, first at 40 s)" in printed
    assert "  AFIB: " not in printed


def test_a_recording_of_a_minute_is_one_piece_and_the_last_piece_takes_what_is_left(
    model: Model, tmp_path: Path
) -> None:
    for seconds in (60, 68):
        source = recorded(seconds)
        source.to_wfdb(tmp_path, f"s{seconds}")
        answer = heartlm.annotate("statements", tmp_path / f"s{seconds}")
        if seconds == 60:
            assert answer.pieces is None
        else:
            assert answer.piece_s is not None
            assert answer.piece_s[[0, -1]].tolist() == [[0.0, 10.0], [50.0, 68.0]]
