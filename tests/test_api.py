"""The public interface: what `import heartlm` gives, that it prints nothing, and vectors that belong to their beats."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

import heartlm
from heartlm import (
    Corpus,
    EvaluationConfig,
    FinetuneConfig,
    HeartlmError,
    PretrainConfig,
    Recording,
    TokenizeConfig,
    api,
)
from heartlm.analysis.embed import embed, hidden_states, leads_of_recordings
from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.models.store import load_model
from heartlm.monitor.alarms import AlarmRules
from heartlm.monitor.config import MonitorConfig
from heartlm.runs.run_folder import RunFolder
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database

STEPS: dict[str, Any] = {"steps": 2, "batch_size": 2, "window": 16, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "simdb"
    simulate_database(folder, SimulationConfig(patients=4, minutes=1, seed=4))
    return folder


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    return heartlm.tokenize(folder, folder.parent / "corpus", TokenizeConfig(processes=1))


@pytest.fixture(scope="module")
def run(corpus: Corpus, folder: Path) -> RunFolder:
    return heartlm.pretrain(corpus, str(folder.parent / "foundation"), PretrainConfig(depth=2, **STEPS))


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return heartlm.open_recording(folder / "s0001")


def test_the_whole_line_prints_nothing(
    folder: Path, corpus: Corpus, run: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = heartlm.tokenize([folder], tmp_path / "corpus", TokenizeConfig(tokenizer_from=run.path, processes=1))
    assert np.array_equal(again.codes, corpus.codes)
    config = FinetuneConfig(task="beats", **STEPS)
    tuned = heartlm.finetune(run, again, tmp_path / "beats", config)
    scores = heartlm.evaluate(tuned, folder, EvaluationConfig(split="all", bootstrap=20, baselines=False))
    assert tuple(capfd.readouterr()) == ("", "")
    frame = scores.to_frame()
    assert {"macro_f1", "per_class V f1"} <= set(frame.score) and set(frame.method) >= {"model"}
    assert len(scores.per_patient) == 4
    assert (scores.folder / "scores.json").is_file()
    with heartlm.show_progress():
        heartlm.finetune(run, again, tmp_path / "other", config)
    assert "loss" in capfd.readouterr().err


def test_a_recording_gives_leads_by_name_and_its_annotations(recording: Recording) -> None:
    assert recording.leads == recording.lead_names
    one, two = recording.signal(0, 50, leads=[recording.leads[1]]), recording.signal(0, 50, leads=[1])
    assert np.array_equal(one, two)
    with pytest.raises(HeartlmError, match="no lead 'V9'"):
        recording.signal(leads=["V9"])
    assert recording.annotations is not None and recording.annotations is recording.annotations
    found = heartlm.detect_beats(recording)
    assert abs(len(found) - recording.annotations.num_beats) <= 2
    assert np.array_equal(found, heartlm.detect_beats(recording.path.with_suffix(""), recording.leads[0]))


def test_every_beat_has_its_vector(run: RunFolder, corpus: Corpus, folder: Path, recording: Recording) -> None:
    model = heartlm.load_model(run)
    found = model.embed(recording)
    known = recording.annotations
    assert known is not None and found.vectors.shape == (known.num_beats, 64) and found.vectors.dtype == np.float32
    assert np.array_equal(found.sample, known.sample)
    assert set(found.record) == {"s0001"} and set(found.patient) == {recording.patient_id}
    assert set(found.lead) == {recording.leads[0]} and set(found.beat_class) <= set("NSVF")
    of_folder, of_corpus = model.embed(folder), model.embed(corpus)
    order = np.lexsort((of_corpus.sample, of_corpus.record))
    np.testing.assert_allclose(of_folder.vectors, of_corpus.vectors[order], atol=1e-5)
    np.testing.assert_allclose(of_folder.vectors[of_folder.record == "s0001"], found.vectors, atol=1e-5)
    assert 0 < len(model.embed(corpus, split="test")) < len(of_corpus)
    of_split = [model.embed(folder, split=split) for split in ("train", "validation", "test")]
    assert sum(map(len, of_split)) == len(of_folder) > max(map(len, of_split))


def test_a_vector_comes_from_the_window_that_sees_most_around_it(run: RunFolder, corpus: Corpus) -> None:
    model = heartlm.load_model(run).network
    codes = np.asarray(corpus.codes[corpus.tokens_of(0)])[:40]
    (found,) = hidden_states(model, [codes], 16)
    for token, start in ((0, 0), (11, 0), (12, 8), (19, 8), (20, 16), (39, 24)):
        expected = np.asarray(model.hidden(codes[None, start : start + 16]))[0, token - start]
        np.testing.assert_allclose(found[token], expected, atol=1e-5)


def test_layers_and_windows(run: RunFolder, recording: Recording) -> None:
    model = heartlm.load_model(run)
    beats = model.embed(recording)
    windows = model.embed(recording, level="window")
    assert len(windows) == -(-len(beats) // 16)
    np.testing.assert_allclose(windows.vectors[0], beats.vectors[:16].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(windows.vectors[-1], beats.vectors[(len(windows) - 1) * 16 :].mean(axis=0), atol=1e-5)
    last, first = model.embed(recording, layer=1), model.embed(recording, layer=0)
    with torch.inference_mode():
        normed = load_model(model.weights)[0].trunk.norm(torch.from_numpy(last.vectors)).numpy()
    np.testing.assert_allclose(normed, beats.vectors, atol=1e-5)
    assert np.abs(first.vectors - last.vectors).max() > 0.01
    with pytest.raises(HeartlmError, match="layer: 2 found, -1 to 1 expected"):
        model.embed(recording, layer=2)
    with pytest.raises(HeartlmError, match="level: 'beats' found, beat, window, recording expected"):
        model.embed(recording, level="beats")  # type: ignore[arg-type]
    with pytest.raises(HeartlmError, match=r"split: 'test' found, but .*s0001.* is one recording"):
        model.embed(recording, split="test")


def test_a_recording_has_one_vector_of_all_leads(run: RunFolder, folder: Path, recording: Recording) -> None:
    model = heartlm.load_model(run)
    found = model.embed(folder, level="recording")
    num_leads = len(recording.leads)
    assert num_leads > 1 and found.vectors.shape == (len(open_database(folder).record_ids), num_leads * 65)
    assert set(found.lead) == {"+".join(recording.leads)} and len(set(found.record)) == len(found)
    of_one = found.vectors[found.record == "s0001"][0].reshape(num_leads, 65)
    np.testing.assert_allclose(of_one[0, :64], model.embed(recording).vectors.mean(axis=0), atol=1e-5)
    samples = recording.samples
    assert samples is not None
    louder = replace(recording, samples=lambda *what: 2 * samples(*what))
    (of_louder,) = model.embed(louder, level="recording").vectors.reshape(1, num_leads, 65)
    np.testing.assert_allclose(of_louder[:, 64] - of_one[:, 64], np.log(2), atol=1e-3)
    same_names = replace(recording, lead_names=("ECG",) * num_leads)
    np.testing.assert_array_equal(model.embed(same_names, level="recording").vectors[0].reshape(num_leads, 65), of_one)
    second = replace(recording, record_id="b", lead_names=("V9", *recording.leads[1:]))
    left_out: list[str] = []
    leads = leads_of_recordings([recording, second], model.tokenizer, left_out, "recording")
    assert embed(model.network, 16, leads, "recording", -1, left_out).record.tolist() == ["s0001"]
    assert left_out == [f"simdb/b: no lead {recording.leads[0].lower()}, which the first recording has"]


def test_files_and_frames_hold_the_same(run: RunFolder, recording: Recording, tmp_path: Path) -> None:
    found = heartlm.load_model(run.model("last")).embed(recording)
    frame = found.to_frame()
    assert frame.loc[3, "v5"] == found.vectors[3, 5] and frame.shape == (len(found), 8 + 64)
    table = pyarrow.parquet.read_table(found.write(tmp_path / "beats.parquet"))
    assert np.array_equal(np.stack([table[f"v{n}"] for n in range(found.vectors.shape[1])], axis=1), found.vectors)
    assert table["sample"].to_pylist() == found.sample.tolist()
    with np.load(found.write(tmp_path / "beats.npz")) as kept:
        assert np.array_equal(kept["vectors"], found.vectors) and np.array_equal(kept["beat_class"], found.beat_class)
    with pytest.raises(HeartlmError, match=r"\.parquet or \.npz expected"):
        found.write(tmp_path / "beats.csv")


def test_what_cannot_be_done_is_said_in_a_line(run: RunFolder, corpus: Corpus, recording: Recording) -> None:
    model = heartlm.load_model(run)
    with pytest.raises(HeartlmError, match="pretrained only"):
        model.analyze(recording)
    with pytest.raises(HeartlmError, match="tokens of another tokenizer"):
        heartlm.load_model("foundation").embed(corpus)
    with pytest.raises(HeartlmError, match="no vectors of beats"):
        heartlm.load_model("waveform").embed(recording)
    with pytest.raises(HeartlmError, match="no such run folder, nor a shipped model"):
        heartlm.load_model("beets")


def test_leads_that_a_corpus_leaves_out_are_not_embedded(run: RunFolder, recording: Recording) -> None:
    model, num_leads = heartlm.load_model(run), recording.num_leads
    with pytest.raises(HeartlmError, match="no ECG lead"):
        model.embed(replace(recording, units=("mmHg",) * num_leads))
    flat = replace(recording, samples=lambda start, stop, leads: np.ones((len(leads), stop - start), np.float32))
    with pytest.raises(HeartlmError, match=r"s0001: lead .*: flat"):
        model.embed(flat)


def test_a_folder_is_analysed_and_a_recording_annotated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = heartlm.analyze(folder, tmp_path, page=False, processes=1)
    assert [each["record"] for each in found.summaries] == list(open_database(folder).record_ids)
    assert found.left_out == () and found.file == tmp_path / "summary.csv"
    with pytest.raises(HeartlmError, match="processes: 0 found"):
        heartlm.analyze(folder, tmp_path, processes=0)
    annotated = heartlm.annotate("beats", folder / "s0001", beats="detected")
    assert (annotated.record, annotated.task) == ("s0001", "beats")
    assert set(annotated.found.symbol.tolist()) <= set("NSVF")
    told = capsys.readouterr()
    assert told.out + told.err == ""


def test_alarms_of_a_recording_are_found(recording: Recording) -> None:
    alarms = heartlm.find_alarms(recording)
    assert alarms == heartlm.find_alarms(recording.path.with_suffix(""))
    assert all(0 <= each.start <= each.raised <= recording.num_samples for each in alarms)
    slow = AlarmRules(bradycardia_bpm=250, bradycardia_beats=5)
    assert "extreme bradycardia" in {each.kind for each in heartlm.find_alarms(recording, slow)}


def test_streams_are_watched_until_a_signal(folder: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("bradycardia_bpm: 250\nbradycardia_beats: 5\n")
    raised = list[dict[str, Any]]()

    def stop(alarm: dict[str, Any]) -> None:
        raised.append(alarm)
        os.kill(os.getpid(), signal.SIGTERM)

    config = MonitorConfig(replay=folder, streams=1, speed=100, page=False, rules=rules)
    heartlm.watch(config, stop)
    assert (raised[0]["kind"], raised[0]["stop_s"]) == ("extreme bradycardia", None)


def test_the_command_writes_the_same(run: RunFolder, folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "all.npz"
    assert main(["embed", str(run.path), str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    with np.load(out) as kept:
        assert f"{len(kept['sample'])} vectors of 64 numbers, 4 recordings" in told
        assert np.array_equal(kept["vectors"], heartlm.load_model(run).embed(folder).vectors)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / "s0002.dat").unlink()
    assert main(["embed", str(run.path), str(damaged), "--out", str(out)]) == 1
    told = capsys.readouterr().out
    assert "left out: " in told and told.endswith("3 recordings embedded, 1 left out\n")


def test_ten_lines_with_the_shipped_models(folder: Path, tmp_path: Path) -> None:
    script = """
