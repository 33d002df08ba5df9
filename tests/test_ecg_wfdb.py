from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.api import open_recording
from heartlm.databases.verify import verify_database
from heartlm.ecg.recording import Patient, Recording
from heartlm.errors import HeartlmError
from heartlm.formats import wfdb_header
from heartlm.formats.wfdb import read_wfdb, sums_of
from heartlm.formats.wfdb_header import read_header
from tests.conftest import shared_data

RATE_HZ = 250
NUM_SAMPLES = 1000


def write_record(folder: Path, fmt: str = "16", units: str = "mV", name: str = "r") -> np.ndarray:
    """Write a two-lead record and return its physical values `[2, 1000]` as stored."""
    time_s = np.arange(NUM_SAMPLES) / RATE_HZ
    signal = np.stack([np.sin(7 * time_s), np.cos(3 * time_s)], axis=1)
    wfdb.wrsamp(
        name,
        RATE_HZ,
        [units] * 2,
        ["MLII", "V5"],
        p_signal=signal,
        fmt=[fmt] * 2,
        adc_gain=[200.0] * 2,
        baseline=[0] * 2,
        write_dir=str(folder),
    )
    return wfdb.rdrecord(str(folder / name)).p_signal.T


def edit_header(folder: Path, old: str, new: str) -> None:
    path = folder / "r.hea"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def refusal(folder: Path) -> str:
    with pytest.raises(HeartlmError) as caught:
        read_wfdb(folder / "r.hea").signal()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("fmt", ["16", "24", "32", "80", "212", "508", "516"])
def test_values_and_slices_equal_the_reference_reader(tmp_path: Path, fmt: str) -> None:
    if fmt in ("508", "80"):
        pytest.importorskip("soundfile")
        signal = np.stack([np.arange(NUM_SAMPLES) % 100, np.arange(NUM_SAMPLES) % 77], axis=1) / 200
        wfdb.wrsamp("r", RATE_HZ, ["mV"] * 2, ["a", "b"], p_signal=signal, fmt=[fmt] * 2, adc_gain=[200.0] * 2,
                    baseline=[0] * 2, write_dir=str(tmp_path))  # fmt: skip
        expected = wfdb.rdrecord(str(tmp_path / "r")).p_signal.T
    else:
        expected = write_record(tmp_path, fmt)
    recording = read_wfdb(tmp_path / "r.hea")
    whole = recording.signal()
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, expected, atol=1e-6)
    for start, stop in [(0, 1), (1, 2), (101, 404), (998, 1000), (500, 500)]:
        np.testing.assert_array_equal(recording.signal(start, stop), whole[:, start:stop])
        np.testing.assert_array_equal(recording.signal(start, stop, [1, 0, 1]), whole[[1, 0, 1], start:stop])


def test_a_range_in_seconds_is_that_in_samples(tmp_path: Path) -> None:
    write_record(tmp_path)
    recording = read_wfdb(tmp_path / "r.hea")
    np.testing.assert_array_equal(recording.signal(start_s=0.5, stop_s=2), recording.signal(125, 500))
    np.testing.assert_array_equal(recording.signal(start_s=3.9981, leads=["V5"]), recording.signal(1000, leads=["V5"]))
    np.testing.assert_array_equal(recording.signal(250, stop_s=2), recording.signal(250, 500))
    for bad in ({"stop_s": 5}, {"start_s": -1}, {"start_s": 2, "stop_s": 1}, {"start_s": np.nan}, {"stop_s": np.inf}):
        with pytest.raises(HeartlmError, match="asked for"):
            recording.signal(**bad)
    for both in ({"start": 5, "start_s": 1}, {"stop": 5, "stop_s": 1}):
        with pytest.raises(HeartlmError, match="start and stop in samples, or start_s and stop_s in seconds"):
            recording.signal(**both)


def test_a_slice_of_difference_format_is_summed_from_the_start() -> None:
    path = shared_data("formats/binformats.hea")
    recording = read_wfdb(path)
    assert read_header(path).signals[0].format == "8"
    np.testing.assert_array_equal(recording.signal(200, 300), recording.signal()[:, 200:300])


@pytest.mark.parametrize(("units", "factor"), [("mV", 1.0), ("uV", 1e-3), ("V", 1e3)])
def test_voltages_become_millivolts(tmp_path: Path, units: str, factor: float) -> None:
    expected = write_record(tmp_path, units=units)
    recording = read_wfdb(tmp_path / "r.hea")
    assert recording.units == ("mV", "mV")
    np.testing.assert_allclose(recording.signal(), expected * factor, rtol=1e-6)


