"""The demo, tiny: all of it runs, and ends in a page that a browser opens."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from heartlm.cli.main import main
from heartlm.storage.reading import read_json
from tests.browser import open_page

pytestmark = pytest.mark.slow

TINY = ["--patients", "12", "--minutes", "1", "--depth", "1", "--steps", "4", "--finetune-steps", "3", "--threads", "1"]
TINY += ["--hours", "0.1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["demo", *TINY]) == 0
    return SimpleNamespace(place=place, folder=place / "demo")


@pytest.fixture
def here(finished: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(finished.place)
    return finished.folder


def test_the_report_opens_in_a_browser_with_scores(finished, tmp_path):
    page = open_page(finished.folder / "report.html", tmp_path)
    for words in ("macro F1", "random initialisation", "gradient boosting", "simdb"):
        assert words in page.html
    assert page.screenshot.stat().st_size > 20_000


def test_every_step_is_noted_as_a_command_that_can_be_typed(finished):
    for name, first in (("foundation", "pretrain"), ("beats", "finetune"), ("scratch", "finetune")):
        words = shlex.split(read_json(finished.folder / name / "run.json")["command"])
        assert words[:2] == ["heartlm", first]
        assert words[-2:] == ["--out", f"demo/{name}"]
    scores = read_json(finished.folder / "beats" / "scores" / "test" / "scores.json")
    assert scores["command"].startswith("heartlm evaluate demo/beats --on demo/corpus")


def test_a_test_recording_is_annotated(finished):
    import wfdb

    path = next(finished.folder.glob("*.hlm"))
    reference = wfdb.rdann(str(finished.folder / "data" / path.stem), "atr")
    num_beats = sum(symbol in "NLRejAaJSVEF/fQ" for symbol in reference.symbol)
    assert len(wfdb.rdann(str(path.with_suffix("")), "hlm").sample) == num_beats


def test_a_day_is_analysed_with_the_shipped_models(finished):
    (summary,) = (finished.folder / "analysis").glob("*.json")
    found = read_json(summary)["summary"]
    assert found["duration_s"] == 360
    assert 200 < found["num_beats"] < 1000
    assert summary.with_suffix(".html").stat().st_size > 20_000


def test_an_earlier_demo_or_any_other_file_is_not_touched(here, tmp_path, refused):
    assert "demo exists and is not empty: remove it, or give another --out" in refused("demo", *TINY, "--seed", "3")
    (tmp_path / "mine.txt").write_text("precious")
    refused("demo", *TINY, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
