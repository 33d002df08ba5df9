"""`benchmarks/machine.py tokenize` in small: the same tokens by all ways, the archive's hours from the rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wfdb
from bench.measure import Rival, Timed
from bench.tokenize import Options, run
from bench.usual_script import detectors, differing_codes
from machine import main

from heartlm.corpus.build import build_corpus
from heartlm.ecg.database import open_database
from heartlm.tokenizers.base import load_tokenizer
from heartlm.tokenizers.beat import BeatTokenizer

pytestmark = pytest.mark.slow


def test_stages_and_builds_are_measured(tiny_database: Path, tmp_path: Path):
    options = Options(out=tmp_path, recordings=tiny_database, rounds=1, processes=(1, 2), usual_s=10)
    stages, builds = run(options)
    assert stages.column("stage") == ["read", "find the beats", "read, beats to tokens"]
    assert builds.column("way") == [
        "heartlm, 1 process",
        "heartlm, 2 processes",
        *(f"usual script, {name}" for name in detectors()),
    ]
    assert any("the same bytes" in note for note in builds.notes)
    assert any("codes otherwise" in note for note in builds.notes)
    assert builds.column("times the first")[0] == 1


def test_rates_are_of_the_samples_of_the_first_leads(
    tiny_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Turns of a known length: 1, 2, 3, … s, one rival after the other; samples are counted from the headers."""

    def timed_race(rivals: list[Rival], rounds: int) -> dict[str, Timed]:
        for rival in rivals:
            rival.turn()
        return {rival.name: Timed((1.0 + place,), rival.amount) for place, rival in enumerate(rivals)}

    monkeypatch.setattr("bench.tokenize.race", timed_race)
    monkeypatch.setattr("bench.tokenize.cores", lambda: [0, 1])
    options = Options(out=tmp_path, recordings=tiny_database, rounds=1, processes=(1, 2, 4), usual_s=10)
    stages, builds = run(options)
    headers = [wfdb.rdheader(str(path.with_suffix(""))) for path in sorted(tiny_database.glob("*.hea"))]
    amounts = [sum(header.sig_len for header in headers) / 1e6] * 3 + [10 * headers[0].fs / 1e6] * len(detectors())
    rates = [amount / taken for taken, amount in enumerate(amounts, 1)]
    assert builds.column("M samples/s") == pytest.approx(rates)
    assert builds.column("a core") == pytest.approx([rates[0], rates[1] / 2, rates[2] / 2, *rates[3:]])
    assert builds.column("hours for 272 GB") == pytest.approx([136_000 / rate / 3600 for rate in rates])
    assert builds.column("times the first") == pytest.approx([rate / rates[0] for rate in rates])
    staged = sum(header.sig_len for header in headers[::2]) / 1e6
    assert stages.column("M samples/s") == pytest.approx([staged, staged / 2, staged / 3])
    assert stages.column("ns a sample") == pytest.approx([1e3 * taken / staged for taken in (1, 2, 3)])


def test_without_recordings_patients_are_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--patients", "8", "--minutes", "1", "--rounds", "1", "--processes", "[1]", "--usual", "false"]
    assert main(["tokenize", "--out", str(tmp_path), *words]) == 0
    content = json.loads((tmp_path / "tokenize.json").read_text())
    assert [len(table["rows"]) for table in content["tables"]] == [3, 1]
    assert "usual script" not in capsys.readouterr().out


def test_the_usual_script_makes_the_same_tokens(tiny_database: Path, tmp_path: Path):
    database, compares_nothing = open_database(tiny_database), BeatTokenizer(num_codes=16, compare=False)
    build_corpus([tiny_database], compares_nothing, tmp_path / "corpus")
    tokenizer = load_tokenizer(tmp_path / "corpus" / "tokenizer")
    differing, num_codes = differing_codes(database, database.record_ids[0], tokenizer)
    assert num_codes > 500 and differing <= 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--recordings", "/nowhere"], "/nowhere: no such folder"),
        (["--processes", "[0]"], "processes: 0 found"),
        (["--usual_s", "1"], "usual_s: 1 found, at least 10 s"),
        (["--patients", "1"], "patients: 1 found"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["tokenize", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
