"""The report of a study, from measurements made up so that every number is known."""

from __future__ import annotations

import csv
import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heartlm.errors import HeartlmError
from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell
from heartlm.extensions.scaling.page import write_scaling_report
from heartlm.report.charts import spread
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from tests.browser import open_page
from tests.conftest import ROOT

WIDTHS = (128, 256, 384, 512, 640, 768, 896, 1024)
SERIAL = 0.1
"""Of the law that the made-up times follow."""


def made_up(cell: StudyCell, repeat: int, step_s: float) -> Measurement:
    """Three steps, of which a tenth is communication where there are ranks to communicate with."""
    waiting = 0.1 * step_s if cell.ranks > 1 else 0.0
    return Measurement(
        cell=cell,
        repeat=repeat,
        step_s=[step_s] * 3,
        tokens_per_s=4096 * cell.copies / step_s,
        part_s={
            "data": 0.01 * step_s,
            "compute": 0.9 * step_s - waiting,
            "exposed_communication": 0.7 * waiting,
            "straggler": 0.3 * waiting,
            "optimizer": 0.05 * step_s,
            "other": 0.04 * step_s,
        },
        peak_memory_bytes=300_000_000,
        losses=[2.0, 1.0, 0.5],
        wall_s=5.0,
        environment={"cpu": "made up", "probe_before": 30.0, "probe_after": 20.0 if repeat else 30.0},
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One, two and four ranks by Amdahl's law; two CPUs a rank give half as much again; four copies lose a tenth."""
    folder = tmp_path_factory.mktemp("scaling") / "made-up"
    for stage in ("pretrain", "finetune"):
        for width in WIDTHS:
            for ranks, cpus, copies in ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4)):
                batch = max(4, 4096 // width)
                cell = StudyCell(stage, "mitdb", width, ranks, 1, cpus, copies=copies, global_batch=batch)
                step_s = 0.2 * (SERIAL + (1 - SERIAL) / ranks) / (1.5 if cpus == 2 else 1) / (0.9 if copies > 1 else 1)
                for repeat in (0, 1, 2):
                    made_up(cell, repeat, step_s * (1 + 0.01 * repeat)).save(folder)
    wrong = made_up(StudyCell("pretrain", "mitdb", 128, 4, global_batch=32), 2, 1e-9)
    replace(wrong, failed="loss 9 in step 1, 2 expected as of one rank").save(folder)
    write_json(folder / "skipped.json", [["pretrain-mitdb-w128-r2-n1-c2", "2 ranks of 2 CPUs on a node of 2"]])
    return folder


@pytest.fixture(scope="module")
def report(study: Path) -> dict[str, Path]:
    """The study with the marks that the studies of this project keep."""
    shutil.copy(ROOT / "studies/hlm_on_hpc.yaml", study / "marks.yaml")
    return {path.name: path for path in write_scaling_report(study)}


def test_every_figure_is_a_picture(report: dict[str, Path]) -> None:
    pictures = {name: path for name, path in report.items() if name.endswith(".svg")}
    assert sorted(pictures) == [
        "figure-3-time-cpus.svg",
        "figure-4-time-speedup.svg",
        "figure-5-efficiency.svg",
        "figure-6-overhead.svg",
    ]
    for name, path in pictures.items():
        assert report[name.replace(".svg", ".png")].read_bytes().startswith(b"\x89PNG"), path
    curves = {
        name: sum("curve stroke-tone" in each.get("class", "") for each in ElementTree.parse(path).iter())
        for name, path in pictures.items()
    }
    assert list(curves.values()) == [2 * 8 * num_charts for num_charts in (3, 2, 1, 1)]


def test_the_table_says_what_the_times_are_made_of(report: dict[str, Path]) -> None:
    with report["table.csv"].open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 8 * 4
    of_four = next(row for row in rows if row["ranks"] == "4" and row["window"] == "256")
    assert float(of_four["speedup"]) == pytest.approx(1 / (SERIAL + (1 - SERIAL) / 4))
    assert float(of_four["karp_flatt"]) == pytest.approx(SERIAL)
    assert float(of_four["ceiling"]) == pytest.approx(3.6)
    assert float(of_four["num_moved"]) == 2
    assert of_four["energy_j_per_mtoken"] == ""
    broken = next(row for row in rows if row["ranks"] == "4" and row["window"] == "128" and row["stage"] == "pretrain")
    assert broken["repeats"] == "2"


def test_the_page_draws_every_figure_and_needs_nothing_else(report: dict[str, Path], tmp_path: Path) -> None:
    page = open_page(report["report.html"], tmp_path)
    assert page.data["errors"] == "0", page.data.get("first-error")
    assert page.data["ready"] == "true"
    assert page.data["drawings"] == str(page.html.count("<svg")) == "14"
    assert page.data["overflow"] == "0"
    assert page.html.count('class="stack"') == 2 * 8 * 4
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page.html)


