from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.databases import discovery
from heartlm.databases.database import locate, open_database
from heartlm.databases.known import database_name
from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.formats.stated import Stated
from tests.conftest import shared_data
from tests.test_ecg_wfdb import write_record


def write_database(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_record(folder, name=name)
        wfdb.wrann(
            name,
            "atr",
            np.array([5, 100, 300, 500]),
            ["+", "N", "V", "N"],
            aux_note=["(AFIB\x00", "", "", ""],
            write_dir=str(folder),
        )


def test_mitdb_counts() -> None:
    mitdb = open_database(shared_data("mitdb"))
    assert (mitdb.name, len(mitdb.record_ids)) == ("mitdb", 48)
    annotations = [mitdb.annotations(record_id) for record_id in mitdb.record_ids]
    counts: Counter[str] = Counter()
    for record in annotations:
        assert record is not None and record.beats_labelled and not record.ignored
        counts.update(BEAT_CLASSES[index] for index in record.beat_classes())
    assert counts == {"N": 90631, "S": 2781, "V": 7236, "F": 803, "Q": 8043}
    assert counts.total() == 109_494
    first = annotations[mitdb.record_ids.index("100")]
    assert first is not None and first.num_beats == 2273
    assert first.source == "100.atr"


def test_ventricular_flutter_of_record_207_is_told_once() -> None:
    mitdb = open_database(shared_data("mitdb"))
    record = mitdb.annotations("207")
    assert record is not None
    assert sum(span.name == "VFL" for span in record.rhythms) == 6
    assert not any(span.name == "VFIB" for span in record.rhythms)
    assert all(a.stop <= b.start for a, b in zip(record.rhythms, record.rhythms[1:], strict=False))
    assert record.rhythms[-1].stop == 650_000


def test_afdb_is_read_from_annotations_alone() -> None:
    afdb = open_database(shared_data("afdb"))
    records = {record_id: afdb.annotations(record_id) for record_id in afdb.record_ids}
    assert len(records) == 25
    assert sum(record.num_beats for record in records.values() if record) == 1_221_559
    assert sum(len(record.rhythms) for record in records.values() if record) == 623
    hours = Counter()
    for record in records.values():
        assert record is not None and not record.beats_labelled and record.rate_hz == 250
        assert record.rhythms[-1].stop > record.sample[-1]
        for span in record.rhythms:
            hours[span.name] += (span.stop - span.start) / record.rate_hz / 3600
    assert hours["AFIB"] == pytest.approx(93.3, abs=0.05)
    recording = afdb.recording("04015")
    assert not recording.has_signal
    with pytest.raises(HeartlmError, match="annotations only"):
        recording.signal()


def test_nsrdb_annotations_work_without_the_signal_its_headers_name() -> None:
    nsrdb = open_database(shared_data("nsrdb"))
    record = nsrdb.annotations("16265")
    assert record is not None and record.rate_hz == 128 and record.beats_labelled
    assert [(span.start, span.name) for span in record.rhythms] == [(0, "N")]
    with pytest.raises(HeartlmError, match=r"16265\.dat: signal file named by 16265\.hea is missing"):
        nsrdb.recording("16265").signal(0, 10)


def test_a_table_of_beats_is_a_recording_of_annotations(tmp_path: Path) -> None:
    folder = tmp_path / "vitaldb-arrhythmia"
    folder.mkdir()
    rows = ["10.5,N,N,False,", "11.2,V,N,False,", "11.0,N,N,False,", "11.5,,N,True,Start1", "12.0,S,AFIB/AFL,False,"]
    rows += ["12.4,S,,False,", "12.9,U,Noise,True,"]
    table = folder / "Annotation_file_7.csv"
    table.write_text(
        "\n".join(["\ufefftime_second,beat_type,rhythm_label,bad_signal_quality,x", *rows]), encoding="utf-8"
    )
    (folder / "metadata.csv").write_text("case_id,total_beats\n7,6\n")
    database = open_database(folder)
    assert database.record_ids == ("Annotation_file_7",)
    record = database.annotations("Annotation_file_7")
    assert record is not None and record.beats_labelled and record.rate_hz == 500
    assert record.sample.tolist() == [5250, 5500, 5600, 6000, 6200, 6450]
    assert "".join(record.symbol) == "NNVSSQ"
    spans = [(span.start, span.stop, span.name) for span in record.rhythms]
    assert spans == [(5250, 6000, "N"), (6000, 6450, "AFIB"), (6450, 6451, "NOISE")]
    table.write_text("time_second,beat_type,rhythm_label\n2.0,N,N\nnan,N,N\n1.0,V,N\ninf,N,N\n1e300,N,N\n")
    record = database.annotations("Annotation_file_7")
    assert record is not None and record.sample.tolist()[:2] == [500, 1000]
    assert record.faults == ("Annotation_file_7.csv: 2 of 5 beats have no time and are left out",)
    table.write_text("time_second,beat_type,rhythm_label\nsoon,N,N\n")
    with pytest.raises(HeartlmError, match="Annotation_file_7"):
        database.annotations("Annotation_file_7")


def test_cudb_brackets_are_fibrillation_and_beats_are_unlabelled() -> None:
    cudb = open_database(shared_data("cudb"))
    record = cudb.annotations("cu04")
    assert record is not None and set(record.beat_classes()) == {-1}
    assert [(span.start, span.stop, span.name) for span in record.rhythms[:2]] == [
        (38828, 52738, "VFIB"),
        (55945, 60883, "VFIB"),
    ]
    unclosed = cudb.annotations("cu15")
    assert unclosed is not None and unclosed.rhythms[-1].stop == cudb.recording("cu15").num_samples


def test_ludb_rhythm_stands_in_the_header(tmp_path: Path) -> None:
    folder = tmp_path / "ludb"
    for name, comment in (("1", "Rhythm: Sinus bradycardia."), ("2", "Rhythm: Atrial fibrillation."), ("3", "-")):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        write_record(folder / "data", name=name)
        with (folder / "data" / f"{name}.hea").open("a") as stream:
            stream.write(f"#{comment}\n")
        wfdb.wrann(name, "ii", np.array([90, 100, 110, 150]), ["(", "N", ")", "t"], write_dir=str(folder / "data"))
    (folder / "RECORDS").write_text("data/1\ndata/2\ndata/3\n")
    ludb = open_database(folder)
    assert ludb.record_ids == ("1", "2", "3")
    records = [ludb.annotations(record_id) for record_id in ludb.record_ids]
    assert [[(s.start, s.stop, s.name) for s in record.rhythms] for record in records if record] == [
        [(0, 1000, "N")],
        [(0, 1000, "AFIB")],
        [],
    ]
    assert records[0] is not None and records[0].sample.tolist() == [100] and not records[0].beats_labelled


def test_an_anonymous_recording_keeps_the_rhythm_that_a_comment_states(tmp_path: Path) -> None:
    (folder := tmp_path / "ludb").mkdir()
    write_record(folder, name="1")
    with (folder / "1.hea").open("a") as stream:
        stream.write("#<name>: A B\n#Rhythm: Atrial fibrillation\n")
    hidden = open_database(folder).recording("1").anonymous()
    assert hidden.annotations is not None and [span.name for span in hidden.annotations.rhythms] == ["AFIB"]
    assert "A B" not in hidden.to_wfdb(tmp_path, "b").read_text()


def test_challenge_2017_labels_whole_records_and_has_no_beats(tmp_path: Path) -> None:
    folder = tmp_path / "training2017"
    folder.mkdir()
    for name in ("A00001", "A00002", "A00227", "A01176"):
        write_record(folder, name=name)
    (folder / "REFERENCE.csv").write_text("A00001,A\nA00002,~\nA00227,N\nA01176,N\n")
    database = open_database(folder)
    assert database.name == "challenge-2017"
    assert database.patient_of("A01176") == database.patient_of("A00227")  # one recording, published twice
    records = [database.annotations(record_id) for record_id in database.record_ids]
    assert [record.rhythms[0].name for record in records if record] == ["AFIB", "NOISE", "N", "N"]
    assert all(record is not None and record.num_beats == 0 and not record.beats_labelled for record in records)
    assert records[0] is not None and records[0].source == "REFERENCE.csv"


def test_database_json_has_the_last_word(tmp_path: Path) -> None:
    write_database(tmp_path / "mine", "a", "b", "c")
    settings = {
        "name": "my-hearts",
        "beat_labels": False,
        "rhythm_labels": False,
        "patients": {"a": "p1", "b": "p1"},
        "splits": {"p1": "test"},
    }
    (tmp_path / "mine" / "database.json").write_text(json.dumps(settings))
    database = open_database(tmp_path / "mine")
    assert database.name == database.recording("a").database == "my-hearts"
    assert [database.patient_of(name) for name in "abc"] == ["my-hearts/p1", "my-hearts/p1", "my-hearts/c"]
    assert database.recording("b").patient_id == "my-hearts/p1"
    assert database.split_of("a") == database.split_of("b") == "test"
    record = database.annotations("a")
    assert record is not None and record.rhythms == () and not record.beats_labelled and record.num_beats == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("[1]", "fields with their values expected"),
        ('{"beat_labels": "no"}', "beat_labels: 'no' found, true or false expected"),
        ('{"splits": {"p": "dev"}}', "splits.p: 'dev' found, one of train, validation, test, excluded expected"),
        ('{"patients": 3}', "patients: 3 found"),
        (r'{"patients": {"a": "\ud800"}}', r"patients: '\\ud800' found, text without control characters expected"),
        ('{"rate_hz": 0}', "rate_hz is 0, expected samples a second"),
        ("{", "not valid JSON"),
    ],
)
def test_malformed_database_json(tmp_path: Path, settings: str, reason: str) -> None:
    write_database(tmp_path, "a")
    (tmp_path / "database.json").write_text(settings)
    with pytest.raises(HeartlmError, match=reason):
        open_database(tmp_path)


