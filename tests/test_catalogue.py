"""The catalogue's facts have the right form, and those that real copies can confirm agree with them."""

from __future__ import annotations

import re

import pytest

from heartlm.databases.catalogue import CATALOGUE, PHYSIONET_CITATION, DatabaseInfo, find
from heartlm.errors import HeartlmError
from tests.conftest import shared_data

DATABASES = pytest.mark.parametrize("info", CATALOGUE.values(), ids=list(CATALOGUE))


@DATABASES
def test_facts_have_the_right_form(info: DatabaseInfo):
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", info.version)
    assert re.fullmatch(r"10\.13026/[\w-]+", info.doi)
    assert info.num_recordings > 0
    assert info.num_patients is None or 0 < info.num_patients <= info.num_recordings
    assert info.rates_hz and all(100 <= rate <= 1000 for rate in info.rates_hz)
    assert set(info.labels) <= {"beats", "rhythms", "waves", "ST-T episodes", "diagnoses"} and info.labels
    assert info.licence in {"ODC-By 1.0", "CC BY 4.0", "CC BY-NC-SA 4.0"}
    assert info.physionet_path == f"{info.name}/{info.version}"


@DATABASES
def test_every_database_is_cited_with_physionet(info: DatabaseInfo):
    assert info.citations[-1] == PHYSIONET_CITATION
    assert any(info.doi in citation for citation in info.citations)


def test_dois_are_all_different():
    assert len({info.doi for info in CATALOGUE.values()}) == len(CATALOGUE) == 21


@pytest.mark.parametrize("name", ["mitdb", "cudb", "afdb", "nsrdb"])
def test_number_of_recordings_agrees_with_the_files(name: str):
    records = {path.stem for path in shared_data(name).glob("*.atr")}
    assert find(name).num_recordings == len(records)


@pytest.mark.parametrize("name", ["mitdb", "cudb"])
def test_size_and_rate_agree_with_the_files(name: str):
    folder = shared_data(name)
    info = find(name)
    size_mb = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in {".hea", ".dat", ".atr"}) / 1e6
    assert info.size_mb == pytest.approx(size_mb, abs=0.1)
    for header in folder.glob("*.hea"):
        _, num_leads, rate_hz, *_ = header.read_text().split()
        assert (info.leads, info.rates_hz) == (num_leads, (int(rate_hz.partition("/")[0]),))


def test_find_ignores_case():
    assert find("MITDB") is CATALOGUE["mitdb"]


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(HeartlmError, match="did you mean mitdb"):
        find("mitbd")


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(HeartlmError, match="mitdb, afdb, ltafdb"):
        find("zzzz")