def test_micro_sign_is_not_lost(tmp_path: Path) -> None:
    expected = write_record(tmp_path)
    edit_header(tmp_path, "/mV", "/µV")
    np.testing.assert_allclose(read_wfdb(tmp_path / "r.hea").signal(), expected / 1000, rtol=1e-6)


def test_other_units_stay(tmp_path: Path) -> None:
    expected = write_record(tmp_path, units="mmHg")
    recording = read_wfdb(tmp_path / "r.hea")
    assert recording.units == ("mmHg", "mmHg")
    np.testing.assert_allclose(recording.signal(), expected, rtol=1e-6)


def test_invalid_samples_are_nan(tmp_path: Path) -> None:
    write_record(tmp_path)
    content = bytearray((tmp_path / "r.dat").read_bytes())
    content[40:42] = (-32768).to_bytes(2, "little", signed=True)
    (tmp_path / "r.dat").write_bytes(content)
    assert np.argwhere(np.isnan(read_wfdb(tmp_path / "r.hea").signal())).tolist() == [[0, 10]]


def test_truncated_signal_file(tmp_path: Path) -> None:
    write_record(tmp_path)
    content = (tmp_path / "r.dat").read_bytes()
    (tmp_path / "r.dat").write_bytes(content[:2000])
    message = refusal(tmp_path)
    assert "r.dat: holds 500 samples a lead, r.hea says 1000" in message


def test_missing_signal_file_is_named(tmp_path: Path) -> None:
    write_record(tmp_path)
    (tmp_path / "r.dat").unlink()
    assert f"{tmp_path / 'r.dat'}: signal file named by r.hea is missing" in refusal(tmp_path)


def test_header_that_claims_too_much(tmp_path: Path) -> None:
    write_record(tmp_path)
    edit_header(tmp_path, "250 1000", "250 9000")
    assert "holds 1000 samples a lead, r.hea says 9000" in refusal(tmp_path)


def test_header_that_claims_too_little(tmp_path: Path) -> None:
    write_record(tmp_path)
    edit_header(tmp_path, "250 1000", "250 400")
    assert "r.hea says 400 and its checksum does not fit" in refusal(tmp_path)


def test_a_longer_file_is_fine_where_the_checksum_vouches_for_the_header(tmp_path: Path) -> None:
    expected = write_record(tmp_path)
    with (tmp_path / "r.dat").open("ab") as stream:
        stream.write(bytes(4000))
    np.testing.assert_allclose(read_wfdb(tmp_path / "r.hea").signal(), expected, atol=1e-6)


def test_header_without_length_takes_it_from_the_file(tmp_path: Path) -> None:
    expected = write_record(tmp_path)
    edit_header(tmp_path, "250 1000", "250")
    recording = read_wfdb(tmp_path / "r.hea")
    assert recording.num_samples == NUM_SAMPLES
    np.testing.assert_allclose(recording.signal(), expected, atol=1e-6)


@pytest.mark.parametrize("length", [" 0", ""])
@pytest.mark.parametrize(
    "name",
    ["100_3chan", "3000003_0003", "310derive", "311derive_3", "a103l", "binformats", "flacformats", "mixedsignals"],
)
def test_a_length_of_0_is_not_stated_in_any_format(tmp_path: Path, name: str, length: str) -> None:
    header = shared_data(f"formats/{name}.hea")
    lines = header.read_text().splitlines()
    for path in header.parent.iterdir():
        if path.is_file() and path.name in "\n".join(lines[1:]):
            (tmp_path / path.name).symlink_to(path)
    place = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    words = lines[place].split()
    lines[place] = " ".join(words[:3]) + length
    (tmp_path / "r.hea").write_text("\n".join(lines) + "\n")
    recording = read_wfdb(tmp_path / "r.hea")
    per_frame = max(signal.samples_per_frame for signal in read_header(header).signals)
    assert recording.num_samples == per_frame * int(words[3])
    np.testing.assert_array_equal(recording.signal(), read_wfdb(header).signal())


def test_the_sample_with_a_length_of_0_is_mitdb_100() -> None:
    signal = read_wfdb(shared_data("inputs/length-0/r5.hea")).signal()
    np.testing.assert_allclose(signal, read_wfdb(shared_data("mitdb/100.hea")).signal(0, 7200), atol=1e-6)


