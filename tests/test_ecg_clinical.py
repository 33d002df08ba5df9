"""Clinical formats: every sample, lead name, unit, rate, start and patient, whatever the file is called."""

from __future__ import annotations

import shutil
import sys
import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.databases.database import locate, open_database
from heartlm.ecg.recording import Patient
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from heartlm.formats.registry import FORMATS, format_of
from tests.clinical_files import (
    IDENTIFIER,
    NV_PER_STEP,
    START,
    WRITERS,
    ishne_annotations,
    write_aecg,
    write_dicom,
    write_ishne,
    write_muse,
)
from tests.conftest import shared_data

pytest.importorskip("ecgdatakit")
pytest.importorskip("pydicom")

SAMPLES = np.random.default_rng(5).integers(-1500, 1500, (3, 1000)).astype(np.int16)
MV = (SAMPLES * (NV_PER_STEP / 1e6)).astype(np.float32)
PERSON = Patient("Ada Muster", IDENTIFIER, "female", date(1951, 5, 2))


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_read_to_the_same_recording(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, SAMPLES)
    recording = read_recording(tmp_path / name)
    assert (recording.lead_names, recording.units) == (("I", "II", "V1"), ("mV",) * 3)
    assert (recording.rate_hz, recording.num_samples, recording.start) == (500.0, 1000, START)
    # Kardia's recordings state no name, sex or date of birth
    assert recording.patient == (Patient(identifier=IDENTIFIER) if name == "kardia.json" else PERSON)
    assert recording.age == (None if name == "kardia.json" else 72)
    np.testing.assert_allclose(recording.signal(), MV, rtol=1e-6)
    np.testing.assert_array_equal(recording.signal(100, 333, ["V1", 0]), recording.signal()[[2, 0], 100:333])
    assert (recording.faults, recording.repairs, recording.comments) == ([], (), ())


@pytest.mark.parametrize("name", WRITERS)
def test_the_content_decides_the_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "file", SAMPLES)
    shutil.copy(tmp_path / "file", tmp_path / "1.2.840.7.1")
    database = open_database(tmp_path)
    assert database.record_ids == ("1.2.840.7.1", "file")
    for record_id in database.record_ids:
        np.testing.assert_allclose(database.recording(record_id).signal(), MV, rtol=1e-6)
        assert database.annotations(record_id) is None
    assert locate(tmp_path / "file")[1] == "file"


def test_files_of_one_name_are_two_records(tmp_path: Path) -> None:
    write_muse(tmp_path / "a.xml", SAMPLES)
    write_ishne(tmp_path / "a.ecg", SAMPLES[:, :500])
    database = open_database(tmp_path)
    assert database.record_ids == ("a", "a.xml")
    assert [database.recording(each).num_samples for each in database.record_ids] == [500, 1000]
    for name in ("a.ecg", "a.xml"):
        _, record_id = locate(tmp_path / name)
        assert database.recording(record_id).path == tmp_path / name
    (tmp_path / "RECORDS").write_text("a.xml\n")
    assert open_database(tmp_path).recording("a").path == tmp_path / "a.xml"


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    write_muse(tmp_path / "a.xml", SAMPLES)
    write_dicom(tmp_path / "b.dcm", SAMPLES)
    write_ishne(tmp_path / "c.ecg", SAMPLES)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(HeartlmError, match=r"b\.dcm: a DICOM waveform; .*'pydicom'.* pip install 'heartlm\[formats\]'"):
        read_recording(tmp_path / "b.dcm")
    assert read_recording(tmp_path / "a.xml").num_leads == 3
    monkeypatch.setitem(sys.modules, "ecgdatakit", None)
    with pytest.raises(HeartlmError, match=r"a\.xml: an ECG of GE MUSE; .*'ecgdatakit'.* pip install 'heartlm"):
        read_recording(tmp_path / "a.xml")
    assert read_recording(tmp_path / "c.ecg").num_leads == 3
    assert main(["data", "formats"]) == 0
    said = capfd.readouterr().out
    assert "pip install 'heartlm[formats]'" in said and all(form.name in said for form in FORMATS)


@pytest.mark.parametrize(
    ("entities", "reason"),
    [
        ('<!ENTITY a "x"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">', "entit"),
        ('<!ENTITY a SYSTEM "file:///etc/passwd">', "entit"),
    ],
)
@pytest.mark.parametrize("name", [name for name in WRITERS if name.endswith(".xml")])
def test_entities_are_refused(tmp_path: Path, name: str, entities: str, reason: str) -> None:
    WRITERS[name](tmp_path / name, SAMPLES)
    encoding = "utf-16" if name == "sierra.xml" else "utf-8"
    head, line, body = (tmp_path / name).read_text(encoding).partition("\n")
    root = "RestingECG" if name == "muse.xml" else "r"
    body = body.replace('<!DOCTYPE RestingECG SYSTEM "restecg.dtd">', "")
    (tmp_path / name).write_text(f"{head}{line}<!DOCTYPE {root} [{entities}]>{body}", encoding)
    assert format_of(tmp_path / name) is not None
    with pytest.raises(HeartlmError, match=reason):
        read_recording(tmp_path / name)


