"""The exit status of commands that read many recordings: 0 all, 1 some were left out, 2 nothing was done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.storage.reading import read_json
from tests.conftest import mounted_disk
from tests.edf_files import Lead, edf_bytes
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE = 250
NUM_RECORDINGS = 6


def ecg(seed: int, seconds: int = 30) -> np.ndarray:
    return ecg_mv(np.arange(seconds * RATE) / RATE, beat_times_s(60, seed))


def write_edf(path: Path, seed: int = 0, **how: str) -> None:
    digits = np.round(32767 / 5 * ecg(seed)).astype(np.int64)
    path.write_bytes(edf_bytes([Lead("ECG II", digits), Lead("RESP", digits)], 30, **how))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings of which each is readable."""
    folder = tmp_path / "db"
    folder.mkdir()
    for number in range(NUM_RECORDINGS):
        write_edf(folder / f"r{number}.edf", number)
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which the results of some of the recordings fit; each takes 80 to 250 kB."""
    with mounted_disk(tmp_path / "disk", 600) as folder:
        yield folder


def analyze(folder: Path, out: Path, *words: str) -> int:
    return main(["analyze", str(folder), "--out", str(out), "--processes", "1", *words])


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("command", ["analyze", "alarms"])
def test_a_command_ends_with_1_where_recordings_were_left_out(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    for path in sorted(folder.iterdir())[3:]:
        path.unlink()
    words = ("--no-page", "--processes", "1") if command == "analyze" else ()

    def status(out: Path) -> int:
        return main([command, str(folder), "--out", str(out), *words])

    assert status(tmp_path / "out") == 0
    (folder / "r9.edf").write_bytes(b"0       ")
    assert status(tmp_path / "out") == 1
    assert last_line(capfd) == "3 recordings analysed, 1 left out"
    for path in folder.glob("r[0-2].edf"):
        path.unlink()
    shutil.copy(folder / "r9.edf", folder / "r8.edf")
    assert status(tmp_path / "none") == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == f"heartlm {command}: {folder}: none of 2 recordings could be analysed"


def test_a_disk_that_is_full_after_some_recordings(folder: Path, disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert analyze(folder, disk / "out") == 1
    said = capfd.readouterr().out.splitlines()
    left_out = [line for line in said if line.startswith("left out: r") and "No space left on device" in line]
    assert 0 < len(left_out) < NUM_RECORDINGS
    assert said[-1] == f"{NUM_RECORDINGS - len(left_out)} recordings analysed, {len(left_out)} left out"
    assert analyze(folder, disk / "more") == 2  # nothing fits any more
    assert f"none of {NUM_RECORDINGS} recordings could be analysed" in capfd.readouterr().err


def test_convert_on_a_disk_that_is_full_after_some_recordings(
    folder: Path, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for number in range(NUM_RECORDINGS):
        digits = random.integers(-9000, 9000, 60 * RATE)
        (folder / f"r{number}.edf").write_bytes(edf_bytes([Lead("ECG", digits)] * 4, 60))
    words = ["data", "convert", str(folder), str(disk / "out"), "--processes", "1"]
    assert main(words) == 1
    said = capfd.readouterr().out.splitlines()
    left_out = [line for line in said if line.startswith("left out: r") and "No space left on device" in line]
    assert 0 < len(left_out) < NUM_RECORDINGS
    assert said[-1] == f"{NUM_RECORDINGS - len(left_out)} recordings converted, {len(left_out)} left out"
    assert not [path for path in (disk / "out").iterdir() if path.name.startswith(".convert-")]


def test_tokenize_ends_with_1_where_recordings_were_left_out(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["tokenize", str(folder), "--tokenizer", "sample", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "6 x channel RESP: no ECG (by its name) (listed in manifest.json)" in capfd.readouterr().out
    digits = np.zeros(600, np.int64)
    (folder / "flat.edf").write_bytes(edf_bytes([Lead("ECG", digits)], 6))
    (folder / "breath.edf").write_bytes(edf_bytes([Lead("RESP", digits), Lead("Temp", digits, "degC")], 6))
    assert main(words) == 1
    assert last_line(capfd) == "6 recordings tokenised, 2 left out"
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert (manifest["num_records"], manifest["num_left_out"]) == (6, 2)
    assert "no ECG lead (RESP by its name, Temp in degC)" in [entry["reason"] for entry in manifest["dropped"]]
    assert main([*words[:1], str(folder / "none"), *words[2:]]) == 2


def test_results_name_repairs_and_the_channels_that_are_no_ecg(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_edf(tmp_path / "r.edf", stated="-1")
    out = tmp_path / "out"
    assert main(["analyze", str(tmp_path / "r.edf"), "--out", str(out), "--no-page"]) == 0
    repair, channel = (
        "states -1 data records and holds 30, which are read",
        "channel RESP left out: no ECG (by its name)",
    )
    assert capfd.readouterr().err.splitlines() == [
        f"warning: {tmp_path / 'r.edf'}: {repair}",
        f"{tmp_path / 'r.edf'}: {channel}",
    ]
    found = read_json(out / "r.json")
    assert found["summary"]["leads"] == ["ECG II"]
    assert found["notes"][:2] == [f"repaired: {repair}", channel]
    for command in ("analyze", "alarms"):
        assert main([command, str(tmp_path / "r.edf"), "--out", str(tmp_path / "no"), "--strict"]) == 2
        assert repair in capfd.readouterr().err