import heartlm
from heartlm import api
recording = heartlm.open_recording("simdb/s0002")
print(recording.leads, recording.rate_hz, recording.signal(0, 100).shape)
model = heartlm.load_model()
findings = model.analyze(recording)
print(findings.to_frame(), findings.events_frame())
print(findings.write("s0002.hlm"))
vectors = model.embed(recording, level="beat")
print(vectors.to_frame().shape, vectors.write("s0002.parquet"))
"""
    (tmp_path / "simdb").symlink_to(folder)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "s0002.hlm").is_file() and (tmp_path / "s0002.parquet").is_file()


def test_names_are_there_without_torch_and_others_are_not() -> None:
    code = "import sys, heartlm; heartlm.open_recording; print('torch' in sys.modules, heartlm.Recording.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False Recording\n"
    with pytest.raises(AttributeError, match="no attribute 'embedd'"):
        heartlm.embedd  # noqa: B018
    assert {"load_model", "tokenize", "__version__"} <= set(dir(heartlm))


@pytest.mark.parametrize("name", sorted({*api.__all__} - {"HeartlmError"}))
def test_signatures_show_plain_types(name: str):
    """As a notebook shows them: no quoted texts, no `ForwardRef`, no names that only heartlm knows."""
    value = getattr(heartlm, name)
    members = (
        [getattr(value, each) for each in dir(value) if not each.startswith("_")] if inspect.isclass(value) else []
    )
    ours = [each for each in members if callable(each) and each.__module__.startswith("heartlm")]
    for shown in (value, *ours):
        signature = inspect.signature(shown)
        evaluated = inspect.signature(shown, eval_str=True)  # also where a type is not imported
        assert not any(isinstance(each.annotation, str) for each in evaluated.parameters.values())
        annotations = [each.annotation for each in signature.parameters.values()] + [signature.return_annotation]
        quoted = [each for each in annotations if isinstance(each, str) and repr(each) != str(each)]
        assert not quoted and not re.search("ForwardRef|AnyPath", str(signature)), f"{shown.__qualname__}{signature}"
