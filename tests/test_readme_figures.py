"""Figures in README.md and docs/ are those of the result files, and the generator tells what speaks against them."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heartlm.errors import HeartlmError
from heartlm.models.pretrained import FOLDER
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.storage.reading import read_json
from lab import catalog, figures, output, places, runner, weights
from lab.measure import BenchTable, Spread
from studies import quality

ROOT = Path(__file__).parent.parent

TEXT = "Before.\n<!-- figures: speed -->\nstale\n<!-- /figures -->\nAfter.\n"


@pytest.mark.parametrize("path", list(figures.documents()), ids=lambda path: path.name)
def test_figures_are_those_of_the_result_files(path: Path):
    text = path.read_text(encoding="utf-8")
    assert figures.filled(text) == text, f"call python -m lab.figures --write: {path.name} differs from the results"


def test_readme_and_the_page_of_gpus_tell_of_the_same_card_and_figures():
    result = json.loads((ROOT / "benchmarks/results/gpu-nvidia-h100-80gb-hbm3.json").read_text())
    readme = next(part for part in (ROOT / "README.md").read_text().split("\n\n") if part.startswith("**On GPUs:**"))
    page = (ROOT / "docs/gpu.md").read_text()
    card, date = "H100 80GB", result["date"][:10]
    torch = "torch " + result["environment"]["torch"].rpartition(".")[0]
    assert card in result["environment"]["gpu"]
    assert f"one NVIDIA {card} ({date}, {torch})" in " ".join(readme.split())
    assert f"**Measured on {date} on one {card}** ({torch}," in page and f"| {date} | one {card} |" in page
    rates = {
        (each["tokenizer"], each["batch_size"]): f"{each['tokens_per_s'] / 1e6:.3g}"
        for each in result["rates"]
        if each["depth"] == 4 and each["training"] in ("masked", "causal")
    }
    rows = [
        line for line in page.splitlines() if line.startswith(("| beat tokens (32", "| the same", "| sample tokens"))
    ]
    shown = [row.split("|")[3].strip() for row in rows[:4]]
    assert shown == [rates[key] for key in (("beat", 16), ("beat", 256), ("sample", 16), ("sample", 256))]
    assert f"{rates['beat', 256]} M" in readme and f"{rates['beat', 16]} M" in readme
    *_, newest = (line for line in page.splitlines() if re.match(r"\| 20.*(passed|failed)", line))
    passed, failed = (re.search(rf"(\d+) {word}", newest) for word in ("passed", "failed"))
    assert passed and failed and f"{passed[0]}, {failed[0]}" in readme


TIMED = re.compile(r"/s\b|^seconds$|(?<!distance )\bms\b(?! %)|µs|\bns\b")


@pytest.mark.parametrize("name", [each.name for each in runner.BENCHMARKS if not each.long])
def test_every_timed_table_has_a_spread_a_date_and_a_steady_or_marked_machine(name: str):
    for table in json.loads(places.result_of(name).read_text(encoding="utf-8"))["tables"]:
        assert table["date"] and table["probe_before"] and table["probe_after"] and "moved" in table
        if any(TIMED.search(column) for column in table["columns"]):
            spread = any(isinstance(cell, dict) for cells in table["rows"] for cell in cells)
            assert spread or {"95 % from", "95 % interval"} & set(table["columns"]), table["title"]


def test_every_template_stands_in_a_document():
    named = {block[2] for path in figures.documents() for block in figures.BLOCK.finditer(path.read_text())}
    included = {path.stem for path in figures.TEMPLATES.glob("_*.md")}
    assert named | included == {path.stem for path in figures.TEMPLATES.glob("*.md")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of one table, and a template that quotes them."""
    save(tmp_path, measured_table().as_json())
    (tmp_path / "speed.md").write_text(
        '{{ cell("speed", "Speed", "ours", "64")|n }} ({{ low("speed", "Speed", "ours", "64")|n }}) MB/s, '
        '{{ column("speed", "Speed", "times")|max|n }} times.'
    )
    return tmp_path


def measured_table() -> BenchTable:
    table = BenchTable("Speed, MB/s", ("way", "64", "times"), probe_before=100.0)
    table.add("ours", Spread.of([1290.0, 1300.0, 1310.0]), "1.90x")
    table.add("theirs", 686.0, "1.00x")
    table.probe_after = 101.0
    return table


def save(folder: Path, table: dict[str, Any]) -> None:
    content = {"environment": {"processor": "a processor"}, "tables": [table]}
    (folder / "speed.json").write_text(json.dumps(content))


