"""Tables of samples as recorders and telephones export them: every kind gives the samples, rate, unit and start."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heartlm.databases.database import locate, open_database
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.preamble import facts_of
from heartlm.formats.read import read_recording
from heartlm.formats.stated import Stated
from heartlm.formats.units import parse_unit, split_name
from tests.conftest import shared_data

RATE_HZ, NUM = 360.0, 7200
START = datetime(2024, 5, 1, 10, 0)
TIME_S = np.arange(NUM) / RATE_HZ


def ecg_mv() -> np.ndarray:
    """Twenty seconds of a lead in whole microvolts, as mV `[num_samples]`."""
    waves = ((0.1, 0.2, 0.03), (1.1, 0.35, 0.012), (-0.2, 0.38, 0.015), (0.3, 0.6, 0.06))
    beats = sum(size * np.exp(-((((TIME_S % 0.8) - at) / width) ** 2)) for size, at, width in waves)
    return np.round(beats + 0.1 * np.sin(TIME_S) + 0.02 * np.random.default_rng(0).normal(size=NUM), 3)


ECG = ecg_mv()
ADC = np.round(512 + ECG * 1.1 / 3.3 * 1024).astype(int)
"""The lead as the converter of a BITalino gives it: 10 bits, 3.3 V, gain 1100."""


def texts(values: np.ndarray, decimals: int, comma: bool = False) -> list[str]:
    written = [f"{value:.{decimals}f}" for value in values]
    return [text.replace(".", ",") for text in written] if comma else written


def rows(*columns: Sequence[str], by: str = ",", head: str = "", end: str = "\n") -> bytes:
    return (head + end.join(by.join(row) for row in zip(*columns, strict=True)) + end).encode()


UV, MV, MS, S = texts(1000 * ECG, 0), texts(ECG, 3), texts(1000 * TIME_S, 2), texts(TIME_S, 5)
COMMA_MV, COMMA_S, WHOLE_MS = texts(ECG, 3, True), texts(TIME_S, 5, True), texts(np.floor(1000 * TIME_S + 1e-6), 0)
NS = [str(599616000000000000 + round(each * 1e9)) for each in TIME_S]
ISO = [(START + timedelta(seconds=each)).isoformat(timespec="milliseconds") for each in TIME_S]
CLOCK, COUNT = [each[11:] for each in ISO], [str(each) for each in range(NUM)]
POLAR = "Phone timestamp;sensor timestamp [ns];timestamp [ms];ecg [uV]\n"
APPLE = (
    'Name,Ada\nDate of Birth,"8 Dec 1990"\nRecorded Date,2024-05-01 10:00:00 +0200\nClassification,Sinus Rhythm\n'
    'Symptoms,\nSoftware Version,1.90\nDevice,"Watch6,7"\nSample Rate,360 hertz\n\n\nLead,Lead I\nUnit,µV\n\n'
)
APPLE_DE = (
    'Name\nGeburtstag,"08.12.1990"\nAufzeichnungsdatum,2024-05-01 10:00:00 +0200\nKlassifizierung,Sinusrhythmus\n'
    'Gerät,"Watch4,2"\nMessrate,"360,0\u00a0Hertz"\n\n\nAbleitung,Ableitung I\nEinheit,µV\n\n'
)
APPLE_FR = (
    "Nom,Ada\nDate de naissance,1990-12-08\nDate d'enregistrement,2024-05-01 10:00:00 +0200\n"
    "Fréquence d'échantillonnage,360 hertz\n\n\nDérivation,Dérivation I\nUnité,µV\n\n"
)
OPENSIGNALS = (
    '# OpenSignals Text File Format\n# {"20:16:02:26:60:88": {"sensor": ["ECG"], "device name": "x", "column": '
    '["nSeq", "I1", "I2", "O1", "O2", "A2"], "sync interval": 2, "time": "10:0:0.0", "date": "2024-5-1", "device": '
    '"bitalino_rev", "channels": [2], "label": ["A2"], "sampling rate": 360, "resolution": [4, 1, 1, 1, 1, 10]}}\n'
    "# EndOfHeader\n"
)
SHIMMER = (
    '"sep=\t"\nShimmer_B64E_Timestamp_FormattedUnix_CAL\tShimmer_B64E_ECG_LL-RA_24BIT_CAL\t\n'
    "yyyy/mm/dd hh:mm:ss.000\tmV\t\n"
)
SHIMMER_OLD = "sep=,\nShimmer,Shimmer,Shimmer\nTimestamp,ECG_LA-RA_24BIT,ECG_LA-RA_24BIT\nCAL,RAW,CAL\nms,no_units,mV\n"
MOVESENSE = "Timestamp_ms,Value,RelativeTime,0.0,UTC,2024-05-01 10:00:00.000\n"

CASES: dict[str, tuple[bytes, str, dict[str, object]]] = {
    "seconds": (rows(S, MV, head="time,MLII\n"), "MLII", {}),
    "milliseconds": (rows(MS, MV, head="time_ms,MLII\n"), "MLII", {}),
    "milliseconds by their steps": (rows(MS, MV, head="time,MLII\n"), "MLII", {}),
    "whole milliseconds": (rows(WHOLE_MS, MV, head="t (ms);MLII\n", by=";"), "MLII", {}),
    "microseconds": (rows(texts(1e6 * TIME_S, 0), UV, head="timestamp [us],ecg [uV]\n"), "ecg", {}),
    "nanoseconds": (rows(NS, UV, head="sensor timestamp [ns];ecg [uV]\n", by=";"), "ecg", {}),
    "nanoseconds by their steps": (rows(NS, UV, head="timestamp;ecg_uV\n", by=";"), "ecg", {}),
    "since 1970": (rows(texts(1714557600 + TIME_S, 4), MV, head="unix,ECG\n"), "ECG", {"start": START}),
    "ISO 8601": (rows(ISO, MV, head="datetime,ECG\n"), "ECG", {"start": START}),
    "ISO 8601 in UTC": (rows([each + "Z" for each in ISO], MV, head="Time,ECG\n"), "ECG", {"start": START}),
    "ISO 8601 with zone": (rows([each + "+02:00" for each in ISO], MV, head="Time,ECG\n"), "ECG", {"start": START}),
    "day first": (
        rows([f"13/05/2024 {each}" for each in CLOCK], MV, head="Time,ECG\n"),
        "ECG",
        {"start": datetime(2024, 5, 13, 10)},
    ),
    "day or month first": (
        rows([f"01/05/2024 {each}" for each in CLOCK], MV, head="Time,ECG\n"),
        "ECG",
        {"start": time(10)},
    ),
    "time of day": (rows(CLOCK, MV, head="Uhrzeit,ECG\n"), "ECG", {"start": time(10)}),
    "afternoon": (rows([f"{each} PM" for each in CLOCK], MV, head="Time,ECG\n"), "ECG", {"start": time(22)}),
    "whole seconds": (rows([each[:8] for each in CLOCK], MV, head="Time,ECG\n"), "ECG", {"start": time(10)}),
    "semicolon and decimal comma": (rows(COMMA_S, COMMA_MV, by=";", head="time;MLII\n"), "MLII", {}),
    "tab and decimal comma": (rows(COMMA_S, COMMA_MV, by="\t", head="time\tMLII\n"), "MLII", {}),
    "quoted decimal commas": (
        rows([f'"{each}"' for each in COMMA_S], [f'"{each}"' for each in COMMA_MV], head='"time","MLII"\n'),
        "MLII",
        {},
    ),
    "byte-order mark": (b"\xef\xbb\xbf" + rows(S, MV, head="time,MLII\n"), "MLII", {}),
    "byte-order mark without header": (b"\xef\xbb\xbf" + rows(S, MV), "lead 1", {}),
    "UTF-16": (rows(S, MV, head="time\tMLII\n", by="\t").decode().encode("utf-16"), "MLII", {}),
    "Latin-1": (rows(S, UV, head="time;Spannung [µV]\n", by=";").decode().encode("latin-1"), "Spannung", {}),
    "carriage returns": (rows(S, MV, head="time,MLII\r", end="\r"), "MLII", {}),
    "line ends of DOS": (rows(S, MV, head="time,MLII\r\n", end="\r\n"), "MLII", {}),
    "aligned with blanks": (rows([f"{each:>12}" for each in S], [f"{each:>9}" for each in MV], by=" "), "lead 1", {}),
    "numpy.savetxt": (rows(S, MV, by=" ", head="# time MLII\n"), "MLII", {}),
    "no header, seconds first": (rows(S, MV), "lead 1", {}),
    "no header, seconds last": (rows(MV, S), "lead 1", {}),
    "no end of the last line": (rows(S, MV, head="time,MLII\n")[:-1], "MLII", {}),
    "text and empty columns": (rows(["H10"] * NUM, S, MV, [""] * NUM, head="device,time,MLII,event\n"), "MLII", {}),
    "Polar Sensor Logger": (rows(ISO, NS, MS, UV, by=";", head=POLAR), "ecg", {"start": START}),
    "a wall clock that goes back": (
        rows([f"2024-05-01T10:00:{each % 60:02d}.000" for each in range(NUM)], NS, MS, UV, by=";", head=POLAR),
        "ecg",
        {"start": START},
    ),
    "Apple Health": (rows(UV, head=APPLE), "I", {"start": START, "name": "Ada", "birth_date": date(1990, 12, 8)}),
    "Apple Health with decimal commas": (
        rows(texts(1000 * ECG, 3, True), head=APPLE_DE),
        "I",
        {"start": START, "birth_date": date(1990, 12, 8)},
    ),
    "Apple Health in French": (rows(UV, head=APPLE_FR), "I", {"start": START, "name": "Ada"}),
    "Movesense": (rows(WHOLE_MS, texts(ECG, 6), head=MOVESENSE), "Value", {"start": START}),
    "BITalino": (
        OPENSIGNALS.encode()
        + rows([str(each % 16) for each in range(NUM)], *[["1"] * NUM] * 4, [f"{each}\t" for each in ADC], by="\t"),
        "ECG",
        {"start": START, "within_mv": 0.002},
    ),
    "Shimmer": (
        SHIMMER.encode()
        + rows([each.replace("-", "/").replace("T", " ") for each in ISO], [f"{each}\t" for each in MV], by="\t"),
        "II",
        {"start": START},
    ),
    "Shimmer with four rows of names": (rows(MS, list(map(str, ADC)), MV, head=SHIMMER_OLD), "I", {}),
    "rdsamp of WFDB": (
        rows(
            [f"'{each // 21600:.0f}:{each / 360 % 60:06.3f}'" for each in range(NUM)],
            MV,
            head="'Elapsed time','MLII'\n'hh:mm:ss.mmm','mV'\n",
        ),
        "MLII",
        {},
    ),
    "rate before the table": (rows(S, MV, by="\t", head="Sample Rate:\t360\nTime (s)\tECG\n"), "ECG", {}),
    "rate and row numbers": (
        rows(COUNT, MV, head="Sampling frequency: 360 Hz\nHigh pass: 0.5 Hz\nsample,ECG\n"),
        "ECG",
        {},
    ),
    "AcqKnowledge": (
        rows(
            MV, MV, head=f"r.acq\n{1000 / 360:.7f} msec/sample\n2 channels\nECG\nmV\nRSP\nVolts\nCH1,CH2\n{NUM},{NUM}\n"
        ),
        "ECG",
        {},
    ),
    "AcqKnowledge with times": (
        rows(
            [f"{float(each) / 60:.9f}" for each in S],
            [f"{text}\t" for text in MV],
            by="\t",
            head=f"r.acq\n2.7778 msec/sample\n1 channels\nII\nmV\nmin\tCH1\t\n\t{NUM}\t\n",
        ),
        "II",
        {},
    ),
    "interval before the table": (
        rows(MV, head=f"Interval=\t{1 / 360:.9f} s\nChannelTitle=\tECG\nUnit=\tmV\n"),
        "ECG",
        {},
    ),
}


def check(recording: Recording, name: str, expected: dict[str, object]) -> None:
    assert recording.rate_hz == RATE_HZ
    assert name in recording.leads
    signal = recording.signal(leads=[name])[0]
    assert len(signal) == NUM
    np.testing.assert_allclose(signal, ECG, atol=float(str(expected.get("within_mv", 1e-6))))
    assert recording.units[recording.lead_index(name)] == "mV"
    assert recording.start == expected.get("start")
    assert recording.patient.name == expected.get("name", "")
    assert recording.patient.birth_date == expected.get("birth_date", recording.patient.birth_date)


@pytest.mark.parametrize("kind", CASES)
def test_kind(tmp_path: Path, kind: str) -> None:
    content, name, expected = CASES[kind]
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    check(read_recording(path), name, expected)
    assert locate(path)[1] == "r"  # it is also a recording where nobody names it
    path.unlink()
    path = tmp_path / "r.txt.gz"
    path.write_bytes(gzip.compress(content))
    check(read_recording(path), name, expected)
    assert open_database(tmp_path).record_ids == ("r.txt",)


@pytest.mark.parametrize("kind", ["csv-ms", "csv-semicolon-comma", "csv-no-header"])
def test_samples_of_one_patient(kind: str) -> None:
    path = shared_data(f"inputs/{kind}/c.csv")
    with Stated(360.0 if kind == "csv-no-header" else None, (), ("MLII",)).used():
        recording = read_recording(path)
    expected = read_recording(shared_data("inputs/csv-ms/c.csv")).signal()
    assert (recording.rate_hz, recording.leads, recording.units) == (360, ("MLII",), ("mV",))
    np.testing.assert_allclose(recording.signal(), expected, atol=1e-6)
    assert recording.repairs == ()


def test_sample_of_a_strap_with_jitter() -> None:
    recording = read_recording(shared_data("inputs/csv-jitter-polar/c.csv"))
    assert (recording.rate_hz, recording.num_samples, recording.start) == (120, 2400, START)
    assert "vary by" in recording.repairs[0]
    third = read_recording(shared_data("inputs/csv-ms/c.csv")).signal()[0, ::3]
    assert np.corrcoef(recording.signal()[0], third)[0, 1] > 0.999


def test_a_damaged_compressed_table_is_called_so(tmp_path: Path) -> None:
    """Not a text without numbers: its begin cannot be unpacked at all."""
    packed = bytearray(gzip.compress(rows(S, MV, head="time,MLII\n")[:5000]))
    packed[-8] ^= 1  # checksum
    (tmp_path / "r.csv.gz").write_bytes(packed)
    with pytest.raises(HeartlmError, match=r"r\.csv\.gz: damaged, cannot be unpacked"):
        read_recording(tmp_path / "r.csv.gz")
    assert open_database(tmp_path).record_ids == ("r.csv",)  # listed, so that the damage is reported


def test_gaps_are_invalid_samples_with_a_warning(tmp_path: Path) -> None:
    kept = np.ones(NUM, bool)
    kept[1000:1400] = kept[5000:5001] = False
    lines = np.array(rows(MS, MV).decode().splitlines())
    (tmp_path / "r.csv").write_text("\n".join(["time_ms,I", *lines[kept]]))
    recording = read_recording(tmp_path / "r.csv")
    assert recording.num_samples == NUM
    signal = recording.signal()[0]
    np.testing.assert_array_equal(np.isnan(signal), ~kept)
    np.testing.assert_allclose(signal[kept], ECG[kept], atol=1e-6)
    assert recording.repairs == ("2 gaps in the times, 1.11 s in all, read as invalid samples (NaN)",)
    with pytest.raises(HeartlmError, match=r"r\.csv: 2 gaps in the times.*without --strict"):
        read_recording(tmp_path / "r.csv", repaired="refuse")


def test_midnight_passes_also_where_its_row_has_no_time(tmp_path: Path) -> None:
    times = [f"{'23:59:5' if row < 900 else '00:00:0'}{row % 900 / 100:.2f}" for row in range(1800)]
    times[899] = times[900] = ""
    (tmp_path / "r.csv").write_text("\n".join(["time,I [mV]", *(f"{at},0.1" for at in times)]))
    recording = read_recording(tmp_path / "r.csv")
    assert (recording.rate_hz, recording.num_samples) == (100, 1900)  # a second is missing before midnight
    assert "a gap in the times, 1 s in all" in recording.repairs[0]


def test_a_row_elsewhere_costs_its_sample_alone(tmp_path: Path) -> None:
    lines = rows(MS, MV, head="time_ms,I\n").decode().splitlines()
    lines.insert(1400, lines.pop(95))
    (tmp_path / "r.csv").write_text("\n".join(lines))
    recording = read_recording(tmp_path / "r.csv")
    signal = recording.signal()[0]
    assert np.flatnonzero(np.isnan(signal)).tolist() == [94]
    np.testing.assert_allclose(np.delete(signal, 94), np.delete(ECG, 94), atol=1e-6)
    assert "out of order" in recording.repairs[0]


def test_packets_of_movesense_with_one_time_each(tmp_path: Path) -> None:
    stamps = [str(601488596 + round(1000 * place / RATE_HZ)) if place % 16 == 0 else "" for place in range(NUM)]
    (tmp_path / "r.csv").write_bytes(rows(stamps, UV, head="timestamp,sample\n"))
    with Stated(units=("uV",)).used():
        recording = read_recording(tmp_path / "r.csv")
    assert recording.rate_hz == 360
    np.testing.assert_allclose(recording.signal()[0], ECG, atol=1e-6)


@pytest.mark.parametrize("form", ["Meas", "data", "list", "mV"])
def test_logs_of_movesense(tmp_path: Path, form: str) -> None:
    scale = 1.0 if form == "mV" else 1e3 / 20 / (1 << 17)
    samples = [float(each) for each in ECG] if form == "mV" else np.round(ECG / scale).astype(int).tolist()
    packets = [
        {"Samples": samples[place : place + 16], "Timestamp": int(1000 + 1000 * place / RATE_HZ)}
        for place in range(0, NUM // 16 * 16, 16)
    ]
    whole: object = {
        "Meas": {"Meas": {"ECG": packets, "HR": [{"average": 60}]}},
        "data": {"data": [{"ecg": packet} for packet in packets]},
        "list": [{"Body": packet, "Uri": "123/Meas/ECG"} for packet in packets],
        "mV": {"Samples": {"MeasEcgmV": packets}},
    }[form]
    (tmp_path / "r.json").write_text(json.dumps(whole))
    recording = open_database(tmp_path).recording("r")
    assert (recording.rate_hz, recording.leads, recording.units, recording.repairs) == (RATE_HZ, ("ECG",), ("mV",), ())
    np.testing.assert_allclose(recording.signal()[0], ECG[: NUM // 16 * 16], atol=1e-6 if form == "mV" else scale)
    del packets[20:25]
    if form == "Meas":
        (tmp_path / "r.json").write_text(json.dumps(whole))
        with_gap = read_recording(tmp_path / "r.json")
        assert np.isnan(with_gap.signal()[0, 320:400]).all()
        np.testing.assert_allclose(with_gap.signal()[0, 400:], ECG[400 : NUM // 16 * 16], atol=scale)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": {"Samples": [1, "x"], "Timestamp": 5}}, "a packet of /a has fields that are no numbers"),
        ({"a": {"Samples": [1, 2], "Timestamp": None}}, "a packet of /a has fields that are no numbers"),
        ({"a": [{"Samples": [], "Timestamp": 1}]}, "has no ECG packets"),
        ({"a": [{"Samples": [1, 2], "Timestamp": 1}]}, "states no sampling rate"),
    ],
)
def test_logs_that_hold_no_recording(tmp_path: Path, content: object, reason: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(HeartlmError, match=reason) as caught:
        read_recording(tmp_path / "r.json")
    assert "\n" not in str(caught.value)


def test_invalid_fields_and_lines_of_text(tmp_path: Path) -> None:
    lines = rows(S, MV, head="time,I\n").decode().splitlines()
    lines[11], lines[12] = f"{S[10]},", f"{S[11]},NaN"
    (tmp_path / "r.csv").write_text("\n".join([*lines, "", "End of recording", "samples: 7200"]))
    recording = read_recording(tmp_path / "r.csv")
    assert np.flatnonzero(np.isnan(recording.signal()[0])).tolist() == [10, 11]
    assert "2 lines after the last row" in recording.repairs[0]
    (tmp_path / "r.csv").write_text("\n".join(lines) + "\n20.00")
    assert "incomplete last row" in read_recording(tmp_path / "r.csv").repairs[0]
    (tmp_path / "one.csv").write_text("ecg [mV]\n0.1\n\n0.3\n")
    with Stated(250.0).used():
        np.testing.assert_allclose(read_recording(tmp_path / "one.csv").signal(), [[0.1, np.nan, 0.3]])


def test_rows_with_other_columns_need_a_clock(tmp_path: Path) -> None:
    lines = rows(S, MV, head="time,I\n").decode().splitlines()
    lines[500] += ",7"
    (tmp_path / "r.csv").write_text("\n".join(lines))
    recording = read_recording(tmp_path / "r.csv")
    assert np.isnan(recording.signal()[0, 499])
    assert recording.repairs[0] == "a row with another number of columns left out"
    (tmp_path / "r.csv").write_text("".join(f"{each},1\n" for each in MV[:400]) + "1\n" + "0,1\n" * 9)
    with Stated(250.0).used(), pytest.raises(HeartlmError, match="a row has 1 instead of 2 columns"):
        read_recording(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (rows(MV), r"states no sampling rate \(it has no column with times\); give --rate HZ.*r\.json"),
        (rows(COUNT, MV, head="sample,I\n"), "column sample counts rows"),
        (rows(COUNT, MV, head="time,I\n"), "column time counts rows"),
        (rows(S, UV, head="time,I\n"), "states no unit, and values that vary by .* are no millivolts; give --units"),
        (rows(S, head="time\n"), "has no column of samples, only time"),
        (rows(S, ["N"] * NUM, head="time,beat\n"), r"only time \(times or row numbers\), beat \(not numbers\)"),
        (b"", "is empty"),
        (b"hello\nworld\n", "no table of numbers"),
        (b"\0\1\2\3" * 99, "no table of numbers"),
        (b"1\n3\n2\n", "states no sampling rate"),
        (rows(S, MV, head="time,I\n").replace(b"\n0.10000,", b"\n0.10000,x"), "column I: 'x.*' is no number"),
        (rows(S[::-1], MV, head="time,I\n"), "column time goes back at row 2"),
        (rows(*[MV] * 70), "has 70 columns, at most 64"),
        (gzip.compress(rows(S, MV))[:5000], "cannot be unpacked"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "r.csv").write_bytes(content)
    with pytest.raises(HeartlmError, match=reason) as caught:
        read_recording(tmp_path / "r.csv")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "r.csv"))


def test_what_the_user_states(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(rows(UV, list(map(str, ADC))))

    def read(*stated: object) -> Recording:
        with Stated(*stated).used():  # type: ignore[arg-type]
            return read_recording(path)

    recording = read(360.0, ("uV", "341.3333333(512)/mV"), ("II", "V5"))
    assert (recording.leads, recording.units) == (("II", "V5"), ("mV", "mV"))
    np.testing.assert_allclose(recording.signal()[0], ECG, atol=1e-6)
    np.testing.assert_allclose(recording.signal()[1], ECG, atol=2e-3)
    assert read(360.0, ("uV",), ("lead 2",)).leads == ("lead 2",)
    with pytest.raises(HeartlmError, match="3 for 2 leads"):
        read(360.0, ("uV", "uV", "uV"))
    with pytest.raises(HeartlmError, match="leads I, II, III asked for; the file has 2: lead 1, lead 2"):
        read(360.0, ("uV",), ("I", "II", "III"))
    path.write_bytes(rows(S, MV, head="time,I\n"))
    assert "times not used (column time tells 360 Hz)" in read(250.0).repairs[0]
    assert read(360.0).repairs == ()
    (tmp_path / "r.json").write_text('{"rate_hz": 360, "units": "uV", "start": "13:00"}')
    recording = read()
    assert (recording.start, float(np.nanmax(recording.signal()))) == (time(13), pytest.approx(ECG.max() / 1000))
    assert float(np.nanmax(read(None, ("mV",)).signal())) == pytest.approx(ECG.max())


def test_a_file_that_states_its_rate_refuses_another(tmp_path: Path) -> None:
    from heartlm.formats.write_wfdb import write_signals

    adu = np.stack([np.round(200 * ECG), np.round(-200 * ECG)]).astype(np.int64)
    write_signals(tmp_path, "r", adu, signal_format="16", rate_hz=360, leads=["I", "II"], gain=200)
    with Stated(360.0, (), ("ii",)).used():
        recording = read_recording(tmp_path / "r.hea")
    np.testing.assert_allclose(recording.signal(), adu[1:] / 200, atol=1e-6)
    assert (recording.leads, recording.num_leads) == (("II",), 1)
    cases = (Stated(250.0), "states 360 Hz, 250 is stated"), (Stated(units=("uV",)), "leave --units out")
    for stated, reason in cases:
        with stated.used(), pytest.raises(HeartlmError, match=reason):
            read_recording(tmp_path / "r.hea")
        with pytest.raises(HeartlmError, match=reason):
            open_database(tmp_path, stated=stated).recording("r")


def test_a_file_that_is_named_need_not_look_like_a_signal(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=1000).round(3)
    (tmp_path / "noise.csv").write_text("II\n" + "\n".join(map(str, noise)) + "\n")
    stated = Stated(130.0, ("mV",), ())
    with pytest.raises(HeartlmError, match="no recordings found"):
        open_database(tmp_path, stated=stated)
    for _ in range(2):  # alone, then next to a recording
        database, record_id = locate(tmp_path / "noise.csv", stated=stated)
        assert record_id == "noise"
        np.testing.assert_allclose(database.recording(record_id).signal()[0], noise, atol=1e-6)
        (tmp_path / "other.csv").write_bytes(CASES["rate before the table"][0])


def test_a_folder_takes_recordings_and_leaves_other_tables_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(rows(S, MV, head="time,I\n"))
    (tmp_path / "b.txt").write_bytes(rows(UV, head=APPLE))
    (tmp_path / "c.csv").write_bytes(rows(MV))
    (tmp_path / "labels.csv").write_text("record,label\na,1\n")
    (tmp_path / "notes.txt").write_text("These are notes.\nIn 2 lines.\n")
    (tmp_path / "patients.csv").write_text(
        "id,age\n" + "".join(f"p{each},{40 + each * 7 % 50}\n" for each in range(400))
    )
    (tmp_path / "ages.csv").write_text("age\n" + "".join(f"{40 + each * 37 % 50}\n" for each in range(400)))
    (tmp_path / "hr.csv").write_bytes(rows(S, ["60"] * NUM, head="time,HR [bpm]\n"))
    (tmp_path / "acc.csv").write_bytes(rows(S, UV, head="time,X [mg]\n"))
    beats_s = texts(np.cumsum(0.8 + 0.05 * ECG[:200]), 3)
    (tmp_path / "rr.csv").write_bytes(rows(beats_s, MV[:200], head="time,rr\n"))
    assert open_database(tmp_path).record_ids == ("a", "b")
    assert open_database(tmp_path, stated=Stated(360.0)).record_ids == ("a", "b", "c")


def test_units_of_columns(tmp_path: Path) -> None:
    header, flat = "time,ecg,HR,resp (a.u.),X [mg],count,V\n", ["72"] * NUM
    (tmp_path / "r.csv").write_bytes(rows(S, MV, flat, UV, UV, UV, MV, head=header))
    recording = read_recording(tmp_path / "r.csv")
    units = {"ecg": "mV", "HR": "", "resp": "adu", "X": "mg", "count": "", "V": "mV"}
    assert dict(zip(recording.leads, recording.units, strict=True)) == units


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    when = np.datetime64(START, "ns") + np.round(TIME_S * 1e9).astype("timedelta64[ns]")
    pq.write_table(pa.table({"when": when, "ecg [uV]": np.round(1000 * ECG).astype(np.int32)}), path)
    check(read_recording(path), "ecg", {"start": START})
    assert open_database(tmp_path).record_ids == ("r",)
    buffer = io.BytesIO()
    metadata = {"heartlm": json.dumps({"rate_hz": 360, "units": {"x": "uV"}, "start": "2024-05-01 10:00:00"})}
    pq.write_table(pa.table({"x": 1000 * ECG.astype(np.float32)}).replace_schema_metadata(metadata), buffer)
    (tmp_path / "z.parquet.gz").write_bytes(gzip.compress(buffer.getvalue()))
    check(read_recording(tmp_path / "z.parquet.gz"), "x", {"start": START, "within_mv": 1e-5})
    pq.write_table(pa.table({"patient": [1, 2], "name": ["a", "b"]}), tmp_path / "patients.parquet")
    assert open_database(tmp_path).record_ids == ("r",)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HeartlmError, match="not readable as a Parquet file"):
        read_recording(path)


def test_a_parquet_file_with_two_columns_of_one_name_is_one_line(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(TIME_S), pa.array(ECG), pa.array(ECG)], names=["time_s", "I", "I"])
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(HeartlmError, match=r"r\.parquet: has two columns called 'I'; rename one"):
        read_recording(tmp_path / "r.parquet")


@pytest.mark.filterwarnings("error")
def test_columns_of_infinities_give_no_warning(tmp_path: Path) -> None:
    columns = {"time_s": TIME_S, "I (mV)": ECG, "": np.full(len(ECG), np.inf)}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    recording = read_recording(tmp_path / "r.parquet")
    signal = recording.signal(leads=recording.leads)
    np.testing.assert_array_equal(np.isfinite(signal).all(axis=1), [name == "I" for name in recording.leads])


@pytest.mark.parametrize("wrong", [None, 0])
def test_nanoseconds_of_parquet(tmp_path: Path, wrong: int | None) -> None:
    """Times that microseconds do not hold, and a wrong one whose distance float64 does not hold."""
    start_ns = int(np.datetime64(START, "ns").astype(np.int64))
    when = start_ns + 1 + np.round(TIME_S * 1e9).astype(np.int64)
    if wrong is not None:
        when[77] = wrong
    table = pa.table({"when": pa.array(when, pa.timestamp("ns")), "ecg": ECG})
    pq.write_table(table, tmp_path / "r.parquet")
    recording = read_recording(tmp_path / "r.parquet")
    assert (recording.rate_hz, recording.num_samples, recording.start) == (RATE_HZ, NUM, START)
    expected = ECG.copy()
    expected[[] if wrong is None else [77]] = np.nan
    np.testing.assert_allclose(recording.signal()[0], expected, atol=1e-6)


@pytest.mark.parametrize("resolution", ["5000", "1" + 30 * "0", "[" * 5000])
def test_a_header_of_opensignals_that_cannot_be_is_none(tmp_path: Path, resolution: str) -> None:
    about = (
        f'{{"d": {{"column": ["nSeq", "A1"], "sensor": ["ECG"], "resolution": [{resolution}], "sampling rate": 1000,'
        '"date": "2024-1-1", "time": "10:0:0", "device": "bitalino"}}'
    )
    head = f"# OpenSignals Text File Format\n# {about}\n# EndOfHeader\n"
    (tmp_path / "o.txt").write_bytes(rows(COUNT, UV, by="\t", head=head))
    (tmp_path / "a.csv").write_bytes(rows(S, MV, head="time,I\n"))
    assert open_database(tmp_path).record_ids == ("a",)
    with pytest.raises(HeartlmError, match="states no sampling rate"):
        read_recording(tmp_path / "o.txt")


def test_a_compressed_table_in_several_pieces(tmp_path: Path) -> None:
    """Programs that append to a compressed file write a gzip member each time; the first may hold the names alone."""
    lines = rows(S, MV, head="time,ecg\n").splitlines(keepends=True)
    pieces = [lines[:1], *(lines[first : first + 50] for first in range(1, len(lines), 50))]
    (tmp_path / "r.csv.gz").write_bytes(b"".join(gzip.compress(b"".join(piece)) for piece in pieces))
    check(read_recording(tmp_path / "r.csv.gz"), "ecg", {})
    assert open_database(tmp_path).record_ids == ("r.csv",)


@pytest.mark.parametrize("line", ["9" * 60_000, "9" * 60_000 + "x", "#" * 60_000 + "x", "a " * 30_000, "(_" * 30_000])
def test_a_long_line_before_a_table_takes_no_long_time(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.csv").write_bytes(rows(S, MV, head=f"{line}\ntime,ECG\n"))
    assert open_database(tmp_path).recording("r").leads == ("ECG",)
    assert facts_of([line, "Sample Rate,360 hertz"]).rate_hz == 360
    assert len(split_name(line)[0]) <= 200
    assert parse_unit(line) is None


@pytest.mark.parametrize("comma", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_lead_that_begins_late_is_read(tmp_path: Path, comma: bool, is_last: bool) -> None:
    """Its fields are empty in all rows that decide how the table is written."""
    times, lead = texts(TIME_S, 5, comma), texts(ECG, 3, comma)
    late = ["" if place < 5000 else f" {text}" for place, text in enumerate(lead)]
    columns, names = ((times, lead, late), "time;I;II") if is_last else ((times, late, lead), "time;II;I")
    (tmp_path / "r.csv").write_bytes(rows(*columns, by=";", head=f"{names}\n"))
    recording = read_recording(tmp_path / "r.csv")
    np.testing.assert_allclose(recording.signal(leads=["I"])[0], ECG, atol=1e-6)
    np.testing.assert_allclose(recording.signal(5000, leads=["II"])[0], ECG[5000:], atol=1e-6)
    assert np.isnan(recording.signal(0, 5000, ["II"])).all()


def matlab_5(path: Path) -> None:
    from scipy.io import savemat

    ecg = {"data": np.stack([ECG, -ECG]), "fs": RATE_HZ, "unit": "mV"}
    savemat(path, {"ECG": ecg, "lead_names": np.array(["I", "II"], object)})


def matlab_5_columns(path: Path) -> None:
    from scipy.io import savemat

    savemat(path, {"t": TIME_S[:, np.newaxis], "I": 1000 * ECG[:, np.newaxis], "II": -1000 * ECG, "units": "uV"})


def matlab_7_3(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as file:
        file["ECG/data"] = np.stack([ECG, -ECG], axis=1)  # MATLAB's order of axes is the reverse
        file["ECG/srate"] = [[RATE_HZ]]
        references = []
        for place, name in enumerate(("I", "II")):
            file[f"#refs#/{place}"] = np.array([[ord(character)] for character in name], np.uint16)
            references.append(file[f"#refs#/{place}"].ref)
        file.create_dataset("ECG/labels", (2, 1), h5py.ref_dtype)[:, 0] = references
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


@pytest.mark.parametrize("write", [matlab_5, matlab_5_columns, matlab_7_3])
def test_matlab(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path, packed = tmp_path / "r.mat", tmp_path / "z.mat.gz"
    write(path)
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for each in (path, packed):
        recording = read_recording(each)
        assert recording.leads == ("I", "II")
        check(recording, "I", {})
        np.testing.assert_allclose(recording.signal()[1], -ECG, atol=1e-6)


def test_matlab_files_that_are_no_recordings(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "r.mat"
    savemat(path, {"val": np.round(1000 * ECG)})
    with pytest.raises(HeartlmError, match="states no sampling rate"):
        read_recording(path)
    with Stated(360.0, ("uV",), ("I",)).used():
        check(read_recording(path), "I", {})
    savemat(path, {"name": "x"})
    with pytest.raises(HeartlmError, match="has no array of numbers"):
        read_recording(path)
    path.write_bytes(b"MATLAB 5.0" + bytes(200))
    with pytest.raises(HeartlmError, match="not readable as a MATLAB file"):
        read_recording(path)


def test_atc_files_of_alivecor(tmp_path: Path) -> None:
    def block(name: bytes, content: bytes) -> bytes:
        whole = name + len(content).to_bytes(4, "little") + content
        return whole + (sum(whole) & 0xFFFFFFFF).to_bytes(4, "little")

    samples = [np.round(ECG * factor / 0.0005).astype("<i2").tobytes() for factor in (1, -1)]
    form = bytes([1]) + (300).to_bytes(2, "little") + (500).to_bytes(2, "little") + bytes([2, 0, 0])
    content = b"ALIVE\0\0\0\3\0\0\0" + block(b"info", b"2024-05-01T10:00:00.500+02:00".ljust(264, b"\0"))
    content += block(b"fmt ", form) + block(b"ecg ", samples[0]) + block(b"ecg2", samples[1])
    path = tmp_path / "r.atc"
    path.write_bytes(content)
    recording = read_recording(path)
    assert (recording.rate_hz, recording.leads) == (300, ("I", "II"))
    assert recording.start == START + timedelta(seconds=0.5)
    np.testing.assert_allclose(recording.signal(), [ECG, -ECG], atol=1e-6)
    assert recording.faults == []
    path.write_bytes(content.replace(block(b"ecg2", samples[1]), block(b"ecg2", samples[1][:200])))
    assert read_recording(path).repairs == (f"the leads have 100 to {NUM} samples; the first 100 are read",)
    path.write_bytes(content.replace(samples[0][:9], bytes(9)))
    assert "checksum of block 'ecg'" in read_recording(path).faults[0]
    for damaged, reason in ((content[:-9], "'ecg2'"), (content[:300], "'fmt '"), (content[:12], "has no")):
        path.write_bytes(damaged)
        with pytest.raises(HeartlmError, match=reason):
            read_recording(path)


def test_texts_of_units() -> None:
    names = {
        "ecg [uV]": ("ecg", "uV"), "MLII (mV)": ("MLII", "mV"), "time_ms": ("time", "ms"), "Time (s)": ("Time", "s"),
        "ecg_uv": ("ecg", "uv"), "MeasEcgmV": ("MeasEcg", "mV"), "unixTimestampInMs": ("unixTimestamp", "Ms"),
        "lead V": ("lead V", ""), "V": ("V", ""), "X [mg]": ("X", "mg"), "ECG in µV": ("ECG", "µV"), "aVF": ("aVF", ""),
        "[ms]": ("ms", "ms"), "": ("", ""), "ms": ("ms", ""), "'MLII'": ("MLII", ""),
    }  # fmt: skip
    assert {name: split_name(name) for name in names} == names
    assert parse_unit("furlong") is None
    for text, value in (("uV", 1500), ("V", 0.0015), ("200/mV", 300), ("200(1024)/mV", 1324)):
        unit = parse_unit(text)
        assert unit is not None
        assert unit.name == "mV"
        assert math.isclose((value - unit.baseline) * unit.factor, 1.5)


def test_no_thread_of_arrow_holds_an_object_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that releases one while the process exits ends it by SIGABRT, so an error of the user has status 134."""
    from pyarrow import csv as arrow_csv

    modes, read_csv = list[tuple[bool, bool]](), arrow_csv.read_csv

    def spied(source: object, **options: object) -> object:
        modes.append((options["read_options"].use_threads, options["parse_options"].invalid_row_handler is not None))
        return read_csv(source, **options)

    monkeypatch.setattr(arrow_csv, "read_csv", spied)
    path = tmp_path / "a.csv"
    lines = rows(S, MV, head="time [s],ecg [mV]\n").decode().splitlines()
    path.write_text("\n".join([*lines[:4000], "11.1,0.1,7", *lines[4001:]]) + "\n")
    assert read_recording(path, repaired="accept").num_samples == NUM
    assert modes == [(True, False), (False, True)]  # rows of equal width are read by all threads


