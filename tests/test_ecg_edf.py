from __future__ import annotations

from datetime import date, datetime
from datetime import time as clock_time
from pathlib import Path

import numpy as np
import pytest

from heartlm.ecg.database import read_recording
from heartlm.ecg.recording import Patient
from heartlm.errors import HeartlmError

edfio = pytest.importorskip("edfio")

ECG = np.sin(np.arange(2560) / 20)


def write_edf(path: Path, unit: str = "mV") -> None:
    edfio.Edf(
        [
            edfio.EdfSignal(ECG, 256, label="ECG II", physical_dimension=unit, physical_range=(-2, 2)),
            edfio.EdfSignal(ECG[::-1].copy(), 256, label="ECG V5", physical_dimension=unit, physical_range=(-2, 2)),
            edfio.EdfSignal(np.full(10, 97.0), 1, label="SpO2", physical_dimension="%", physical_range=(0, 100)),
        ]
    ).write(path)


@pytest.mark.parametrize(("unit", "factor"), [("mV", 1.0), ("uV", 1e-3)])
def test_reads_the_ecg_and_says_what_it_leaves_out(tmp_path: Path, unit: str, factor: float) -> None:
    write_edf(tmp_path / "r.edf", unit)
    recording = read_recording(tmp_path / "r.edf")
    assert (recording.rate_hz, recording.num_samples, recording.lead_names) == (256.0, 2560, ("ECG II", "ECG V5"))
    assert recording.comments == ("left out: SpO2 at 1 Hz, not the ECG's 256 Hz",)
    whole = recording.signal()
    np.testing.assert_allclose(whole, np.stack([ECG, ECG[::-1]]) * factor, atol=1e-4 * factor)
    np.testing.assert_array_equal(recording.signal(255, 1111, [1]), whole[1:, 255:1111])
    assert recording.signal(7, 7).shape == (2, 0)


def header(path: Path, patient: str, recording: str, date: str, time: str) -> None:
    content = path.read_bytes()
    fields = f"{patient:<80}{recording:<80}{date:<8}{time:<8}".encode("latin-1")
    path.write_bytes(content[:8] + fields + content[184:])


@pytest.mark.parametrize(
    ("recording", "day", "clock", "start"),
    [
        ("Startdate 02-MAR-2002 X X X", "02.03.02", "13.45.06", datetime(2002, 3, 2, 13, 45, 6)),
        ("Startdate 02-MAR-2002 X X X", "01.01.85", "00.00.00", datetime(2002, 3, 2)),
        ("Startdate X X X X", "01.01.85", "00.00.00", None),
        ("Startdate X X X X", "02.03.02", "13.45.06", clock_time(13, 45, 6)),
        ("", "02.03.84", "13.45.06", datetime(2084, 3, 2, 13, 45, 6)),
        ("ward 7", "02.03.99", "00.00.00", datetime(1999, 3, 2)),
        ("ward 7", "01.01.85", "13.45.06", clock_time(13, 45, 6)),
        ("ward 7", "00.00.00", "00.00.00", None),
        ("ward 7", "00.00.00", "23.59.59", clock_time(23, 59, 59)),
        ("ward 7", "02.03.02", "XX.YY.ZZ", None),
    ],
)
def test_the_start_is_known_unless_it_is_a_placeholder(
    tmp_path: Path, recording: str, day: str, clock: str, start: datetime | clock_time | None
) -> None:
    path = tmp_path / "r.edf"
    write_edf(path)
    header(path, "X X X X", recording, day, clock)
    assert read_recording(path).start == start


@pytest.mark.parametrize(
    ("text", "patient"),
    [
        ("X X X X", Patient()),
        ("", Patient()),
        (
            "MCH-0234567 F 02-MAY-1951 Haagse_Harry more",
            Patient("Haagse Harry", "MCH-0234567", "female", date(1951, 5, 2)),
        ),
        ("X M X X", Patient(sex="male")),
        ("Jörg Müller 12.3.1950", Patient(identifier="Jörg Müller 12.3.1950")),
        ("Müller M", Patient(identifier="Müller M")),
        ("7 F 31-FEB-1951 Name", Patient(identifier="7 F 31-FEB-1951 Name")),
    ],
)
def test_the_patient_is_read_as_edf_plus_or_as_plain_text(tmp_path: Path, text: str, patient: Patient) -> None:
    path = tmp_path / "r.edf"
    write_edf(path)
    header(path, text, "Startdate 02-MAR-2002 X X X", "02.03.02", "13.45.06")
    recording = read_recording(path)
    assert recording.patient == patient
    assert recording.age == (50 if patient.birth_date else None)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.edf"
    write_edf(path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:100], b"", b"garbage" * 200):
        path.write_bytes(damaged)
        with pytest.raises(HeartlmError, match="not readable as an EDF file") as caught:
            read_recording(path)
        assert "\n" not in str(caught.value)


def test_a_recording_with_a_hole_in_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.edf"
    signal = edfio.EdfSignal(ECG, 256, label="ECG", physical_dimension="mV", physical_range=(-2, 2))
    edfio.Edf([signal], annotations=[edfio.EdfAnnotation(0, None, "start")], data_record_duration=1).write(path)
    assert read_recording(path).num_samples == 2560
    content = path.read_bytes()
    assert content.count(b"+5\x14\x14") == 1
    path.write_bytes(content.replace(b"+5\x14\x14", b"+6\x14\x14"))
    with pytest.raises(HeartlmError, match=r"discontinuous \(EDF\+D\)"):
        read_recording(path)
