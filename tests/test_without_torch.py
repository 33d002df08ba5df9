"""The commands that read recordings give the same results where torch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from tests.test_cli_startup import WITHOUT_TORCH

RUN_ALL = (
    WITHOUT_TORCH
    + """
import json
from heartlm.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
assert "torch" not in sys.modules
"""
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "simdb"
    simulate_database(folder, SimulationConfig(patients=1, minutes=0.5, seed=4))
    return folder


def commands(database: Path, out: Path) -> list[list[str]]:
    recording = str(next(database.glob("*.hea")).with_suffix(""))
    words = [[name, recording, "--out", str(out / name)] for name in ("analyze", "delineate", "alarms")]
    for name in ("foundation", "statements"):
        words.append(["embed", name, recording, "--out", str(out / f"{name}.parquet")])
    for name in ("beats", "af", "waveform", "statements"):
        words.append(["predict", name, recording, "--out", str(out / name)])
    annotators = recording, str(out / "beats" / Path(recording).name), "--annotators", "atr,hlm", "--learning", "0"
    return [*words, ["compare", *annotators, "--out", str(out / "compared.json")]]


def results(out: Path) -> dict[str, bytes]:
    """Contents of the files, of JSON without the time and the command."""
    contents = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.suffix != ".html":
            contents[str(path.relative_to(out))] = path.read_bytes().replace(str(out).encode(), b"OUT")
    return contents


def test_results_are_the_same_where_torch_is_blocked(database: Path, tmp_path: Path) -> None:
    with_torch, without = tmp_path / "with", tmp_path / "none"
    for folder in (with_torch, without):
        folder.mkdir()
    for words in commands(database, with_torch):
        assert main(words) == 0
    blocked = [sys.executable, "-c", RUN_ALL, json.dumps(commands(database, without))]
    done = subprocess.run(blocked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, expected = results(without), results(with_torch)
    assert found.keys() == expected.keys() and len(found) > 10
    assert [name for name in found if found[name] != expected[name]] == []


def test_scores_are_the_same_where_torch_is_blocked(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "beats", "--on", str(database), "--split", "all", "--bootstrap", "20", "--name"]
    assert main([*words, "with"]) == 0
    blocked = [sys.executable, "-c", RUN_ALL, json.dumps([[*words, "none"], ["report", "beats", "--out", "none.html"]])]
    done = subprocess.run(blocked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    scores = [json.loads(Path(f"scores/beats/{name}/scores.json").read_text())["scores"] for name in ("with", "none")]
    assert scores[0] == scores[1]


def test_what_trains_says_what_to_install(database: Path, tmp_path: Path) -> None:
    code = WITHOUT_TORCH + "from heartlm.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    for words in (
        ["export", "waveform", "--out", str(tmp_path / "model.onnx")],
        ["analyze", str(database), "--device", "cuda"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "pip install 'heartlm[train]'" in done.stderr.splitlines()[-1]