@pytest.mark.parametrize(
    "words",
    [
        (
            "Name",
            "Geburtsdatum",
            "Aufgezeichnet",
            "Sinusrhythmus",
            "Gerät",
            "Messrate",
            "360 Hertz",
            "Ableitung I",
            "µV",
        ),
        ("姓名", "出生日期", "记录日期", "窦性心律", "设备", "采样率", "360赫兹", "I 导联", "µV"),
        ("名前", "生年月日", "記録日", "洞調律", "デバイス", "サンプルレート", "360 ヘルツ", "第I誘導", "µV"),
        ("Имя", "Дата рождения", "Записано", "Ритм", "Устройство", "Частота", "360 герц", "Отведение I", "мкВ"),
        ("Όνομα", "Ημερομηνία", "Καταγραφή", "Φλεβοκομβικός", "Συσκευή", "Ρυθμός", "360 χερτζ", "Απαγωγή I", "µV"),
    ],
)
@pytest.mark.parametrize("written", ["\n", "\r\n", "\ufeff", ","])
def test_an_apple_watch_in_any_language(tmp_path: Path, words: tuple[str, ...], written: str) -> None:
    name, born, when, rhythm, device, rate, value, lead, unit = words
    head = (
        f'{name},Ada\n{born},"1990-12-08"\n{when},2024-05-01 10:00:00 +0200\nX,{rhythm}\nY,\nZ,2.0\n'
        f'{device},"Watch6,7"\n{rate},{value}\n\n\nW,{lead}\nU,{unit}\n\n'
    )
    text = head + "\n".join(texts(1000 * ECG, 3, written == ",")) + "\n"
    text = text.replace("\n", "\r\n") if written == "\r\n" else text
    (tmp_path / "a.csv").write_bytes(("\ufeff" * (written == "\ufeff") + text).encode())
    recording = read_recording(tmp_path / "a.csv")
    check(recording, "I", {"start": START, "name": "Ada"})
    assert (recording.patient.name, recording.patient.birth_date) == ("Ada", date(1990, 12, 8))