@pytest.mark.parametrize("gain", ["0(0)/mV", "0"])
def test_gain_of_zero_is_refused_unless_the_database_is_known_for_it(tmp_path: Path, gain: str) -> None:
    expected = write_record(tmp_path)
    edit_header(tmp_path, "200.0(0)/mV", gain)
    assert "r.hea: lead MLII has gain 0 (uncalibrated)" in refusal(tmp_path)
    np.testing.assert_allclose(read_wfdb(tmp_path / "r.hea", accept_uncalibrated=True).signal(), expected, atol=1e-6)


def test_units_that_a_header_does_not_state_are_those_of_the_user(tmp_path: Path) -> None:
    for calibration, unit in (("0", "200/mV"), ("200.0(0)/adu", "mV")):
        expected = write_record(tmp_path)
        edit_header(tmp_path, "200.0(0)/mV", calibration)
        recording = open_recording(tmp_path / "r", units=unit)
        np.testing.assert_allclose(recording.signal(), expected, atol=1e-6)
        assert set(recording.units) == {"mV"}
        gains = {gain for gain, _ in recording.steps}
        assert gains == {200.0}
    with pytest.raises(HeartlmError, match="units: 3 for 2 leads"):
        open_recording(tmp_path / "r", units=["mV"] * 3)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("r 2 250 1000", "r 3 250 1000", "3 signals announced, 2 described"),
        ("r 2 250 1000", "r 2 0 1000", "sampling rate is 0, expected"),
        ("r 2 250 1000", "nonsense", "not readable as a WFDB record"),
        (" 16 ", " 999 ", "signal format 999"),
        ("r.dat", "r\x00.dat", r"names the file 'r\x00.dat'"),
        ("r.dat 16", "r.dat", "expected: file name, format"),
        ("200.0(0)/mV", "1e999(0)/mV", "expected a finite gain and baseline"),
        ("r 2 250 1000", "r 2 1e999 1000", "sampling rate is inf, expected"),
    ],
)
def test_malformed_headers(tmp_path: Path, old: str, new: str, reason: str) -> None:
    write_record(tmp_path)
    edit_header(tmp_path, old, new)
    assert reason in refusal(tmp_path)


@pytest.mark.parametrize(
    ("stated", "start"),
    [
        ("8:04:00", time(8, 4)),
        ("19:46:25.757", time(19, 46, 25, 757_000)),
        ("10:44:18.5 04/05/2704", datetime(2704, 5, 4, 10, 44, 18, 500_000)),
        ("0:00:00 25/4/1989", datetime(1989, 4, 25)),
        ("13:5:0 00/00/0000 more", time(13, 5)),
        ("0:00:00 00/00/0000", None),
        ("0:00:00", None),
        ("25:00:00 25/4/1989", None),
        ("05-Feb-2020 11:39:16", None),  # headers of the CinC challenges, the time of the conversion
        ("13:05", None),
    ],
)
def test_the_start_is_that_of_the_record_line(tmp_path: Path, stated: str, start: datetime | time | None) -> None:
    write_record(tmp_path)
    edit_header(tmp_path, "r 2 250 1000", f"r 2 250 1000 {stated}")
    recording = read_wfdb(tmp_path / "r.hea")
    assert (recording.start, recording.num_samples) == (start, 1000)


@pytest.mark.parametrize(
    ("comments", "age", "sex"),
    [
        ("# 69 M 1085 1629 x1\n# Aldomet, Inderal", 69, "male"),
        ("# 23 F 2546 N/A x1", 23, "female"),
        ("# -1 M 742 654 x1", None, "male"),
        ("#<age>: 71\n#<sex>: F\n#<diagnoses>:", 71, "female"),
        ("# <age>: 40  <sex>: M  <diagnoses> none", 40, "male"),
        ("# <age>: ??  <sex>: ?", None, ""),
        ("#Age: 74\n#Sex: Male\n#Dx: 426783006", 74, "male"),
        ("#Age: 300\n#Sex: Unknown", None, ""),
        ("# Age: 6 months", None, ""),
        ("# Smoking since age: 20\n# 20 F in the waiting room", None, ""),
        ("# Digoxin\n# 69 M", None, ""),
    ],
)
def test_age_and_sex_are_read_where_the_form_is_certain(
    tmp_path: Path, comments: str, age: int | None, sex: str
) -> None:
    write_record(tmp_path)
    with (tmp_path / "r.hea").open("a") as stream:
        stream.write(f"{comments}\n")
    assert read_wfdb(tmp_path / "r.hea").patient == Patient(sex=sex, age=age)