def table_of(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "speed.json").read_text())["tables"][0]
    return table


def test_a_block_is_filled_and_a_number_edited_by_hand_is_found(folder: Path):
    text = figures.filled(TEXT, [folder], folder)
    assert "1,300 (1,300) MB/s, 1.90 times." in text and "stale" not in text
    assert text.startswith("Before.\n") and text.endswith("After.\n")
    assert figures.filled(text, [folder], folder) == text
    edited = text.replace("1.90", "1.95")
    assert figures.filled(edited, [folder], folder) != edited


def test_a_result_with_a_date_measured_on_a_steady_machine_needs_no_remark(folder: Path):
    text = figures.rendered("speed", [folder], folder)
    assert table_of(folder)["date"][:10] in text and "a processor" in text
    assert "Without" not in text and "changed" not in text


def test_a_result_without_a_date_is_marked(folder: Path):
    save(folder, {key: value for key, value in table_of(folder).items() if key != "date"})
    assert "Without a recorded date: speed." in figures.rendered("speed", [folder], folder)


def test_a_result_of_a_machine_that_changed_its_speed_is_marked(folder: Path):
    save(folder, table_of(folder) | {"moved": True})
    assert "speed changed by more than a tenth during: speed." in figures.rendered("speed", [folder], folder)


def test_scores_without_a_date_are_marked_like_tables(folder: Path):
    (folder / "scores.json").write_text(json.dumps({"machine": {"cpu": "a processor"}, "f1": 0.5}))
    (folder / "scores.md").write_text('{{ plain("scores").f1 }}')
    assert "Without a recorded date: scores." in figures.rendered("scores", [folder], folder)


def test_scores_of_other_weights_than_those_that_ship_are_marked(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(weights.MEASURED_WITH, "speed", ("beats",))
    monkeypatch.setattr("sys.argv", ["speed.py"])
    mark = "**Of earlier weights than those that ship**: speed (beats)."
    results = folder / "results"
    save = partial(output.write_results, "speed", "Speed", [measured_table()], folder=results)

    def text(source: Path = results) -> str:
        rendered = figures.rendered("speed", [source], folder)
        assert "1,300" in rendered
        return rendered

    assert mark in text(folder)  # without a digest
    save()
    assert mark not in text()
    model = folder / "beats/models/last"
    shutil.copytree(FOLDER / "beats/models/last", model)
    monkeypatch.setattr(weights, "FOLDER", folder)
    assert mark not in text()
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1  # one bit of one weight
    (model / "model.safetensors").write_bytes(content)
    assert mark in text()
    save()
    assert mark not in text()


def test_scores_of_a_recipe_are_told_from_those_of_weights(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(weights.MEASURED_WITH, "speed", ("recipes/beats.py",))
    text = " ".join(figures.rendered("speed", [folder], folder).split())
    assert "in folds, not of weights that ship: speed (recipes/beats.py changed since" in text
    content = json.loads((folder / "speed.json").read_text()) | {"models": weights.digests_of("speed")}
    (folder / "speed.json").write_text(json.dumps(content))
    text = " ".join(figures.rendered("speed", [folder], folder).split())
    assert "in folds, not of weights that ship: speed." in text


@pytest.mark.parametrize("name", ["readme", "aims", "beats"])
def test_scores_of_beats_are_those_of_the_shipped_model_once_they_are_measured(name: str, tmp_path: Path):
    shutil.copy(places.result_of("quality-ds2"), tmp_path / "quality-shipped.json")
    content = json.loads((tmp_path / "quality-shipped.json").read_text())
    content["tables"][0]["rows"][0][1] = "0.123 [0.1, 0.2]"
    (tmp_path / "quality-shipped.json").write_text(json.dumps(content))
    text = figures.rendered(name, [tmp_path, *places.RESULTS])
    assert "0.123" in text and re.search(r"shipped\s+model|model\s+that\s+ships", text)


@pytest.mark.slow
def test_the_shipped_model_is_scored_on_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    simulate_database(tmp_path / "mitdb", SimulationConfig(patients=4, minutes=1, seed=4))
    words = ["--study", "shipped", "--data", str(tmp_path), "--work", str(tmp_path / "work")]
    monkeypatch.setattr("sys.argv", [str(tmp_path / "quality.py"), *words])
    quality.main()
    content = json.loads((tmp_path / "results/quality-shipped.json").read_text())
    assert content["models"] == weights.digests_of("quality-shipped") and content["tables"][0]["rows"]
    scored = read_json(next(tmp_path.glob("work/*/scores/annotated/scores.json")))
    assert scored["model"] == content["models"]["beats"] and scored["split"] == "test"


def test_a_stale_result_is_named_with_the_command_that_measures_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    listed = {"labels": ("beats",), "bedside": ("beats",), "unlike": ()}
    monkeypatch.setattr(figures, "MEASURED_WITH", listed)
    monkeypatch.setattr(weights, "MEASURED_WITH", listed)
    monkeypatch.setattr(weights, "_digest", lambda of: "other")
    monkeypatch.setattr(figures, "documents", list)
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["labels", "bedside"]
    assert "make benchmarks ONLY=labels" in said[0] and "python -m studies.bedside" in said[1]


def test_every_result_with_scores_names_models_that_ship():
    for name, of in weights.MEASURED_WITH.items():
        assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in weights.digests_of(name).values()), name
        assert len(weights.digests_of(name)) == len(of)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ('{{ cell("speed", "Speed", "nothing", "64") }}', r"0 rows start with \['nothing'\]"),
        ('{{ cell("speed", "Speed", "ours", "65") }}', "no column '65'; there are: way; 64; times"),
        ('{{ cell("speed", "Other", "ours", "64") }}', "0 tables start with 'Other'"),
        ('{{ cell("absent", "Speed", "ours", "64") }}', "make benchmarks ONLY=absent"),
        ('{{ low("speed", "Speed", "theirs", "64") }}', "a number of several rounds expected"),
        ("{{ unknown }}", "'unknown' is undefined"),
    ],
)
def test_what_the_results_do_not_have_is_named(template: str, message: str, folder: Path):
    (folder / "speed.md").write_text(template)
    with pytest.raises(HeartlmError, match=message):
        figures.rendered("speed", [folder], folder)


