"""The commands on a folder: the same bytes by one process, two, Dask, and parts; Parquet tables that others read."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm import open_recording
from heartlm.analysis.embed_recordings import SCHEMAS as VECTORS
from heartlm.analysis.embed_recordings import EmbeddingTask
from heartlm.analysis.recordings import SCHEMAS
from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.databases.discovery import RecordFiles
from heartlm.databases.part_files import LARGEST_GROUP, _groups
from heartlm.databases.verify import verify_database
from heartlm.delineation.recordings import SCHEMAS as WAVES
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import find_run
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.system.engine import PartOptions
from tests.dask_cluster import dask_cluster

COMMANDS = {
    "analyze": ("analyze", "{source}", "--out", "{out}", "--no-page"),
    "analyze to tables": ("analyze", "{source}", "--out", "{out}", "--tables", "parquet", "--pages", "findings"),
    "delineate": ("delineate", "{source}", "--out", "{out}"),
    "delineate to tables": ("delineate", "{source}", "--out", "{out}", "--tables", "parquet"),
    "embed": ("embed", "foundation", "{source}", "--out", "{out}/vectors.parquet", "--level", "recording"),
    "embed to tables": ("embed", "statements", "{source}", "--out", "{out}", "--tables", "parquet"),
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
        assert len(found[command]) > 4 or list(found[command]) == ["vectors.parquet"]
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
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "tokenize"])
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
    assert found and verify_database(spoilt, PartOptions(processes=2)) == found


@pytest.mark.slow
def test_mpi_gives_the_same_bytes(ward: Path, tmp_path: Path, expected: dict[str, dict[str, bytes]]) -> None:
    pytest.importorskip("mpi4py")
    from lab.steps import mpiexec

    try:
        ranks = [*mpiexec(3), sys.executable, "-m", "mpi4py.futures"]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    words = [word.format(source=ward, out=tmp_path / "out") for word in COMMANDS["delineate to tables"]]
    heartlm = Path(sys.executable).with_name("heartlm")
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


def test_vectors_in_a_file_and_in_tables_are_those_of_the_model_and_a_damaged_recording_costs_no_other(
    ward: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    spoilt, file, tables = Path(shutil.copytree(ward, tmp_path / "ward")), tmp_path / "v.npz", tmp_path / "tables"
    of_split = [name for name in open_database(ward).record_ids if open_database(ward).split_of(name) == "train"]
    (spoilt / f"{of_split[0]}.dat").unlink()
    embed = ["embed", "foundation", str(spoilt), "--processes", "1", "--split", "train", "--out"]
    assert main([*embed, str(file), "--part", "1/2"]) == main([*embed, str(file)]) == 1
    assert f"left out: {of_split[0]}: " in capsys.readouterr().out and [*tmp_path.glob(".v*")] == []
    assert main([*embed, str(tables), "--tables", "parquet"]) == 1
    expected = heartlm.load_model("foundation").embed(spoilt, split="train")
    with np.load(file) as kept:
        np.testing.assert_allclose(kept["vectors"], expected.vectors, rtol=0, atol=1e-5)
        assert kept["record"].tolist() == expected.record.tolist() and len({*expected.record}) == len(of_split) - 1
        frame = pandas.read_parquet(tables / "vectors")
        assert list(frame.columns) == ["database", "record", *VECTORS["vectors"]]
        assert np.array_equal(np.stack(frame["vector"]), kept["vectors"])
        assert frame["sample"].tolist() == kept["sample"].tolist()
    one = ["embed", "foundation", str(ward / "s0001"), "--out", str(tmp_path / "one.npz")]
    assert main([*one, "--tables", "parquet"]) == main([*one, "--part", "1/2"]) == 2
    assert capsys.readouterr().err.count("s0001 is no folder of recordings, whose vectors are one file") == 2


def test_the_document_has_every_column() -> None:
    text = (Path(__file__).parent.parent / "docs" / "archive-cluster.md").read_text(encoding="utf-8")
    for schemas in (SCHEMAS, WAVES, VECTORS):
        for table, columns in schemas.items():
            assert f"`{table}`" in text
            plain = [name for name in columns if not name.endswith(("_events", "_s")) and not name.startswith("beats_")]
            assert [name for name in plain if f"`{name}`" not in text] == []


def test_a_task_is_sent_without_the_models_that_it_has_loaded(tmp_path: Path) -> None:
    task = EmbeddingTask((tmp_path,), tmp_path, find_run("foundation"), device="cpu")
    assert task.made and "loaded" in vars(task)
    sent = pickle.loads(pickle.dumps(task))
    assert sent == task and "loaded" not in vars(sent) and len(pickle.dumps(task)) < 10_000


def test_groups_grow_and_do_not_depend_on_the_number_of_recordings() -> None:
    files = RecordFiles(Path("s"), None)
    records = [((0, str(number)), files) for number in range(300_000)]
    groups = list(_groups(records))
    assert [place for group in groups for place in group.records] == [place for place, _ in records]
    assert len(groups[0].records) == 4 and len(groups[300].records) == 8
    assert max(len(group.records) for group in groups) == LARGEST_GROUP and len(groups) < 2_500
    few = list(_groups(records[:1000]))
    assert few[:-1] == groups[: len(few) - 1]


def test_an_index_or_a_table_of_results_is_no_recording(
    ward: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("delineate to tables", ward, tmp_path / "results", "--processes", "1")
    assert main(["data", "index", str(ward), "--out", str(tmp_path / "results" / "index.parquet")]) == 0
    assert main(["embed", "beats", str(ward), "--out", str(tmp_path / "results" / "vectors.parquet")]) == 0
    tables = sorted((tmp_path / "results").rglob("*.parquet"))
    assert len(tables) >= 5
    for path in tables:
        with pytest.raises(HeartlmError, match=rf"^{path}: is no recording, but a table about recordings"):
            open_recording(path)
        capsys.readouterr()
        commands = [["data", "show", str(path)], ["analyze", str(path), "--out", str(tmp_path / "out"), "--rate=250"]]
        for words in commands[: 1 if path.stem == "index" else 2]:  # an index has recordings, which are analysed
            assert main(words) == 2
            assert f"{path}: is no recording, but a table" in capsys.readouterr().err
    with pytest.raises(HeartlmError, match="no recordings"):
        open_database(tmp_path / "results" / "beats")
