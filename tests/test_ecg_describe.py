"""What is no recording is named by its content, in one line, with what is missing."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.cli.main import main
from heartlm.databases.database import locate, open_database
from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from tests.clinical_files import write_ishne
from tests.test_ecg_wfdb import write_record


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "1,2\n")


def annotated(path: Path) -> None:
    samples, symbols = np.array([10, 300, 600, 900, 1200]), ["N"] * 5
    wfdb.wrann(path.stem, path.suffix[1:], samples, symbols, write_dir=str(path.parent))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "page.pdf": (content(b"%PDF-1.7\n"), "a PDF document; export the recording itself"),
    "page.ecg": (content(b"\x89PNG\r\n\x1a\n"), "a PNG image; export"),
    "day.zip": (zipped, "a ZIP archive or a workbook; unpack it"),
    "day.gz": (content(gzip.compress(b"x")), "compressed by gzip; unpack it"),
    "day.ann": (content(b"ANN  1.0" + bytes(600)), "an ISHNE annotation file; the samples are in"),
    "ct": (content(bytes(128) + b"DICM" + b"1.2.840.10008.5.1.4.1.1.2"), "a DICOM file without waveforms"),
    "r.dat": (content(bytes(range(256)) * 8), "a signal file without its WFDB header; fetch r.hea"),
    "r.ari": (annotated, "a WFDB annotation file without its header; fetch r.hea"),
    "r.npy": (lambda path: np.save(path, np.zeros(5)), "a NumPy array; give --rate, or write its rate into r.json"),
    "fitbit.json": (content(b'{"ecgReadings": []}'), "a JSON text, of which heartlm reads"),
    "notes.md": (content("Größe 7\n".encode()), "a text, for example"),
    "page.svg": (content(b'<?xml version="1.0"?><svg width="9"/>'), "an XML file with the root svg"),
    "empty.edf2": (content(b""), "an empty file; fetch it again"),
    "own.bin": (content(b"\x91\x02\xfe\xff" * 50), r"binary data of no format .* begins with 91 02 fe ff"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_no_recording_is_named_by_its_content(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write, text = KINDS[name]
    write(tmp_path / name)
    # with --rate an array would be a recording: its reader names the missing rate
    expected = "states no sampling rate; give --rate HZ" if name == "r.npy" else f"no recording, but {text}"
    for act in (locate, read_recording):
        with pytest.raises(HeartlmError, match=f"{name}: {expected}") as caught:
            act(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(HeartlmError, match=f"no recordings found; {name}: {text}"):
        open_database(tmp_path)
    write_record(tmp_path, name="other")
    with pytest.raises(HeartlmError, match=f"{name}: {expected}"):
        locate(tmp_path / name)
    assert main(["analyze", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_folder_names_its_most_frequent_kinds(tmp_path: Path) -> None:
    for place in range(3):
        (tmp_path / f"p{place}.pdf").write_bytes(b"%PDF-1.7\n")
    (tmp_path / "sub").mkdir()
    annotated(tmp_path / "sub" / "r.ari")
    (tmp_path / ".hidden").write_bytes(b"%PDF-1.7\n")
    with pytest.raises(HeartlmError, match=r"found; p0\.pdf and 2 more: a PDF document; .*; sub/r\.ari: a WFDB anno"):
        open_database(tmp_path)


def test_a_file_that_records_does_not_list(tmp_path: Path) -> None:
    write_record(tmp_path, name="a")
    write_ishne(tmp_path / "b.ecg", np.zeros((1, 500), np.int16), leads=("II",))
    (tmp_path / "RECORDS").write_text("a\n")
    with pytest.raises(HeartlmError, match=r"b\.ecg: .*an ISHNE Holter file that .*RECORDS does not list"):
        locate(tmp_path / "b.ecg")


def test_other_files_of_a_record_open_it(tmp_path: Path) -> None:
    write_record(tmp_path, name="a")
    annotated(tmp_path / "a.atr")
    for name in ("a", "a.hea", "a.dat", "a.atr"):
        assert locate(tmp_path / name)[1] == "a"
    (tmp_path / "a.json").write_text(json.dumps({}))
    assert locate(tmp_path / "a.json")[1] == "a"
