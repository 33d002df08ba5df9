"""Opening corpora: what is damaged or of another version is refused in one line; and the real databases, once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from heartlm.corpus import integrity
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.schema import FILES
from heartlm.ecg.recording import RHYTHM_INDEX
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.storage.atomic import sha256_of
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import SampleTokenizer
from tests.conftest import shared_data


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    simulate_database(folder / "simdb", SimulationConfig(patients=4, minutes=0.25))
    build_corpus([folder / "simdb"], RhythmTokenizer(), folder / "corpus", TokenizeConfig(processes=1))
    return folder / "corpus"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "corpus"))


def refused(folder: Path) -> str:
    with pytest.raises(HeartlmError) as error:
        open_corpus(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message
    return message


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_arrays_are_mapped_and_checksums_hold(original: Path) -> None:
    corpus = open_corpus(original)
    assert isinstance(corpus.codes, np.memmap) and not corpus.codes.flags.writeable
    assert (corpus.codes.dtype, corpus.sample.dtype, corpus.labels.dtype) == (np.uint16, np.int64, np.int8)
    for name, checksum in corpus.manifest["checksums"].items():
        assert sha256_of(original / name) == checksum
    assert set(FILES) < set(corpus.manifest["checksums"])
    spans = [corpus.tokens_of(row) for row in range(len(corpus.records))]
    assert spans[0].start == 0 and spans[-1].stop == len(corpus.codes)
    assert all(before.stop == after.start for before, after in pairwise(spans))
    for split in ("train", "validation", "test"):
        assert {corpus.records.rows[row].split for row in corpus.records.select(split)} == {split}


def test_the_manifest_hash_names_the_content_and_not_the_command(folder: Path) -> None:
    before = open_corpus(folder).manifest_hash
    edit(folder, lambda manifest: manifest.update(command="heartlm tokenize somewhere else"))
    assert open_corpus(folder).manifest_hash == before
    edit(folder, lambda manifest: manifest.update(num_beats=1))
    assert open_corpus(folder).manifest_hash != before


def test_another_schema_version_is_refused(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(schema_version=2))
    assert "schema version 2, this heartlm reads 1" in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 1, "num_tokens": 3}'])
def test_a_damaged_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    refused(folder)


WRONG_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"num_tokens": "many"}, "num_tokens: 'many' found, a whole number expected"),
    "negative": ({"num_tokens": -1}, "codes.bin: "),
    "beyond 64 bits": ({"num_tokens": 1 << 62}, "codes.bin: "),
    "no tokenizer": ({"tokenizer": None}, "tokenizer: None found, fields"),
    "no hash": ({"tokenizer": {"kind": "beat", "facets": []}}, "tokenizer.hash: nothing found"),
    "size": (
        {"tokenizer": {"kind": "x", "hash": "x", "facets": [{"name": "a", "size": "4"}]}},
        "facets[0].size: '4' found",
    ),
    "databases": ({"databases": {"tinydb": 1}}, "databases: {'tinydb': 1} found, a list"),
    "splits": ({"databases": [{"name": "a", "splits": {"train": {}}}]}, "databases[0].splits.train.beats_per_class"),
    "checksums": ({"checksums": []}, "checksums: [] found"),
    "a checksum": ({"checksums": {"codes.bin": "0"}}, "checksums.sample.bin: nothing found"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_a_wrong_type_in_the_manifest_is_named(folder: Path, case: str) -> None:
    changes, expected = WRONG_TYPES[case]
    edit(folder, lambda manifest: manifest.update(changes))
    assert expected in refused(folder)


def test_a_folder_without_a_manifest_is_no_corpus(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    assert "not a corpus" in refused(folder)
    assert "not a corpus" in refused(folder / "nowhere")


@pytest.mark.parametrize("name", [*FILES, "records.parquet"])
def test_a_truncated_or_missing_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    assert name in refused(folder)
    path.unlink()
    assert name in refused(folder)


ARRAYS_AND_ROWS = [*FILES, "records.parquet"]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, its length and modification time as before."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as stream:
        stream.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("name", ARRAYS_AND_ROWS)
def test_a_flipped_bit_is_found(folder: Path, name: str) -> None:
    flip(folder / name)
    assert f"{folder.resolve()}/{name}: SHA-256" in refused(folder)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files count as settled at once, so that what was checked is noted; returns the folder of the notes."""
    monkeypatch.setattr(integrity, "SETTLED_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "heartlm"


def bytes_read() -> int:
    """What this process has read so far."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def opened(folder: Path) -> int:
    """Open a corpus, and return how many bytes that read."""
    before = bytes_read()
    open_corpus(folder)
    return bytes_read() - before


@pytest.mark.parametrize("name", ARRAYS_AND_ROWS)
@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_flipped_bit_is_found_in_a_corpus_that_was_checked_before(
    folder: Path, settled: Path, name: str, how: str
) -> None:
    assert opened(folder) > opened(folder), "the second time nothing but the rows is read"
    time.sleep(0.02)  # the clock of a filesystem has ticks
    if how == "replaced":
        shutil.copy2(folder / name, folder / "new")
        flip(folder / "new")
        (folder / "new").replace(folder / name)
    else:
        flip(folder / name)
    assert f"{name}: SHA-256" in refused(folder)
    assert f"{name}: SHA-256" in refused(folder), "and the next time, too"


def test_a_file_that_may_still_change_in_the_same_tick_is_not_noted(folder: Path, tmp_path: Path) -> None:
    assert time.time() < max(each.stat().st_ctime for each in folder.iterdir()) + integrity.SETTLED_S
    assert opened(folder) == opened(folder)


def test_of_many_ranks_one_reads_a_corpus(folder: Path, settled: Path) -> None:
    with multiprocessing.get_context("fork").Pool(6) as pool:
        first = pool.map(opened, [folder] * 6, chunksize=1)
    later = opened(folder)
    assert sum(each > later + (folder / "codes.bin").stat().st_size for each in first) == 1
    assert sorted(each.name for each in settled.iterdir())[0].startswith("corpus-")


def test_a_corpus_is_checked_where_nothing_can_be_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(each.name for each in folder.rglob("*"))
    monkeypatch.setattr(integrity, "SETTLED_S", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert opened(folder) == opened(folder)
    flip(folder / "labels.bin")
    assert "labels.bin: SHA-256" in refused(folder)
    assert sorted(each.name for each in folder.rglob("*")) == before


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Other content, and its checksum in the manifest."""
    (folder / name).write_bytes(content)
    edit(folder, lambda manifest: manifest["checksums"].update({name: sha256_of(folder / name)}))


@pytest.mark.parametrize(
    ("field", "column", "value", "expected"),
    [
        ("codes", 0, 60_000, " to 60000 found in column 0, 0 to "),
        ("labels", 0, 6, " to 6 found in column 0, -1 to 5 expected"),
        ("labels", 1, -2, "values -2 to "),
        ("sample", None, -1, "values -1 to "),
    ],
)
def test_a_value_out_of_range_is_named(folder: Path, field: str, column: int | None, value: int, expected: str) -> None:
    corpus = open_corpus(folder)
    array = np.array(getattr(corpus, field))
    array.reshape(len(array), -1)[3, column or 0] = value
    rewrite(folder, f"{field}.bin", array.tobytes())
    assert f"{field}.bin: values " in (said := refused(folder)) and expected in said


def rewrite_rows(folder: Path, change: Callable[[pyarrow.Table], pyarrow.Table]) -> None:
    path = folder / "records.parquet"
    pyarrow.parquet.write_table(change(pyarrow.parquet.ParquetFile(path).read()), path)
    rewrite(folder, path.name, path.read_bytes())


def with_column(name: str, values: Callable[[list[Any]], Any]) -> Callable[[pyarrow.Table], pyarrow.Table]:
    def change(table: pyarrow.Table) -> pyarrow.Table:
        place = table.column_names.index(name)
        return table.set_column(place, name, pyarrow.array(values(table.column(name).to_pylist())))

    return change


ROWS: dict[str, tuple[Callable[[pyarrow.Table], pyarrow.Table], str]] = {
    "without a column": (lambda table: table.drop_columns("patient_id"), "cannot be read (Target schema"),
    "a missing value": (with_column("split", lambda old: [None, *old[1:]]), "cannot be read (a value is missing)"),
    "text for a number": (with_column("num_tokens", lambda old: ["x"] * len(old)), "cannot be read ("),
    "in another order": (lambda table: table.take(list(range(len(table)))[::-1]), "its rows do not hold"),
    "too many tokens": (with_column("num_tokens", lambda old: [*old[:-1], old[-1] + 9]), "its rows do not hold"),
    "negative": (with_column("num_tokens", lambda old: [-1] * len(old)), "its rows do not hold"),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_do_not_fit_are_refused(folder: Path, case: str) -> None:
    change, expected = ROWS[case]
    rewrite_rows(folder, change)
    assert f"records.parquet{':' if 'rows' in expected else ''} {expected}" in refused(folder)


def test_another_tokenizer_in_its_place_is_refused(folder: Path) -> None:
    SampleTokenizer().save(folder / "tokenizer")
    with pytest.raises(HeartlmError, match="not the tokenizer that made the codes"):
        open_corpus(folder).tokenizer()


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")
    with pytest.raises(HeartlmError, match=r"tokenizer\.json"):
        open_corpus(folder).tokenizer()


# --- real recordings --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mitdb(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The MIT-BIH Arrhythmia Database, with codebooks small enough for a test."""
    out = tmp_path_factory.mktemp("mitdb") / "corpus"
    build_corpus([shared_data("mitdb")], BeatTokenizer(num_levels=1, num_deviation_levels=1, num_codes=16), out)
    return open_corpus(out)


def test_every_beat_of_mitdb_is_a_token(mitdb: Corpus) -> None:
    assert (mitdb.manifest["num_beats"], mitdb.manifest["num_tokens"]) == (109_494, 109_494)
    assert (mitdb.manifest["num_records"], mitdb.manifest["num_patients"]) == (48, 47)
    assert mitdb.manifest["dropped"] == []
    tokens = dict(zip(mitdb.records.record_id.tolist(), mitdb.records.num_tokens.tolist(), strict=True))
    assert tokens["100"] == 2_273
    assert set(mitdb.records.record_id[mitdb.records.split == "excluded"]) == {"102", "104", "107", "217"}


def test_one_lead_of_mitdb_is_read_and_the_paced_records_are_not_learnt_from(mitdb: Corpus) -> None:
    leads = {row.record_id: row.lead for row in mitdb.records.rows}
    assert leads["114"] == "MLII", "its second lead"
    assert {record_id for record_id, lead in leads.items() if lead != "MLII"} == {"102", "104"}
    assert mitdb.manifest["tokenizer"]["fitted_on"]["recordings"] == {"mitdb": 22}
    test = mitdb.manifest["databases"][0]["splits"]["test"]["beats_per_class"]
    assert test == {"N": 44_259, "S": 1_837, "V": 3_221, "F": 388, "Q": 7}


def test_annotation_files_alone_make_a_rhythm_corpus(tmp_path: Path) -> None:
    source, folder = shared_data("afdb"), tmp_path / "afdb"
    folder.mkdir()
    for record_id in ("04015", "04043", "08215"):
        for kind in ("atr", "qrs"):
            (folder / f"{record_id}.{kind}").symlink_to((source / f"{record_id}.{kind}").resolve())
    with pytest.raises(HeartlmError, match=r"annotations only, .* use --tokenizer rhythm"):
        build_corpus([folder], BeatTokenizer(), tmp_path / "corpus")
    manifest = build_corpus([folder], RhythmTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))
    corpus = open_corpus(tmp_path / "corpus")
    assert manifest["num_records"] == 3 and manifest["num_tokens"] == len(corpus.codes) > 100_000
    assert set(corpus.beat_class.tolist()) == {-1}, "nobody classified these beats"
    assert {RHYTHM_INDEX["N"], RHYTHM_INDEX["AFIB"]} <= set(corpus.rhythm.tolist())
    assert np.isnan(corpus.scale_mv).all() and {row.lead for row in corpus.records.rows} == {""}