def test_annotations_past_the_end_are_left_out_and_counted(tmp_path: Path) -> None:
    write_database(tmp_path, "a")
    wfdb.wrann("a", "atr", np.array([100, 1000, 5000]), ["N", "N", "V"], write_dir=str(tmp_path))
    record = open_database(tmp_path).annotations("a")
    assert record is not None and record.sample.tolist() == [100]
    assert record.ignored == {"past the end": 2}


def test_detected_beats_of_an_unknown_database_are_no_labels(tmp_path: Path) -> None:
    write_record(tmp_path, name="a")
    wfdb.wrann("a", "qrs", np.array([100, 300]), ["N", "N"], write_dir=str(tmp_path))
    record = open_database(tmp_path).annotations("a")
    assert record is not None and record.num_beats == 2 and not record.beats_labelled


def test_the_source_changes_with_every_file_that_the_header_names(tmp_path: Path) -> None:
    """The Frank leads of the PTB database are in s0010_re.xyz, next to s0010_re.dat."""
    (tmp_path / "a.dat").write_bytes(bytes(200))
    (tmp_path / "a.xyz").write_bytes(bytes(200))
    (tmp_path / "a.hea").write_text("a 2 250 100\na.dat 16 200 16 0 0 0 0 II\na.xyz 16 200 16 0 0 0 0 vx\n")
    database = open_database(tmp_path)
    before = database.source("a")
    (tmp_path / "a.xyz").write_bytes(bytes(198))
    assert database.source("a") != before


