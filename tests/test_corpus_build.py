"""Building corpora from simulated databases: what goes in, what is left out and said so, and failing without harm."""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

from heartlm.cli.main import main
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.tokenizers.base import Lead, Tokens, load_tokenizer
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rhythm import RhythmTokenizer
from heartlm.tokenizers.sample import SampleTokenizer


def small() -> BeatTokenizer:
    return BeatTokenizer(num_codes=16)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two simulated databases of different rates and leads."""
    folder = tmp_path_factory.mktemp("databases")
    simulate_database(folder / "one", SimulationConfig(patients=8, minutes=0.5, name="one"))
    simulate_database(
        folder / "two", SimulationConfig(patients=4, minutes=0.5, rate_hz=360, leads=("V5", "II"), seed=1, name="two")
    )
    return [folder / "one", folder / "two"]


@pytest.fixture(scope="module")
def corpus(databases: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("corpora") / "both"
    build_corpus(databases, small(), out, TokenizeConfig(processes=1))
    return open_corpus(out)


@pytest.fixture
def one(databases: list[Path], tmp_path: Path) -> Path:
    """A copy of the first database, to spoil."""
    return Path(shutil.copytree(databases[0], tmp_path / "one"))


def records_of(folder: Path, *splits: str) -> list[str]:
    database = open_database(folder)
    return [record_id for record_id in database.record_ids if database.split_of(record_id) in splits]


def rewrite(folder: Path, record_id: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write the samples of a record again, `[num_samples, num_leads]` adu, changed."""
    record = wfdb.rdrecord(str(folder / record_id), physical=False)
    wfdb.wrsamp(
        record_id,
        fs=record.fs,
        units=record.units,
        sig_name=record.sig_name,
        d_signal=change(record.d_signal),
        fmt=record.fmt,
        adc_gain=record.adc_gain,
        baseline=record.baseline,
        write_dir=str(folder),
    )


def flat(lead: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(samples: np.ndarray) -> np.ndarray:
        samples[:, lead] = 1024
        return samples

    return change


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what goes in -----------------------------------------------------------------------------------------------------


def test_every_beat_of_every_recording_is_a_token_and_counted(corpus: Corpus, databases: list[Path]) -> None:
    opened = [open_database(folder) for folder in databases]
    beats = {(db.name, record_id): db.annotations(record_id) for db in opened for record_id in db.record_ids}
    num_beats = sum(annotations.num_beats for annotations in beats.values() if annotations)
    manifest = corpus.manifest
    assert manifest["num_records"] == manifest["num_leads"] == len(beats) == len(corpus.records)
    assert manifest["num_beats"] == manifest["num_tokens"] == num_beats == len(corpus.codes)
    assert manifest["num_patients"] == len({db.patient_of(r) for db in opened for r in db.record_ids}) == 12
    assert manifest["dropped"] == []
    assert [database["rate_hz"] for database in manifest["databases"]] == [[250.0], [360.0]]
    for database in manifest["databases"]:
        of_class = sum(sum(split["beats_per_class"].values()) for split in database["splits"].values())
        assert of_class == database["num_beats"] == sum(split["tokens"] for split in database["splits"].values())


def test_labels_stand_beside_the_codes_of_their_beat(corpus: Corpus, databases: list[Path]) -> None:
    opened = {database.name: database for database in map(open_database, databases)}
    tokenizer = corpus.tokenizer()
    for place, row in enumerate(corpus.records.rows):
        database, tokens = opened[row.database], corpus.tokens_of(place)
        recording, annotations = database.recording(row.record_id), database.annotations(row.record_id)
        assert annotations is not None
        assert np.array_equal(corpus.sample[tokens], annotations.sample)
        assert np.array_equal(corpus.beat_class[tokens], annotations.beat_classes())
        assert np.array_equal(corpus.rhythm[tokens], annotations.rhythm_at(annotations.sample))
        encoded = tokenizer.encode(Lead(annotations, recording.signal(leads=[row.lead_index])[0], row.lead_index))
        assert np.array_equal(corpus.codes[tokens], encoded.codes)
        assert np.array_equal(corpus.scale_mv[tokens], encoded.scale_mv)
        assert (row.rate_hz, row.split) == (recording.rate_hz, database.split_of(row.record_id))
    assert len(set(corpus.beat_class.tolist())) >= 3 and len(set(corpus.rhythm.tolist())) >= 2


def test_one_lead_of_each_recording_the_preferred_one(corpus: Corpus) -> None:
    assert {(row.database, row.lead, row.lead_index) for row in corpus.records.rows} == {
        ("one", "MLII", 0),
        ("two", "II", 1),
    }


def test_all_leads_come_in_for_training_recordings_alone(databases: list[Path], tmp_path: Path) -> None:
    build_corpus(databases[:1], small(), tmp_path / "all", TokenizeConfig(training_leads="all", processes=1))
    corpus = open_corpus(tmp_path / "all")
    leads = defaultdict(list)
    for row in corpus.records.rows:
        leads[row.split, row.record_id].append(row.lead)
    assert {split for split, _ in leads} == {"train", "validation", "test"}
    for (split, _), names in leads.items():
        assert names == (["MLII", "V1"] if split == "train" else ["MLII"])
    beats = sum(sum(part["beats_per_class"].values()) for part in corpus.manifest["databases"][0]["splits"].values())
    assert beats == corpus.manifest["num_beats"] < corpus.manifest["num_tokens"], "a beat is counted once"


def test_patients_never_straddle_splits(one: Path, tmp_path: Path) -> None:
    settings = json.loads((one / "database.json").read_text())
    del settings["splits"]
    records = list(settings["patients"])
    settings["patients"] = {record_id: f"q{place // 2}" for place, record_id in enumerate(records)}
    (one / "database.json").write_text(json.dumps(settings))
    build_corpus([one], RhythmTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))
    corpus = open_corpus(tmp_path / "corpus")
    splits = defaultdict(set)
    for row in corpus.records.rows:
        splits[row.patient_id].add(row.split)
    assert len(splits) == -(-len(records) // 2) and all(len(of_patient) == 1 for of_patient in splits.values())


# --- what the tokenizer learns from -----------------------------------------------------------------------------------


def test_only_the_training_split_shapes_the_tokenizer(one: Path, tmp_path: Path) -> None:
    def hash_now() -> str:
        return str(build_corpus([one], small(), tmp_path / "corpus", TokenizeConfig(processes=1))["tokenizer"]["hash"])

    before = hash_now()
    for record_id in records_of(one, "validation", "test"):
        rewrite(one, record_id, lambda samples: 2047 - samples[::-1])
    assert hash_now() == before
    rewrite(one, records_of(one, "train")[0], lambda samples: 2047 - samples)
    assert hash_now() != before


def test_the_manifest_says_what_it_was_fitted_on(corpus: Corpus) -> None:
    training = {
        name: len(set(corpus.records.record_id[(corpus.records.database == name) & (corpus.records.split == "train")]))
        for name in ("one", "two")
    }
    assert corpus.manifest["tokenizer"]["fitted_on"] == {"split": "train", "recordings": training, "seed": 0}


def test_a_database_without_training_recordings_fits_nothing(one: Path, tmp_path: Path) -> None:
    settings = json.loads((one / "database.json").read_text())
    settings["splits"] = dict.fromkeys(settings["splits"], "test")
    (one / "database.json").write_text(json.dumps(settings))
    with pytest.raises(HeartlmError, match="no recording is in the training split"):
        build_corpus([one], small(), tmp_path / "corpus")
    manifest = build_corpus([one], RhythmTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))
    assert list(manifest["databases"][0]["splits"]) == ["test"], "levels are fixed: nothing to fit"
    assert manifest["tokenizer"]["hash"] == RhythmTokenizer().content_hash()


