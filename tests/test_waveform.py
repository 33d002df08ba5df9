"""The task waveform: millivolt tokens, classes of time, windows made and disturbed, the network, and commands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import wfdb
from torch.utils.flop_counter import FlopCounterMode

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX, Recording
from heartlm.errors import HeartlmError
from heartlm.evaluation.ec57 import spans_of
from heartlm.evaluation.waveform_features import NAMES, waveform_features
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.inference.leads import lead_of_row
from heartlm.inference.waveform import class_probabilities, predicted_classes, smoothed, vf_scores
from heartlm.labels.tokens import IGNORE
from heartlm.labels.waveform import (
    ASYSTOLE,
    CLASSES,
    NOISE,
    NOT_VF,
    OTHER,
    VF,
    VT,
    WINDOW,
    corpus_classes,
    token_classes,
)
from heartlm.models.config import ModelConfig
from heartlm.models.store import build_model
from heartlm.tasks.waveform import WaveformWindows, forest_verdicts
from heartlm.tokenizers.millivolts import KNEE_MV, LIMIT_MV, NO_SIGNAL, STEP, MillivoltTokenizer, dequantize, quantize
from heartlm.training.waveform import balanced_windows
from heartlm.training.waveform_batches import WaveformBatches
from tests.conftest import Refused, shared_data
from tests.in_numpy import in_numpy
from tests.scored_again import check_scored_again
from tests.synthetic_leads import beat_times_s, ecg_mv, heart_lead, lead_of

RATE_HZ = 250
SPANS = (("(N", 0), ("(VFL", 20), ("(NOISE", 40), ("(VT", 50), ("(ASYS", 60), ("(HGEA", 70), ("(VF", 80))
"""Rhythms of each record and the second in which they begin; the last ends at 90 s."""


def vfdb_like(folder: Path, patients: int = 6) -> Path:
    """A database as vfdb is: 250 Hz, two leads, rhythm changes and no beats; each record a patient."""
    folder.mkdir()
    time, splits = np.arange(90 * RATE_HZ) / RATE_HZ, {}
    for patient in range(patients):
        random, beats = np.random.default_rng(patient), beat_times_s(150, patient)
        mv = ecg_mv(time, beats)
        turns = np.cumsum(random.normal(4.8 + 0.2 * (patient % 3), 1.5, len(time))) / RATE_HZ
        waves = np.sin(2 * np.pi * turns) + 0.6 * np.sin(2 * np.pi * 1.7 * turns)  # a single sine is a sway
        fibrillation = (0.5 + 0.2 * np.sin(2 * np.pi * 0.3 * time)) * waves
        tachycardia = 1.2 * np.sin(2 * np.pi * 2.6 * time) ** 3 * np.sign(np.sin(2 * np.pi * 1.3 * time))
        noise = np.cumsum(random.normal(0, 0.05, len(time))) + random.normal(0, 0.4, len(time))
        shown = {"(VFL": fibrillation, "(VF": fibrillation, "(NOISE": noise, "(VT": tachycardia, "(ASYS": 0 * mv}
        for (name, begin), stop in zip(SPANS, [*(start for _, start in SPANS[1:]), 90], strict=True):
            during = slice(begin * RATE_HZ, stop * RATE_HZ)
            mv[during] = shown.get(name, mv)[during]
        mv += random.normal(0, 0.01, len(time))
        record = f"4{patient:02d}"
        wfdb.wrsamp(
            record,
            fs=RATE_HZ,
            units=["mV"] * 2,
            sig_name=["ECG", "second"],
            p_signal=np.stack([mv, -0.5 * mv], axis=1),
            fmt=["212"] * 2,
            adc_gain=[200.0] * 2,
            baseline=[0] * 2,
            write_dir=str(folder),
        )
        header = folder / f"{record}.hea"
        header.write_text(header.read_text().replace("second", "ECG"))  # vfdb calls both so
        names, starts = [name for name, _ in SPANS], [start * RATE_HZ + 1 for _, start in SPANS]
        wfdb.wrann(record, "atr", np.array(starts), ["+"] * len(starts), aux_note=names, write_dir=str(folder))
        splits[record] = "train" if patient < 3 else "validation" if patient < 4 else "test"
    (folder / "database.json").write_text(json.dumps({"splits": splits}))
    return folder


@pytest.fixture(scope="module")
def vfdb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vfdb_like(tmp_path_factory.mktemp("vf") / "vfdb")


@pytest.fixture(scope="module")
def corpus(vfdb: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("vf") / "corpus"
    build_corpus([vfdb], MillivoltTokenizer(), folder, TokenizeConfig(training_leads="all", processes=1))
    return open_corpus(folder)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_voltages_decode_to_within_half_a_level() -> None:
    voltage = np.concatenate([np.linspace(-LIMIT_MV, LIMIT_MV, 20_001), np.linspace(-0.02, 0.02, 4_001)])
    off = np.abs(dequantize(quantize(voltage.astype(np.float32))) - voltage)
    assert (off <= 0.51 * STEP * np.sqrt(voltage**2 + KNEE_MV**2) + 1e-6).all()
    assert dequantize(quantize(np.zeros(1, np.float32)))[0] == 0
    assert np.abs(dequantize(quantize(np.array([-99, 99], np.float32)))).tolist() == pytest.approx([LIMIT_MV] * 2)


@pytest.mark.parametrize("rate_hz", [128.0, 250.0, 257.0, 360.0])
def test_nothing_later_than_10_ms_changes_a_voltage(rate_hz: float) -> None:
    random, token = np.random.default_rng(0), 700
    signal = random.normal(size=round(12 * rate_hz)).astype(np.float32)
    cut = math.ceil((token + 1) * rate_hz / 100) + 1
    other = signal.copy()
    other[cut:] = random.normal(0, 50, len(signal) - cut)
    none = np.empty(0, np.int64)
    whole, changed = (MillivoltTokenizer().encode(lead_of(each, none, rate_hz)).codes for each in (signal, other))
    assert np.array_equal(whole[: token + 1], changed[: token + 1])
    assert not np.array_equal(whole, changed)


def test_absolute_amplitude_survives_and_an_offset_does_not() -> None:
    lead = heart_lead(60)
    tokens = MillivoltTokenizer().encode(lead)
    mv = dequantize(tokens.codes[:, 0])
    small = MillivoltTokenizer().encode(lead_of(0.1 * lead.signal_mv + 3, np.empty(0, np.int64)))
    assert np.ptp(dequantize(small.codes[500:, 0])) == pytest.approx(0.1 * np.ptp(mv[500:]), rel=0.03)
    assert np.abs(np.median(dequantize(small.codes[500:, 0]))) < 0.05


# --- classes ----------------------------------------------------------------------------------------------------------


def test_runs_of_fast_v_beats_are_tachycardia_and_slow_or_short_ones_are_not() -> None:
    beats, n, v = np.full(3000, IGNORE, np.int8), *map(BEAT_CLASSES.index, "NV")
    for first, every, classes in (
        (50, 80, [n] * 5),
        (500, 40, [v] * 6),
        (900, 80, [n, v, v, v, v, n]),
        (1500, 40, [v, v, n]),
    ):
        beats[first : first + every * len(classes) : every] = classes
    rhythm = np.full(3000, RHYTHM_INDEX["N"], np.int8)
    classes = token_classes("mitdb", beats, rhythm)
    assert np.flatnonzero(classes == VT).tolist() == list(range(490, 500 + 5 * 40 + 30))
    assert set(classes.tolist()) == {OTHER, VT}
    assert set(token_classes("mitdb", beats, np.full(3000, IGNORE, np.int8)).tolist()) == {OTHER, VT}


def test_outside_of_brackets_time_is_not_vf_and_before_an_onset_nothing() -> None:
    rhythm = np.full(4000, IGNORE, np.int8)
    rhythm[2000:2500] = RHYTHM_INDEX["VFIB"]
    none = np.full(4000, IGNORE, np.int8)
    classes = token_classes("cudb", none, rhythm)
    assert np.array_equal(np.flatnonzero(classes == VF), np.arange(2000, 2500))
    assert (
        (classes[:1000] == NOT_VF).all() and (classes[1000:2000] == IGNORE).all() and (classes[2500:] == NOT_VF).all()
    )
    assert (token_classes("elsewhere", none, rhythm)[2500:] == IGNORE).all()


def test_rhythms_of_vfdb_become_the_classes(corpus: Corpus) -> None:
    expected = {"(N": OTHER, "(VFL": VF, "(NOISE": NOISE, "(VT": VT, "(ASYS": ASYSTOLE, "(HGEA": OTHER, "(VF": VF}
    classes = corpus_classes(corpus)[corpus.tokens_of(0)]
    for name, begin in SPANS:
        assert set(classes[100 * begin + 10 : 100 * begin + 900].tolist()) == {expected[name]}, name


def test_fibrillation_of_cudb_is_what_is_bracketed() -> None:
    database = open_database(shared_data("cudb"))
    for record in ("cu01", "cu30"):
        recording, annotations = database.recording(record), database.annotations(record)
        from heartlm.tokenizers.base import Lead

        assert annotations is not None
        tokens = MillivoltTokenizer().encode(Lead(annotations, recording.signal(leads=[0])[0]))
        classes = token_classes("cudb", tokens.beat_class, tokens.rhythm)
        seconds = sum(span.stop - span.start for span in annotations.rhythms) / recording.rate_hz
        assert (classes == VF).sum() / 100 == pytest.approx(seconds, abs=0.1) and seconds > 200


def test_the_noise_of_electrodes_is_noise(tmp_path: Path) -> None:
    folder = vfdb_like(tmp_path / "nstdb", patients=1)
    for path in folder.glob("400.*"):
        path.rename(path.with_name(path.name.replace("400", "bw")))
    (folder / "bw.atr").unlink()
    (folder / "bw.hea").write_text((folder / "bw.hea").read_text().replace("400", "bw"))
    annotations = open_database(folder).annotations("bw")
    assert annotations is not None and [span.name for span in annotations.rhythms] == ["NOISE"]


# --- windows ----------------------------------------------------------------------------------------------------------


def test_windows_lie_in_one_class_and_patients_get_their_share(corpus: Corpus) -> None:
    classes, rows = corpus_classes(corpus), corpus.records.select("train")
    windows = balanced_windows(corpus, rows, classes, 4000, seed=1).windows(0)
    of_window = classes[windows.index]
    assert (of_window == of_window[:, :1]).all() and set(of_window[:, 0].tolist()) == {OTHER, VT, VF, ASYSTOLE, NOISE}
    assert (of_window[:, 0] == VF).mean() == pytest.approx(0.30 / 0.75, abs=0.05)
    with pytest.raises(HeartlmError, match="no ventricular fibrillation"):
        balanced_windows(corpus, rows, np.where(classes == VF, OTHER, classes), 8, seed=1)


def test_batches_do_not_depend_on_how_they_are_split_and_validation_is_undisturbed(corpus: Corpus) -> None:
    classes, rows = corpus_classes(corpus), corpus.records.select("train")
    make = WaveformBatches(corpus, classes, rows, seed=3)
    windows = balanced_windows(corpus, rows, classes, 64, seed=3).windows(5)
    whole, half = make(windows, 5), make(windows[slice(32, 64)], 5, 32, 64)
    assert torch.equal(whole.codes[32:], half.codes) and torch.equal(whole.target[32:], half.target)
    assert not torch.equal(whole.codes, make(windows, 6).codes)
    calm = make(windows, None)
    assert np.array_equal(calm.codes[..., 0].numpy(), corpus.codes[windows.index, 0])
    assert np.array_equal(calm.target.numpy(), classes[windows.first])


def test_made_asystole_is_low_made_tachycardia_is_fast_and_sways_are_noise(corpus: Corpus) -> None:
    """V beats of a heart are given to the corpus, which has none."""
    beats, codes = corpus.labels.copy(), corpus.codes.copy()
    lead = heart_lead(200, rate_hz=100.0)
    tokens = MillivoltTokenizer().encode(
        lead_of(lead.signal_mv, lead.annotations.sample, 100.0, "".join(lead.annotations.symbol))
    )
    row = int(corpus.records.select("train")[0])
    tokens_of = slice(corpus.tokens_of(row).start, corpus.tokens_of(row).start + 9000)
    beats[tokens_of, 0], codes[tokens_of] = tokens.beat_class[:9000], tokens.codes[:9000]
    given = Corpus(corpus.folder, corpus.manifest, codes, corpus.sample, beats, corpus.scale_mv, corpus.records)
    classes = np.full(len(codes), OTHER)
    make = WaveformBatches(given, classes, np.array([row]), seed=0)
    windows = balanced_windows(corpus, corpus.records.select("train"), corpus_classes(corpus), 600, seed=0).windows(0)
    batch = make(windows, 0)
    mv = dequantize(batch.codes[..., 0].numpy().astype(np.uint16))
    made = {label: mv[(batch.target == label).numpy()] for label in (ASYSTOLE, VT, NOISE)}
    assert {label: round(len(each) / 600, 1) for label, each in made.items()} == {ASYSTOLE: 0.1, VT: 0.1, NOISE: 0.3}
    assert np.median(np.ptp(made[ASYSTOLE], axis=1)) < 0.15 < np.median(np.ptp(made[VT], axis=1))
    strongest_hz = {
        label: np.abs(np.fft.rfft(each - each.mean(axis=1, keepdims=True)))[:, :60].argmax(axis=1) / 4
        for label, each in made.items()
    }
    assert 1.5 < np.median(strongest_hz[VT]) < 8
    assert ((strongest_hz[NOISE] >= 2) & (strongest_hz[NOISE] <= 7.5)).mean() > 0.6


# --- network and features ---------------------------------------------------------------------------------------------


def test_the_network_is_as_small_as_it_says_and_runs_on_one_window() -> None:
    config = ModelConfig((1024,), 4, 48, network="waveform").resolve()
    model = build_model(config, [torch.from_numpy(MillivoltTokenizer().geometry()[0])], len(CLASSES)).eval()
    counter = FlopCounterMode(display=False)
    with counter:
        model.class_logits(torch.full((1, WINDOW, 1), 512))
    transform = 2.5 * WINDOW * 9  # the FFT, which the counter does not know
    assert counter.get_total_flops() + transform <= 1e6 and model.num_parameters < 100_000


def test_features_tell_a_sine_from_a_heart() -> None:
    time = np.arange(WINDOW) / 100
    sine = np.sin(2 * np.pi * 4 * time)
    heart = ecg_mv(time + 3, beat_times_s(20))
    of_sine, of_heart = waveform_features(np.stack([sine, heart]).astype(np.float32))
    named = {name: (of_sine[index], of_heart[index]) for index, name in enumerate(NAMES)}
    assert named["leak"][0] < 0.1 < 0.5 < named["leak"][1]
    assert named["zero_crossings"][0] == pytest.approx(2 * 4 / 100, abs=0.01)
    assert named["kurtosis"][0] == pytest.approx(1.5, abs=0.1) and named["kurtosis"][1] > 5
    assert named["tcsc"][0] > 0.8 > named["tcsc"][1] and named["a2"][0] > 0.9
    assert np.isfinite(waveform_features(np.zeros((2, WINDOW), np.float32))).all()


def test_answers_are_averaged_over_the_past_of_a_lead_alone() -> None:
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.1, 0.9], [0.8, 0.2], [0.2, 0.8]])
    lead = np.array([0, 0, 0, 0, 1, 1])
    answers = smoothed(probabilities, lead)
    assert answers.sum(axis=1) == pytest.approx(1)
    assert answers[[0, 3, 4]] == pytest.approx(probabilities[[0, 3, 4]])
    assert answers[1] == pytest.approx([0.5, 0.5]) and answers[5] == pytest.approx([0.5, 0.5])
    changed = np.concatenate([probabilities[:3], probabilities[:3]])
    assert np.array_equal(smoothed(changed, lead)[:3], answers[:3])


def test_vf_is_called_at_its_threshold_unless_noise_is_more_probable() -> None:
    rows = [
        [0.5, 0.0, 0.3, 0.0, 0.2],
        [0.3, 0.0, 0.3, 0.0, 0.4],
        [0.5, 0.2, 0.1, 0.1, 0.1],
        [0.1, 0.0, 0.45, 0.0, 0.45],
    ]
    probabilities = np.array(rows)
    assert predicted_classes(probabilities, 0.2).tolist() == [VF, NOISE, OTHER, VF]
    assert vf_scores(probabilities).tolist() == [0.3, 0, 0.1, 0.45]


def test_no_signal_is_noise_and_never_asystole(tmp_path: Path) -> None:
    lead = heart_lead(60)
    signal = lead.signal_mv.copy()
    signal[5000:8000] = np.nan
    tokens = MillivoltTokenizer().encode(lead_of(signal, np.empty(0, np.int64)))
    gone = tokens.codes[2000:3200, 0]
    assert (gone == NO_SIGNAL).mean() > 0.99 and not dequantize(gone[:1000]).any()
    assert (tokens.codes[:1990, 0] != NO_SIGNAL).all()
    config = ModelConfig((1024,), 4, 48, network="waveform").resolve()
    model = build_model(config, [torch.from_numpy(MillivoltTokenizer().geometry()[0])], len(CLASSES)).eval()
    answers = class_probabilities(
        in_numpy(model, WINDOW), tokens.codes[2100 : 2100 + WINDOW][None], np.zeros(1, np.int64)
    )
    assert answers.argmax() == NOISE


# --- commands ---------------------------------------------------------------------------------------------------------


def test_finetune_evaluate_predict(corpus: Corpus, vfdb: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = tmp_path / "run"
    train = ["finetune", "--task", "waveform", "--corpus", str(corpus.folder), "--steps", "60", "--threads", "1"]
    assert main([*train, "--batch-size", "48", "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "--on", str(vfdb), "--bootstrap", "50"]) == 0
    scores = json.loads((run / "scores/vfdb-test-waveform/scores.json").read_text())
    assert scores["scores"]["se"]["value"] > 0.9 and scores["scores"]["sp"]["value"] > 0.9
    assert scores["scores"]["vt_called_vf"]["num_windows"] > 0 and scores["notes"] == []
    assert set(scores["baselines"]) == {"majority class", "forest on 12 features"}
    check_scored_again(run / "scores/vfdb-test-waveform")
    printed = capsys.readouterr().out
    assert "noise called VF" in printed and "episodes of VF and VT: " in printed
    for record in ("404", "405"):
        assert main(["predict", str(run), str(vfdb / record), "--out", str(tmp_path / "out")]) == 0
    spans = [
        span
        for record in ("404", "405")
        for span in spans_of(read_annotation_file(tmp_path / f"out/{record}.hlm"), "VF", RATE_HZ, 90 * RATE_HZ)
    ]
    of_time = scores["durations"]
    assert of_time["num_predicted"] == len(spans)
    assert of_time["predicted_s"] == pytest.approx(sum(stop + 1 - start for start, stop in spans) / RATE_HZ, abs=0.1)
    assert of_time["episode_se"]["value"] == 1 and 0 <= of_time["delay_median_s"]["value"] < 4
    assert scores["durations of VF and VT"]["reference_s"] > of_time["reference_s"] > 0
    written = wfdb.rdann(str(tmp_path / "out/405"), "hlm")
    assert (
        "[" in written.symbol and "]" in written.symbol and "(VFIB" in [each.rstrip("\0") for each in written.aux_note]
    )
    table = np.genfromtxt(tmp_path / "out/405.hlm.csv", delimiter=",", names=True)
    assert len(table) == 90 and table["VF"][25:38].min() > 0.5 > table["VF"][:18].max()
    assert main(["report", str(run)]) == 0


def test_a_recording_shorter_than_a_window_is_named(tmp_path: Path, refused: Refused) -> None:
    Recording.from_array(np.sin(np.arange(750) / 40.0), rate_hz=250.0, leads="II").to_wfdb(tmp_path, "short")
    message = refused("predict", "waveform", tmp_path / "short", "--out", tmp_path / "out")
    assert "short" in message and "3.0 s of signal found, at least 4 s expected" in message


def test_a_forest_of_one_class_is_a_baseline_that_is_not_computed(corpus: Corpus) -> None:
    lead = lead_of_row(corpus, 0)
    windows = WaveformWindows.of([lead])
    normal = replace(lead.tokens, rhythm=np.full(lead.tokens.num_tokens, RHYTHM_INDEX["N"], np.int8))
    tuned: Any = SimpleNamespace(training_leads=lambda: [replace(lead, tokens=normal)])
    with pytest.raises(HeartlmError, match="not of two classes, VF and another one"):
        forest_verdicts(windows, tuned, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["foundation"], "foundation found, none expected"),
        (["--window", "128", "--accumulation", "2"], "accumulation: 2"),
        (["--window", "100"], "window: 100 found, 400 expected"),
        (["--order", "epochs"], "order: random"),
    ],
)
def test_what_the_task_cannot_do_is_refused(
    words: list[str], message: str, corpus: Corpus, tmp_path: Path, refused: Refused
) -> None:
    given = ["--task", "waveform", "--corpus", str(corpus.folder), "--out", str(tmp_path / "run")]
    positional = [word for word in words[:1] if not word.startswith("-")]
    assert message in refused("finetune", *positional, *given, *words[len(positional) :])


def test_a_corpus_of_another_tokenizer_is_refused(tiny_corpus: Path, refused: Refused) -> None:
    assert "reads millivolts" in refused("finetune", "--task", "waveform", "--corpus", tiny_corpus)