def test_clock_times_count_days_without_a_date() -> None:
    recording = Recording(rate_hz=1, num_samples=1, path=Path("r"), start=time(23, 59, 58, 600_000))
    assert [recording.clock_time(s) for s in (0, 0.8, 1.5, 86_401.5)] == [
        "23:59:59",
        "23:59:59",
        "day 2 00:00:00",
        "day 3 00:00:00",
    ]
    assert recording.clock_time(1.4996, 3) == "day 2 00:00:00.100"
    dated = replace(recording, start=datetime(2024, 2, 28, 23, 59, 58))
    assert [dated.clock_time(s) for s in (1, 3, 86_403)] == [
        "2024-02-28 23:59:59",
        "2024-02-29 00:00:01",
        "2024-03-01 00:00:01",
    ]
    assert replace(recording, start=None).clock_time(5) is None
    assert replace(recording, start=datetime(9999, 12, 31)).clock_time(1e12) is None


def test_the_age_follows_from_the_dates_and_an_anonymous_recording_has_neither() -> None:
    patient = Patient("A B", "7", "female", birth_date=date(1960, 3, 2))
    recording = Recording(rate_hz=1, num_samples=1, path=Path("r"), start=datetime(2024, 3, 1, 13), patient=patient)
    assert recording.age == 63
    assert replace(recording, start=datetime(2024, 3, 2, 13)).age == 64
    assert replace(recording, start=time(13)).age is None
    hidden = replace(recording, comments=("<name>: A B",)).anonymous()
    assert (hidden.patient, hidden.age, hidden.start, hidden.comments) == (Patient(), None, time(13), ())


def test_an_empty_header(tmp_path: Path) -> None:
    (tmp_path / "r.hea").write_text("")
    assert "not readable as a WFDB record" in refusal(tmp_path)


