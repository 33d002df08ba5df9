from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.databases.splits import DS1, DS2, PACED, Split, de_chazal_split, hash_split
from tests.conftest import shared_data

patients = st.text(min_size=1, max_size=12)


def one_recording(folder: Path, record_id: str) -> Path:
    """Make `folder` with one recording of a second."""
    folder.mkdir()
    np.save(folder / f"{record_id}.npy", np.zeros((1, 250)))
    (folder / f"{record_id}.json").write_text('{"rate_hz": 250}')
    return folder


def test_de_chazal_lists_are_as_published() -> None:
    assert len(DS1) == len(DS2) == 22
    assert len({*DS1, *DS2, *PACED}) == 48
    assert de_chazal_split("100") == "test"
    assert de_chazal_split("101") == "train"
    assert de_chazal_split("217") == "excluded"
    assert de_chazal_split("99") is None


def test_fractions_are_met_on_average() -> None:
    counts = Counter(hash_split(f"mitdb/{number}") for number in range(10_000))
    assert abs(counts["train"] / 10_000 - 0.8) < 0.02
    assert abs(counts["validation"] / 10_000 - 0.1) < 0.02


def test_the_one_patient_who_straddles_is_that_of_201_and_202() -> None:
    mitdb = open_database(shared_data("mitdb"))
    splits_of_patient: dict[str, set[str]] = {}
    for record_id in mitdb.record_ids:
        splits_of_patient.setdefault(mitdb.patient_of(record_id), set()).add(mitdb.split_of(record_id))
    straddling = {patient: splits for patient, splits in splits_of_patient.items() if len(splits) > 1}
    assert straddling == {"mitdb/201": {"train", "test"}}
    assert mitdb.patient_of("202") == mitdb.patient_of("201")


@pytest.mark.parametrize(
    ("database", "record_id", "patient", "split"),
    [
        ("qtdb", "sel100", "mitdb/100", "test"),
        ("qtdb", "sel114", "mitdb/114", "train"),
        ("qtdb", "sel104", "mitdb/104", "excluded"),
        ("qtdb", "sele0104", "qtdb/sele0104", hash_split("qtdb/sele0104")),
        ("qtdb", "sel803", "qtdb/sel803", hash_split("qtdb/sel803")),
        ("nstdb", "118e24", "mitdb/118", "train"),
        ("nstdb", "119e_6", "mitdb/119", "train"),
        ("nstdb", "bm", "nstdb/bm", hash_split("nstdb/bm")),
        ("mitdb", "202", "mitdb/201", "test"),
        ("ltstdb", "s20271", "ltstdb/s2027", hash_split("ltstdb/s2027")),
        ("ltstdb", "s20272", "ltstdb/s2027", hash_split("ltstdb/s2027")),
        ("100", "100", "100/100", hash_split("100/100")),
    ],
)
def test_patients_of_published_databases(
    tmp_path: Path, database: str, record_id: str, patient: str, split: Split
) -> None:
    opened = open_database(one_recording(tmp_path / database, record_id))
    assert opened.patient_of(record_id) == opened.recording(record_id).patient_id == patient
    assert opened.split_of(record_id) == split


def test_a_split_that_the_user_states_goes_before_that_of_mitdb(tmp_path: Path) -> None:
    folder = one_recording(tmp_path / "qtdb", "sel100")
    (folder / "database.json").write_text('{"splits": {"100": "excluded"}}')
    assert open_database(folder).split_of("sel100") == "excluded"
