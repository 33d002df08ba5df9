from __future__ import annotations

import math
from datetime import date, datetime
from datetime import time as clock_time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.api import open_recording
from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.databases.verify import verify_database
from heartlm.ecg.recording import Note, Patient, Recording, RhythmSpan
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from tests.conftest import Refused, shared_data
from tests.edf_files import Lead, edf_bytes, times

RATE = 100


def digits(num_samples: int, phase: float = 0.0) -> np.ndarray:
    return np.round(6000 * np.sin(np.arange(num_samples) / 7 + phase)).astype(np.int64)


def two_leads(num_records: int = 6) -> list[Lead]:
    return [Lead("ECG II", digits(RATE * num_records)), Lead("ECG V5", digits(RATE * num_records, 1.0))]


def opened(path: Path, content: bytes) -> Recording:
    path.write_bytes(content)
    return read_recording(path)


def marks(texts: list[bytes], size: int = 60, label: str = "EDF Annotations") -> Lead:
    return Lead(label, None, "", "-1", "1", texts=texts, size=size)


def check_values(recording: Recording, leads: list[Lead]) -> None:
    """All samples, and slices of them."""
    whole = recording.signal()
    expected = np.stack([lead.physical() for lead in leads]).astype(np.float32)
    np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-7)
    check_slices(recording)


def check_slices(recording: Recording) -> None:
    whole, random = recording.signal(), np.random.default_rng(1)
    for _ in range(20):
        start, stop = sorted(random.integers(0, recording.num_samples + 1, 2).tolist())
        lead = int(random.integers(recording.num_leads))
        np.testing.assert_array_equal(recording.signal(start, stop, [lead]), whole[lead : lead + 1, start:stop])


@pytest.mark.parametrize(
    ("unit", "factor"), [("mV", 1.0), ("uV", 1e-3), (b"\xb5V", 1e-3), ("µV", 1e-3), ("V\0\0", 1e3)]
)
def test_the_ecg_is_read_and_signals_of_other_rates_are_named(tmp_path: Path, unit: str | bytes, factor: float) -> None:
    leads = two_leads()
    for lead in leads:
        lead.unit = unit
    pulse = Lead("SpO2", np.full(6, 97), "%", "0", "100", "0", "100")
    recording = opened(tmp_path / "r.edf", edf_bytes([*leads, pulse], 6))
    assert (recording.rate_hz, recording.num_samples, recording.units) == (100.0, 600, ("mV", "mV"))
    assert recording.lead_names == ("ECG II", "ECG V5")
    assert recording.comments == ("left out: SpO2 at 1 Hz, not the ECG's 100 Hz",)
    assert recording.repairs == ()
    expected = np.stack([lead.physical() for lead in leads]) * factor
    np.testing.assert_allclose(recording.signal(), expected, rtol=1e-6, atol=1e-6 * factor)
    check_slices(recording)
    assert recording.signal(7, 7).shape == (2, 0)


@pytest.mark.parametrize("num_records", [1, 4, 600])
@pytest.mark.parametrize("width", [2, 3])
def test_records_of_any_length(tmp_path: Path, num_records: int, width: int) -> None:
    """All samples in one record, and one sample in a record."""
    limit = 2 ** (8 * width - 1)
    values = digits(600) * (1 if width == 2 else 200)
    values[[0, 300, 599]] = -limit, limit - 1, -1
    leads = [
        Lead("ECG", values, "uV", "-5000", "5000", str(-limit), str(limit - 1)),
        Lead("EKG 2", values[::-1].copy(), "mV", "5", "-5", str(-limit), str(limit - 1)),
    ]
    duration = f"{6 / num_records:g}"
    recording = opened(tmp_path / "r.bdf", edf_bytes(leads, num_records, width=width, duration=duration))
    assert (recording.rate_hz, recording.num_samples) == (100.0, 600)
    check_values(recording, [Lead("", leads[0].digits, "mV", "-5", "5", str(-limit), str(limit - 1)), leads[1]])


def test_a_long_record_is_read_in_pieces(tmp_path: Path) -> None:
    lead = Lead("ECG", np.arange(200_000) % 30_011)
    recording = opened(tmp_path / "r.edf", edf_bytes([lead, lead], 1, duration="2000"))
    check_values(recording, [lead, lead])