def test_of_one_name_the_header_is_the_record_and_other_formats_are_read_by_their_path(tmp_path: Path) -> None:
    write_record(tmp_path, name="a")
    signal = np.sin(np.arange(1000) / 20)
    np.save(tmp_path / "a.npy", signal)
    (tmp_path / "a.csv").write_text("time,ecg [mV]\n" + "\n".join(f"{i / 100},{x:.3f}" for i, x in enumerate(signal)))
    wfdb.wrann("a", "atr", np.array([100]), ["N"], write_dir=str(tmp_path))
    assert open_database(tmp_path).record_ids == ("a",)
    for name, suffix in (("a", ".hea"), ("a.dat", ".hea"), ("a.atr", ".hea"), ("a.csv", ".csv")):
        database, record_id = locate(tmp_path / name)
        assert (record_id, database.recording("a").path) == ("a", tmp_path / f"a{suffix}")
    with Stated(rate_hz=250).used():  # makes arrays recordings
        assert open_database(tmp_path).record_ids == ("a",)
        database, _ = locate(tmp_path / "a.npy")
        assert database.recording("a").path.suffix == ".npy"
        assert locate(tmp_path / "a.dat")[0].recording("a").path.suffix == ".hea"
    (tmp_path / "a.hea").unlink()
    assert open_database(tmp_path).record_ids == ("a",)
    np.save(tmp_path / "a.npy", signal)
    (tmp_path / "a.json").write_text('{"rate_hz": 250}')
    assert open_database(tmp_path).record_ids == ("a", "a.npy")


@pytest.mark.parametrize("file", ["samples.bin", "part.hea", "whole.hea"])
def test_the_source_changes_with_files_of_other_names(tmp_path: Path, file: str) -> None:
    (tmp_path / "samples.bin").write_bytes(bytes(200))
    (tmp_path / "part.hea").write_text("part 1 250 100\nsamples.bin 16 200 16 0 0 0 0 II\n")
    (tmp_path / "whole.hea").write_text("whole/1 1 250 100\npart 100\n")
    database = open_database(tmp_path)
    assert database.record_ids == ("whole",)
    before = database.source("whole")
    assert database.source("whole") == before
    with (tmp_path / file).open("ab") as stream:
        stream.write(b"\n\n")
    assert database.source("whole") != before


def test_a_record_without_annotations_has_none(tmp_path: Path) -> None:
    write_record(tmp_path, name="a")
    assert open_database(tmp_path).annotations("a") is None


