"""The simulator: physiology, determinism, true WFDB files, and classes that must be learned."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.databases.database import Database, open_database
from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.heart import Heart, rr_variability
from heartlm.simulate.morphology import REPOLARISATION_S
from heartlm.simulate.patients import PROFILES, SimulatedPatient, draw_splits, profile_of
from heartlm.simulate.randomness import stream
from heartlm.simulate.rhythms import simulate_rhythm
from heartlm.simulate.synthesis import simulate_recording
from heartlm.simulate.write import BASELINE, GAIN, digitise, simulate_database
from heartlm.storage.atomic import sha256_of

CONFIG = SimulationConfig(patients=40, minutes=3)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    folder = tmp_path_factory.mktemp("simulated") / "simdb"
    simulate_database(folder, CONFIG)
    return open_database(folder)


def patient_of_profile(profile: str, **traits: Any) -> SimulatedPatient:
    index = next(index for index in range(100) if profile_of(0, index) == profile)
    patient = SimulatedPatient(0, index)
    vars(patient).update(traits)
    return patient


def lived(patient: SimulatedPatient, minutes: float = 10) -> tuple[Heart, NDArray[np.float64], NDArray[np.str_]]:
    timeline = simulate_rhythm(patient, 60 * minutes, stream(0, 0))
    return timeline, np.array([at for at, _ in timeline.beats]), np.array([code for _, code in timeline.beats])


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patients", 0),
        ("minutes", -1.0),
        ("minutes", float("nan")),
        ("rate_hz", 20),
        ("noise", -0.5),
        ("seed", -1),
        ("name", "a/b"),
        ("leads", ()),
        ("leads", ("II", "II")),
        ("leads", ("X9",)),
    ],
)
def test_an_impossible_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(HeartlmError, match=f"^{field}.*expected"):
        SimulationConfig(**{field: value})


def test_settings_import_nothing_heavy() -> None:
    code = "import sys; from heartlm.simulate.config import SimulationConfig; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- determinism ------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    config = SimulationConfig(patients=3, minutes=0.5, seed=5)
    for name, settings_ in (("a", config), ("b", config), ("c", dataclasses.replace(config, seed=6))):
        simulate_database(tmp_path / name, settings_)
    sums = [(tmp_path / name / "SHA256SUMS.txt").read_text() for name in "abc"]
    assert sums[0] == sums[1]
    assert sums[0] != sums[2]


def test_a_patient_depends_on_seed_and_index_alone() -> None:
    small, large = SimulationConfig(patients=3, minutes=0.5), SimulationConfig(patients=50, minutes=0.5)
    np.testing.assert_array_equal(simulate_recording(small, 2)[0], simulate_recording(large, 2)[0])
    assert not np.array_equal(simulate_recording(small, 2)[0], simulate_recording(small, 2, session=1)[0])


# --- physiology -------------------------------------------------------------------------------------------------------


def test_heart_rate_variability_peaks_at_a_tenth_of_a_hertz_and_with_the_breath() -> None:
    from scipy.signal import welch

    patient = patient_of_profile("healthy", breath_hz=0.27, lf_hf=1.0, hrv_s=0.04)
    variability = rr_variability(patient, 8 * 3600, 8.0, stream(1))
    frequency, power = welch(variability, 8.0, nperseg=8 * 240)
    low, high = (frequency > 0.06) & (frequency < 0.2), (frequency >= 0.2) & (frequency < 0.4)
    assert frequency[low][power[low].argmax()] == pytest.approx(0.1, abs=0.015)
    assert frequency[high][power[high].argmax()] == pytest.approx(0.27, abs=0.015)
    assert power[low].sum() == pytest.approx(power[high].sum(), rel=0.3)
    assert variability.std() == pytest.approx(0.04, rel=0.25)


def test_a_ventricular_beat_is_followed_by_a_compensatory_pause() -> None:
    patient = patient_of_profile(
        "healthy", pvc=0.1, pac=0.0, hrv_s=0.005, fusion=0.0, couplet=0.0, retrograde=0.0, rr_s=0.8
    )
    _, at, code = lived(patient)
    ectopic = np.flatnonzero(code[1:-1] == "V") + 1
    around = (at[ectopic + 1] - at[ectopic - 1]) / patient.rr_s
    before = (at[ectopic] - at[ectopic - 1]) / patient.rr_s
    assert len(ectopic) > 20
    assert np.median(around) == pytest.approx(2.0, abs=0.02)
    assert before.max() < 0.9


def test_an_atrial_beat_resets_the_sinus_node() -> None:
    patient = patient_of_profile("healthy", pvc=0.0, pac=0.1, hrv_s=0.005, prematurity=0.7, junctional=0.0, rr_s=0.8)
    _, at, code = lived(patient)
    single = np.flatnonzero((code[1:-1] == "A") & (code[:-2] == "N") & (code[2:] == "N")) + 1
    around = (at[single + 1] - at[single - 1]) / patient.rr_s
    assert len(single) > 20
    assert np.median(around) < 1.9
    assert np.mean(around < 1.98) > 0.95
    assert np.all((at[single + 1] - at[single]) / patient.rr_s > 0.93)


def test_atrial_fibrillation_is_irregular_and_has_no_p_waves() -> None:
    timeline, at, _ = lived(patient_of_profile("persistent-af", pvc=0.0))
    _, sinus_at, _ = lived(patient_of_profile("healthy", pvc=0.0, pac=0.0))
    interval, sinus_interval = np.diff(at), np.diff(sinus_at)
    assert set(timeline.waves) <= {"N", "R"}
    assert {activity.rhythm for activity in timeline.activity} == {"AFIB"}
    assert interval.std() / interval.mean() > 0.18
    assert sinus_interval.std() / sinus_interval.mean() < 0.12
    assert abs(np.corrcoef(interval[1:], interval[:-1])[0, 1]) < 0.15


def test_flutter_conducts_whole_rounds_of_its_circuit() -> None:
    patient = patient_of_profile("flutter")
    timeline, at, _ = lived(patient)
    (span, *_) = (activity for activity in timeline.activity if activity.rhythm == "AFL")
    rounds = np.diff(at[(at > span.start) & (at < span.stop)]) / patient.flutter_cycle_s
    assert set(np.rint(rounds)) <= {2, 3, 4}
    assert np.abs(rounds - np.rint(rounds)).max() < 0.2


def test_ventricular_fibrillation_has_no_beats(database: Database) -> None:
    spans = 0
    for record_id in database.record_ids:
        annotations = database.annotations(record_id)
        assert annotations is not None
        for span in annotations.rhythms:
            if span.name == "VFIB":
                spans += 1
                assert not np.any((annotations.sample > span.start) & (annotations.sample < span.stop))
    assert spans > 0


def test_beats_stand_at_the_main_deflection_of_the_clean_signal() -> None:
    config = SimulationConfig(minutes=1, noise=0)
    near: list[bool] = []
    for index in range(12):
        (lead, *_), annotations = simulate_recording(config, index)
        turns = np.diff(np.sign(np.diff(lead)), prepend=0, append=0) != 0
        near += [bool(turns[sample - 2 : sample + 3].any()) for sample in annotations.sample.tolist()]
    assert np.mean(near) > 0.99


def qrs_width_s(patient: SimulatedPatient, name: str) -> float:
    """How long the heart's dipole is above a fifth of its largest size."""
    template = patient.templates[name]
    time = np.arange(-0.2, 0.2, 0.001)
    waves = np.exp(-0.5 * ((time[:, None] - template.offset_s) / template.width_s) ** 2) * (
        template.offset_s <= REPOLARISATION_S
    )
    size = np.linalg.norm(waves @ template.dipole_mv, axis=1)
    return float(np.sum(size > 0.2 * size.max())) * 0.001