@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([2, 3]),
    num_records=st.integers(1, 5),
    samples=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    limits=st.tuples(st.integers(-900, 900), st.integers(-900, 900)).filter(lambda pair: pair[0] != pair[1]),
)
def test_edfio_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    width: int,
    num_records: int,
    samples: list[int],
    limits: tuple[int, int],
) -> None:
    edfio = pytest.importorskip("edfio")
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("edf") / "r.edf"
    leads = [
        Lead(f"ECG {place}", random.integers(-32768, 32768, num_records * count), "mV", *map(str, limits))
        for place, count in enumerate(samples)
    ]
    recording = opened(path, edf_bytes(leads, num_records, width=width))
    signals = (edfio.read_edf if width == 2 else edfio.read_bdf)(path).signals
    assert recording.lead_names == tuple(signal.label for signal in signals)
    for name, lead, signal in zip(recording.lead_names, recording.signal(), signals, strict=True):
        if signal.sampling_frequency == recording.rate_hz:
            np.testing.assert_allclose(lead, signal.data, rtol=1e-5, atol=1e-5)
        else:
            assert any(repair.startswith(f"lead {name}: resampled") for repair in recording.repairs)


@pytest.mark.parametrize("duration_s", [0.1, 1.0])
def test_times_with_all_decimals_of_a_float(tmp_path: Path, duration_s: float) -> None:
    """edfio writes `+0.42300000000000004`, the start of the fourth data record of 0.1 s after 0.123 s."""
    start = clock_time(1, 2, 3, 123_000)
    edfio = pytest.importorskip("edfio")
    signals = [edfio.EdfSignal(np.sin(np.arange(1000) / 9), 250, label="ECG I", physical_dimension="mV")]
    notes = [edfio.EdfAnnotation(1 / 3, 0.1 + 0.2, "moved"), edfio.EdfAnnotation(2.5, None, "button")]
    file = edfio.Edf(signals, annotations=notes, data_record_duration=duration_s, starttime=start)
    file.write(tmp_path / "r.edf")
    recording = read_recording(tmp_path / "r.edf")
    assert (recording.repairs, recording.start) == ((), start)
    assert recording.annotations is not None
    assert recording.annotations.notes == (Note(83, 158, "moved"), Note(625, 625, "button"))


@pytest.mark.parametrize(
    ("stated", "repair"),
    [
        ("-1", "states -1 data records and holds 6, which are read"),
        ("0", "states 0 data records and holds 6, which are read"),
        ("", "states no data records and holds 6, which are read"),
        ("x7", "states x7 data records and holds 6, which are read"),
        ("9", "states 9 data records and holds 6, which are read"),
        ("99999999", "states 99999999 data records and holds 6, which are read"),
        ("4", "states 4 data records and holds 6; whole ones are read"),
    ],
)
def test_a_wrong_number_of_records_is_replaced(tmp_path: Path, stated: str, repair: str) -> None:
    leads = two_leads()
    recording = opened(tmp_path / "r.edf", edf_bytes(leads, 6, stated=stated))
    assert recording.repairs == (repair,)
    check_values(recording, leads)


def test_bytes_after_the_last_record_are_ignored(tmp_path: Path) -> None:
    leads = two_leads()
    recording = opened(tmp_path / "r.edf", edf_bytes(leads, 6) + b"end")
    assert recording.repairs == ("3 bytes after the last data record are ignored",)
    check_values(recording, leads)


