"""Opening corpora: what is damaged or of another version is refused in one line; and the real databases, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from heartlm.corpus.build import build_corpus
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.schema import FILES
from heartlm.ecg.rhythms import RHYTHM_INDEX
from heartlm.ecg.simulator import SimulationConfig, simulate_database
from heartlm.errors import HeartlmError
from heartlm.files import sha256_of
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from tests.conftest import shared_data


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    simulate_database(folder / "simdb", SimulationConfig(patients=4, minutes=0.25))
    build_corpus([folder / "simdb"], RhythmTokenizer(), folder / "corpus", processes=1)
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
    edit(folder, lambda manifest: manifest["checksums"].update({"codes.bin": "0"}))
    assert open_corpus(folder).manifest_hash != before


def test_another_schema_version_is_refused(folder: Path) -> None:
    edit(folder, lambda manifest: manifest.update(schema_version=2))
    assert "schema version 2, this heartlm reads 1" in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 1, "num_tokens": 3}'])
def test_a_damaged_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    refused(folder)


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


def test_rows_without_a_column_are_refused(folder: Path) -> None:
    path = folder / "records.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.ParquetFile(path).read().drop_columns("patient_id"), path)
    assert "records.parquet cannot be read" in (said := refused(folder)) and "patient_id" in said


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
    manifest = build_corpus([folder], RhythmTokenizer(), tmp_path / "corpus", processes=1)
    corpus = open_corpus(tmp_path / "corpus")
    assert manifest["num_records"] == 3 and manifest["num_tokens"] == len(corpus.codes) > 100_000
    assert set(corpus.beat_class.tolist()) == {-1}, "nobody classified these beats"
    assert {RHYTHM_INDEX["N"], RHYTHM_INDEX["AFIB"]} <= set(corpus.rhythm.tolist())
    assert np.isnan(corpus.scale_mv).all() and {row.lead for row in corpus.records.rows} == {""}