def test_wide_beats_are_wider_than_narrow_ones() -> None:
    patients = [SimulatedPatient(0, index) for index in range(30)]
    width = {name: np.median([qrs_width_s(patient, name) for patient in patients]) for name in ("N", "L", "R", "V0")}
    assert 0.05 < width["N"] < 0.1
    assert 0.11 < width["L"] < 0.18
    assert 0.09 < width["R"] < 0.16
    assert 0.1 < width["V0"] < 0.2


def test_leads_see_the_same_heart_from_different_sides() -> None:
    signal, _ = simulate_recording(SimulationConfig(minutes=0.5, noise=0, leads=("I", "II", "V1", "V5")), 1)
    correlation = np.asarray(np.corrcoef(signal))
    assert np.abs(correlation[np.triu_indices(4, 1)]).max() < 0.995
    assert np.all(signal.std(axis=1) > 0.02)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**40), index=st.integers(0, 5000), minutes=st.sampled_from([0.25, 0.7, 3.0]))
def test_annotations_ascend_and_stay_within_the_recording(seed: int, index: int, minutes: float) -> None:
    config = SimulationConfig(minutes=minutes, seed=seed, rate_hz=128, leads=("II",))
    signal, annotations = simulate_recording(config, index)
    assert signal.shape == (1, config.num_samples)
    assert np.isfinite(signal).all()
    assert np.all(np.diff(annotations.sample) > 0.15 * config.rate_hz)
    assert annotations.num_beats > 0
    assert 0 <= annotations.sample[0] <= annotations.sample[-1] < config.num_samples
    edges = [edge for span in annotations.rhythms for edge in (span.start, span.stop)]
    assert edges[0] == 0
    assert edges[-1] == config.num_samples
    assert edges == sorted(edges)
    assert all(span.start < span.stop for span in annotations.rhythms)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate_hz", "leads"), [(250, ("MLII", "V1")), (360, ("II", "V2", "V5"))])