@pytest.mark.parametrize("width", [2, 3])
def test_a_file_that_ends_anywhere_is_read_up_to_there(tmp_path: Path, width: int) -> None:
    leads = [Lead("ECG II", digits(40)), Lead("ECG V5", digits(20)), Lead("EKG", digits(40, 1.0))]
    content, path = edf_bytes(leads, 4, width=width), tmp_path / "r.edf"
    whole, data = opened(path, content).signal(), 256 * 4
    record, lengths = 25 * width, set()
    for size in range(data + 1, len(content)):
        recording = opened(path, content[:size])
        signal = recording.signal()
        lengths.add(recording.num_samples)
        records, rest = divmod(size - data, record)
        assert f"holds {records}" in recording.repairs[0]
        last = min(rest // width, 10), min(max(0, rest // width - 10), 5), min(max(0, rest // width - 15), 10)
        expected = [10 * records + last[0], 10 * records + 2 * last[1], 10 * records + last[2]]
        assert recording.num_samples == max(expected)
        for lead, num_samples in enumerate(expected):
            assert np.isnan(signal[lead, num_samples:]).all()
            # the last samples of the resampled lead depend on those that follow
            kept = num_samples if lead != 1 else max(0, num_samples - 17)
            np.testing.assert_array_equal(signal[lead, :kept], whole[lead, :kept])
            assert not np.isnan(signal[lead, :num_samples]).any()
    assert lengths == set(range(41))


def test_decimal_commas(tmp_path: Path) -> None:
    leads = [Lead("ECG", digits(300), "mV", "-4,5", "4,5"), Lead("ECG 2", digits(300), "mV", "-,5", "1,5E0")]
    recording = opened(tmp_path / "r.edf", edf_bytes(leads, 6, duration="0,5"))
    assert recording.repairs == ("numbers of the header have decimal commas, which are read as points",)
    assert recording.rate_hz == 100
    leads[1].high = "1.5"
    check_values(recording, leads)


@pytest.mark.parametrize(
    ("duration", "samples", "rate_hz"), [("0.333333", 100, 300.0), ("0.9", 100, 1000 / 9), ("7", 1000, 1000 / 7)]
)
def test_a_rounded_duration_gives_a_whole_rate(tmp_path: Path, duration: str, samples: int, rate_hz: float) -> None:
    content = edf_bytes([Lead("ECG", digits(2 * samples))], 2, duration=duration)
    assert opened(tmp_path / "r.edf", content).rate_hz == pytest.approx(rate_hz, rel=1e-12)


def wave(rate_hz: float, num_samples: int) -> np.ndarray:
    time_s = np.arange(num_samples) / rate_hz
    return np.round(9000 * (np.sin(2 * np.pi * 5 * time_s) + np.cos(2 * np.pi * 17 * time_s))).astype(np.int64)


@pytest.mark.parametrize(("own_hz", "count"), [(90, 1), (45, 1), (100, 1), (512, 1)])
def test_an_ecg_lead_of_another_rate_is_resampled(tmp_path: Path, own_hz: int, count: int) -> None:
    leads = [Lead("ECG I", wave(180, 1800)), Lead("ECG II", wave(180, 1800)), Lead("ECG V5", wave(own_hz, own_hz * 10))]
    recording = opened(tmp_path / "r.edf", edf_bytes(leads, 10))
    assert recording.repairs == (f"lead ECG V5: resampled from {own_hz} Hz to 180 Hz",)
    one, _, other = recording.signal()
    inner = slice(60, -60)
    assert np.abs(other[inner] - one[inner]).max() < 0.01 * np.abs(one).max()
    check_slices(recording)
    if own_hz == 90:  # every second sample is one of the file
        np.testing.assert_allclose(other[::2], leads[2].physical(), rtol=1e-5, atol=1e-6)


def test_of_two_rates_the_more_common_then_the_higher_is_kept(tmp_path: Path) -> None:
    fast, slow = Lead("ECG fast", wave(200, 1200)), Lead("ECG slow", wave(100, 600))
    assert opened(tmp_path / "r.edf", edf_bytes([slow, fast], 6)).rate_hz == 200
    assert opened(tmp_path / "r.edf", edf_bytes([slow, fast, slow], 6)).rate_hz == 100


def test_channels_without_a_name_of_an_ecg_may_be_one_and_those_of_other_kinds_are_not(tmp_path: Path) -> None:
    eeg, ecg, belt = (
        Lead("EEG C3-A2", wave(200, 1200)),
        Lead("CH 1", wave(100, 600)),
        Lead("Thorax", wave(50, 300), "uV"),
    )
    recording = opened(tmp_path / "r.edf", edf_bytes([eeg, eeg, ecg, belt], 6))
    assert (recording.rate_hz, recording.lead_names, recording.repairs) == (100, ("CH 1",), ())
    assert len(recording.comments) == 3


def test_gaps_of_a_discontinuous_file_are_invalid_samples(tmp_path: Path) -> None:
    leads, onsets = two_leads(), [0, 1, 4.25, 5.25, 6.25, 100]
    slow = Lead("ECG slow", digits(6 * 50))
    texts = times(onsets, (2, b"+4.75\x150.5\x14lead off\x14\0"), (5, b"+100.5\x14\x14button\x14light\x14\0"))
    content = edf_bytes([*leads, slow, marks(texts)], 6, reserved="EDF+D")
    recording = opened(tmp_path / "r.edf", content)
    gaps = "gaps between its data records (2, 95 s in all) are read as invalid samples"
    assert recording.repairs == ("lead ECG slow: resampled from 50 Hz to 100 Hz", gaps)
    assert recording.num_samples == 10_100
    whole, parts = recording.signal(), [(0, 0, 200), (425, 200, 500), (10_000, 500, 600)]
    for row, lead in zip(whole, leads, strict=False):
        expected = np.full(10_100, np.nan, np.float32)
        for begin, first, last in parts:
            expected[begin : begin + last - first] = lead.physical()[first:last]
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-7)
    assert (np.isnan(whole[2]) == np.isnan(whole[0])).all()
    check_slices(recording)
    notes = recording.annotations.notes if recording.annotations else ()
    assert notes == (Note(475, 525, "lead off"), Note(10_050, 10_050, "button"), Note(10_050, 10_050, "light"))


