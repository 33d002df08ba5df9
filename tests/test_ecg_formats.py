"""Every sample of every format reads to the values of the reference reader, or is refused in one line."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from tests.conftest import DATA, shared_data

FORMATS = DATA / "formats"
SAMPLES = sorted(
    path.relative_to(FORMATS).as_posix() for path in FORMATS.rglob("*") if path.suffix in (".hea", ".edf", ".xml")
) or [pytest.param("", marks=pytest.mark.skip(reason="format samples not found: set HEARTLM_TEST_DATA"))]

REFUSED = {
    "100-no-len.hea": "100.dat: signal file named by 100-no-len.hea is missing",
    "100skew.hea": "100.dat: signal file named by 100skew.hea is missing",
    "1003.hea": "1003.dat: signal file named by 1003.hea is missing",
}
"""Samples that come without their signal file, which the reference reader cannot read either."""


def open_sample(path: Path) -> Recording:
    return read_recording(path, accept_uncalibrated=False)


def reference(path: Path) -> np.ndarray:
    """Physical values in millivolts `[num_leads, num_samples]`, straight from each format's own package."""
    if path.suffix == ".edf":
        edfio = pytest.importorskip("edfio")
        signals = edfio.read_edf(path, header_encoding="latin-1").signals
        return np.stack([s.data / (1000 if s.physical_dimension == "uV" else 1) for s in signals])
    if path.suffix == ".xml":
        digits = re.findall(r"<digits>([^<]*)</digits>", path.read_text(encoding="utf-8"))
        return np.array([lead.split() for lead in digits[:12]], np.float64) * 2.5 / 1000
    record = wfdb.rdrecord(str(path.with_suffix("")), smooth_frames=False)
    if getattr(record, "e_p_signal", None) is None or max(record.samps_per_frame) == 1:
        return wfdb.rdrecord(str(path.with_suffix(""))).p_signal.T
    most = max(record.samps_per_frame)  # other signals are resampled
    return np.stack([row if len(row) == most * record.sig_len else np.full(most * record.sig_len, np.inf)
                     for row in record.e_p_signal])  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str) -> None:
    path = FORMATS / name
    if name in REFUSED:
        with pytest.raises(HeartlmError, match=re.escape(REFUSED[name])) as caught:
            open_sample(path).signal()
        assert "\n" not in str(caught.value)
        return
    recording = open_sample(path)
    whole = recording.signal()
    if recording.num_samples == 0:
        assert name.endswith("_layout.hea"), "only the header that lays out the leads of others has no samples"
        return
    expected = reference(path)
    assert whole.shape == expected.shape
    own = np.isfinite(expected).all(axis=1) | np.isnan(expected).any(axis=1)
    assert own.sum() == sum(step is not None for step in recording.steps) or path.suffix != ".hea"
    whole_own, expected = whole[own], expected[own]
    if path.suffix == ".hea":
        np.testing.assert_array_equal(whole_own, expected.astype(np.float32))
    else:
        np.testing.assert_allclose(whole_own, expected, rtol=1e-6, atol=1e-6)
    start, stop = recording.num_samples // 3, recording.num_samples // 3 + min(1000, recording.num_samples // 3)
    np.testing.assert_array_equal(recording.signal(start, stop), whole[:, start:stop])


@pytest.mark.parametrize("name", ["mitdb/114", "mitdb/207", "cudb/cu01", "cudb/cu35"])
def test_records_of_whole_databases(name: str) -> None:
    path = shared_data(f"{name}.hea")
    np.testing.assert_array_equal(open_sample(path).signal(), reference(path).astype(np.float32))


def test_cinc_mat_file_equals_scipy() -> None:
    from scipy.io import loadmat

    path = shared_data("formats/a103l.mat")
    recording = open_sample(path.with_suffix(".hea"))
    values = loadmat(path)["val"].astype(np.float64)
    header = wfdb.rdheader(str(path.with_suffix("")))
    expected = (values - np.array(header.baseline)[:, np.newaxis]) / np.array(header.adc_gain)[:, np.newaxis]
    expected[values == -32768] = np.nan
    np.testing.assert_allclose(recording.signal(), expected, rtol=1e-6, atol=1e-6)


def test_limb_leads_of_the_aecg_sample_obey_einthoven() -> None:
    pytest.importorskip("ecgdatakit")
    recording = open_sample(shared_data("formats/ecg_hl7.xml"))
    assert recording.rate_hz == 500
    assert recording.units == ("mV",) * 12
    one, two, three = recording.signal(leads=[recording.lead_index(name) for name in ("I", "II", "III")])
    np.testing.assert_allclose(two - one, three, atol=1e-6)


def test_the_aecg_sample_states_its_start_and_subject(tmp_path: Path) -> None:
    pytest.importorskip("ecgdatakit")
    content = shared_data("formats/ecg_hl7.xml").read_text()
    recording = open_sample(shared_data("formats/ecg_hl7.xml"))
    assert recording.start == datetime(2002, 11, 22, 9, 10)
    assert recording.patient == Patient("Clark", "SBJ-123", "male", date(1953, 5, 8))
    assert recording.age == 49
    moment = re.compile(r'"20021122091000(\.000)?"')
    for value in ("20021122", "", "20021322091000"):
        (tmp_path / "r.xml").write_text(moment.sub(f'"{value}"', content))
        assert read_recording(tmp_path / "r.xml").start is None
    (tmp_path / "r.xml").write_text(moment.sub('"20021122091000.25+0100"', content))
    assert read_recording(tmp_path / "r.xml").start == datetime(2002, 11, 22, 9, 10, 0, 250_000)