def test_wfdb_reads_back_what_was_simulated(tmp_path: Path, rate_hz: int, leads: tuple[str, ...]) -> None:
    config = SimulationConfig(patients=1, minutes=0.5, rate_hz=rate_hz, leads=leads)
    simulate_database(tmp_path / "db", config)
    signal, annotations = simulate_recording(config, 0)
    record = wfdb.rdrecord(str(tmp_path / "db" / "s0001"), physical=False)
    np.testing.assert_array_equal(record.d_signal.T, digitise(signal))
    assert (record.fs, record.sig_name) == (rate_hz, list(leads))
    assert record.checksum == [int(total) % 65536 for total in digitise(signal).sum(axis=1)]
    read = wfdb.rdann(str(tmp_path / "db" / "s0001"), "atr")
    beats = [place for place, code in enumerate(read.symbol) if code != "+"]
    np.testing.assert_array_equal(read.sample[beats], annotations.sample)
    assert [read.symbol[place] for place in beats] == annotations.symbol.tolist()


def test_our_reader_reads_back_what_was_simulated(database: Database) -> None:
    for index in (0, 1, 5):
        record_id = f"s{index + 1:04d}"
        signal, simulated = simulate_recording(CONFIG, index)
        recording, read = database.recording(record_id), database.annotations(record_id)
        assert read is not None
        np.testing.assert_allclose(recording.signal(), (digitise(signal) - BASELINE) / GAIN, atol=1e-6)
        np.testing.assert_array_equal(read.sample, simulated.sample)
        np.testing.assert_array_equal(read.symbol, simulated.symbol)
        assert read.rhythms == simulated.rhythms
        assert read.beats_labelled
        assert recording.patient_id == f"simdb/p{index + 1:04d}"


def test_every_file_is_listed_with_its_checksum(database: Database) -> None:
    lines = (database.folder / "SHA256SUMS.txt").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    assert set(listed) == {file.name for file in database.folder.iterdir()} - {"SHA256SUMS.txt"}
    assert all(sha256_of(database.folder / name) == digest for name, digest in listed.items())


def test_the_converter_saturates_instead_of_wrapping() -> None:
    assert digitise(np.array([-9.0, -5.12, 0.0, 1.0, 9.0], np.float32)).tolist() == [0, 0, 1024, 1224, 2047]


# --- what there is to learn -------------------------------------------------------------------------------------------


def test_every_class_and_rhythm_occurs(database: Database) -> None:
    classes: dict[str, Counter[str]] = {split: Counter() for split in ("train", "validation", "test")}
    symbols: Counter[str] = Counter()
    rhythms: Counter[str] = Counter()
    for record_id in database.record_ids:
        annotations = database.annotations(record_id)
        assert annotations is not None
        classes[database.split_of(record_id)].update(BEAT_CLASSES[index] for index in annotations.beat_classes())
        symbols.update(annotations.symbol.tolist())
        rhythms.update(span.name for span in annotations.rhythms)
    for split, counts in classes.items():
        assert set("NSVF") <= set(counts), split
        assert counts["N"] > 0.6 * counts.total()
    assert classes["train"]["Q"] and classes["test"]["Q"]
    assert set("NLRAaVF/fj") <= set(symbols)
    assert {"N", "AFIB", "AFL", "SVTA", "VT", "VFIB", "B", "T", "P", "ASYS"} <= set(rhythms)