def test_the_tokenizer_of_another_corpus_encodes_alike(corpus: Corpus, databases: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "second"
    arguments = ["tokenize", str(databases[1]), "--tokenizer-from", str(corpus.folder), "--out", str(out)]
    assert main(arguments) == 0
    second = open_corpus(out)
    assert second.tokenizer_hash == corpus.tokenizer_hash
    inside = np.concatenate(
        [corpus.codes[corpus.tokens_of(i)] for i in np.flatnonzero(corpus.records.database == "two")]
    )
    assert np.array_equal(second.codes, inside)
    assert second.manifest["command"].startswith("heartlm tokenize ")


# --- what is left out is said -----------------------------------------------------------------------------------------


def test_a_flat_lead_is_listed(one: Path, tmp_path: Path) -> None:
    training = records_of(one, "train")[0]
    testing = records_of(one, "test")[0]
    rewrite(one, training, flat(1))
    rewrite(one, testing, flat(0))
    manifest = build_corpus([one], small(), tmp_path / "corpus", TokenizeConfig(training_leads="all", processes=1))
    assert sorted(manifest["dropped"], key=lambda entry: entry["record"]) == sorted(
        [
            {"record": f"one/{training}", "reason": "lead V1: flat"},
            {"record": f"one/{testing}", "reason": "lead MLII: flat"},
        ],
        key=lambda entry: entry["record"],
    )
    rows = open_corpus(tmp_path / "corpus").records.rows
    assert [row.lead for row in rows if row.record_id == training] == ["MLII"]
    assert not [row for row in rows if row.record_id == testing]


def test_recordings_with_fewer_than_two_beats_are_listed(one: Path, tmp_path: Path) -> None:
    record_id = open_database(one).record_ids[0]
    wfdb.wrann(record_id, "atr", np.array([100]), symbol=["N"], write_dir=str(one))
    manifest = build_corpus([one], small(), tmp_path / "corpus", TokenizeConfig(beats="annotated", processes=1))
    assert manifest["dropped"] == [{"record": f"one/{record_id}", "reason": "fewer than two beats annotated"}]


def spoil_header(folder: Path, record_id: str) -> None:
    (folder / f"{record_id}.hea").write_text("not a header\n")


def spoil_samples(folder: Path, record_id: str) -> None:
    (folder / f"{record_id}.dat").unlink()


def spoil_annotations(folder: Path, record_id: str) -> None:
    (folder / f"{record_id}.atr").write_bytes(b"\x01")


@pytest.mark.parametrize("spoil", [spoil_header, spoil_samples, spoil_annotations])
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_unreadable_record_stops_the_build_or_is_listed(
    one: Path, tmp_path: Path, spoil: Callable[[Path, str], None], split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heartlm.corpus.build.WORTH_KEEPING_S", math.inf)  # else a slow machine keeps what was done
    record_id = records_of(one, split)[0]
    spoil(one, record_id)
    with pytest.raises(HeartlmError, match=record_id) as error:
        build_corpus([one], small(), tmp_path / "corpus", TokenizeConfig(processes=1))
    assert "\n" not in str(error.value) and not (tmp_path / "corpus").exists()
    manifest = build_corpus([one], small(), tmp_path / "corpus", TokenizeConfig(skip_unreadable=True, processes=1))
    assert manifest["dropped"] == [{"record": f"one/{record_id}", "reason": str(error.value)}]
    assert record_id not in open_corpus(tmp_path / "corpus").records.record_id


def test_nothing_usable_is_an_error_that_says_why(one: Path, tmp_path: Path) -> None:
    for record_id in open_database(one).record_ids:
        rewrite(one, record_id, lambda samples: np.full_like(samples, 1024))
    with pytest.raises(HeartlmError, match=r"nothing to tokenise in .*lead MLII: flat \(\d+\)"):
        build_corpus([one], SampleTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=1))


def test_one_name_twice_is_refused(databases: list[Path], one: Path, tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match="two folders hold a database called 'one'"):
        build_corpus([databases[0], one], small(), tmp_path / "corpus")


def test_beats_cannot_be_detected_at_too_low_a_rate(tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    signal = np.random.default_rng(0).normal(size=(2000, 1))
    wfdb.wrsamp("a", fs=50, units=["mV"], sig_name=["II"], p_signal=signal, fmt=["16"], write_dir=str(folder))
    (folder / "database.json").write_text(json.dumps({"splits": {"a": "train"}}))
    with pytest.raises(HeartlmError, match=r"a\.hea: rate_hz is 50"):
        build_corpus([folder], RhythmTokenizer(), tmp_path / "corpus")


# --- failing without harm, repeating to the byte ----------------------------------------------------------------------


class Failing(RhythmTokenizer):
    """Fails on the third recording."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error, self.left = error, 3

    def encode(self, lead: Lead) -> Tokens:
        self.left -= 1
        if not self.left:
            raise self.error
        return super().encode(lead)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("defect"), HeartlmError("bad"), OSError(28, "full")]
)
def test_a_build_that_fails_in_the_middle_leaves_the_earlier_corpus(
    databases: list[Path], tmp_path: Path, error: BaseException
) -> None:
    out = tmp_path / "corpus"
    build_corpus(databases[1:], RhythmTokenizer(), out, TokenizeConfig(processes=1))
    before = content(out)
    expected = HeartlmError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        build_corpus(databases, Failing(error), out, TokenizeConfig(processes=1))
    assert content(out) == before and list(tmp_path.iterdir()) == [out]
    open_corpus(out)


def test_an_error_in_another_process_is_the_same_line(one: Path, tmp_path: Path) -> None:
    spoil_samples(one, open_database(one).record_ids[-1])
    with pytest.raises(HeartlmError, match=r"\.dat: signal file .* is missing"):
        build_corpus([one], SampleTokenizer(), tmp_path / "corpus", TokenizeConfig(processes=2))
    assert not (tmp_path / "corpus").exists()


def test_the_same_input_gives_the_same_bytes_whatever_the_number_of_processes(
    corpus: Corpus, databases: list[Path], tmp_path: Path
) -> None:
    manifest = build_corpus(databases, small(), tmp_path / "again", TokenizeConfig(processes=2))
    assert content(tmp_path / "again") == content(corpus.folder)
    assert manifest == corpus.manifest
    assert load_tokenizer(tmp_path / "again" / "tokenizer").content_hash() == corpus.tokenizer_hash


def test_a_complete_corpus_replaces_the_earlier_one(databases: list[Path], tmp_path: Path) -> None:
    kinds: list[Any] = [SampleTokenizer(), RhythmTokenizer()]
    for tokenizer in kinds:
        build_corpus(databases[1:], tokenizer, tmp_path / "corpus", TokenizeConfig(processes=1))
    corpus = open_corpus(tmp_path / "corpus")
    assert corpus.tokenizer().kind == "rhythm" and not (corpus.folder / "tokenizer" / "tensors.safetensors").exists()