@pytest.mark.parametrize(
    ("onsets", "repairs", "num_samples"),
    [
        ([0, 1, 2, 3, 4, 5], [], 600),
        ([0.25, 1.25, 2.25, 3.25, 4.25, 5.25], [], 600),
        # a clock that jitters, and one that drifts: nothing is inserted before a hundredth of a second is missing
        ([0, 1.004, 1.996, 3.003, 4, 5.002], [], 600),
        ([0, 1.004, 2.008, 3.012, 4.016, 5.02], ["gaps between its data records (1, 0.012 s"], 601),
        # one time is damaged or missing; the others show that there is no gap
        ([0, 1, 7000, 3, 4, 6], ["1 of 6 data records state no time", "gaps between its data records (1, 1 s"], 700),
        ([0, 1, 0, 3, 4, 6], ["1 of 6 data records state no time", "gaps between its data records (1, 1 s"], 700),
        ([0, 1, None, 3, 4, 6], ["1 of 6 data records state no time", "gaps between its data records (1, 1 s"], 700),
        ([None, 1, 2, 3, 4, 6], ["1 of 6 data records state no time", "gaps between its data records (1, 1 s"], 700),
        # a clock that is set back, and a time that no recording has
        ([0, 1, 2, 3, 0, 1], ["2 of 6 data records state no time"], 600),
        ([0, 1, 2, 3, 4, 10**9], ["1 of 6 data records state no time"], 600),
        ([None] * 6, ["the times of its data records are not readable"], 600),
    ],
)
def test_times_of_records(tmp_path: Path, onsets: list[float | None], repairs: list[str], num_samples: int) -> None:
    leads = two_leads()
    recording = opened(tmp_path / "r.edf", edf_bytes([*leads, marks(times(onsets))], 6, reserved="EDF+D"))
    assert len(recording.repairs) == len(repairs)
    assert all(repair.startswith(begin) for repair, begin in zip(recording.repairs, repairs, strict=True))
    assert recording.num_samples == num_samples
    signal = recording.signal()
    valid = signal[:, ~np.isnan(signal[0])]
    np.testing.assert_allclose(valid, np.stack([lead.physical() for lead in leads]), rtol=1e-6, atol=1e-7)


def test_times_with_decimal_commas(tmp_path: Path) -> None:
    onsets = ["0,5", "1,5", "3,75", "4,75", "5,75", "6,75"]
    content = edf_bytes([*two_leads(), marks(times(onsets, (0, b"+1,25\x150,5\x14here\x14\0")))], 6, reserved="EDF+D")
    recording = opened(tmp_path / "r.edf", content)
    assert recording.repairs == ("gaps between its data records (1, 1.25 s in all) are read as invalid samples",)
    assert recording.annotations is not None and recording.annotations.notes == (Note(75, 125, "here"),)


def test_a_continuous_file_may_drift_by_half_a_second(tmp_path: Path) -> None:
    for onsets, num_samples in (([0, 1.004, 2.008, 3.012, 4.016, 5.02], 600), ([0, 1, 2, 3, 5, 6], 700)):
        content = edf_bytes([*two_leads(), marks(times(onsets))], 6, reserved="EDF+C")
        assert opened(tmp_path / "r.edf", content).num_samples == num_samples


def test_a_discontinuous_file_without_times_is_read_as_one(tmp_path: Path) -> None:
    recording = opened(tmp_path / "r.edf", edf_bytes(two_leads(), 6, reserved="EDF+D"))
    assert recording.repairs == ("marked as discontinuous without the times of its records, which are read as one",)
    assert recording.num_samples == 600


