from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.databases.database import open_database
from heartlm.databases.verify import verify_database
from tests.conftest import shared_data
from tests.test_ecg_annotation_files import write_out_of_order
from tests.test_ecg_database import write_database
from tests.test_ecg_wfdb import edit_header, write_record


def findings(folder: Path) -> list[tuple[str, str, str]]:
    return [(finding.file.name, finding.severity, finding.message) for finding in verify_database(folder)]


def only(folder: Path) -> tuple[str, str, str]:
    found = findings(folder)
    assert len(found) == 1, found
    return found[0]


def test_a_whole_database_has_no_findings(tmp_path: Path) -> None:
    write_database(tmp_path, "r", "s")
    (tmp_path / "database.json").write_text('{"patients": {"r": "one", "s": "one"}}')
    assert findings(tmp_path) == []


def test_real_databases_are_whole() -> None:
    assert findings(shared_data("cudb"))[0][2] == "lead ECG: 538 of 127232 samples are invalid"
    assert findings(shared_data("afdb")) == []


def test_sums(tmp_path: Path) -> None:
    write_database(tmp_path, "r")
    lines = [
        f"{hashlib.sha256((tmp_path / 'r.dat').read_bytes()).hexdigest()}  r.dat",
        f"{'0' * 64} *r.hea",
        f"{'0' * 64}  gone.dat",
        "nonsense",
    ]
    (tmp_path / "SHA256SUMS.txt").write_text("\n".join(lines))
    assert [(name, severity) for name, severity, _ in findings(tmp_path)] == [
        ("r.hea", "error"),
        ("gone.dat", "warning"),
        ("SHA256SUMS.txt", "warning"),
    ]


def test_changed_sample_is_told_by_the_checksum(tmp_path: Path) -> None:
    write_database(tmp_path, "r")
    content = bytearray((tmp_path / "r.dat").read_bytes())
    content[0] ^= 1
    (tmp_path / "r.dat").write_bytes(content)
    name, severity, message = only(tmp_path)
    assert (name, severity) == ("r.hea", "error")
    assert message.startswith("lead MLII: the header's checksum is")


def test_a_checksum_of_zero_is_of_a_program_that_computes_none(tmp_path: Path) -> None:
    write_database(tmp_path, "r")
    header = tmp_path / "r.hea"
    lines = header.read_text().splitlines()
    fields = lines[1].split()
    fields[6] = "0"
    header.write_text("\n".join([lines[0], " ".join(fields), *lines[2:]]) + "\n")
    assert findings(tmp_path) == []


def test_truncated_and_missing_signals(tmp_path: Path) -> None:
    write_database(tmp_path, "r")
    (tmp_path / "r.dat").write_bytes((tmp_path / "r.dat").read_bytes()[:2000])
    assert only(tmp_path)[:2] == ("r.dat", "error")
    (tmp_path / "r.dat").unlink()
    assert only(tmp_path) == ("r.dat", "error", "signal file named by r.hea is missing; fetch it")


def test_gain_of_zero(tmp_path: Path) -> None:
    write_database(tmp_path, "r")
    edit_header(tmp_path, "200.0(0)/mV", "0(0)/mV")
    assert ("r.hea", "error", "lead MLII has gain 0 (uncalibrated): its signal is refused") in findings(tmp_path)
    (tmp_path / "database.json").write_text('{"uncalibrated": true}')
    assert [severity for _, severity, _ in findings(tmp_path)] == ["warning", "warning"]


@pytest.mark.parametrize("name", ["svdb", "nstdb"])
def test_databases_published_without_calibration_are_read(name: str, tmp_path: Path) -> None:
    """As the noise recordings of nstdb are."""
    folder = tmp_path / name
    folder.mkdir()
    write_database(folder, "r")
    in_mv = open_database(folder).recording("r").signal()
    edit_header(folder, "200.0(0)/mV", "0(0)/mV")
    assert np.array_equal(open_database(folder).recording("r").signal(), in_mv)


@pytest.mark.parametrize("read_bytes", [1 << 27, 1])
def test_flat_and_invalid_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    monkeypatch.setattr("heartlm.databases.verify._READ_BYTES", read_bytes)
    signal = np.stack([np.zeros(1000), np.full(1000, np.nan)], axis=1)
    wfdb.wrsamp("r", 250, ["mV"] * 2, ["flat", "none"], p_signal=signal, fmt=["16"] * 2, adc_gain=[200.0] * 2,
                baseline=[0] * 2, write_dir=str(tmp_path))  # fmt: skip
    assert findings(tmp_path) == [
        ("r.hea", "warning", "lead flat is flat throughout"),
        ("r.hea", "warning", "lead none has no valid sample"),
    ]


def test_annotations_out_of_order_past_the_end_and_unreadable(tmp_path: Path) -> None:
    write_record(tmp_path)
    write_out_of_order(tmp_path / "r.atr")
    assert "1 annotations stand before the one they follow" in only(tmp_path)[2]
    wfdb.wrann("r", "atr", np.array([100, 1000]), ["N", "N"], write_dir=str(tmp_path))
    assert "1 annotations past the end of the recording (1000 samples), one at 1000" in only(tmp_path)[2]
    (tmp_path / "r.atr").write_bytes(b"nonsense")
    assert only(tmp_path)[:2] == ("r.atr", "error")


def test_a_malformed_header_does_not_stop_the_others(tmp_path: Path) -> None:
    write_database(tmp_path, "r", "s")
    (tmp_path / "database.json").write_text('{"patients": {"r": "one", "s": "one"}}')
    (tmp_path / "s.hea").write_text("nonsense\n")
    name, severity, message = only(tmp_path)
    assert (name, severity) == ("s.hea", "error")
    assert "not readable as a WFDB record" in message
