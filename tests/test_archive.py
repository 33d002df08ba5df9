"""The commands on a folder: the same bytes by one process, two, Dask, and parts; Parquet tables that others read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from heartlm.analysis.recordings import SCHEMAS
from heartlm.cli.main import main
from heartlm.databases.discovery import RecordFiles
from heartlm.databases.part_files import LARGEST_GROUP, _groups
from heartlm.databases.verify import verify_database
from heartlm.delineation.recordings import SCHEMAS as WAVES
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.system.engine import EngineOptions
from tests.dask_cluster import dask_cluster

COMMANDS = {
    "analyze": ("analyze", "{source}", "--out", "{out}", "--no-page"),
    "analyze to tables": ("analyze", "{source}", "--out", "{out}", "--tables", "parquet", "--pages", "findings"),
    "delineate": ("delineate", "{source}", "--out", "{out}"),
    "delineate to tables": ("delineate", "{source}", "--out", "{out}", "--tables", "parquet"),
    "tokenize": ("tokenize", "{source}", "--out", "{out}", "--tokenizer", "rhythm"),
    "tokenize to shards": ("tokenize", "{source}", "--out", "{out}", "--tokenizer", "sample", "--shards", "2"),
    "convert": ("data", "convert", "{source}", "{out}", "--to", "edf"),
}


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six short recordings of five patients: two groups of tables."""
    folder = tmp_path_factory.mktemp("archive") / "ward"
    simulate_database(folder, SimulationConfig(patients=5, minutes=0.25, seed=8, name="ward"))
    return folder


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("distributed")
    with dask_cluster(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


def run(command: str, source: Path, out: Path, *options: str) -> None:
    words = [word.format(source=source, out=out) for word in COMMANDS[command]]
    assert main([*words, *options]) == 0


def content(folder: Path) -> dict[str, bytes]:
    """Files and their bytes; the manifest of a corpus has the command line."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def expected(ward: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What each command writes in one process."""
    found = dict[str, dict[str, bytes]]()
    for command in COMMANDS:
        out = tmp_path_factory.mktemp("expected") / "out"
        run(command, ward, out, "--processes", "1")
        found[command] = content(out)
        assert len(found[command]) > 4
    return found


@contextmanager
def killing_a_worker(of: int) -> Iterator[list[int]]:
    """Kill the first process that `of` starts for work from now on, as soon as it is seen."""
    killed, ended = list[int](), threading.Event()

    def children() -> set[int]:
        return {
            child
            for task in Path(f"/proc/{of}/task").iterdir()
            for child in map(int, (task / "children").read_text().split())
            if b"resource_tracker" not in (Path(f"/proc/{child}/cmdline").read_bytes() or b"resource_tracker")
        }

    def look() -> None:
        while not (killed or ended.is_set()):
            with suppress(OSError):  # a child or a thread that has ended since
                for child in children() - before:
                    os.kill(child, signal.SIGKILL)
                    killed.append(child)
                    return
            time.sleep(0.001)

    before = children()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_worker_changes_no_byte(
    command: str, ward: Path, tmp_path: Path, expected: dict[str, dict[str, bytes]]
) -> None:
    with killing_a_worker(os.getpid()) as killed:
        run(command, ward, tmp_path / "out", "--processes", "2")
    assert len(killed) == 1 and content(tmp_path / "out") == expected[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_dask_gives_the_same_bytes(
    command: str, ward: Path, tmp_path: Path, expected: dict[str, dict[str, bytes]], scheduler: str
) -> None:
    run(command, ward, tmp_path / "out", "--engine", "dask", "--scheduler", scheduler)
    assert content(tmp_path / "out") == expected[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("convert", "tokenize")])
def test_parts_give_the_same_bytes(
    command: str, ward: Path, tmp_path: Path, expected: dict[str, dict[str, bytes]]
) -> None:
    for part in ("2/2", "1/2"):
        words = ["--part", part, "--processes", "1"]
        assert "index.html" not in content(tmp_path / "out")
        run(command, ward, tmp_path / "out", *words)
    run(command, ward, tmp_path / "out", "--processes", "1")
    assert content(tmp_path / "out") == expected[command]


def test_a_verification_by_processes_finds_the_same(ward: Path, tmp_path: Path) -> None:
    spoilt = Path(shutil.copytree(ward, tmp_path / "ward"))
    os.truncate(spoilt / "s0002.dat", 100)
    shutil.copy(spoilt / "s0001.dat", spoilt / "s0003.dat")
    found = verify_database(spoilt)
    assert found and verify_database(spoilt, EngineOptions(processes=2)) == found


@pytest.mark.slow
def test_mpi_gives_the_same_bytes(ward: Path, tmp_path: Path, expected: dict[str, dict[str, bytes]]) -> None:
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec")
    words = [word.format(source=ward, out=tmp_path / "out") for word in COMMANDS["delineate to tables"]]
    heartlm = Path(sys.executable).with_name("heartlm")
    ranks = [mpiexec, "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    subprocess.run([*ranks, heartlm, *words, "--engine", "mpi"], check=True, timeout=120)
    assert content(tmp_path / "out") == expected["delineate to tables"]


def test_tables_are_read_by_others_and_have_the_documented_columns(
    ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("delineate to tables", ward, tmp_path / "out", "--processes", "1")
    pandas = pytest.importorskip("pandas")
    for table, columns in WAVES.items():
        frame = pandas.read_parquet(tmp_path / "out" / table)
        assert list(frame.columns) == ["database", "record", *columns] and len(frame) >= 5
    duckdb = pytest.importorskip("duckdb")
    counted = duckdb.sql(f"select record, count(*) from '{tmp_path}/out/beats/*.parquet' group by 1 order by 1")
    summaries = duckdb.sql(f"select record, num_beats from '{tmp_path}/out/summaries/*.parquet' order by 1")
    assert counted.fetchall() == summaries.fetchall() and len(summaries) == 6
    # an archive that has shrunk leaves no rows behind
    first = next(iter(sorted(ward.glob("*.hea"))))
    run("delineate to tables", first, tmp_path / "out", "--processes", "1")
    assert [path.name for path in sorted((tmp_path / "out" / "beats").iterdir())] == ["part-000000.parquet"]
    assert len(pandas.read_parquet(tmp_path / "out" / "summaries")) == 1


def test_the_document_has_every_column() -> None:
    text = (Path(__file__).parent.parent / "docs" / "archive-cluster.md").read_text(encoding="utf-8")
    for schemas in (SCHEMAS, WAVES):
        for table, columns in schemas.items():
            assert f"`{table}`" in text
            plain = [name for name in columns if not name.endswith(("_events", "_s")) and not name.startswith("beats_")]
            assert [name for name in plain if f"`{name}`" not in text] == []


def test_groups_grow_and_do_not_depend_on_the_number_of_recordings() -> None:
    files = RecordFiles(Path("s"), None)
    records = [((0, str(number)), files) for number in range(300_000)]
    groups = list(_groups(records))
    assert [place for group in groups for place in group.records] == [place for place, _ in records]
    assert len(groups[0].records) == 4 and len(groups[300].records) == 8
    assert max(len(group.records) for group in groups) == LARGEST_GROUP and len(groups) < 2_500
    few = list(_groups(records[:1000]))
    assert few[:-1] == groups[: len(few) - 1]