def test_xml_in_other_encodings_and_with_a_wrong_declaration(tmp_path: Path) -> None:
    write_aecg(tmp_path / "a.xml", SAMPLES, encoding="utf-16")
    content = (tmp_path / "a.xml").read_text("utf-16").replace("Muster", "Müßter")
    (tmp_path / "b.xml").write_text(content.replace('encoding="utf-16"', 'encoding="utf-8"'), "latin-1")
    assert read_recording(tmp_path / "a.xml").patient == PERSON
    assert read_recording(tmp_path / "b.xml").patient.name == "Ada Müßter"


def test_an_inexact_rate_is_kept_and_a_rounded_interval_is_not(tmp_path: Path) -> None:
    write_dicom(tmp_path / "a.dcm", SAMPLES, 1000 / 3.9)
    assert read_recording(tmp_path / "a.dcm").rate_hz == pytest.approx(1000 / 3.9, rel=1e-9)
    write_aecg(tmp_path / "a.xml", SAMPLES)
    content = (tmp_path / "a.xml").read_text()
    for interval, rate_hz in (("0.001953", 512.0), ("0.0039", 1 / 0.0039), ("0.003333", 300.0)):
        (tmp_path / "a.xml").write_text(content.replace('value="0.002"', f'value="{interval}"'))
        assert read_recording(tmp_path / "a.xml").rate_hz == pytest.approx(rate_hz, rel=1e-12)
        assert not read_recording(tmp_path / "a.xml").repairs


def test_a_padding_value_of_zero_marks_no_sample_and_another_does(tmp_path: Path) -> None:
    samples = SAMPLES.copy()
    samples[:, ::7] = 0
    samples[1, 3] = -32768
    write_dicom(tmp_path / "a.dcm", samples, padding=b"\0\0")
    write_dicom(tmp_path / "b.dcm", samples, padding=b"\0\x80")
    expected = (samples * (NV_PER_STEP / 1e6)).astype(np.float32)
    np.testing.assert_allclose(read_recording(tmp_path / "a.dcm").signal(), expected, rtol=1e-6)
    expected[1, 3] = np.nan
    np.testing.assert_allclose(read_recording(tmp_path / "b.dcm").signal(), expected, rtol=1e-6)


def test_a_wrong_checksum_is_a_fault(tmp_path: Path) -> None:
    WRITERS["scp.scp"](tmp_path / "a.scp", SAMPLES)
    content = bytearray((tmp_path / "a.scp").read_bytes())
    content[-5] ^= 1
    (tmp_path / "a.scp").write_bytes(content)
    (fault,) = read_recording(tmp_path / "a.scp").faults
    assert "CRC" in fault


def test_leads_without_volts_are_left_out_or_refused(tmp_path: Path) -> None:
    write_muse(tmp_path / "a.xml", SAMPLES)
    content = (tmp_path / "a.xml").read_text()
    (tmp_path / "a.xml").write_text(content.replace("MICROVOLTS", "mmHg", 1))
    recording = read_recording(tmp_path / "a.xml")
    assert recording.lead_names == ("II", "V1") and recording.comments == ("left out: I, not in volts",)
    (tmp_path / "a.xml").write_text(content.replace("MICROVOLTS", "mmHg"))
    with pytest.raises(HeartlmError, match=r"a\.xml: no lead states volts \(I, II, V1\)"):
        read_recording(tmp_path / "a.xml")


# --- ISHNE ------------------------------------------------------------------------------------------------------------


def test_the_ishne_sample_has_the_samples_of_its_origin() -> None:
    recording = read_recording(shared_data("inputs/ishne/e.ecg"))
    assert (recording.rate_hz, recording.num_samples, recording.units) == (360.0, 7200, ("mV",))
    origin = read_recording(shared_data("mitdb/100.hea")).signal(0, 7200, [0])
    np.testing.assert_allclose(recording.signal(), origin, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "length", "repairs"),
    [
        ({}, 1000, ()),
        ({"stated": 3000}, 1000, ()),  # of all leads together
        ({"stated": 0}, 1000, ()),
        ({"text": b"worn on the left side\0"}, 1000, ()),
        ({"stated": 1500}, 1000, ("truncated: 1000 samples of each lead read of the 1500 that the header states",)),
        ({"rest": b"\1\2\3"}, 1000, ("truncated: 1000 samples of each lead read",)),
        ({"stated": 900}, 900, ("100 samples of each lead left out after the 900 that the header states",)),
    ],
)
def test_lengths_of_ishne_files(tmp_path: Path, changes: dict, length: int, repairs: tuple[str, ...]) -> None:
    write_ishne(tmp_path / "r.ecg", SAMPLES, **changes)
    recording = read_recording(tmp_path / "r.ecg")
    assert (recording.num_samples, recording.repairs, recording.faults) == (length, repairs, [])
    np.testing.assert_allclose(recording.signal(), MV[:, :length], rtol=1e-6)
    assert recording.comments == (("worn on the left side",) if "text" in changes else ())


