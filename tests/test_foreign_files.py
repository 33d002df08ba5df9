"""Files that others wrote and that are damaged, hostile or no files: each is refused in one line, in bounded time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.databases.verify import verify_database
from heartlm.errors import HeartlmError
from tests.conftest import shared_data
from tests.test_ecg_wfdb import write_record

SIGNAL = np.sin(np.arange(1000) / 9)[np.newaxis]


@pytest.fixture
def database(database: Path) -> Path:
    """Without lists of what it holds, so that files can be added and changed."""
    (database / "RECORDS").unlink()
    (database / "SHA256SUMS.txt").unlink(missing_ok=True)
    return database


def header(line: str, record: str = "r 1 250 1000") -> Callable[[Path], None]:
    """A record `r` whose header has this line of a signal."""

    def write(folder: Path) -> None:
        (folder / "r.hea").write_text(f"{record}\n{line}\n")
        (folder / "r.dat").write_bytes(bytes(2000))

    return write


def numpy(content: bytes | None = None, suffix: str = "npy", **sidecar: object) -> Callable[[Path], None]:
    """A NumPy recording `r` of these bytes, or a good one, with what its `.json` states."""

    def write(folder: Path) -> None:
        np.save(folder / "r.npy", SIGNAL)
        if content is not None:
            (folder / "r.npy").unlink()
            (folder / f"r.{suffix}").write_bytes(content)
        (folder / "r.json").write_text(json.dumps({"rate_hz": 250, **sidecar}))

    return write


def npy_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def link_to_itself(folder: Path) -> None:
    (folder / "r.hea").symlink_to("r.hea")


def segment_of_itself(folder: Path) -> None:
    header("r 1000", "r/1 1 250 1000")(folder)
    (folder / "RECORDS").write_text("\n".join([*(f"s000{number}" for number in range(1, 6)), "r"]))


def long_gap(folder: Path) -> None:
    for suffix in (".hea", ".dat"):
        shutil.copy(folder / f"s0001{suffix}", folder / f"r_1{suffix}")
    (folder / "r_1.hea").write_text((folder / "s0001.hea").read_text().replace("s0001", "r_1"))
    (folder / "r.hea").write_text("r/2 2 250\nr_1 7500\n~ 9000000000000\n")


def fifo(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        if name.endswith((".dat", ".atr")):
            write_record(folder)
        if name.endswith((".npy", ".json")):
            numpy()(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    make.__name__ = f"fifo_{name}"
    return make


def text_among_numbers(folder: Path) -> None:
    lines = [f"{place / 100},{place % 7}" for place in range(300)]
    lines[290] = "2.9,x\x1b"
    (folder / "r.csv").write_text("\n".join(["time,ecg", *lines]))


def not_utf8(folder: Path) -> None:
    for file in folder.glob("s0001.*"):
        shutil.copy(file, os.fsdecode(os.fsencode(folder) + b"/r\xff\n" + file.suffix.encode()))


def edf_field(start: int, value: bytes) -> Callable[[Path], None]:
    """The sample EDF file with one field of its header changed."""

    def write(folder: Path) -> None:
        content = bytearray(shared_data("formats/test_generator_2.edf").read_bytes())
        content[start : start + len(value)] = value
        (folder / "r.edf").write_bytes(content)

    return write


def deep_sidecar(folder: Path) -> None:
    numpy()(folder)
    (folder / "r.json").write_text("[" * 200_000)


def huge_rate(folder: Path) -> None:
    numpy()(folder)
    (folder / "r.json").write_text('{"rate_hz": 1' + "0" * 400 + "}")


EDF_SIGNALS = 12
"""Of the sample file, by which the place of a field in its header follows."""

NAMED: dict[str, Callable[[Path], None]] = {
    "npy header that is no literal": numpy(npy_header("{'descr': __import__('os'), }\n")),
    "npy header of another type": numpy(npy_header("[1, 2]\n")),
    "npy header of a huge shape": numpy(npy_header(f"{{'descr':'<f8','fortran_order':False,'shape':(1,{10**17})}}\n")),
    "npy header nested deeply": numpy(npy_header("(" * 9000 + "\n")),
    "csv with a text among its numbers": text_among_numbers,
    "json: rate is text": numpy(rate_hz="250"),
    "json: rate is a list": numpy(rate_hz=[250]),
    "json: rate is infinite": numpy(rate_hz=float("inf")),
    "json: rate of 401 digits": huge_rate,
    "json: units is a number": numpy(units=7),
    "json: units of numbers": numpy(units=[7]),
    "json: lead names of numbers": numpy(lead_names=[7]),
    "json: lead names is a number": numpy(lead_names=7),
    "json nested deeply": deep_sidecar,
    "edf: physical minimum": edf_field(256 + EDF_SIGNALS * (16 + 80 + 8), b"1e308   "),
    "hea: NUL in a file name": header("r\0.dat 16 200/mV"),
    "hea: link to itself": link_to_itself,
    "hea: segment of itself": segment_of_itself,
    "hea: samples a frame": header("r.dat 16x999999999999 200/mV"),
    "hea: rate 1e9": header("r.dat 16 200/mV", "r 1 1e9 1000"),
    "hea: rate 1e-4": header("r.dat 16 200/mV", "r 1 1e-4 1000"),
    "hea: rate 1e-300": header("r.dat 16 200/mV", "r 1 1e-300 1000"),
    "hea: gain 1e30": header("r.dat 16 1e30/mV"),
    "hea: gain 1e-30": header("r.dat 16 1e-30/mV"),
    "hea: gain 1e-310": header("r.dat 16 1e-310/mV"),
    "hea: gain -200": header("r.dat 16 -200/mV"),
    "hea: baseline": header("r.dat 16 200(99999999)/mV"),
    "hea: gap longer than memory": long_gap,
    "hea: signal file above the database": header("../s0001.dat 16 200/mV"),
    "hea: signal file elsewhere": header("/etc/passwd 16 200/mV"),
    "hea: segment above the database": header("../s0001 1000", "r/1 1 250 1000"),
    "fifo header": fifo("r.hea"),
    "fifo signal": fifo("r.dat"),
    "fifo annotations": fifo("r.atr"),
    "fifo array": fifo("r.npy"),
    "fifo sidecar": fifo("r.json"),
    "fifo edf": fifo("r.edf"),
    "fifo xml": fifo("r.xml"),
    "fifo csv": fifo("r.csv"),
    "file name that is no text": not_utf8,
}


@pytest.mark.parametrize("spoil", NAMED.values(), ids=NAMED)
def test_one_record_is_refused_in_one_line_and_skipped_when_asked(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    bad = [finding for finding in verify_database(database) if not finding.file.name.startswith("s0")]
    assert [finding.severity for finding in bad] == ["error"]
    tokenize = ["tokenize", str(database), "--tokenizer", "sample", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(tokenize) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said and said.count("\n") == 1 and said.isascii()
    assert main([*tokenize, "--skip-unreadable"]) == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["num_records"] == 5
    (dropped,) = manifest["dropped"]
    assert dropped["record"].startswith("tinydb/r") and "\n" not in dropped["reason"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("RECORDS", "../tinydb/s0001\n", r"RECORDS: lists '\.\./tinydb/s0001'"),
        ("RECORDS", "/etc/passwd\n", "RECORDS: lists '/etc/passwd'"),
        ("RECORDS", "s0001\0\n", r"RECORDS: lists 's0001\\x00'"),
        ("database.json", '{"patients": {"s0001": 7}}', "patients.s0001: 7 found, text expected"),
        ("database.json", '{"patients": ["s0001"]}', "patients: .*found"),
        ("database.json", '{"splits": {"s0001": ["train"]}}', "splits.s0001: .*found"),
        ("database.json", '{"rate_hz": true}', "rate_hz: True found"),
        ("database.json", '{"rate_hz": 1' + "0" * 400 + "}", "no valid JSON|not valid JSON"),
        ("database.json", '{"name": "a\\nb"}', r"name: 'a\\nb' found"),
        ("database.json", "[" * 200_000, "database.json"),
    ],
)
def test_what_describes_a_database_is_checked(database: Path, name: str, content: str, reason: str) -> None:
    (database / name).write_text(content)
    with pytest.raises(HeartlmError, match=reason) as caught:
        open_database(database)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["RECORDS", "database.json"])
def test_a_fifo_that_describes_a_database_is_refused(database: Path, name: str) -> None:
    (database / name).unlink(missing_ok=True)
    os.mkfifo(database / name)
    with pytest.raises(HeartlmError, match=rf"{name}.* regular file"):
        open_database(database)


@pytest.mark.parametrize("content", [b"", b"ecg_id,patient_id\n1,2\n", b"filename_lr\n" + b'"' * 200_000])
def test_a_table_of_patients_without_its_columns_is_one_line(tmp_path: Path, content: bytes) -> None:
    write_record(tmp_path, name="r")
    (tmp_path / "database.json").write_text('{"name": "ptb-xl"}')
    (tmp_path / "ptbxl_database.csv").write_bytes(content)
    if not content:
        assert open_database(tmp_path).patient_of("r") == "ptb-xl/r"
        return
    with pytest.raises(HeartlmError, match=r"ptbxl_database\.csv: not readable as a table"):
        open_database(tmp_path).patient_of("r")


def test_one_recording_in_two_subfolders_is_found(database: Path, tmp_path: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(database, tmp_path / "db" / place, ignore=shutil.ignore_patterns("database.json"))
    found = [finding for finding in verify_database(tmp_path / "db") if "holds the samples of a/" in finding.message]
    assert [finding.file.parent.name for finding in found] == ["b"] * 5
    database = open_database(tmp_path / "db")
    patients = {f"{place}/s000{number}": f"p{number}" for place in "ab" for number in range(1, 6)}
    splits = [[database.split_of(f"{place}/s000{number}") for place in "ab"] for number in range(1, 6)]
    assert [finding.severity for finding in found] == ["warning" if a == b else "error" for a, b in splits]
    (tmp_path / "db" / "database.json").write_text(json.dumps({"patients": patients}))
    assert verify_database(tmp_path / "db") == []


def test_one_recording_in_training_and_in_validation_is_refused(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for place in ("a", "b", "c"):
        shutil.copytree(database, tmp_path / "db" / place, ignore=shutil.ignore_patterns("database.json"))
    words = ["tokenize", str(tmp_path / "db"), "--tokenizer", "sample", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "yet they count as two patients, one in" in capfd.readouterr().err
    patients = {f"{place}/s000{number}": f"p{number}" for place in "abc" for number in range(1, 6)}
    (tmp_path / "db" / "database.json").write_text(json.dumps({"patients": patients}))
    assert main(words) == 0


def test_infinite_samples_are_read_as_invalid_and_noted(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("time,II\n" + "".join(f"{t / 100},{t % 7}\n" for t in range(50)) + "0.5,inf\n")
    recording = open_database(tmp_path).recording("r")
    assert np.isnan(recording.signal()[0, 50])
    assert recording.faults == ["lead II: has infinite samples, which are read as invalid"]
    assert "has infinite samples" in [finding.message for finding in verify_database(tmp_path)][-1]