def test_annotations_are_rhythms_beats_and_notes(tmp_path: Path) -> None:
    beats = [
        (record, f"+{record}.{k}\x14{'V' if k == 5 else 'N'}\x14\0".encode()) for record in range(6) for k in (0, 5)
    ]
    others = [
        (0, b"+0\x14(AFIB\x14\0"),
        (2, b"+2\x14(N\x14\0"),
        (3, b"+3.5\x151\x14Ventricular Tachycardia\x14\0"),
        (4, b"+4\x14patient pressed\xc3\xa4\x14\0"),
        (4, b"+4.2\x14AFIB\x14\0"),
        (5, b"-3\x14before\x14\0"),
        (5, b"+60\x14Recording ends\x14\0"),
    ]
    content = edf_bytes([*two_leads(), marks(times(range(6), *others, *beats), 80)], 6, reserved="EDF+C")
    recording = opened(tmp_path / "r.edf", content)
    found = recording.annotations
    assert found is not None
    assert found.sample.tolist() == list(range(0, 600, 50)) and found.symbol.tolist() == ["N", "V"] * 6
    assert found.beats_labelled
    assert found.rhythms == (RhythmSpan(0, 200, "AFIB"), RhythmSpan(200, 350, "N"), RhythmSpan(350, 450, "VT"))
    assert found.notes == (Note(400, 400, "patient pressedä"), Note(420, 420, "AFIB"))
    assert found.ignored == {"before the start": 1, "past the end": 1}
    in_database = open_database(tmp_path).recording("r").annotations
    assert in_database is not None and (in_database.notes, in_database.num_beats) == (found.notes, 12)
    (tmp_path / "database.json").write_text('{"rhythm_labels": false, "beat_labels": false}')
    in_database = open_database(tmp_path).recording("r").annotations
    assert in_database is not None and (in_database.rhythms, in_database.beats_labelled) == ((), False)
    few = edf_bytes([*two_leads(), marks(times(range(6), *others, *beats[:1]), 80)], 6, reserved="EDF+C")
    found = opened(tmp_path / "r.edf", few).annotations
    assert found is not None and found.num_beats == 0 and Note(0, 0, "N") in found.notes
    qrs = [(record, text.replace(b"N", b"QRS").replace(b"V", b"QRS")) for record, text in beats]
    found = opened(tmp_path / "r.edf", edf_bytes([*two_leads(), marks(times(range(6), *qrs))], 6)).annotations
    assert found is not None and found.num_beats == 12 and not found.beats_labelled


def test_notes_in_the_picture_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = (1, b"+1.5\x14two\x14\0"), (2, b"+2\x151\x14three\x1b[2J\x14\0"), (5, b"+5\x14six\x14\0")
    (tmp_path / "r.edf").write_bytes(edf_bytes([*two_leads(), marks(times(range(6), *notes))], 6))
    words = ["data", "show", str(tmp_path / "r"), "--start", "1", "--stop", "3", "--out", str(tmp_path / "r.svg")]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["note at 1.5 s: two", "note at 2.0 s: three?[2J"]


def test_annotations_of_a_second_signal_and_of_bdf(tmp_path: Path) -> None:
    extra = marks([b"", b"+1.5\x14late\x14\0"], 30, "BDF Annotations")
    first = marks(times([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], (0, b"+0.5\x14\xc3\xa4\x14\0")), 30, "BDF Annotations")
    content = edf_bytes([first, *two_leads(), extra], 6, width=3, reserved="BDF+C", day="02.03.24", recording="")
    recording = opened(tmp_path / "r.bdf", content)
    assert recording.annotations is not None
    assert recording.annotations.notes == (Note(0, 0, "ä"), Note(100, 100, "late"))
    assert recording.start == datetime(2024, 3, 2, 0, 0, 0, 500_000)


