"""Conversion of recordings: the same samples, annotations and facts in each format, and nothing that identifies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pyarrow.parquet as pq
import pytest
import wfdb

import heartlm
from heartlm.cli.main import main
from heartlm.databases.convert import Conversion, Converted, Target, convert_recordings
from heartlm.databases.database import open_database
from heartlm.ecg.recording import Annotations, Note, Patient, Recording, RhythmSpan
from heartlm.errors import HeartlmError
from heartlm.formats.edf import read_edf
from heartlm.formats.read import read_recording
from heartlm.formats.stated import VARIABLE, Stated
from heartlm.formats.whole_steps import lead_steps
from heartlm.formats.write_edf import write_edf
from heartlm.formats.write_ishne import write_ishne as write_ishne_file
from heartlm.formats.write_recording import write_parquet, write_wfdb
from heartlm.system.engine import PartOptions
from tests.clinical_files import write_dicom, write_ishne, write_scp
from tests.conftest import Refused, shared_data
from tests.edf_files import Lead, edf_bytes, times

RATE_HZ, NUM_SAMPLES = 250.0, 5100
DIGITS = np.round(3000 * np.sin(np.arange(NUM_SAMPLES) / 20)).astype(np.int64)
TARGETS: tuple[Target, ...] = ("wfdb", "edf", "parquet")


def sources(folder: Path) -> None:
    """Files of integers of each kind: whole and half zeros, invalid samples, 24 bits, gaps, annotations."""
    folder.mkdir()
    shifted = np.where(DIGITS > 2900, 2047, DIGITS // 2)
    leads = [Lead("II", DIGITS), Lead("V5", DIGITS[::-1].copy(), "uV", "-5000", "5000", "-32768", "32767")]
    leads += [Lead("X", shifted, "V", "-0.005", "0.0051", "-2048", "2047")]
    notes = (1, b"+1.5\x14button\x14\0"), (2, b"+2.25\x153\x14AFIB\x14\0"), (3, b"+3\x153\x14moved\x14\0")
    own = Lead("EDF Annotations", None, "", "-1", "1", texts=times(np.arange(17) * 1.2, *notes))
    gaps = Lead(
        "EDF Annotations", None, "", "-1", "1", texts=times([*(np.arange(10) * 1.2), *(30 + np.arange(7) * 1.2)])
    )
    whole = {"duration": "1.2", "patient": "P7 F 02-MAY-1951 Ada", "day": "02.03.24", "clock": "13.45.06"}
    whole["recording"] = "Startdate 02-MAR-2024 X X X"
    (folder / "a.edf").write_bytes(edf_bytes([*leads, own], 17, reserved="EDF+C", **whole))  # type: ignore[arg-type]
    (folder / "b.edf").write_bytes(edf_bytes([leads[0], gaps], 17, reserved="EDF+D", duration="1.2"))
    deep = Lead("ECG", DIGITS * 1001, "uV", "-5000", "5000", "-6553400", "6553400")
    (folder / "c.bdf").write_bytes(edf_bytes([deep], 17, width=3, duration="1.2"))
    samples = np.stack([DIGITS, DIGITS // 3, -DIGITS]).astype(np.int16)
    samples[1, 100:200] = -32768
    write_ishne(folder / "d.ecg", samples, 250, text=b"a note\0")
    write_scp(folder / "e.scp", samples[:, :2500], 500)
    write_dicom(folder / "f.dcm", samples[:, :2500], 500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert") / "ward"
    sources(folder)
    return folder


def converted(source: Path, folder: Path, to: Target = "wfdb", **settings: Any) -> Converted:
    return convert_recordings(Conversion(source=source, folder=folder, to=to, repaired="accept", **settings))


@pytest.mark.parametrize("flac", [False, True])
@pytest.mark.parametrize("to", TARGETS)
def test_samples_and_facts_are_those_of_the_source(folder: Path, tmp_path: Path, to: Target, flac: bool) -> None:
    if flac and to != "wfdb":
        pytest.skip("flac is of WFDB records")
    done = converted(folder, tmp_path / "out", to, flac=flac)
    assert not done.left_out
    before, after = open_database(folder, repaired="accept"), open_database(tmp_path / "out", repaired="refuse")
    assert after.record_ids == before.record_ids == tuple("abcdef")
    for record_id in before.record_ids:
        old, new = before.recording(record_id), after.recording(record_id)
        np.testing.assert_array_equal(new.signal(), old.signal(), err_msg=record_id)
        for name in ("rate_hz", "num_samples", "leads", "units", "start", "age"):
            assert getattr(new, name) == getattr(old, name), (record_id, name)
        assert new.patient == replace(old.patient, age=new.patient.age)
        assert new.comments[: len(old.comments)] == old.comments
        assert after.split_of(record_id) == before.split_of(record_id)
        new.refuse_if_damaged()
        if old.annotations is None:
            assert new.annotations is None
        else:
            assert new.annotations is not None
            assert new.annotations.rhythms == old.annotations.rhythms
            notes = old.annotations.notes
            if to != "edf":  # WFDB annotations have no duration
                notes = tuple(replace(note, stop=note.start) for note in notes)
            assert new.annotations.notes == notes
    report = json.loads(done.report.read_text())
    assert all(lead["exact"] for entry in report["records"] for lead in entry["leads"])


def test_records_of_databases_keep_their_numbers_and_labels(tmp_path: Path) -> None:
    source = shared_data("mitdb/203.hea").with_suffix("")
    old = open_database(source.parent).recording("203")
    assert old.annotations is not None
    for to in TARGETS:
        converted(source, tmp_path / to, to)
        new = open_database(tmp_path / to).recording("203")
        np.testing.assert_array_equal(new.signal(), old.signal())
        assert new.annotations is not None
        np.testing.assert_array_equal(new.annotations.sample, old.annotations.sample)
        np.testing.assert_array_equal(new.annotations.symbol, old.annotations.symbol)
        assert (new.annotations.rhythms, new.annotations.beats_labelled) == (old.annotations.rhythms, True)
        assert open_database(tmp_path / to).split_of("203") == open_database(source.parent).split_of("203")
    records = [wfdb.rdrecord(str(path), physical=False) for path in (source, tmp_path / "wfdb" / "203")]
    np.testing.assert_array_equal(records[0].d_signal, records[1].d_signal)
    assert (records[1].adc_gain, records[1].baseline) == (records[0].adc_gain, records[0].baseline)
    assert records[1].comments[: len(records[0].comments)] == records[0].comments
    annotations = [wfdb.rdann(str(path), "atr") for path in (source, tmp_path / "wfdb" / "203")]
    texts = [[text.strip("\0") for text in each.aux_note] for each in annotations]
    assert annotations[1].sample.tolist() == annotations[0].sample.tolist()  # signal quality and artefacts too
    assert (annotations[1].symbol, texts[1]) == (annotations[0].symbol, texts[0])
    read = edfio.read_edf(tmp_path / "edf" / "203.edf")
    assert [signal.label for signal in read.signals] == ["MLII", "V1"]
    np.testing.assert_allclose(read.signals[0].data[: old.num_samples], old.signal()[0], atol=1e-6)
    beats = [round(each.onset * 360) for each in read.annotations if each.text in "NVSAFaQ/"]
    assert beats == old.annotations.sample.tolist()
    table = pq.read_table(tmp_path / "parquet" / "203.parquet")
    assert table.column_names == ["time_s", "MLII", "V1"]
    np.testing.assert_array_equal(table["V1"].to_numpy(), old.signal()[1])
    assert table["time_s"][360].as_py() == 1.0


def test_a_patient_of_two_splits_is_tested_alone(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("a", "b", "c"):
        Recording.from_array(DIGITS[np.newaxis] / 200, rate_hz=250, record_id=name).to_wfdb(source)
    patients, splits = {"a": "p1", "b": "p1", "c": "p2"}, {"p1": "test", "p2": "train"}
    (source / "database.json").write_text(json.dumps({"patients": patients, "splits": splits}))
    converted(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "database.json").read_text()) == {"patients": patients, "splits": splits}
    shutil.copytree(shared_data("mitdb/201.hea").parent, tmp_path / "mitdb", ignore=lambda _, names: [
        name for name in names if name[:3] not in ("201", "202")
    ])  # fmt: skip
    converted(tmp_path / "mitdb", tmp_path / "both")
    both = open_database(tmp_path / "both")
    assert [both.split_of(record_id) for record_id in ("201", "202")] == ["test", "test"]
    assert both.patient_of("201") == both.patient_of("202")


def recording_with(folder: Path, **fields: object) -> Recording:
    signal = np.stack([DIGITS / 200, DIGITS / 1000]).astype(np.float32)
    signal[0, 300:400] = signal[1, 350:400] = signal[:, -3:] = np.nan
    found = Annotations(
        RATE_HZ,
        np.array([0, 300, 1000]),
        np.array(["N", "V", "N"]),
        (RhythmSpan(0, 900, "AFIB"), RhythmSpan(2000, 2500, "VFIB")),
        notes=(Note(0, 0, "start"), Note(40, 40, "N"), Note(50, 50, "x" * 150)),
    )
    recording = Recording(
        record_id="r",
        rate_hz=RATE_HZ,
        num_samples=NUM_SAMPLES,
        lead_names=("a lead with a long name", "a lead with a long surname"),
        units=("mV", "mV"),
        path=folder / "source",
        comments=("Diagnose: größer als normal " + 9 * "and more " + "still", "second"),
        start=datetime(1983, 3, 2, 23, 59, 59, 250_000),
        patient=Patient("Ada Lovelace", "7 / a", "female", age=33),
        samples=lambda start, stop, leads: signal[list(leads), start:stop],
        read_annotations=lambda recording: found,
    )
    return replace(recording, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("rate_hz", [250.0, 130.63, 1000 / 3, 128.5, 0.2, 5000.0])
def test_rates_notes_and_invalid_samples(tmp_path: Path, to: Target, rate_hz: float) -> None:
    old = recording_with(tmp_path, rate_hz=rate_hz)
    assert old.annotations is not None
    object.__setattr__(old, "annotations", replace(old.annotations, rate_hz=rate_hz))
    if to == "parquet":
        write_parquet(old, tmp_path, "r")
    elif to == "wfdb":
        write_wfdb(old, tmp_path, "r", lead_steps(old, whole_zero=True))
    else:
        changes = write_edf(old, tmp_path, "r", lead_steps(old, whole_zero=False)).changes
        assert any("is called a lead with a l" in change for change in changes)
    new = open_database(tmp_path).recording("r")
    np.testing.assert_array_equal(new.signal(), old.signal())
    assert (new.rate_hz, new.start, new.age, new.patient.sex) == (rate_hz, old.start, 33, "female")
    assert (new.patient.name, new.patient.identifier) == ("Ada Lovelace", "7 / a")
    assert len(set(new.leads)) == 2
    assert new.comments[:2] == old.comments
    found = new.annotations
    assert found is not None
    assert (found.sample.tolist(), found.symbol.tolist()) == ([0, 300, 1000], ["N", "V", "N"])
    assert found.beats_labelled
    assert found.rhythms == old.annotations.rhythms
    if to == "edf":
        assert [(note.start, note.text) for note in found.notes] == [
            (0, "start"), (40, "note N"), (50, "x" * 80), (50, "x" * 70)
        ]  # fmt: skip
        assert open_edf(tmp_path / "r.edf") == pytest.approx([rate_hz] * 2, rel=1e-6)
    else:
        assert found.notes == old.annotations.notes


def open_edf(path: Path) -> list[float]:
    """Return the rates that another reader finds, if it accepts the header."""
    read = edfio.read_edf(path)
    texts = [each.text for each in read.annotations]
    assert "Invalid samples" in texts
    assert any(text.startswith("Invalid samples: a lead") for text in texts)
    return [float(signal.sampling_frequency) for signal in read.signals]


@pytest.mark.parametrize("to", TARGETS)
def test_leads_that_look_like_something_else(tmp_path: Path, to: Target) -> None:
    """A lead without a valid sample, one that rises, one that counts, and names that tables use for times and units."""
    signal = np.stack([np.full(500, np.nan), np.arange(500) / 100, np.arange(500) % 16, np.zeros(500)])
    names = ["II", "time_s", "sample", "V5 [uV]"]
    old = replace(Recording.from_array(signal, rate_hz=250, leads=names), units=("mV", "mV", "", "mmHg"))
    steps = lead_steps(old, whole_zero=True)
    if to == "parquet":
        write_parquet(old, tmp_path, "r")
    elif to == "wfdb":
        write_wfdb(old, tmp_path, "r", steps)
    else:
        write_edf(old, tmp_path, "r", steps)
    new = open_database(tmp_path).recording("r")
    np.testing.assert_array_equal(new.signal(), old.signal())
    assert new.leads == tuple(names)
    assert new.units == ("mV", "mV", "NU" if to == "wfdb" else "", "mmHg")  # no unit would be mV there


def test_start_without_a_date_and_without_anything(tmp_path: Path) -> None:
    for place, start in enumerate((None, time(23, 59, 1), datetime(2024, 5, 1))):
        old = recording_with(tmp_path, start=start, read_annotations=None, comments=())
        for to in TARGETS:
            folder = tmp_path / f"{place}-{to}"
            folder.mkdir()
            steps = lead_steps(old, whole_zero=True)
            {"wfdb": write_wfdb, "edf": write_edf, "parquet": lambda r, f, n, _: write_parquet(r, f, n)}[to](
                old, folder, "r", steps
            )
            new = open_database(folder).recording("r")
            assert (new.start, new.annotations) == (start, None)


def test_detected_beats_stay_detected_beats(tmp_path: Path) -> None:
    found = Annotations(
        RATE_HZ, np.array([10, 300]), np.array(["N", "N"]), (RhythmSpan(0, 900, "AFIB"),), beats_labelled=False
    )
    old = recording_with(tmp_path, read_annotations=lambda recording: found)
    for to in TARGETS:
        folder = tmp_path / to
        folder.mkdir()
        steps = lead_steps(old, whole_zero=True)
        {"wfdb": write_wfdb, "edf": write_edf, "parquet": lambda r, f, n, _: write_parquet(r, f, n)}[to](
            old, folder, "r", steps
        )
        new = open_database(folder).recording("r").annotations
        assert new is not None
        assert (new.sample.tolist(), new.beats_labelled, new.rhythms) == ([10, 300], False, found.rhythms)


def test_flac_of_twelve_leads_has_two_files(tmp_path: Path) -> None:
    signal = np.stack([np.roll(DIGITS, place) for place in range(12)]) / 1000
    old = Recording.from_array(signal, rate_hz=500, leads=[f"lead {place}" for place in range(12)])
    files = write_wfdb(old, tmp_path, "r", lead_steps(old, whole_zero=True), flac=True)
    assert [path.name for path in files] == ["r_1.dat", "r_2.dat", "r.hea"]
    np.testing.assert_array_equal(read_recording(files[-1]).signal(), old.signal())
    np.testing.assert_allclose(wfdb.rdrecord(str(tmp_path / "r")).p_signal.T, signal, atol=1e-6)


def test_values_that_an_edf_header_cannot_state(tmp_path: Path) -> None:
    old = Recording.from_array(1e9 + np.arange(100.0), rate_hz=100, leads="ABP")
    old = replace(old, units=("mmHg",))
    with pytest.raises(HeartlmError, match=r"lead ABP: .* cannot be stated .* convert to wfdb or parquet"):
        write_edf(old, tmp_path, "r", lead_steps(old, whole_zero=False, most_bits=24))


def test_an_interrupted_conversion_continues(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, written, most = tmp_path / "out", list[str](), 3

    def stopping(recording: Recording, *arguments: Any, **named: Any) -> list[Path]:
        if len(written) == most:
            raise KeyboardInterrupt
        written.append(recording.record_id)
        return write_wfdb(recording, *arguments, **named)

    monkeypatch.setattr("heartlm.databases.convert.write_wfdb", stopping)
    with pytest.raises(KeyboardInterrupt):
        converted(folder, out)
    assert written == ["a", "b", "c"]
    assert not (out / "convert.json").exists()
    (out / "b.hea").unlink()  # lost, so it is converted again
    written, most = [], 99
    assert len(converted(folder, out).records) == 6
    assert written == ["b", "d", "e", "f"]
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_only_what_changed_is_converted_again(folder: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "ward", tmp_path / "out"
    shutil.copytree(folder, source)
    first = converted(source, out)
    stamps = {path.name: path.stat().st_mtime_ns for path in out.glob("*.dat")}
    write_ishne(source / "d.ecg", np.stack([DIGITS] * 3).astype(np.int16), 250)
    again = converted(source, out)
    changed = {path.name for path in out.glob("*.dat") if path.stat().st_mtime_ns != stamps[path.name]}
    assert changed == {"d.dat"}
    assert len(again.records) == len(first.records)
    with pytest.raises(HeartlmError, match="holds a conversion with other settings"):
        converted(source, out, "edf")


@pytest.mark.parametrize("anonymize", [False, True])
def test_recordings_of_one_name_in_several_folders_are_of_several_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymize: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for patient in "abc":
        Recording.from_array(DIGITS / 1000, rate_hz=250).to_wfdb(tmp_path / "ward" / patient, "holter")
    before = open_database(tmp_path / "ward")
    converted(tmp_path / "ward", tmp_path / "out", anonymize=anonymize)
    after = open_database(tmp_path / "out")
    assert len({after.patient_of(record_id) for record_id in after.record_ids}) == 3
    if not anonymize:
        splits = [[database.split_of(each) for each in database.record_ids] for database in (before, after)]
        assert splits[0] == splits[1]


def test_what_was_converted_stays_when_its_source_is_damaged(folder: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "ward", tmp_path / "out"
    shutil.copytree(folder, source)
    first = json.loads(converted(source, out).report.read_text())
    (source / "d.ecg").write_bytes(b"ISHNE1.0")
    again = converted(source, out)
    assert len(again.left_out) == 1
    assert again.left_out[0].startswith("d: ")
    report = json.loads(again.report.read_text())
    assert (report["records"], report["left_out"]) == (first["records"], list(again.left_out))
    assert "d" in json.loads((out / "database.json").read_text())["patients"]


def test_a_unit_that_is_cut_is_reported(tmp_path: Path) -> None:
    recording = replace(Recording.from_array(DIGITS / 1000, rate_hz=250, leads=["P"]), units=("mmHg per s",))
    written = write_edf(recording, tmp_path, "r", lead_steps(recording, whole_zero=False, most_bits=24))
    assert read_recording(written.path).units == ("mmHg per",)
    assert written.changes == ["lead P has the unit mmHg per, not mmHg per s"]


def test_blanks_in_a_note_do_not_stop_the_conversion(tmp_path: Path) -> None:
    text = "a" + " " * 200 + "b"
    recording = replace(Recording.from_array(DIGITS / 1000, rate_hz=250), comments=(text,))
    notes = [Note(5, 5, text)]
    written = write_edf(recording, tmp_path, "r", lead_steps(recording, whole_zero=False, most_bits=24), notes)
    again = read_recording(written.path)
    assert again.annotations is not None
    assert (again.annotations.notes, again.comments) == ((Note(5, 5, "a b"),), ("a b",))


def test_several_sources_in_one_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "other").mkdir()
    write_ishne(tmp_path / "other" / "d.ecg", np.stack([-DIGITS] * 3).astype(np.int16), 250)
    for source in (folder / "d.ecg", tmp_path / "other" / "d.ecg", folder / "a.edf", tmp_path / "other" / "d.ecg"):
        done = converted(source, out)
    assert [entry["record"] for entry in done.records] == ["d_2"]
    report = json.loads(done.report.read_text())
    assert [entry["record"] for entry in report["records"]] == ["a", "d", "d_2"]
    after = open_database(out)
    assert after.record_ids == ("a", "d", "d_2")
    for record_id, source in (("d", folder / "d.ecg"), ("d_2", tmp_path / "other" / "d.ecg")):
        np.testing.assert_array_equal(after.recording(record_id).signal(), read_recording(source).signal())


def test_what_is_stated_otherwise_is_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    (tmp_path / "r.csv").write_text("II\n" + "\n".join(map(str, (DIGITS / 1000).tolist())) + "\n")
    words = ["data", "convert", str(tmp_path / "r.csv"), str(tmp_path / "out"), "--units", "mV"]
    for rate in ("250", "500"):
        assert main([*words, "--rate", rate]) == 0
        assert open_database(tmp_path / "out", stated=Stated()).recording("r").rate_hz == float(rate)


def test_processes_do_not_change_the_result(folder: Path, tmp_path: Path) -> None:
    for processes in (1, 3):
        task = Conversion(source=folder, folder=tmp_path / str(processes), to="edf", repaired="accept")
        convert_recordings(task, PartOptions(processes=processes))
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "3").iterdir())
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three recordings of two patients with everything that identifies them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("secrets.token_bytes", lambda size: bytes(range(3, size + 3)))
    folder = tmp_path / "Lovelace-ward"
    folder.mkdir()
    note = (1, b"+1.5\x14Dr Babbage called\x14\0")
    for name, code, who, day in (
        ("lovelace_1", "P4711", "Ada_Lovelace", "02"),
        ("lovelace_2", "P4711", "Ada_Lovelace", "09"),
        ("hopper", "P4712", "Grace_Hopper", "02"),
    ):
        own = Lead("EDF Annotations", None, "", "-1", "1", texts=times(np.arange(17) * 1.2, note))
        content = edf_bytes(
            [Lead("II", DIGITS), Lead("SpO2", DIGITS[:17], "%"), own],
            17,
            duration="1.2",
            reserved="EDF+C",
            patient=f"{code} F 02-MAY-1921 {who}",
            recording=f"Startdate {day}-MAR-2024 X X X",
            day=f"{day}.03.24",
            clock="13.45.06",
        )
        (folder / f"{name}.edf").write_bytes(content)
    yield folder


@pytest.mark.parametrize("to", TARGETS)
def test_nothing_identifies(patients: Path, tmp_path: Path, to: Target) -> None:
    out = tmp_path / "out"
    done = converted(patients, out, to, anonymize=True)
    after = open_database(out)
    recordings = [after.recording(record_id) for record_id in after.record_ids]
    content = b" ".join(path.name.encode() + path.read_bytes() for path in out.iterdir()).lower()
    for word in (b"lovelace", b"hopper", b"grace", b"4711", b"1921", b"2024", b"babbage"):
        assert word not in content, word
    by_patient = dict[str, list[datetime]]()
    for recording in recordings:
        assert recording.age is None  # 102 years
        assert recording.patient.sex == "female"
        assert isinstance(recording.start, datetime)
        by_patient.setdefault(recording.patient_id, []).append(recording.start)
    two = next(starts for starts in by_patient.values() if len(starts) == 2)
    assert abs(two[1] - two[0]) == timedelta(days=7)
    assert two[0].time() == time(13, 45, 6)
    assert sorted(map(len, by_patient.values())) == [1, 2]
    assert all(start.date() != date(2024, 3, 2) for starts in by_patient.values() for start in starts)
    reasons = {reason for entry in done.records for reason in entry["dropped"]}
    assert {"name", "identifier", "birth date", "age above 89", "date moved", "1 notes"} <= reasons
    assert not list((tmp_path / "cache").rglob("*.key"))
    again = converted(patients, out, to, anonymize=True)
    assert again.records == done.records and again.left_out == done.left_out
    os.utime(patients / "hopper.edf")
    with pytest.raises(HeartlmError, match="key is deleted"):
        converted(patients, out, to, anonymize=True)


@pytest.mark.parametrize("place", range(4))
def test_an_anonymous_conversion_killed_at_its_end_is_finished_by_the_same_command(
    patients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """A kill before each change of a name or removal of a file after the report is written."""
    out, changes = tmp_path / "out", list[str]()
    whole = converted(patients, tmp_path / "whole", anonymize=True)

    def killed(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Path, *arguments: Any, **named: Any) -> Any:
            if (out / "convert.json").exists() and (out in path.parents or path.parent.name == "convert"):
                changes.append(f"{name} {path.name}")
                if len(changes) == place + 1:
                    raise KeyboardInterrupt
            return change(path, *arguments, **named)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("unlink", "replace"):
            patch.setattr(Path, name, killed(name, getattr(Path, name)))
        with pytest.raises(KeyboardInterrupt):
            converted(patients, out, anonymize=True)
    done = converted(patients, out, anonymize=True)
    assert len(done.records) == len(whole.records) == 3
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]
    assert not list((tmp_path / "cache").rglob("*.key"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_header_stands_without_the_samples_it_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """A kill before each renaming, also where an earlier conversion is replaced."""
    source, out = tmp_path / "in", tmp_path / "out"
    old = Recording.from_array(DIGITS[np.newaxis] / 200, rate_hz=250, record_id="r")
    old.to_wfdb(source)
    converted(source, out)
    shutil.rmtree(source)
    Recording.from_array(-DIGITS[np.newaxis, :900] / 200, rate_hz=250, record_id="r").to_wfdb(source)
    renamed, replace_file = list[str](), Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target.suffix in (".dat", ".hea"):
            if len(renamed) == place:
                raise KeyboardInterrupt
            renamed.append(target.name)
        return replace_file(path, target)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        converted(source, out)
    assert renamed == ["r.dat", "r.hea"][:place]
    assert (out / "r.hea").exists() == (place == 2)
    converted(source, out)
    np.testing.assert_allclose(heartlm.open_recording(out / "r").signal()[0], -DIGITS[:900] / 200, atol=1e-3)


def test_an_interrupted_anonymous_conversion_continues(
    patients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "out", list[int]()

    def stopping(*arguments: Any, **named: Any) -> list[Path]:
        before.append(1)
        if len(before) == 2:
            raise KeyboardInterrupt
        return write_wfdb(*arguments, **named)

    monkeypatch.setattr("heartlm.databases.convert.write_wfdb", stopping)
    with pytest.raises(KeyboardInterrupt):
        converted(patients, out, anonymize=True)
    key = next((tmp_path / "cache").rglob("*.key"))
    assert key.stat().st_mode & 0o077 == 0
    kept = {path.name for path in out.glob("*.hea")}
    assert len(kept) == 1
    done = converted(patients, out, anonymize=True)
    assert len(done.records) == 3
    assert kept < {path.name for path in out.glob("*.hea")}
    assert not key.exists()


def test_exit_status(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "ward", tmp_path / "out"
    shutil.copytree(folder, source)
    words = ["data", "convert", str(source), str(out), "--processes", "1"]
    assert main(words) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "6 recordings converted, 0 left out"
    (source / "broken.edf").write_bytes(b"0       ")
    assert main(words) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[-1] == "6 recordings converted, 1 left out"
    assert said[0].startswith("left out: broken: ")
    assert main(["data", "convert", str(source / "broken.edf"), str(tmp_path / "none")]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"heartlm data: {source / 'broken.edf'}: ")
    assert not (tmp_path / "none").exists()
    assert main([*words[:3], str(tmp_path / "strict"), "--strict", "--processes", "1"]) == 1
    assert "gaps between its data records" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("where", "words", "reason"),
    [
        ("ward/out", (), "lies in the source"),
        ("full", (), "holds other files, for example x.txt; choose another folder"),
        ("new", ("--to", "edf", "--flac"), "flac: compresses WFDB signals"),
        ("new", ("--processes", "0"), "processes"),
    ],
)
def test_refusals(
    folder: Path, tmp_path: Path, refused: Refused, where: str, words: tuple[str, ...], reason: str
) -> None:
    shutil.copytree(folder, tmp_path / "ward")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("mine")
    assert reason in refused("data", "convert", tmp_path / "ward", tmp_path / where, *words)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x.txt"]


def test_damage_is_not_written_with_a_new_checksum(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    old = Recording.from_array(DIGITS[np.newaxis] / 200, rate_hz=250, record_id="r")
    old.to_wfdb(source)
    content = bytearray((source / "r.dat").read_bytes())
    content[100] ^= 4
    (source / "r.dat").write_bytes(content)
    with pytest.raises(HeartlmError, match=r"damaged \(lead lead 1: the header's checksum"):
        converted(source, tmp_path / "out")
    done = converted(source, tmp_path / "out", damaged="warn")
    assert "checksum" in done.records[0]["damage"][0]


def test_names_that_wfdb_does_not_allow(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("x/my file.v2.ecg", "y/my file.v2.ecg", "größe.ecg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "d.ecg", source / name)
    done = converted(source, tmp_path / "out")
    assert [entry["record"] for entry in done.records] == ["gr_e", "x_my_file_v2", "y_my_file_v2"]
    assert len(open_database(tmp_path / "out").record_ids) == 3


def test_names_of_known_databases_state_nothing_about_converted_files(tmp_path: Path) -> None:
    source = tmp_path / "in"
    Recording.from_array(DIGITS[np.newaxis] / 200, rate_hz=250, record_id="r").to_wfdb(source)
    converted(source, tmp_path / "afdb")
    assert open_database(tmp_path / "afdb").name == "afdb-converted"


def test_own_edf_files_of_other_programs_are_read_as_before(tmp_path: Path) -> None:
    """The marks of heartlm's own files mean nothing without heartlm as the recorder or in another field."""
    note = (1, b"+1.5\x14# x\x14\0"), (2, b"+2.5\x14Invalid samples\x14\0")
    own = Lead("EDF Annotations", None, "", "-1", "1", texts=times(np.arange(17) * 1.2, *note))
    (tmp_path / "r.edf").write_bytes(edf_bytes([Lead("II", DIGITS), own], 17, duration="1.2", reserved="EDF+C"))
    recording = read_edf(tmp_path / "r.edf")
    assert recording.comments == ()
    assert recording.annotations is not None
    assert [note.text for note in recording.annotations.notes] == ["# x", "Invalid samples"]