def labchart(rows_of: Sequence[str], start: datetime, title: str = "ChannelTitle") -> str:
    days = (start - datetime(1899, 12, 30)) / timedelta(days=1)
    return (
        f"Interval=\t{1 / 360:.9f} s\r\nExcelDateTime=\t{days:.13E}\t{start:%Y-%m-%d %H:%M:%S}\r\n"
        f"TimeFormat=\tStartOfBlock\r\nDateFormat=\t\r\n{title}=\tECG\tTrigger\r\n"
        "Range=\t10.000 mV\t10.000 V\r\nUnitName=\tmV\tV\r\n" + "".join(f"{row}\r\n" for row in rows_of)
    )


@pytest.mark.parametrize("comma", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_blocks_and_comments_of_labchart(tmp_path: Path, timed: bool, comma: bool) -> None:
    mv, zeros = COMMA_MV if comma else MV, ["0,0" if comma else "0.0"] * NUM
    first, second = slice(0, 3000), slice(3000, NUM)
    lines = list[str]()
    for part in (first, second):
        seconds = (COMMA_S if comma else S)[: len(mv[part])]
        columns = (seconds, mv[part], zeros[part]) if timed else (mv[part], zeros[part])
        lines += ["\t".join(row) for row in zip(*columns, strict=True)]
    lines[1000] += "\t#* subject moved"
    later = START + timedelta(seconds=30)
    content = labchart(lines[first], START, "Kanaltitel") + labchart(lines[second], later, "Kanaltitel")
    (tmp_path / "a.txt").write_text(content.replace("mV", "µV").replace("10.000 µV", "10.000 µV"), "cp1252")
    recording = read_recording(tmp_path / "a.txt", repaired="accept")
    assert (recording.rate_hz, recording.start, recording.leads) == (360, START, ("ECG", "Trigger"))
    signal = 1000 * recording.signal(leads=["ECG"])[0]
    assert len(signal) == 10800 + NUM - 3000
    np.testing.assert_allclose(signal[:3000], ECG[:3000], atol=1e-4)
    np.testing.assert_allclose(signal[10800:], ECG[3000:], atol=1e-4)
    assert np.isnan(signal[3000:10800]).all()
    assert recording.annotations is not None
    assert [(note.start, note.text) for note in recording.annotations.notes] == [(1000, "subject moved")]


@pytest.mark.parametrize("comma", [False, True])
def test_rows_of_labchart_that_were_removed_or_doubled(tmp_path: Path, comma: bool) -> None:
    """With a column of times, the others stay in their places."""
    mv, seconds = (COMMA_MV, COMMA_S) if comma else (MV, S)
    rows = ["\t".join(row) for row in zip(seconds, mv, ["0"] * NUM, strict=True)]
    rows[5000] += "\t#* moved"
    del rows[3000:3400]
    rows[6000:6000] = rows[5990:6000]
    (tmp_path / "a.txt").write_text(labchart(rows, START))
    recording = read_recording(tmp_path / "a.txt", repaired="accept")
    signal = recording.signal(leads=["ECG"])[0]
    assert np.isnan(signal[3000:3400]).all() and recording.repairs
    valid = np.r_[0:3000, 3400:NUM]
    np.testing.assert_allclose(signal[valid], ECG[valid], atol=1e-4)
    assert recording.annotations is not None and recording.annotations.notes[0].start == 5000


@pytest.mark.parametrize("twice", [False, True])
def test_a_packet_with_the_times_of_the_one_before(tmp_path: Path, twice: bool) -> None:
    """Its rows are as many as the times around them allow; a packet that is there twice makes them too many."""
    order = list(range(NUM))
    stamps = list(range(NUM))
    if twice:
        order[3073:3073] = stamps[3073:3073] = range(3000, 3073)
    else:
        stamps[3073:3146] = range(3000, 3073)
    time_ms = texts(1000 * TIME_S, 3)
    content = rows([time_ms[each] for each in stamps], [UV[each] for each in order], by=";",
                   head="timestamp [ms];ecg [uV]\n")  # fmt: skip
    (tmp_path / "a.txt").write_bytes(content)
    recording = read_recording(tmp_path / "a.txt", repaired="accept")
    np.testing.assert_allclose(recording.signal()[0], ECG, atol=6e-4)
    assert len(recording.repairs) == 1 and recording.repairs[0].startswith("73 rows")


@pytest.mark.parametrize(
    ("begin", "hour"), [("2024-03-31 01:59:50", 1), ("2024-10-27 02:59:50", -1), ("2024-03-31 12:59:50", 1)]
)
def test_summer_time_makes_no_gap(tmp_path: Path, begin: str, hour: int) -> None:
    first = datetime.fromisoformat(begin)
    local = [first + timedelta(seconds=each) + timedelta(hours=hour * (each >= 10)) for each in TIME_S.tolist()]
    head = "time,ecg_mV\n"
    (tmp_path / "a.csv").write_bytes(rows([each.isoformat(" ", "milliseconds") for each in local], MV, head=head))
    recording = read_recording(tmp_path / "a.csv", repaired="accept")
    if "12:" in begin:  # an hour is lost at noon
        assert abs(recording.num_samples - NUM - 3600 * 360) < 40
        return
    assert (recording.num_samples, recording.start) == (NUM, first)
    assert any("summer time" in each for each in recording.repairs)
    np.testing.assert_allclose(recording.signal()[0], ECG, atol=6e-4)


def test_fitbit_and_polar_recorder(tmp_path: Path) -> None:
    steps = [round(each * 10922) for each in ECG]
    reading = {"startTime": "2024-05-01T10:00:00.000", "waveformSamples": steps, "samplingFrequencyHz": "360",
               "scalingFactor": 10922, "leadNumber": 1}  # fmt: skip
    short = reading | {"waveformSamples": steps[:500]}
    (tmp_path / "fitbit.json").write_text(json.dumps({"ecgReadings": [short, reading], "pagination": {}}))
    recording = read_recording(tmp_path / "fitbit.json", repaired="accept")
    check(recording, "I", {"start": START, "within_mv": 1e-4})
    assert recording.repairs == ("has 2 readings; the longest is read, a reading left out",)
    ticks = [767_872_800 * 10**9 + round(each * 1e9) for each in TIME_S.tolist()]
    samples = [{"voltage": int(each), "timeStamp": tick} for each, tick in zip(UV, ticks, strict=True)]
    packets = [{"phoneTimestamp": 1, "dataType": "ECG", "data": samples[at : at + 73]} for at in range(0, NUM, 73)]
    lines = [json.dumps(each) for each in [packets[0], {"dataType": "HR", "data": [{"hr": 60}]}, *packets[1:]]]
    for name, text in (("a.jsonl", "\n".join(lines)), ("b.jsonl", "\r\n".join([*lines, lines[1][:20]])),
                       ("c.json", json.dumps(packets))):  # fmt: skip
        (tmp_path / name).write_text(text)
        check(read_recording(tmp_path / name), "ECG", {"start": START})
