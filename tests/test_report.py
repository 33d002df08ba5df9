"""The page of a run: every section, missing parts, hostile names, no network, and a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.report.page import write_report
from heartlm.runs.run_folder import RunFolder
from tests import synthetic_run
from tests.browser import find_chromium, open_page
from tests.conftest import Refused, edit_json

SECTIONS = ("scores", "training", "tokens", "data", "environment", "reproduce")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return synthetic_run.write_runs(tmp_path / "runs")


class Addresses(HTMLParser):
    """Collects whatever a browser would fetch, and the ids of sections."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.sections: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.fetched += [values[name] for name in ("src", "href", "srcset", "data", "poster") if name in values]
        if tag == "section" and "id" in values:
            self.sections.append(values["id"])


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_command_writes_a_page_with_every_section(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(runs[1])]) == 0
    assert capsys.readouterr().out == f"wrote {runs[1] / 'report.html'}\n"
    parsed = Addresses()
    parsed.feed(text_of(runs[1] / "report.html"))
    assert sorted(parsed.sections) == sorted(SECTIONS)


def test_out_chooses_the_file(runs: tuple[Path, Path], tmp_path: Path):
    assert main(["report", str(runs[1]), "--out", str(tmp_path / "elsewhere.html")]) == 0
    assert "</html>" in text_of(tmp_path / "elsewhere.html")
    assert not (runs[1] / "report.html").exists()


def test_nothing_is_fetched_from_anywhere(runs: tuple[Path, Path]):
    page = text_of(write_report(runs[1]))
    parsed = Addresses()
    parsed.feed(page)
    assert all(address.startswith(("#", "data:")) for address in parsed.fetched)
    assert not re.search(r"url\(\s*['\"]?(?!#|data:)|@import|https?://", page)


def test_scores_stand_beside_intervals_and_baselines(runs: tuple[Path, Path]):
    page = text_of(write_report(runs[1]))
    assert "0.921" in page
    assert "0.881–0.961" in page
    assert "gradient boosting 0.821" in page
    assert "Not computed: random initialisation." in page


def test_pretraining_curves_of_the_parent_are_shown(runs: tuple[Path, Path]):
    page = text_of(write_report(runs[1]))
    assert "Pretraining: loss" in page
    assert "Fine-tuning: loss" in page


def test_a_parent_that_moved_along_is_found_beside_the_run(runs: tuple[Path, Path], tmp_path: Path):
    (tmp_path / "runs").rename(tmp_path / "moved")
    parent = RunFolder(tmp_path / "moved" / "beats").parent
    assert parent is not None
    assert parent.run_json["kind"] == "pretrain"


def test_runs_that_name_each_other_as_parent_end(runs: tuple[Path, Path]):
    for path, parent in (runs, runs[::-1]):
        edit_json(path / "run.json", parent=str(parent))
    assert 2 <= len(RunFolder(runs[0]).lineage()) <= 10


def test_commands_to_reproduce_are_in_order_and_once(runs: tuple[Path, Path]):
    page = text_of(write_report(runs[1]))
    block = page[page.index('id="reproduce"') :]
    block = block[: block.index("</pre>")]
    words = [line.split("heartlm ")[-1].split()[0] for line in block.splitlines() if "heartlm " in line]
    assert words == ["tokenize", "pretrain", "finetune", "evaluate", "report"]


def test_a_run_with_nothing_but_run_json_says_what_to_do(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"kind": "pretrain"}')
    page = text_of(write_report(tmp_path))
    assert f"heartlm finetune {tmp_path} --task beats" in page
    assert "metrics.jsonl" in page
    assert "heartlm tokenize" in page
    assert "environment.json" in page


def test_an_unscored_finetune_names_the_command_that_scores_it(tmp_path: Path):
    synthetic_run.write_run(tmp_path / "beats", kind="finetune", steps=100)
    page = text_of(write_report(tmp_path / "beats"))
    assert f"heartlm evaluate {tmp_path / 'beats'} --on CORPUS" in page
    assert "Highest macro F1" in page


def test_rhythm_scores_have_their_own_table(tmp_path: Path):
    synthetic_run.write_run(tmp_path / "af", kind="finetune", steps=100)
    (tmp_path / "af" / "scores" / "af").mkdir(parents=True)
    (tmp_path / "af" / "scores" / "af" / "scores.json").write_text(json.dumps(synthetic_run.rhythm_scores()))
    page = text_of(write_report(tmp_path / "af"))
    assert "Windows of 128 beats" in page
    assert "Zhou 2015" in page
    assert "0.925" in page
    assert "0.940 (0.900–0.980)" in page


def test_empty_scores_become_dashes_and_no_crash(tmp_path: Path):
    synthetic_run.write_run(tmp_path / "run", kind="finetune", steps=100)
    for name, scores in (("a", {"task": "beats", "scores": None}), ("b", {"task": "rhythm", "scores": {"f1": None}})):
        (tmp_path / "run" / "scores" / name).mkdir(parents=True)
        (tmp_path / "run" / "scores" / name / "scores.json").write_text(json.dumps(scores))
    page = text_of(write_report(tmp_path / "run"))
    assert "–" in page
    assert "None" not in page
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)


def test_nan_in_metrics_is_a_gap(runs: tuple[Path, Path]):
    with (runs[1] / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 500, "split": "train", "loss": NaN, "learning_rate": null}\n')
    page = text_of(write_report(runs[1]))
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)


def test_names_from_files_are_escaped(runs: tuple[Path, Path]):
    hostile = '<script>alert("x")</script>'
    edit_json(runs[1] / "run.json", name=hostile, command=hostile)
    scores = synthetic_run.beat_scores() | {"on": hostile, "split": hostile}
    (runs[1] / "scores" / "test" / "scores.json").write_text(json.dumps(scores))
    assert text_of(write_report(runs[1])).count("<script>") == 1


def test_a_torn_last_line_of_metrics_is_counted(runs: tuple[Path, Path]):
    with (runs[1] / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 201, "spl')
    assert RunFolder(runs[1]).num_torn_lines == 1
    assert "unreadable lines in metrics.jsonl" in text_of(write_report(runs[1]))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("run.json", "{", "not valid JSON"),
        ("run.json", "[]", "fields with their values expected"),
        ("run.json", '{"schema": 2}', "schema is 2, this heartlm reads 1"),
        ("data.json", '{"path": 1}', "a list of fields with their values expected"),
        ("scores/test/scores.json", '{"schema": "x"}', "schema is 'x'"),
    ],
)
def test_a_file_that_cannot_be_understood_is_named(runs: tuple[Path, Path], file: str, content: str, words: str):
    (runs[1] / file).write_text(content)
    with pytest.raises(HeartlmError, match=re.escape(words)) as caught:
        write_report(runs[1])
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, refused: Refused):
    assert "no run.json, so not a run folder" in refused("report", tmp_path)
    assert "no such run folder" in refused("report", tmp_path / "nowhere")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_real_browser_draws_it_without_errors(runs: tuple[Path, Path], tmp_path: Path, width: int):
    find_chromium()
    file = write_report(runs[1])
    page = open_page(file, tmp_path, width=width)
    assert page.data["ready"] == "true"
    assert page.data["errors"] == "0", page.data.get("first-error")
    assert int(page.data["drawings"]) == text_of(file).count("<svg ") == 3
    assert page.data["overflow"] == "0"
    assert page.screenshot.stat().st_size > 20_000


def test_a_shipped_model_is_reported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "beats"]) == 0
    assert "A heart language model for beats" in (tmp_path / "beats.html").read_text(encoding="utf-8")
