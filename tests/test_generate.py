"""Continuing recordings: what is drawn from the model, and how it becomes a signal again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus
from heartlm.corpus.corpus import open_corpus
from heartlm.ecg.database import Database, open_database
from heartlm.ecg.simulator.config import SimulationConfig
from heartlm.ecg.simulator.write import simulate_database
from heartlm.errors import HeartlmError
from heartlm.evaluation.continuation import blend, continue_recording, known_intervals
from heartlm.evaluation.finetuned import RunModel
from heartlm.evaluation.prompts import load_writer, prompt_of_record, prompts_of_corpus
from heartlm.evaluation.scored import ScoredLead
from heartlm.models.generate import Sampling, generate, probabilities
from heartlm.report.page import context, render
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import GRID_HZ, SampleTokenizer
from heartlm.tokenizers.waveform import BeatWindow, beat_waveforms
from tests.untrained import WINDOW, annotated_leads, small_beat_tokenizer, small_model, untrained_run

RECORD = "s0001"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    folder = tmp_path_factory.mktemp("data") / "simdb"
    simulate_database(folder, SimulationConfig(patients=6, minutes=1, seed=4, noise=0))
    return open_database(folder)


@pytest.fixture(scope="module")
def beat_tokenizer(database: Database) -> BeatTokenizer:
    return small_beat_tokenizer(database)


@pytest.fixture(scope="module")
def writer(beat_tokenizer: BeatTokenizer, tmp_path_factory: pytest.TempPathFactory) -> RunModel:
    return load_writer(untrained_run(tmp_path_factory.mktemp("runs") / "foundation", beat_tokenizer))


@pytest.fixture
def prompt(database: Database, writer: RunModel) -> ScoredLead:
    return prompt_of_record(writer, database, RECORD, None, 20)


def codes_like(tokenizer, num_tokens: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.stack([random.integers(0, facet.size, num_tokens) for facet in tokenizer.facets], axis=1).astype(
        np.uint16
    )


def test_the_seed_decides_what_is_written():
    tokenizer = RhythmTokenizer()
    model, prompt = small_model(tokenizer), codes_like(tokenizer, 10)
    one, same, other = (generate(model, prompt, 12, context=16, sampling=Sampling(seed=seed)) for seed in (1, 1, 2))
    assert one.shape == (12, len(tokenizer.facets))
    assert one.dtype == np.uint16
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_without_chance_every_facet_is_the_most_probable_given_those_before_it():
    tokenizer = RhythmTokenizer()
    model, prompt = small_model(tokenizer), codes_like(tokenizer, 10)
    written = generate(model, prompt, 6, context=64, sampling=Sampling(temperature=0))
    codes = torch.from_numpy(np.concatenate([prompt, written]).astype(np.int64))
    with torch.no_grad():
        hidden, table = model.hidden(codes[None, :-1])
        logits = model.facet_logits(hidden[0, len(prompt) - 1 :], codes[len(prompt) :], table)
    np.testing.assert_array_equal(torch.stack([x.argmax(dim=1) for x in logits], dim=1).numpy(), written)


def test_it_looks_back_no_further_than_the_context():
    tokenizer = RhythmTokenizer()
    model, prompt = small_model(tokenizer), codes_like(tokenizer, 30)
    changed = prompt.copy()
    changed[:22] = (changed[:22] + 5) % 30
    sampling = Sampling(temperature=0)
    near = [generate(model, codes, 4, context=8, sampling=sampling) for codes in (prompt, changed)]
    far = [generate(model, codes, 4, context=30, sampling=sampling) for codes in (prompt, changed)]
    np.testing.assert_array_equal(*near)
    assert (far[0] != far[1]).any()


logits = st.lists(st.floats(-20, 20), min_size=1, max_size=30).map(torch.tensor)


@settings(derandomize=True, deadline=None)
@given(logits, st.floats(0.01, 1), st.floats(0.05, 5))
def test_cut_probabilities_keep_the_most_probable_and_sum_to_one(logits, top_p, temperature):
    whole = (logits / temperature).softmax(dim=0)
    kept = probabilities(logits, Sampling(temperature, top_p))
    assert float(kept.sum()) == pytest.approx(1, abs=1e-5)
    assert kept[whole.argmax()] > 0
    assert whole[kept > 0].min() >= whole[kept == 0].max() if (kept == 0).any() else True


def test_top_p_takes_the_fewest_that_reach_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (probabilities(logits, Sampling(top_p=0.6)) > 0).tolist() == [True, True, False, False]
    np.testing.assert_allclose(probabilities(logits, Sampling(top_p=0.6))[:2], [0.625, 0.375], rtol=1e-5)
    np.testing.assert_allclose(probabilities(logits, Sampling()), [0.5, 0.3, 0.15, 0.05], rtol=1e-5)
    assert probabilities(logits, Sampling(temperature=0)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}])
def test_impossible_sampling_names_the_field(wrong):
    with pytest.raises(HeartlmError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_one_waveform_stays_what_it_is():
    window = BeatWindow()
    waveform = np.sin(window.times_s * 9).astype(np.float32)[None]
    out = blend(waveform, np.array([3.0]), window, 3 + window.times_s)
    np.testing.assert_allclose(out, waveform[0], atol=1e-6)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(0.2, 3.0), min_size=1, max_size=8), st.lists(st.floats(-2, 2), min_size=9, max_size=9))
def test_blending_stays_between_the_neighbours_and_has_no_steps(rr_s, levels):
    window, peak_s = BeatWindow(), np.concatenate([[0.0], np.cumsum(rr_s)])
    levels = np.array(levels[: len(peak_s)], np.float32)
    flat = np.repeat(levels[:, None], len(window.times_s), axis=1)
    time_s = np.arange(0, peak_s[-1], 0.004)
    out = blend(flat, peak_s, window, time_s)
    assert out.min() >= levels.min() - 1e-6
    assert out.max() <= levels.max() + 1e-6
    assert np.abs(np.diff(out)).max(initial=0) <= 0.08 * np.ptp(levels) + 1e-6
    np.testing.assert_allclose(blend(flat, peak_s, window, peak_s), levels, atol=1e-6)


def test_blended_beats_are_the_recording_they_were_cut_from(database):
    """The waveforms of a clean recording, put back where they were, follow it closely."""
    lead, window = annotated_leads(database)[0], BeatWindow()
    beats, rate_hz = lead.annotations.sample, lead.rate_hz
    waves = beat_waveforms(lead.signal_mv, beats, rate_hz, window)
    sample = np.arange(beats[2], beats[12])
    raw = waves.shape * waves.scale_mv[:, None] + waves.baseline_mv[:, None]
    out = blend(raw[:14], beats[:14] / rate_hz, window, sample / rate_hz)
    assert np.corrcoef(out, lead.signal_mv[sample])[0, 1] > 0.97


def test_unknown_intervals_become_the_usual_one():
    np.testing.assert_allclose(known_intervals(np.array([0.7, np.nan]), np.array([np.nan, 0.8, 0.9, 1.0])), [0.7, 0.9])
    np.testing.assert_allclose(known_intervals(np.array([np.nan]), np.array([np.nan])), [1.0])


def test_beats_continue_the_recording_without_a_step(writer, prompt, database, beat_tokenizer):
    entry = continue_recording(writer, prompt, 6, Sampling(seed=3))
    rate_hz, recorded, written = entry["rate_hz"], np.array(entry["prompt_mv"]), np.array(entry["generated_mv"])
    start = round(entry["start_s"] * rate_hz)
    signal = database.recording(RECORD).signal(start, start + len(recorded), [0])[0]
    np.testing.assert_allclose(recorded, signal, atol=6e-4)
    assert written[0] == pytest.approx(recorded[-1], abs=2e-3)
    codes = generate(writer.model, prompt.tokens.codes, 6, context=WINDOW - 1, sampling=Sampling(seed=3))
    rr_s = known_intervals(beat_tokenizer.decode_rr_s(codes), beat_tokenizer.decode_rr_s(prompt.tokens.codes))
    times = np.array([beat["time_s"] for beat in entry["beats"]])
    flags = [beat["generated"] for beat in entry["beats"]]
    assert flags == sorted(flags)
    assert sum(flags) == 6
    np.testing.assert_allclose(np.diff(times)[-6:], rr_s, atol=2e-3)
    np.testing.assert_allclose(
        times[~np.array(flags)] + entry["start_s"], prompt.tokens.sample[-flags.count(False) :] / rate_hz, atol=1e-3
    )


def test_a_gap_in_the_recording_stays_a_gap(writer, prompt):
    recording = prompt.open_recording()
    read = recording.samples

    def with_gap(start, stop, leads):
        signal = read(start, stop, leads).copy()
        signal[:, -5:] = np.nan
        return signal

    broken = replace(prompt, open_recording=lambda: replace(recording, samples=with_gap))
    entry = continue_recording(writer, broken, 3, Sampling())
    assert entry["prompt_mv"][-5:] == [None] * 5
    assert None not in entry["generated_mv"]
    json.dumps(entry, allow_nan=False)


def test_sample_tokens_continue_at_the_recordings_rate(database, tmp_path):
    writer = load_writer(untrained_run(tmp_path / "run", SampleTokenizer()))
    prompt = prompt_of_record(writer, database, RECORD, None, 200)
    entry = continue_recording(writer, prompt, 50, Sampling())
    assert len(entry["generated_mv"]) == 50 / GRID_HZ * entry["rate_hz"]
    assert entry["beats"] == []


def test_rhythm_tokens_are_refused(database, tmp_path, capsys):
    run = untrained_run(tmp_path / "run", RhythmTokenizer())
    assert main(["generate", str(run), "--record", str(database.folder / RECORD)]) == 2
    assert "rhythm tokens hold no waveform" in capsys.readouterr().err


def test_test_recordings_of_a_corpus_are_continued_and_reported(database, beat_tokenizer, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    build_corpus([database.folder], beat_tokenizer, corpus, fit=False)
    foundation = untrained_run(tmp_path / "foundation", beat_tokenizer)
    run = untrained_run(tmp_path / "beats", beat_tokenizer, task="beats", parent=foundation)
    picture = tmp_path / "pictures" / "p.svg"
    options = ["--corpus", str(corpus), "--num-recordings", "2", "--num-tokens", "4", "--out", str(picture)]
    assert main(["generate", str(run), *options]) == 0
    entries = json.loads((run / "generation.json").read_text())
    test = {f"simdb/{name}" for name in database.record_ids if database.split_of(name) == "test"}
    assert {entry["record"] for entry in entries} <= test
    assert sorted(path.name for path in picture.parent.iterdir()) == ["p-2.svg", "p.svg"][-len(entries) :]
    assert render("page.html", context(RunFolder(run))).count("generated by the model") == len(entries)


def test_prompts_follow_from_the_seed(database, writer, beat_tokenizer, tmp_path):
    build_corpus([database.folder], beat_tokenizer, tmp_path / "corpus", fit=False)
    corpus = open_corpus(tmp_path / "corpus")
    ends = [[p.tokens.sample[-1] for p in prompts_of_corpus(writer, corpus, 2, 20, seed)] for seed in (1, 1, 2)]
    assert ends[0] == ends[1] != ends[2]


def test_a_masked_model_is_refused_with_what_to_do(beat_tokenizer, database, tmp_path, capsys):
    run = untrained_run(tmp_path / "masked", beat_tokenizer, causal=False)
    assert main(["generate", str(run), "--record", str(database.folder / RECORD)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--objective causal" in error
    assert not (run / "generation.json").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--num-tokens", "0"], "num_tokens"),
        (["--record", "x/y", "--corpus", "z"], "corpus"),
        (["--lead", "V1"], "lead"),
        (["--top-p", "2"], "top_p"),
        (["--corpus", "nowhere"], "nowhere"),
    ],
)
def test_impossible_options_name_what_is_wrong(writer, capsys, options, named):
    assert main(["generate", str(writer.folder.path), *options]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