@pytest.mark.parametrize(
    ("recording", "day", "clock", "start"),
    [
        ("Startdate 02-MAR-2002 X X X", "02.03.02", "13.45.06", datetime(2002, 3, 2, 13, 45, 6)),
        ("Startdate 02-MAR-2002 X X X", "01.01.85", "00.00.00", datetime(2002, 3, 2)),
        ("Startdate 31-FEB-2024 X X X", "05.03.24", "08.31.07", datetime(2024, 3, 5, 8, 31, 7)),
        ("Startdate 05-MRZ-2024 X X X", "05.03.24", "08.31.07", datetime(2024, 3, 5, 8, 31, 7)),
        ("Startdate 31-FEB-2024 X X X", "31.02.24", "08.31.07", clock_time(8, 31, 7)),
        ("Startdate X X X X", "01.01.85", "00.00.00", None),
        ("Startdate X X X X", "02.03.02", "13.45.06", clock_time(13, 45, 6)),
        ("", "02.03.84", "13.45.06", datetime(2084, 3, 2, 13, 45, 6)),
        ("", "02/03/24", "13:45:06", datetime(2024, 3, 2, 13, 45, 6)),
        ("ward 7", "02.03.99", "00.00.00", datetime(1999, 3, 2)),
        ("ward 7", "01.01.85", "13.45.06", clock_time(13, 45, 6)),
        ("ward 7", "00.00.00", "00.00.00", None),
        ("ward 7", "00.00.00", "23.59.59", clock_time(23, 59, 59)),
        ("ward 7", "02.03.02", "XX.YY.ZZ", None),
        ("ward 7", "02.03.02", "24.00.00", None),
    ],
)
def test_the_start_is_known_unless_it_is_a_placeholder(
    tmp_path: Path, recording: str, day: str, clock: str, start: datetime | clock_time | None
) -> None:
    content = edf_bytes(two_leads(), 6, recording=recording, day=day, clock=clock)
    assert opened(tmp_path / "r.edf", content).start == start


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
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_patient_is_read_as_edf_plus_or_as_plain_text(
    tmp_path: Path, text: str, patient: Patient, encoding: str
) -> None:
    content = edf_bytes(two_leads(), 6, recording="Startdate 02-MAR-2002 X X X", day="02.03.02", clock="13.45.06")
    recording = opened(tmp_path / "r.edf", content[:8] + text.encode(encoding).ljust(80) + content[88:])
    assert recording.patient == patient
    assert recording.age == (50 if patient.birth_date else None)


def test_a_lead_without_a_range_is_left_out(tmp_path: Path) -> None:
    leads = [*two_leads(), Lead("ECG V1", digits(600), "mV", "0", "0"), Lead("ECG V2", digits(600), "mV", "", "")]
    leads += [Lead("-", digits(600), "", "0", "0", "0", "0"), Lead("none", np.empty(0, np.int64))]
    recording = opened(tmp_path / "r.edf", edf_bytes(leads, 6))
    assert recording.lead_names == ("ECG II", "ECG V5")
    assert [repair.split()[-5:] for repair in recording.repairs] == [["range", "and", "is", "left", "out"]] * 3
    assert len(recording.comments) == 4
    check_values(recording, leads[:2])
    with pytest.raises(HeartlmError, match="ECG V1 states no physical or digital range"):
        opened(tmp_path / "r.edf", edf_bytes(leads[2:3], 6))


def test_a_wrong_length_of_the_header_is_named(tmp_path: Path) -> None:
    content = edf_bytes(two_leads(), 6)
    recording = opened(tmp_path / "r.edf", content[:184] + b"512     " + content[192:])
    assert recording.repairs == ("states a header of 512 bytes; 2 signals have 768",)
    check_values(recording, two_leads())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not readable as an EDF file"),
        (b"garbage" * 200, "not readable as an EDF file"),
        (edf_bytes(two_leads(), 6)[:100], "not readable as an EDF file"),
        (edf_bytes(two_leads(), 6)[:700], "a header of 2 signals in 700 bytes"),
        (edf_bytes(two_leads(), 6)[:768], "ends with its header; the samples are missing"),
        (edf_bytes(two_leads(), 6, duration="0"), "states no duration of a data record"),
        (edf_bytes(two_leads(), 6, duration="-1"), "states no duration of a data record"),
        (edf_bytes(two_leads(), 6, duration="1e9"), "sampling rate is 1e-07"),
        (edf_bytes([marks(times(range(6)))], 6, duration="0"), "holds no signals, only annotations"),
        (edf_bytes([Lead("ECG", digits(600), high="1e30")], 6), "lead ECG has gain"),
        (edf_bytes(two_leads(), 6)[:252] + b"x   " + edf_bytes(two_leads(), 6)[256:], "a header of x signals"),
    ],
)
def test_what_does_not_tell_where_the_samples_are_is_refused_in_one_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    with pytest.raises(HeartlmError, match=reason) as caught:
        opened(tmp_path / "r.edf", content)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(tmp_path))