def test_splits_keep_patients_apart_and_profiles_together(database: Database) -> None:
    split_of_patient: dict[str, set[str]] = {}
    for record_id in database.record_ids:
        split_of_patient.setdefault(database.patient_of(record_id), set()).add(database.split_of(record_id))
    assert len(split_of_patient) == CONFIG.patients < len(database.record_ids)
    assert all(len(splits) == 1 for splits in split_of_patient.values())
    splits = np.array(draw_splits(3, 60))
    profiles = np.array([profile_of(3, index) for index in range(60)])
    for name in PROFILES:
        assert set(splits[profiles == name]) == {"train", "validation", "test"}


def test_a_small_database_still_has_every_split() -> None:
    assert set(draw_splits(0, 5)) == {"train", "validation", "test"}


def test_one_patients_ectopic_beat_looks_like_anothers_bundle_branch_block() -> None:
    patients = [SimulatedPatient(0, index) for index in range(60)]
    time, lead = np.arange(-0.25, 0.45, 0.004), np.array([0.55, 0.85, 0.05])

    def normalised(patient: SimulatedPatient, name: str) -> NDArray[np.float64]:
        template = patient.templates[name]
        waves = np.exp(-0.5 * ((time[:, None] - template.offset_s) / template.width_s) ** 2)
        seen = waves @ (template.dipole_mv @ lead)
        return np.asarray((seen - seen.mean()) / seen.std() / np.sqrt(len(time)))

    ectopic = np.array([normalised(patient, "V0") for patient in patients])
    block = np.array([normalised(patient, "L") for patient in patients])
    correlation = ectopic @ block.T
    np.fill_diagonal(correlation, 0)
    alike = np.mean(correlation.max(axis=1) > 0.9)
    assert 0.15 < alike < 0.85


def beat_features(database: Database, split: str) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Normalised first-lead waveform and relative RR intervals of each beat: `[num_beats, 27]`, and its class."""
    features, classes = [], []
    offsets = np.linspace(-0.2, 0.35, 24)
    for record_id in database.record_ids:
        if database.split_of(record_id) != split:
            continue
        recording, annotations = database.recording(record_id), database.annotations(record_id)
        assert annotations is not None
        sample, lead = annotations.sample, recording.signal(leads=[0])[0]
        place = sample[:, None] + np.rint(offsets * recording.rate_hz).astype(int)
        waves = lead[np.clip(place, 0, len(lead) - 1)]
        waves = (waves - waves.mean(1, keepdims=True)) / (waves.std(1, keepdims=True) + 1e-3)
        interval = np.diff(sample) / recording.rate_hz
        before, after = np.append(interval[:1], interval), np.append(interval, interval[-1:])
        features.append(np.column_stack([waves, before, before / np.median(before), after / np.median(before)]))
        classes.append(annotations.beat_classes())
    return np.concatenate(features), np.concatenate(classes)


def test_classes_can_be_learned_but_not_perfectly(database: Database) -> None:
    pytest.importorskip("sklearn", reason="scores a small classifier of scikit-learn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, train_class = beat_features(database, "train")
    test, test_class = beat_features(database, "test")

    def f1(labels: NDArray[np.int8]) -> dict[str, float]:
        classifier = make_pipeline(
            StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=200, tol=0.01)
        )
        predicted = classifier.fit(train, labels).predict(test)
        scores = f1_score(test_class, predicted, labels=[0, 1, 2], average=None, zero_division=0)
        return dict(zip("NSV", scores.tolist(), strict=True))

    learned = f1(train_class)
    shuffled = f1(stream(9).permutation(train_class))
    assert learned["N"] > 0.8
    assert 0.2 < learned["S"] < 0.85
    assert 0.4 < learned["V"] < 0.97
    assert shuffled["S"] < 0.5 * learned["S"]
    assert shuffled["V"] < 0.5 * learned["V"]
