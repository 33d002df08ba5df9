"""An output that would replace what a command reads: one line, status 2, and the input is unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.formats.stated import VARIABLE
from heartlm.storage.atomic import sha256_of
from tests.clinical_files import write_kardia
from tests.conftest import Refused
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE_HZ = 500


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def check_refused(inputs: Path, refused: Refused, *words: str | Path) -> None:
    """Check that the command is refused in one line that names the output, and that `inputs` is unchanged."""
    before, out = content(inputs), words[-1]
    assert str(out) in refused(*words)
    assert content(inputs) == before


def test_compare(database: Path, refused: Refused) -> None:
    out = database / "database.json"
    check_refused(database, refused, "compare", database, "--annotators", "atr,atr", "--learning", "0", "--out", out)
    files = [database / "s0001.atr", database / "s0001.atr"]
    check_refused(database, refused, "compare", *files, "--learning", "0", "--out", out)


@pytest.mark.parametrize("command", ["report", "export"])
def test_files_of_a_run(command: str, tiny_finetuned: Path, refused: Refused) -> None:
    run = "beats-causal" if command == "export" else tiny_finetuned
    check_refused(tiny_finetuned, refused, command, run, "--out", tiny_finetuned / "run.json")


def test_embed(tiny_finetuned: Path, tiny_corpus: Path, refused: Refused) -> None:
    check_refused(tiny_corpus, refused, "embed", tiny_finetuned, tiny_corpus, "--out", tiny_corpus / "records.parquet")


def test_analyze_in_the_folder_of_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Results of a JSON recording, and of a table whose JSON file states its rate, would have the name of that file."""
    signal_mv = ecg_mv(np.arange(30 * RATE_HZ) / RATE_HZ, beat_times_s(60, 1))
    (tmp_path / "db").mkdir()
    write_kardia(tmp_path / "db" / "k.json", np.round(signal_mv[None] * 1000).astype(np.int64), RATE_HZ, ["I"])
    table = tmp_path / "db" / "summary.csv"
    table.write_text("II\n" + "\n".join(f"{value:.4f}" for value in signal_mv))
    table.with_suffix(".json").write_text(json.dumps({"rate_hz": RATE_HZ, "units": "mV"}))
    before = content(tmp_path / "db")
    for name in ("k.json", "summary.csv"):
        assert "belongs to the recording and would be replaced" in refused(
            "analyze", tmp_path / "db" / name, "--no-page", "--out", tmp_path / "db"
        )
    assert content(tmp_path / "db") == before

    monkeypatch.setenv(VARIABLE, "")  # restored after the command has stated the rate
    shutil.copytree(tmp_path / "db", tmp_path / "alone")
    (tmp_path / "alone" / "summary.json").unlink()
    (tmp_path / "alone" / "k.json").unlink()
    words = ["analyze", str(tmp_path / "alone"), "--no-page", "--rate", "500", "--units", "mV", "--processes", "1"]
    assert main([*words, "--out", str(tmp_path / "alone")]) == 0
    assert sha256_of(tmp_path / "alone" / "summary.csv") == before["summary.csv"]
    assert (tmp_path / "alone" / "folder.csv").is_file()