@pytest.mark.parametrize(
    ("value", "text"), [(1.9, "1.90"), (17391.0, "17,400"), (0.9996, "1.00"), (581.2, "581"), (0.0123, "0.0123")]
)
def test_three_digits(value: float, text: str):
    assert figures.digits(value) == text


def test_a_result_is_out_of_date_once_its_sources_or_the_machine_change(folder: Path, monkeypatch: pytest.MonkeyPatch):
    from lab.output import environment

    benchmark = next(each for each in runner.BENCHMARKS if each.name == "feeding")
    monkeypatch.setattr(runner, "result_of", lambda name: places.result_of(name, [folder]))
    result = {"sources": catalog.sources_of("feeding"), "environment": environment()}

    def measured(content: dict[str, Any]) -> bool:
        (folder / "feeding.json").write_text(json.dumps(content))
        return bool(runner.is_measured(benchmark))

    assert not runner.is_measured(benchmark)
    assert measured(result)
    assert not measured(result | {"sources": "other"})
    assert not measured(result | {"environment": environment() | {"processor": "other"}})


def test_every_benchmark_is_a_script_and_measures_packages_that_exist():
    for benchmark in runner.BENCHMARKS:
        assert benchmark.path.is_file()
        assert all((places.ROOT / "src/heartlm" / package).is_dir() for package in benchmark.packages)


SCRIPT = """import sys
from pathlib import Path
kept = Path(sys.argv[2]) / "kept"
print("found" if kept.exists() else "fresh", Path(sys.argv[1]).name)
kept.touch()
sys.exit(Path(sys.argv[2], "..", "status").read_text() != "well")
"""


def test_an_interrupted_benchmark_continues_and_a_measured_one_starts_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    archive, scripts = tmp_path / "signals.tar.xz", tmp_path / "benchmarks"
    scripts.mkdir()
    (scripts / "__init__.py").touch()
    (scripts / "small.py").write_text(SCRIPT)
    (tmp_path / "record").write_text("data")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "record", "record")
    benchmark = catalog.Benchmark("small", "{signals}/record {work}", (), 0.1)
    for name, value in {"ROOT": tmp_path, "DATA": tmp_path, "WORK": tmp_path / "work"}.items():
        monkeypatch.setattr(runner, name, value)
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(catalog, "FOLDERS", (scripts,))
    (tmp_path / "work").mkdir()

    def said(status: str) -> str:
        (tmp_path / "work" / "status").write_text(status)
        assert runner.measure(benchmark) == (status == "well")
        return (tmp_path / "work" / "small.log").read_text()

    assert said("badly") == "fresh record\n"
    assert "FAILED with status 1" in capsys.readouterr().out
    assert said("well") == "found record\n"
    assert said("badly") == "fresh record\n"
    (scripts / "small.py").write_text(SCRIPT + "# changed\n")
    assert said("well") == "fresh record\n"