def test_leads_of_ishne_files(tmp_path: Path) -> None:
    samples = SAMPLES.copy()
    samples[1, 10:20] = -32768
    write_ishne(tmp_path / "r.ecg", samples, leads=("aVF", "?", "V6"), nv=(1000, 2000, 0), checksum=7)
    recording = read_recording(tmp_path / "r.ecg")
    assert (recording.lead_names, recording.units) == (("aVF", "lead 2", "V6"), ("mV", "mV", "adu"))
    (fault,) = recording.faults
    assert fault.startswith("the header's checksum is 7")
    expected = samples * np.array([[1e-3], [2e-3], [1]])
    expected[1, 10:20] = np.nan
    np.testing.assert_allclose(recording.signal(), expected, rtol=1e-6)
    write_ishne(tmp_path / "r.ecg", samples, nv=(0, -9, 0))
    with pytest.raises(HeartlmError, match="states no resolution"):
        read_recording(tmp_path / "r.ecg")


def test_a_slice_of_a_day_costs_the_slice(tmp_path: Path) -> None:
    write_ishne(tmp_path / "r.ecg", SAMPLES, stated=86_400 * 500)
    with (tmp_path / "r.ecg").open("r+b") as stream:
        stream.truncate(522 + 86_400 * 500 * 6)
    recording = read_recording(tmp_path / "r.ecg")
    assert (recording.duration_s, recording.repairs) == (86_400, ())
    tracemalloc.start()
    signal = recording.signal(990, 6000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(signal[:, :10], MV[:, 990:], rtol=1e-6)
    assert not signal[:, 10:].any() and peak < 4 * signal.nbytes


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (10, (-1).to_bytes(4, "little", signed=True), "-1 bytes of text"),
        (156, b"\0\0", "0 leads"),
        (156, b"\x0d\0", "13 leads"),
        (272, b"\0\0", "sampling rate is 0"),
        (10, (1 << 20).to_bytes(4, "little"), "ends before the first sample"),
    ],
)
def test_implausible_ishne_headers(tmp_path: Path, place: int, value: bytes, reason: str) -> None:
    write_ishne(tmp_path / "r.ecg", SAMPLES)
    content = bytearray((tmp_path / "r.ecg").read_bytes())
    content[place : place + len(value)] = value
    (tmp_path / "r.ecg").write_bytes(content)
    with pytest.raises(HeartlmError, match=reason) as caught:
        read_recording(tmp_path / "r.ecg")
    assert "\n" not in str(caught.value)
    (tmp_path / "r.ecg").write_bytes(content[:300])
    with pytest.raises(HeartlmError, match="no ISHNE header of 522 bytes"):
        read_recording(tmp_path / "r.ecg")


def test_beats_of_ishne_annotation_files(tmp_path: Path) -> None:
    write_ishne(tmp_path / "r.ecg", np.tile(SAMPLES, 100), 250)
    assert read_recording(tmp_path / "r.ecg").rate_hz == 250
    entries = [(b"N", 0), (b"V", 200), (b"!", 65535), (b"S", 300), (b"B", 250), (b"P", 260), (b"X", 90), (b"C", 80)]
    (tmp_path / "r.ann").write_bytes(ishne_annotations(100, entries, text=b"about"))
    recording = open_database(tmp_path).recording("r")
    found = recording.annotations
    assert found is not None
    assert found.sample.tolist() == [100, 300, 66135, 66385, 66645]
    assert (found.symbol.tolist(), found.beats_labelled) == (["N", "V", "S", "N", "/"], True)
    recording.refuse_if_damaged()
    (tmp_path / "r.ann").write_bytes(ishne_annotations(100, [*entries, (b"?", 9)])[:-1])
    recording = open_database(tmp_path).recording("r")
    assert recording.annotations is not None
    assert recording.faults == ["r.ann: 3 bytes after the last annotation"]
    (tmp_path / "r.ann").write_bytes(ishne_annotations(100, [(b"?", 9)]))
    recording = open_database(tmp_path).recording("r")
    assert recording.annotations is not None
    assert recording.faults == ["r.ann: 1 of 1 annotations have a label that is not in use"]
    for content in (ishne_annotations(0, [])[:524], ishne_annotations(0, [], rate_hz=0)):
        (tmp_path / "r.ann").write_bytes(content)
        with pytest.raises(HeartlmError, match=r"r\.ann: (ends before its first|sampling rate is 0)"):
            _ = open_database(tmp_path).recording("r").annotations


def test_the_longest_group_of_dicom_is_read(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    write_dicom(tmp_path / "a.dcm", SAMPLES[:, :200])
    write_dicom(tmp_path / "b.dcm", SAMPLES)
    both, longer = (pydicom.dcmread(tmp_path / name) for name in ("a.dcm", "b.dcm"))
    both.WaveformSequence = [both.WaveformSequence[0], longer.WaveformSequence[0]]
    both.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    recording = read_recording(tmp_path / "a.dcm", repaired="accept")
    assert recording.num_samples == SAMPLES.shape[1]
    np.testing.assert_allclose(recording.signal(), read_recording(tmp_path / "b.dcm").signal())
    assert any("group" in each for each in recording.repairs)