def test_the_key_is_not_in_the_folder_while_it_is_written(patients: Path, tmp_path: Path) -> None:
    converted(patients, tmp_path / "out", anonymize=True)
    assert all(len(path.name) < 40 for path in (tmp_path / "out").iterdir())
    (kept,) = (tmp_path / "cache" / "heartlm" / "convert").iterdir()
    assert kept.suffix == ".ended" and len(kept.read_text()) == 64  # a digest of the sources, not the key


def test_from_python_as_by_the_command(tmp_path: Path) -> None:
    write_ishne(tmp_path / "d.ecg", np.stack([DIGITS, DIGITS // 3, -DIGITS]).astype(np.int16), 250)
    done = heartlm.convert(tmp_path / "d.ecg", tmp_path / "python", to="edf", anonymize=True)
    assert main(["data", "convert", f"{tmp_path}/d.ecg", f"{tmp_path}/command", "--to", "edf", "--anonymize"]) == 0
    (own,) = done.records
    (file,) = (tmp_path / "command").glob("*.edf")
    here, there = (heartlm.open_recording(path) for path in (tmp_path / "python" / own["files"][0], file))
    np.testing.assert_array_equal(here.signal(), there.signal())
    with pytest.raises(HeartlmError, match="nowhere"):
        heartlm.convert(tmp_path / "nowhere", tmp_path / "out")


def test_an_entry_that_is_not_as_it_was_written_is_converted_again(folder: Path, tmp_path: Path) -> None:
    assert not converted(folder, tmp_path / "out").left_out
    table = tmp_path / "out/convert.json"
    about = json.loads(table.read_text())
    entry = next(entry for entry in about["records"] if entry["split"] is not None)
    entry["split"] = "everything"
    table.write_text(json.dumps(about))
    assert not converted(folder, tmp_path / "out").left_out
    assert all(each["split"] in ("train", "validation", "test") for each in json.loads(table.read_text())["records"])


def test_values_that_no_ecg_has_are_refused(tmp_path: Path) -> None:
    signal = np.full((1, 5000), 1e30, np.float32)
    signal[0, ::2] = 0
    recording = Recording.from_array(signal, rate_hz=250.0, leads=["II"])
    (tmp_path / "in").mkdir()
    write_parquet(recording, tmp_path / "in", "huge")
    with pytest.raises(HeartlmError, match=r"huge.parquet: lead II has gain 1e-30"):
        converted(tmp_path / "in", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.hea"))


def test_ishne_files_hold_the_same_integers_and_say_what_they_cannot_hold(tmp_path: Path) -> None:
    steps_mv = np.round(900 * np.sin(np.arange(5000) / 20)).astype(np.int64) / 200
    signal = np.stack([steps_mv, np.where(steps_mv > 4, np.nan, -steps_mv)])
    patient = Patient("Ada Lovelace", "7", "female", date(1951, 5, 2))
    old = Recording.from_array(signal, rate_hz=250, leads=["MLII", "V1"], start=datetime(2024, 3, 2, 13, 45, 6))
    found = Annotations(RATE_HZ, np.array([10, 300]), np.array(["N", "V"]), source="x")
    old = replace(old, patient=patient, comments=("a note",), read_annotations=lambda _: found)
    written = write_ishne_file(old, tmp_path, "r", lead_steps(old, whole_zero=True))
    assert written.changes == ["lead MLII is written as unknown"] and all(each.exact for each in written.steps)
    database = open_database(tmp_path)
    new = database.recording("r")
    np.testing.assert_array_equal(new.signal(), old.signal())
    assert (new.leads, new.rate_hz, new.start, new.patient) == (("lead 1", "V1"), 250, old.start, patient)
    assert new.comments == old.comments and not new.faults and not new.repairs
    beats = new.annotations
    assert beats is not None and beats.sample.tolist() == [10, 300] and beats.symbol.tolist() == ["N", "V"]
    part = write_ishne_file(replace(old, units=("mmHg", "mV")), tmp_path, "part", lead_steps(old, whole_zero=True))
    assert part.recording.leads == ("V1",) and part.changes == ["MLII left out: ISHNE has leads in mV alone"]
    np.testing.assert_array_equal(open_database(tmp_path).recording("part").signal(), old.signal(leads="V1"))
    fine = Recording.from_array(signal[:1] * np.pi, rate_hz=250, leads=["II"])
    (steps,) = write_ishne_file(fine, tmp_path, "fine", lead_steps(fine, whole_zero=True)).steps
    again = open_database(tmp_path).recording("fine").signal()
    assert np.abs(again - fine.signal()).max() <= 1.01 * steps.error < 0.001
    for wrong, reason in (
        (replace(old, rate_hz=127.97), r"127\.97 Hz, ISHNE has whole rates"),
        (replace(old, units=("mmHg", "NU")), "0 leads in mV, 1 to 12 in an ISHNE file"),
        (Recording.from_array(np.zeros((13, 100)), rate_hz=250), "13 leads in mV, 1 to 12 in an ISHNE file"),
    ):
        with pytest.raises(HeartlmError, match=reason):
            write_ishne_file(wrong, tmp_path, "x", lead_steps(wrong, whole_zero=True))


def test_a_record_of_mitdb_becomes_an_ishne_file(tmp_path: Path) -> None:
    source = shared_data("mitdb/203.hea").with_suffix("")
    (entry,) = converted(source, tmp_path, "ishne").records
    old, new = open_database(source.parent).recording("203"), open_database(tmp_path).recording("203")
    np.testing.assert_array_equal(new.signal(), old.signal())
    assert old.annotations is not None and new.annotations is not None
    assert new.annotations.symbol.tolist() == old.annotations.symbol.tolist()
    assert entry["files"] == ["203.atr", "203.ecg"] and [each["exact"] for each in entry["leads"]] == [True, True]
