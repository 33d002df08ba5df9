"""Results of `heartlm analyze` and `heartlm delineate` are kept while all that decides them is the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import heartlm
from heartlm.cli.main import main
from heartlm.databases import each_recording
from heartlm.ecg.recording import Recording
from heartlm.models.pretrained import FOLDER
from tests.conftest import edit_json
from tests.synthetic_leads import heart_lead

OWN_TABLES = Path(each_recording.PACKAGE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the tables and weights that heartlm ships, which a test may change."""
    for kind in ("json", "safetensors"):
        for path in OWN_TABLES.glob(f"*/*.{kind}"):
            copy = tmp_path / "package" / path.relative_to(OWN_TABLES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    monkeypatch.setattr(each_recording, "PACKAGE", tmp_path / "package")
    each_recording.build.cache_clear()
    yield tmp_path / "package"
    each_recording.build.cache_clear()


@pytest.mark.parametrize("command", ["analyze", "delineate"])
def test_results_are_kept_until_something_that_decides_them_changes(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    record, out = tmp_path / "db/1", tmp_path / "out"
    Recording.from_array(heart_lead(20).signal_mv, rate_hz=250.0, leads=["II"]).to_wfdb(record.parent, record.name)
    shutil.copytree(FOLDER / "af", tmp_path / "af")
    words = [command, str(record), "--out", str(out)]
    words += ["--no-page", "--af", str(tmp_path / "af")] if command == "analyze" else []

    def is_kept() -> bool:
        stamp = (out / "1.json").stat().st_mtime_ns
        assert main(words) == 0
        return (out / "1.json").stat().st_mtime_ns == stamp

    assert main(words) == 0
    assert is_kept()
    for table in ("analysis/short_af.json", "delineation/network.safetensors", "ecg/detect.json"):
        (package / table).write_bytes((package / table).read_bytes() + b" ")
        each_recording.build.cache_clear()
        assert not is_kept(), table
        assert is_kept()
    with monkeypatch.context() as changed:
        changed.setattr(heartlm, "__version__", "0.0.9")
        each_recording.build.cache_clear()
        assert not is_kept()
    if command == "analyze":
        described = tmp_path / "af/models/last/config.json"
        edit_json(described, threshold=json.loads(described.read_text())["threshold"] / 2)
        assert not is_kept()
    each_recording.build.cache_clear()
    assert main(words) == 0
    os.utime(record.with_suffix(".dat"), ns=(0, 0))  # as if it were another file
    assert not is_kept()
    assert is_kept()


def test_a_recording_of_another_folder_with_the_same_name_has_results_of_its_own(tmp_path: Path) -> None:
    for folder, num in (("a", 20), ("b", 10)):
        Recording.from_array(heart_lead(num).signal_mv, rate_hz=250.0, leads=["II"]).to_wfdb(tmp_path / folder, "1")
    durations_s = []
    for folder in ("a", "b"):
        assert main(["analyze", str(tmp_path / folder / "1"), "--out", str(tmp_path / "out"), "--no-page"]) == 0
        durations_s.append(json.loads((tmp_path / "out/1.json").read_text())["summary"]["duration_s"])
    assert durations_s[0] > durations_s[1] + 5
