from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.ecg.database import read_recording
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