def test_repairs_are_warned_of_once_listed_and_refused_when_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    (folder / "r.edf").write_bytes(edf_bytes(two_leads(20), 20, stated="-1"))
    repair = "states -1 data records and holds 20, which are read"
    assert [(finding.severity, finding.message) for finding in verify_database(folder)] == [("warning", repair)]
    assert main(["data", "verify", str(folder)]) == 1
    assert capfd.readouterr().err == ""
    with pytest.raises(HeartlmError, match=repair):
        open_recording(folder / "r.edf", strict=True)
    assert open_recording(folder / "r.edf").repairs == (repair,)
    show = ["data", "show", str(folder / "r"), "--out", str(tmp_path / "r.svg")]
    assert main(show) == 0
    assert capfd.readouterr().err == f"warning: {folder / 'r.edf'}: {repair}\n"
    assert main([*show, "--strict"]) == 2
    assert repair in capfd.readouterr().err
    tokenize = ["tokenize", str(folder), "--tokenizer", "sample", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main([*tokenize, "--strict"]) == 2
    assert repair in capfd.readouterr().err
    (folder / "database.json").write_text('{"splits": {"r": "train"}}')
    assert main(tokenize) == 0
    assert "damaged or repaired, and used: 1 recordings" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "num_samples", "repairs"),
    [
        ("bdf", 7200, 0),
        ("edf-diff-rates", 7200, 1),
        ("edf-nrec-1", 7200, 1),
        ("edf-plus-d-gap", 14400, 1),
        ("edf-truncated", 5040, 1),
    ],
)
def test_samples_of_odd_files_hold_the_beginning_of_mitdb_100(name: str, num_samples: int, repairs: int) -> None:
    (path,) = shared_data(f"inputs/{name}").glob("e.*df")
    recording = read_recording(path)
    assert (recording.num_samples, len(recording.repairs)) == (num_samples, repairs)
    original = read_recording(shared_data("mitdb/100.hea")).signal(0, 7200)
    signal = recording.signal()
    if name == "edf-plus-d-gap":
        signal = signal[:, ~np.isnan(signal[0])]
    lengths = [int(np.isfinite(lead).sum()) for lead in signal]
    for lead, expected, length in zip(signal, original, lengths, strict=False):
        tolerance = 0.001 if name != "edf-diff-rates" else 0.05  # every second sample was taken without a filter
        assert math.isclose(np.abs(lead[:length] - expected[:length]).max(), 0, abs_tol=tolerance)


def test_units_that_a_file_does_not_state_are_those_of_the_user(tmp_path: Path) -> None:
    digits = np.arange(256) * 10
    leads = [Lead("II", digits, "", "-32767", "32767"), Lead("V5", digits, "mV"), Lead("Temp", digits, "degC")]
    (tmp_path / "r.edf").write_bytes(edf_bytes(leads, 1))
    plain, stated = open_recording(tmp_path / "r.edf"), open_recording(tmp_path / "r.edf", units="200(1000)/mV")
    assert (plain.units, stated.units) == (("", "mV", "degC"), ("mV", "mV", "degC"))
    np.testing.assert_allclose(stated.signal(leads=["II"])[0], (digits - 1000) / 200, atol=1e-6)
    np.testing.assert_array_equal(stated.signal(leads=["V5", "Temp"]), plain.signal(leads=["V5", "Temp"]))
    assert stated.steps[0] == pytest.approx((200, 1000))
    one = open_recording(tmp_path / "r.edf", units="uV", leads="II")
    np.testing.assert_allclose(one.signal()[0], digits / 1000, atol=1e-6)
    with pytest.raises(HeartlmError, match="leave --units out"):
        open_recording(tmp_path / "r.edf", units="uV", leads=["V5"])


def test_a_lead_without_a_unit_is_named_with_the_option(tmp_path: Path, refused: Refused) -> None:
    digits = np.round(1000 * np.sin(np.arange(2560) / 20)).astype(np.int64)
    (tmp_path / "r.edf").write_bytes(edf_bytes([Lead("ECG", digits, "", "-32767", "32767")], 10))
    line = refused("analyze", tmp_path / "r.edf", "--out", tmp_path / "out")
    assert "no ECG lead (ECG in no unit: give --units)" in line
