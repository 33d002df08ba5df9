"""SIGKILL at moments drawn from a seed, then the same command again: the same result, and nothing left over."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from heartlm.cli.main import main
from tests.forked import Forked

pytestmark = pytest.mark.slow


def dies() -> None:
    """Run a command and die at its call of the system of that number that names the folder; a program for `Forked`."""
    moment, folder, *words = sys.argv[1:]
    seen = 0

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event.startswith(("open", "os.", "shutil.")) and folder in " ".join(map(str, arguments)):
            if seen == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(look)
    status = main(words)
    print(f"calls: {seen}")
    sys.exit(status)


def run(moment: int, folder: Path, *words: str | Path) -> tuple[int, int]:
    """The exit status, and how many calls of the system named `folder`; -1 for a moment that never comes."""
    process = Forked(str(moment), folder, *words, program="tests.test_kills:dies")
    out, err = process.communicate()
    last = out.splitlines()[-1:] or [""]
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode, int(last[0].removeprefix("calls: ")) if process.returncode == 0 else 0


def content(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_database_is_simulated_whole_or_not_at_all(tmp_path: Path) -> None:
    words = ("--patients", "2", "--minutes", "0.5")
    _, calls = run(-1, tmp_path / "whole", "data", "simulate", tmp_path / "whole" / "out", *words)
    assert calls > 10
    expected, place = content(tmp_path / "whole"), tmp_path / "killed"
    for moment in random.Random(1).sample(range(2, calls - 1), 3):
        status, _ = run(moment, place, "data", "simulate", place / "out", "--replace", *words)
        assert status == -signal.SIGKILL
        assert not (place / "out").exists() or content(place / "out") == content(tmp_path / "whole" / "out")
    assert run(-1, place, "data", "simulate", place / "out", "--replace", *words)[0] == 0
    assert content(place) == expected


def test_an_evaluation_is_written_whole_or_not_at_all(tiny_finetuned: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    words = ("--on", tiny_corpus, "--threads", "1", "--bootstrap", "20")
    whole, killed = (Path(shutil.copytree(tiny_finetuned, tmp_path / name)) for name in ("whole", "killed"))
    before = content(killed)
    _, calls = run(-1, whole / "scores", "evaluate", whole, *words)
    assert calls > 5
    for moment in random.Random(2).sample(range(1, calls - 1), 1):
        assert run(moment, killed / "scores", "evaluate", killed, *words)[0] == -signal.SIGKILL
        assert {name: found for name, found in content(killed).items() if not name.startswith("scores/")} == before
    assert run(-1, killed / "scores", "evaluate", killed, *words)[0] == 0
    assert scores_of(killed) == scores_of(whole)
    assert content(killed).keys() == content(whole).keys()


def scores_of(run_folder: Path) -> dict[str, bytes]:
    """Scores and predictions without what tells of time and place."""
    found = {name: text for name, text in content(run_folder / "scores").items() if name.endswith(".parquet")}
    for path in (run_folder / "scores").rglob("scores.json"):
        kept = {key: value for key, value in json.loads(path.read_text()).items() if key in ("scores", "baselines")}
        assert kept["scores"]
        found[path.parent.name] = json.dumps(kept).encode()
    assert len(found) > 1
    return found