def test_skew_shifts_each_lead_and_pads_with_nan(tmp_path: Path) -> None:
    expected = write_record(tmp_path)
    lines = (tmp_path / "r.hea").read_text().splitlines()
    lines[2] = lines[2].replace(" 16 ", " 16:3 ")
    (tmp_path / "r.hea").write_text("\n".join(lines) + "\n")
    recording = read_wfdb(tmp_path / "r.hea")
    whole = recording.signal()
    np.testing.assert_allclose(whole[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(whole[1, :-3], expected[1, 3:], atol=1e-6)
    assert np.isnan(whole[1, -3:]).all()
    np.testing.assert_array_equal(recording.signal(990, 999), whole[:, 990:999])


def test_skewed_sample_equals_the_reference_reader(tmp_path: Path) -> None:
    shutil.copy(shared_data("formats/100skew.hea"), tmp_path / "100skew.hea")
    (tmp_path / "100.dat").symlink_to(shared_data("mitdb/100.dat").resolve())
    expected = wfdb.rdrecord(str(tmp_path / "100skew")).p_signal.T
    np.testing.assert_allclose(read_wfdb(tmp_path / "100skew.hea").signal(), expected, atol=1e-6)


def test_headerless_length_of_a_packed_format(tmp_path: Path) -> None:
    shutil.copy(shared_data("formats/100-no-len.hea"), tmp_path / "100-no-len.hea")
    (tmp_path / "100.dat").symlink_to(shared_data("mitdb/100.dat").resolve())
    assert read_wfdb(tmp_path / "100-no-len.hea").num_samples == 650_000


@pytest.mark.parametrize("piece_bytes", [1, 7, 64])
@pytest.mark.parametrize("name", ["100_3chan", "a103l", "3000003_0003", "s0010_re", "binformats"])
def test_a_file_read_in_pieces_gives_the_same(name: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = read_wfdb(shared_data(f"formats/{name}.hea"))
    start, stop = 101, 499
    expected = recording.signal(start, stop)
    monkeypatch.setattr(wfdb_header, "_CHUNK_BYTES", piece_bytes)
    np.testing.assert_array_equal(recording.signal(start, stop), expected)


def test_a_lead_read_whole_that_does_not_sum_to_its_checksum_is_noted_once(tmp_path: Path) -> None:
    write_record(tmp_path)
    content = bytearray((tmp_path / "r.dat").read_bytes())
    content[0] ^= 1
    (tmp_path / "r.dat").write_bytes(content)
    recording = read_wfdb(tmp_path / "r.hea")
    recording.signal(0, 999)
    recording.signal(leads=[1])
    assert recording.faults == []
    recording.signal()
    recording.signal(leads=[0])
    header = read_header(recording.path)
    stated, computed = header.signals[0].checksum, sums_of(header)[0]
    assert stated != computed
    assert recording.faults == [f"lead MLII: the header's checksum is {stated}, its samples sum to {computed}"]


def test_common_formats_are_read_without_the_wfdb_package(tmp_path: Path) -> None:
    write_record(tmp_path, "212")
    wfdb.wrann("r", "atr", np.array([100]), ["N"], write_dir=str(tmp_path))
    script = f"""
import sys
from pathlib import Path
from heartlm.databases.verify import verify_database
assert verify_database(Path({str(tmp_path)!r})) == []
print([name for name in ("wfdb", "pandas", "scipy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


HEADER_PARTS = (
    "r r.dat ~ r/2 1 2 0 250 1000 99999999999999999999 16 212 8 516 16x2 80:3 24+1 999 "
    "200(0)/mV 200 0 -5 1e999 (7 /uV nan MLII # ² é \x00"
)
header_parts = st.sampled_from([*HEADER_PARTS.split(" "), *"  \n\n"])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.lists(header_parts, max_size=30).map(" ".join).map(str.encode),
        st.lists(header_parts, max_size=20).map(lambda parts: b"r 1 250 9\nr.dat 16 " + " ".join(parts).encode()),
    )
)
def test_any_header_is_read_or_refused_in_one_line(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        Path(folder, "r.dat").write_bytes(bytes(range(40)))
        Path(folder, "r.hea").write_bytes(content)
        try:
            recording = read_wfdb(Path(folder, "r.hea"))
            signal = recording.signal() if recording.has_signal else None
        except HeartlmError as error:
            assert "\n" not in str(error)
            return
    assert signal is None or signal.shape == (recording.num_leads, recording.num_samples)


@pytest.mark.parametrize("fmt", ["16", "24", "32", "212"])
def test_a_file_that_ends_early_is_refused_wherever_it_ends(tmp_path: Path, fmt: str) -> None:
    write_record(tmp_path, fmt)
    content = (tmp_path / "r.dat").read_bytes()
    for length in (0, 1, 2, 3, 1000, *range(len(content) - 4, len(content))):
        (tmp_path / "r.dat").write_bytes(content[:length])
        assert "r.dat: holds" in refusal(tmp_path) and "r.hea says 1000" in refusal(tmp_path)


def test_headers_of_all_formats_say_what_the_reference_package_reads() -> None:
    for path in sorted(shared_data("formats").rglob("*.hea")):
        header, reference = read_header(path), wfdb.rdheader(str(path.with_suffix("")))
        assert (header.rate_hz, header.stated_samples) == (reference.fs, reference.sig_len), path
        assert list(header.comments) == reference.comments, path
        if header.segment_lines:
            assert [list(line) for line in header.segment_lines] == [
                list(line) for line in zip(reference.seg_name, reference.seg_len, strict=True)
            ]
            continue
        stated = [
            (
                *line[:2],
                line.samples_per_frame,
                line.skew,
                line.byte_offset,
                line.gain,
                line.baseline,
                line.unit,
                line.name,
            )
            for line in header.signals
        ]
        fields = zip(
            *(reference.file_name, reference.fmt, reference.samps_per_frame, reference.skew, reference.byte_offset),
            *(reference.adc_gain, reference.baseline, reference.units, reference.sig_name),
            strict=True,
        )
        assert stated == [(a, b, c or 1, d or 0, e or 0, *rest) for a, b, c, d, e, *rest in fields], path
        assert [line.checksum for line in header.signals] == [value % 65536 for value in reference.checksum], path


@pytest.mark.parametrize("name", ["mitdb/208", "cudb/cu01", "formats/a103l", "formats/v102s", "formats/binformats"])
def test_sums_of_real_records_equal_those_of_the_reference_reader(name: str) -> None:
    path = shared_data(f"{name}.hea")
    record = wfdb.rdrecord(str(path.with_suffix("")), physical=False)
    assert sums_of(read_header(path)) == (record.d_signal.astype(np.int64).sum(axis=0) % 65536).tolist()


def test_record_100() -> None:
    recording = read_wfdb(shared_data("mitdb/100.hea"))
    assert (recording.num_samples, recording.rate_hz, recording.lead_names) == (650_000, 360.0, ("MLII", "V5"))
    assert recording.duration_s == pytest.approx(1805.6, abs=0.1)
    np.testing.assert_allclose(recording.signal(0, 3), [[-0.145] * 3, [-0.065] * 3], atol=1e-6)
    header = read_header(recording.path)
    assert [signal.checksum for signal in header.signals] == sums_of(header)


def write_frames(folder: Path, fmt: str, frame_hz: float = 62.4725, skew: str = "") -> dict[str, np.ndarray]:
    """Write two ECG leads with four samples a frame between slower signals; return the integers of each signal."""
    rng, num_frames = np.random.default_rng(0), 501
    signals = {name: rng.integers(-100, 100, num_frames * each)
               for name, each in (("Resp", 1), ("II", 4), ("Pleth", 2), ("V", 4))}  # fmt: skip
    frames = np.concatenate([values.reshape(num_frames, -1) for values in signals.values()], axis=1).astype(np.int16)
    flat = frames.ravel()
    if fmt == "212":
        flat = np.append(flat, np.zeros(len(flat) % 2, np.int16)).reshape(-1, 2) & 0xFFF
        content = np.stack([flat[:, 0] & 255, flat[:, 0] >> 8 | flat[:, 1] >> 8 << 4, flat[:, 1] & 255], 1)
        (folder / "r.dat").write_bytes(content.astype(np.uint8).tobytes())
    else:
        (folder / "r.dat").write_bytes((flat + 128).astype(np.uint8).tobytes() if fmt == "80" else flat.tobytes())
    lines = [f"r {len(signals)} {frame_hz} {num_frames}"]
    for name, values in signals.items():
        unit, of_skew = ("mV" if name in ("II", "V") else "NU"), (skew if name == "V" else "")
        form = f"{fmt}x{len(values) // num_frames}{of_skew}"
        lines.append(f"r.dat {form} 100/{unit} 12 0 0 {int(values.sum()) % 65536} 0 {name}")
    (folder / "r.hea").write_text("\n".join(lines) + "\n")
    return signals


@pytest.mark.parametrize("fmt", ["16", "212", "80"])
def test_leads_with_several_samples_a_frame_have_all_of_them(tmp_path: Path, fmt: str) -> None:
    signals = write_frames(tmp_path, fmt)
    recording = read_wfdb(tmp_path / "r.hea")
    assert (recording.rate_hz, recording.num_samples) == (4 * 62.4725, 2004)
    assert recording.repairs == (
        "lead Resp: resampled from 62.4725 Hz to 249.89 Hz",
        "lead Pleth: resampled from 124.945 Hz to 249.89 Hz",
    )
    whole = recording.signal()
    reference = wfdb.rdrecord(str(tmp_path / "r"), smooth_frames=False).e_p_signal
    for lead, row in ((1, 0), (3, 1)):
        np.testing.assert_allclose(whole[lead], reference[lead], atol=1e-6)
        np.testing.assert_allclose(whole[lead], signals[("II", "V")[row]] / 100, atol=1e-6)
    assert sums_of(read_header(tmp_path / "r.hea")) == [int(each.sum()) % 65536 for each in signals.values()]
    assert recording.faults == []
    for start, stop in [(0, 1), (1, 2), (3, 9), (101, 404), (2001, 2004), (500, 500)]:
        np.testing.assert_allclose(recording.signal(start, stop), whole[:, start:stop], atol=1e-6)
        np.testing.assert_array_equal(recording.signal(start, stop, [3, 1]), whole[[3, 1], start:stop])
    # band-limited: samples of the slower signal are where they were
    np.testing.assert_allclose(whole[2, ::2], reference[2], atol=1e-4)
    np.testing.assert_allclose(whole[0, ::4], reference[0], atol=1e-4)
    assert recording.steps[0] is None and recording.steps[1] == (100.0, 0.0)


def test_a_skew_of_leads_with_several_samples_a_frame_is_in_frames(tmp_path: Path) -> None:
    signals = write_frames(tmp_path, "16", skew=":3")
    whole = read_wfdb(tmp_path / "r.hea").signal(leads=["V"])[0]
    np.testing.assert_allclose(whole[:-12], signals["V"][12:] / 100, atol=1e-6)
    assert np.isnan(whole[-12:]).all()


@pytest.mark.parametrize("stated", ["", "## time resolution: 249.89"])
def test_annotations_of_frames_are_where_they_were(tmp_path: Path, stated: str) -> None:
    """Ticks are frames unless the file states another resolution; conversions keep places and samples."""
    signals = write_frames(tmp_path, "16")
    ticks = np.array([25, 76, 130]) * (4 if stated else 1)
    note = {"custom_labels": None}
    samples, symbols, texts = [0, *ticks], ['"', "N", "V", "N"], [stated, "", "", ""]
    first = 0 if stated else 1
    wfdb.wrann(
        "r", "atr", np.array(samples[first:]), symbols[first:], aux_note=texts[first:], write_dir=str(tmp_path), **note
    )
    recording = open_recording(tmp_path / "r")
    assert recording.annotations is not None
    assert recording.annotations.sample.tolist() == [100, 304, 520]
    assert not [each for each in verify_database(tmp_path) if each.severity == "error"]
    recording.to_wfdb(tmp_path / "copy")
    copy = open_recording(tmp_path / "copy/r")
    assert copy.annotations is not None and copy.annotations.sample.tolist() == [100, 304, 520]
    np.testing.assert_array_equal(copy.signal(leads=["II", "V"]), recording.signal(leads=["II", "V"]))
    np.testing.assert_allclose(copy.signal(leads=["II"])[0], signals["II"] / 100, atol=1e-6)


def test_all_signals_with_as_many_samples_a_frame(tmp_path: Path) -> None:
    """As in ucddb: frames of a second."""
    values = np.random.default_rng(0).integers(-2000, 2000, 128 * 20).astype("<i2")
    (tmp_path / "r.dat").write_bytes(values.tobytes())
    (tmp_path / "r.hea").write_text("r 1 1 20\nr.dat 16x128 200/mV 16 0 0 0 0 ECG\n")
    recording = read_wfdb(tmp_path / "r.hea")
    assert (recording.rate_hz, recording.num_samples, recording.repairs) == (128, 2560, ())
    np.testing.assert_allclose(recording.signal(130, 300)[0], values[130:300] / 200, atol=1e-6)


def test_segments_with_several_samples_a_frame(tmp_path: Path) -> None:
    signals = write_frames(tmp_path, "16")
    text = (tmp_path / "r.hea").read_text()
    (tmp_path / "s1.hea").write_text(text.replace("r 4", "s1 4", 1))
    (tmp_path / "s2.hea").write_text(text.replace("r 4", "s2 4", 1))
    (tmp_path / "lay.hea").write_text(text.replace("r 4 62.4725 501", "lay 4 62.4725 0").replace("r.dat 16x", "~ 0x"))
    (tmp_path / "m.hea").write_text("m/4 4 62.4725 1012\nlay 0\ns1 501\n~ 10\ns2 501\n")
    recording = read_wfdb(tmp_path / "m.hea")
    assert (recording.rate_hz, recording.num_samples) == (249.89, 4048)
    lead = recording.signal(leads=["II"])[0]
    np.testing.assert_allclose(lead[:2004], signals["II"] / 100, atol=1e-6)
    np.testing.assert_allclose(lead[2044:], signals["II"] / 100, atol=1e-6)
    assert np.isnan(lead[2004:2044]).all()
    np.testing.assert_array_equal(recording.signal(1999, 2050, ["II"])[0], lead[1999:2050])


@pytest.mark.parametrize("named", ["r.dat", "r.dat.gz"])
def test_a_compressed_signal_file_is_read(tmp_path: Path, named: str) -> None:
    expected = write_record(tmp_path, "212")
    (tmp_path / "r.dat.gz").write_bytes(gzip.compress((tmp_path / "r.dat").read_bytes()))
    (tmp_path / "r.dat").unlink()
    edit_header(tmp_path, "r.dat", named)
    recording = read_wfdb(tmp_path / "r.hea")
    np.testing.assert_allclose(recording.signal(), expected, atol=1e-6)
    np.testing.assert_allclose(recording.signal(401, 777, [1])[0], expected[1, 401:777], atol=1e-6)