def test_the_page_names_what_is_not_its_own(report: dict[str, Path]) -> None:
    text = report["report.html"].read_text()
    assert "published: Mileski et al., MIPRO 2025, arXiv 2503.21033, A100" in text
    assert "of others: 1.6 at ranks 2" in text and "of others: 1.9 at ranks 4" in text
    assert "of others, as stated: 0.75 at ranks 2" in text and "of others: 0.8 at ranks 2" in text
    assert "loss 9 in step 1, 2 expected as of one rank" in text
    assert "2 ranks of 2 CPUs on a node of 2" in text
    assert "During 127 of the measurements" in text


def test_without_marks_a_page_has_the_study_alone(tmp_path: Path) -> None:
    for ranks in (1, 2):
        made_up(StudyCell("pretrain", "mitdb", 128, ranks), 0, 0.2 / ranks).save(tmp_path)
    text = next(path for path in write_scaling_report(tmp_path) if path.name == "report.html").read_text()
    assert "of others" not in text and "no measurement" not in text


def test_a_wrong_mark_is_named(tmp_path: Path) -> None:
    made_up(StudyCell("pretrain", "mitdb", 128), 0, 1.0).save(tmp_path)
    (tmp_path / "marks.yaml").write_text("source: a paper\nspeedup: {2: fast}\n")
    with pytest.raises(HeartlmError, match=r"marks.yaml: speedup"):
        write_scaling_report(tmp_path)


def test_a_study_of_nothing_but_failures_is_refused(tmp_path: Path) -> None:
    replace(made_up(StudyCell("pretrain", "mitdb", 128), 0, 1.0), failed="another loss").save(tmp_path)
    with pytest.raises(HeartlmError, match="none of 1 measurements passed its check: another loss"):
        write_scaling_report(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_s", [1e200, 0.2]),
        ("step_s", []),
        ("tokens_per_s", 0.0),
        ("part_s", dict.fromkeys(PARTS, 0.0)),
        ("cell", {"ranks": 0}),
        ("environment", {"probe_before": -1.0}),
    ],
)
def test_a_measurement_out_of_range_is_refused_where_it_is_read(field: str, value: Any, tmp_path: Path) -> None:
    measurement = made_up(StudyCell("pretrain", "mitdb", 128), 0, 0.2)
    measurement.save(tmp_path)
    content = read_json(measurement.path(tmp_path))
    content[field] = content[field] | value if isinstance(value, dict) else value
    write_json(measurement.path(tmp_path), content)
    named = next(iter(value)) if field in ("cell", "environment") else field
    with pytest.raises(HeartlmError, match=rf"\.json: .*{named}: .* expected"):
        Measurement.load(measurement.path(tmp_path))


def test_text_that_xml_cannot_have_is_replaced_in_pages_and_drawings(tmp_path: Path) -> None:
    measurement = made_up(StudyCell("pretrain", "mitdb", 128), 0, 0.2)
    measurement.save(tmp_path)
    content = read_json(measurement.path(tmp_path))
    content["cell"]["database"] = "mit\0db\x1b"
    write_json(measurement.path(tmp_path), content)
    for file in write_scaling_report(tmp_path):
        if file.suffix == ".svg":
            ElementTree.parse(file)
        if file.suffix == ".html":
            assert "mit\ufffddb\ufffd" in file.read_text(encoding="utf-8")


def test_sharded_ranks_have_a_curve_and_laws_of_their_own(tmp_path: Path) -> None:
    for ranks, parallel, step_s in (
        (1, "ddp", 0.4),
        (2, "ddp", 0.2),
        (4, "ddp", 0.1),
        (2, "fsdp", 0.4),
        (4, "fsdp", 0.4),
    ):
        made_up(StudyCell("pretrain", "mitdb", 128, ranks, parallel=parallel), 0, step_s).save(tmp_path)  # type: ignore[arg-type]
    report = {path.name: path for path in write_scaling_report(tmp_path)}
    page = report["report.html"].read_text()
    serial = {
        name: float(value)
        for name, value in re.findall(r"1 CPU, (fsdp|25 MiB)</td>\s*<td[^>]*>\s*serial ([\d.]+)", page)
    }
    assert serial["25 MiB"] == pytest.approx(0, abs=1e-3) and serial["fsdp"] == pytest.approx(1, abs=1e-3)
    words = set(ElementTree.parse(report["figure-5-efficiency.svg"]).getroot().itertext())
    assert {"128, 25 MiB", "128, fsdp"} <= {word.strip() for word in words}


def test_a_study_of_one_rank_has_times_only(tmp_path: Path) -> None:
    made_up(StudyCell("pretrain", "mitdb", 128), 0, 1.0).save(tmp_path)
    names = {path.name for path in write_scaling_report(tmp_path)}
    assert "figure-3-time-cpus.svg" in names and "figure-5-efficiency.svg" not in names
    assert "What training takes on one rank" in (tmp_path / "report" / "report.html").read_text()


def test_many_labels_in_one_place_are_moved_apart() -> None:
    places = sorted(spread([100.0 + 0.1 * number for number in range(8)], 13.0))
    assert all(below - above >= 13.0 - 0.5 for above, below in itertools.pairwise(places))