def test_segments_are_no_records_of_their_own() -> None:
    database = open_database(shared_data("formats/multi-segment/fixed1"))
    assert database.record_ids == ("v102s",)
    assert database.recording("v102s").num_samples == 225_000


def test_a_malformed_header_of_segments_does_not_stop_the_search(tmp_path: Path) -> None:
    write_database(tmp_path, "a", "s_1")
    (tmp_path / "s.hea").write_text("s/2 2 250\ns_1\n")
    database = open_database(tmp_path)
    assert database.record_ids == ("a", "s")
    with pytest.raises(HeartlmError, match="expected the name and the length of a segment"):
        database.recording("s")


@pytest.mark.parametrize("name", ["a", "a.hea", "a.dat", "a.atr"])
def test_a_recording_that_is_named_is_opened_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_database(tmp_path, "a", "b")
    write_database(tmp_path / "below", "a")
    (tmp_path / "ab.csv").write_text("time,mV\n")
    asked, begins = set[Path](), discovery.format_of
    monkeypatch.setattr(discovery, "format_of", lambda path: asked.add(path) or begins(path))
    monkeypatch.setattr(discovery, "_segments", lambda stem: asked.add(Path(stem)) or [])
    database, record_id = locate(tmp_path / name)
    assert (database.record_ids, record_id) == (("a",), "a")
    assert {path.stem for path in asked} <= {"a"}


def test_hidden_files_are_no_records(tmp_path: Path) -> None:
    write_database(tmp_path, "a")
    (tmp_path / "._a.hea").write_bytes(b"\x00\x05\x16\x07")
    assert open_database(tmp_path).record_ids == ("a",)


def test_one_name_in_two_folders_is_told_apart_by_its_path(tmp_path: Path) -> None:
    write_database(tmp_path / "x", "a")
    write_database(tmp_path / "y", "a")
    assert open_database(tmp_path).record_ids == ("x/a", "y/a")


def test_headerless_annotations_need_a_rate(tmp_path: Path) -> None:
    wfdb.wrann("a", "atr", np.array([100, 300]), ["N", "N"], write_dir=str(tmp_path))
    database = open_database(tmp_path)
    with pytest.raises(HeartlmError, match=r"a\.atr: has no header and states no rate"):
        database.annotations("a")
    (tmp_path / "database.json").write_text('{"rate_hz": 128}')
    record = open_database(tmp_path).annotations("a")
    assert record is not None and record.rate_hz == 128


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match="no such folder"):
        open_database(tmp_path / "absent")
    with pytest.raises(HeartlmError, match="no recordings found"):
        open_database(tmp_path)
    write_database(tmp_path, "a")
    with pytest.raises(HeartlmError, match="no record 'z'; it has a"):
        open_database(tmp_path).recording("z")
    (tmp_path / "RECORDS").write_text("a\nb\nc\n")
    with pytest.raises(HeartlmError, match=r"b\.hea: listed in .*RECORDS and missing \(and 1 more records\)"):
        open_database(tmp_path)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("MITDB", "mitdb"),
        ("mit-bih-arrhythmia-database-1.0.0", "mitdb"),
        ("cinc2017", "challenge-2017"),
        ("af-classification-challenge-2017", "challenge-2017"),
        ("my-data", "my-data"),
    ],
)
def test_folder_names(folder: str, name: str) -> None:
    assert database_name(folder) == name


def test_patients_told_by_names_comments_and_tables(tmp_path: Path) -> None:
    (tmp_path / "icentia11k").mkdir()
    write_record(tmp_path / "icentia11k", name="p00000_s01")
    assert open_database(tmp_path / "icentia11k").patient_of("p00000_s01") == "icentia11k-continuous-ecg/p00000"
    (tmp_path / "incartdb").mkdir()
    write_record(tmp_path / "incartdb", name="I01")
    with (tmp_path / "incartdb" / "I01.hea").open("a") as stream:
        stream.write("# patient 7\n")
    incart = open_database(tmp_path / "incartdb")
    assert incart.patient_of("I01") == incart.recording("I01").patient_id == "incartdb/7"
    again = open_database(tmp_path / "incartdb")
    split = again.split_of(again.recording("I01").record_id)
    (tmp_path / "incartdb" / "I01.hea").unlink()
    assert again.split_of("I01") == incart.split_of("I01") == split, "the header is read once"
    (tmp_path / "ptb-xl").mkdir()
    write_record(tmp_path / "ptb-xl", name="00001_hr")
    (tmp_path / "ptb-xl" / "ptbxl_database.csv").write_text(
        "ecg_id,patient_id,filename_lr,filename_hr\n1,15709.0,records100/00000/00001_lr,records500/00000/00001_hr\n"
    )
    assert open_database(tmp_path / "ptb-xl").patient_of("00001_hr") == "ptb-xl/15709"
