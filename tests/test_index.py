"""An index of recordings: its rows, conditions, samples, and use in place of the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heartlm.cli.main import main
from heartlm.databases import discovery
from heartlm.databases import index as index_module
from heartlm.databases.database import open_database
from heartlm.databases.each_recording import stream_recordings
from heartlm.databases.index import VARIABLE, is_index, schema
from heartlm.databases.part_files import _groups
from heartlm.databases.where import parse_where
from heartlm.databases.write_index import write_index
from heartlm.errors import HeartlmError
from tests.conftest import Refused


@pytest.fixture(scope="module")
def index(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "all.parquet"
    write_index(tiny_database, path)
    return path


@pytest.fixture(autouse=True)
def no_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


def test_a_row_has_what_the_header_states(tiny_database: Path, index: Path):
    database, rows = open_database(tiny_database), pq.read_table(index).to_pylist()
    assert [row["record"] for row in rows] == list(database.record_ids)
    for row in rows:
        recording = database.recording(row["record"])
        assert row["path"] == f"{row['record']}.hea" and row["files"] is None
        assert (row["rate_hz"], row["num_samples"]) == (recording.rate_hz, recording.num_samples)
        assert row["duration_s"] == recording.num_samples / recording.rate_hz
        assert row["leads"].split("; ") == list(recording.lead_names)
        assert row["patient"] == recording.patient_id and row["split"] == database.split_of(row["record"])


def test_an_index_is_opened_as_the_folder(tiny_database: Path, index: Path):
    folder, indexed = open_database(tiny_database), open_database(index)
    assert (indexed.name, indexed.folder, indexed.record_ids) == (folder.name, folder.folder, folder.record_ids)
    for record_id in folder.record_ids:
        assert indexed.files(record_id) == folder.files(record_id)
        assert indexed.patient_of(record_id) == folder.patient_of(record_id)
    assert np.array_equal(indexed.recording("s0002").signal(), folder.recording("s0002").signal(), equal_nan=True)
    with pytest.raises(HeartlmError, match="no record 's9999'"):
        indexed.files("s9999")


@pytest.mark.parametrize(
    ("where", "query"),
    [
        ("duration_s >= 10 and num_leads = 2", lambda row: row["duration_s"] >= 10 and row["num_leads"] == 2),
        ("split = 'train' or split = 'test'", lambda row: row["split"] in ("train", "test")),
        ('split in ("train", "test")', lambda row: row["split"] in ("train", "test")),
        ("split not in ('train') and not (age < 60)", lambda row: row["split"] != "train" and not row["age"] < 60),
        ("leads has 'MLII'", lambda row: "MLII" in row["leads"].split("; ")),
        ("leads has 'ML'", lambda row: False),
        ("start is null AND Rate_hz > 0".replace("R", "r"), lambda row: row["start"] is None),
        ("sex != 'male'", lambda row: row["sex"] not in ("male", None)),
        ("record = 's0001' or record = 's0002' and num_leads = 99", lambda row: row["record"] == "s0001"),
        ("rate_hz = 3.6e2", lambda row: row["rate_hz"] == 360),
    ],
)
def test_conditions_choose_what_they_say(index: Path, where: str, query):
    table = pq.read_table(index)
    chosen = table.filter(parse_where(where, schema()))["record"].to_pylist()

    def fulfils(row) -> bool:
        try:
            return query(row)
        except TypeError:  # unknown
            return False

    assert chosen == [row["record"] for row in table.to_pylist() if fulfils(row)]


def test_dates_are_texts():
    from datetime import datetime

    import pyarrow as pa

    rows = [{"record": "a", "start": datetime(2019, 12, 31)}, {"record": "b", "start": datetime(2020, 1, 31, 12)}]
    table = pa.Table.from_pylist(rows, schema())
    assert table.filter(parse_where("start >= '2020-01-01'", schema()))["record"].to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "name of a column missing at character 1"),
        ("seconds > 3", "no column 'seconds'"),
        ("duration_s", "is or has missing at character 11"),
        ("duration_s >", "a value missing"),
        ("duration_s > 'ten'", "'ten' found, a number expected"),
        ("leads = 12", "12 found, a text in quotes expected"),
        ("num_leads = 1.5", "whole number expected"),
        ("start > 'yesterday'", "a date such as"),
        ("rate_hz has 'I'", "rate_hz has numbers"),
        ("(rate_hz > 1", "')' missing"),
        ("rate_hz > 1 rate_hz < 3", "'rate_hz' found at character 13"),
        ("rate_hz > 1; import os", "';' found at character 12"),
        ("__import__('os') = 1", "no column '__import__'"),
        ("(" * 5000 + "rate_hz > 1", "too many parentheses"),
        ("rate_hz > 1e", "found"),
    ],
)
def test_what_is_no_condition_is_one_line(where: str, message: str):
    with pytest.raises(HeartlmError) as caught:
        parse_where(where, schema())
    assert message in str(caught.value)


def test_a_sample_depends_on_the_seed_alone(index: Path, tmp_path: Path):
    drawn = []
    for seed in (1, 1, 2):
        done = write_index(index, tmp_path / "drawn.parquet", where="num_leads = 2", sample=5, seed=seed)
        drawn.append(pq.read_table(tmp_path / "drawn.parquet")["record"].to_pylist())
        assert done.num_records == len(set(drawn[-1])) == 5
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) <= set(pq.read_table(index)["record"].to_pylist())
    assert open_database(tmp_path / "drawn.parquet").record_ids == tuple(sorted(drawn[2]))


def test_records_with_one_name_in_two_folders_are_named_by_their_paths(tiny_database: Path, tmp_path: Path):
    source = tmp_path / "wards"
    for ward in ("a", "b"):
        (source / ward).mkdir(parents=True)
        for ending in ("hea", "dat"):
            (source / ward / f"s0001.{ending}").write_bytes((tiny_database / f"s0001.{ending}").read_bytes())
    write_index(source, tmp_path / "wards.parquet")
    assert (
        open_database(tmp_path / "wards.parquet").record_ids
        == open_database(source).record_ids
        == ("a/s0001", "b/s0001")
    )


def test_what_cannot_be_read_is_listed(tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = tmp_path / "ward"
    source.mkdir()
    for name in ("s0001.hea", "s0001.dat"):
        (source / name).write_bytes((tiny_database / name).read_bytes())
    (source / "s0002.hea").write_text("s0002 two 360\n")
    assert main(["data", "index", str(source), "--out", str(tmp_path / "ward.parquet")]) == 1
    out = capsys.readouterr().out
    assert "left out: s0002: " in out and "1 recordings, 1 left out" in out
    assert open_database(tmp_path / "ward.parquet").record_ids == ("s0001",)


def test_commands_take_the_index_and_honour_the_condition(
    tiny_database: Path, index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
):
    where = ["--where", "record in ('s0001', 's0003')"]
    assert main(["delineate", str(index), "--out", str(tmp_path / "waves"), "--processes", "1", *where]) == 0
    assert sorted(path.stem for path in (tmp_path / "waves").glob("*.json")) == ["s0001", "s0003"]
    convert = ["data", "convert", str(index), str(tmp_path / "edf"), "--to", "edf", "--processes", "1"]
    assert main([*convert, *where]) == 0
    assert sorted(path.stem for path in (tmp_path / "edf").glob("*.edf")) == ["s0001", "s0003"]
    assert main(["tokenize", str(index), "--out", str(tmp_path / "all"), "--processes", "1"]) == 0
    assert main(["tokenize", str(tiny_database), "--out", str(tmp_path / "same"), "--processes", "1"]) == 0
    for name in ("codes.bin", "sample.bin"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "same" / name).read_bytes()
    capfd.readouterr()
    assert "--where chooses from an index" in refused("delineate", tiny_database, "--out", tmp_path / "no", *where)
    assert "no recording with record = 'none'" in refused(
        "delineate", index, "--out", tmp_path / "no", "--where", "record = 'none'"
    )


def test_other_files_are_no_index(tmp_path: Path, tiny_database: Path):
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("PAR1, or not")
    assert not is_index(tmp_path / "other.parquet") and not is_index(tmp_path / "text.parquet")
    assert not is_index(tiny_database) and not is_index(tmp_path / "absent.parquet")
    with pytest.raises(HeartlmError, match="no such folder or index"):
        write_index(tmp_path / "other.parquet", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


@pytest.fixture
def wards(tiny_database: Path, tmp_path: Path) -> Path:
    """Records in folders, whose order by name, by path and by folder differ."""
    source = tmp_path / "wards"
    for place in ("b/s0001", "b-2/s0002", "b/c/s0004", "s0003"):
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        for ending in ("hea", "dat"):
            path = tiny_database / f"{place[-5:]}.{ending}"
            (source / f"{place}.{ending}").write_bytes(path.read_bytes())
    return source


def records_in(*paths: Path) -> list[str]:
    return [record_id for (_, record_id), _ in stream_recordings(paths, "warn")[1]]


def test_a_few_records_are_streamed_in_the_order_of_their_names(wards: Path, tmp_path: Path) -> None:
    write_index(wards, tmp_path / "wards.parquet")
    names = ["s0001", "s0002", "s0003", "s0004"]
    assert records_in(wards) == records_in(tmp_path / "wards.parquet") == list(open_database(wards).record_ids) == names
    assert records_in(wards, wards) == names  # each once


def test_many_records_have_their_paths_as_names_and_the_order_of_the_listing(
    wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "HELD", 3)
    write_index(wards, tmp_path / "wards.parquet")
    paths = ["b-2/s0002", "b/c/s0004", "b/s0001", "s0003"]
    assert records_in(wards) == records_in(tmp_path / "wards.parquet") == paths
    assert list(open_database(wards).record_ids) == list(open_database(tmp_path / "wards.parquet").record_ids)
    assert sorted(paths) == list(open_database(wards).record_ids)
    (wards / "database.json").write_text('{"patients": {"s0004": "one", "s0001": "one"}}')
    database = open_database(wards)
    assert database.patient_of("b/c/s0004") == database.patient_of("b/s0001") == "wards/one"
    listed = ["s0003", "b/c/s0004", "b/s0001", "b-2/s0002"]
    (wards / "RECORDS").write_text("\n".join(listed))
    assert records_in(wards) == listed and sorted(listed) == list(open_database(wards).record_ids)
    (wards / "RECORDS").write_text("\n".join(["missing", *listed, "b/missing"]))
    records, read = stream_recordings([wards], "warn")[1], list[str]()
    with pytest.raises(HeartlmError, match=r"missing\.hea: listed in .*RECORDS and missing \(and 1 more records\)"):
        read.extend(record_id for (_, record_id), _ in records)
    assert read == listed


def test_work_begins_before_a_large_source_is_listed(
    wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "HELD", 100)
    listed = 0

    def endless(folder: str) -> Iterator[tuple[str, list[str]]]:
        nonlocal listed
        for listed in count():
            yield f"{folder}/{listed:09d}", [f"r{number:02d}.hea" for number in range(50)]

    monkeypatch.setattr(discovery, "_walk", endless)
    groups = _groups(stream_recordings([wards], "warn")[1])
    groups_of_first = list(islice(groups, 100))
    assert [record_id for _, record_id in groups_of_first[99].records] == [
        f"000000007/r{each}" for each in range(46, 50)
    ]
    assert listed < 10


def test_an_index_is_read_by_row_groups(wards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "HELD", 100)
    monkeypatch.setattr(index_module, "ROWS", 25)
    rows = [{"record": f"r{number:05d}", "path": f"r{number:05d}.hea"} for number in range(1000)]
    about = json.dumps({"unique_names": True, "version": 1, "source": str(wards)})
    path = tmp_path / "many.parquet"
    table = pa.Table.from_pylist(rows, schema().with_metadata({index_module.METADATA: about.encode()}))
    pq.write_table(table, path, row_group_size=100)
    made = list[int]()
    monkeypatch.setattr(index_module, "_files_of", lambda folder, row: made.append(1) or row["path"])
    records = stream_recordings([path], "warn")[1]
    assert next(records) == ((0, "r00000"), "r00000.hea") and len(made) == 101
    assert [record_id for (_, record_id), _ in records] == [row["record"] for row in rows[1:]]


def test_a_condition_is_refused_for_a_single_recording(
    tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["delineate", str(tiny_database / "s0001"), "--out", str(tmp_path / "no"), "--where", "num_leads = 12"]
    assert main(words) == 2
    assert "is one recording, and --where chooses from an index; leave it out" in capsys.readouterr().err
