from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.databases.database import open_database
from heartlm.ecg.recording import Note
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import beats_of, positions_at_rate, read_annotation_file, rhythms_of
from tests.conftest import shared_data
from tests.test_ecg_wfdb import write_record

steps = st.one_of(st.integers(1, 1100), st.integers(1020, 1030), st.integers(65_530, 70_000), st.integers(10**6, 10**8))
notes = st.sampled_from(["", "(N", "(AFIB\x00", "odd", "even"])


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.tuples(steps, st.sampled_from("NVAF+~|"), notes), min_size=1, max_size=30))
def test_decodes_what_the_reference_package_writes(entries: list[tuple[int, str, str]]) -> None:
    sample = np.cumsum([step for step, _, _ in entries])
    symbols = [symbol for _, symbol, _ in entries]
    with TemporaryDirectory() as folder:
        wfdb.wrann("r", "atr", sample, symbols, aux_note=[note for _, _, note in entries], write_dir=folder)
        read = read_annotation_file(Path(folder, "r.atr"))
    assert read.sample.tolist() == sample.tolist()
    assert read.symbol.tolist() == symbols
    assert read.aux == {i: note.rstrip("\x00") for i, (_, _, note) in enumerate(entries) if note}
    assert read.ticks_hz is None


@pytest.mark.parametrize("name", ["mitdb/207.atr", "cudb/cu02.atr", "afdb/04043.atr", "formats/1003.atr"])
def test_real_files_equal_the_reference_reader(name: str) -> None:
    path = shared_data(name)
    read, reference = read_annotation_file(path), wfdb.rdann(str(path.with_suffix("")), "atr")
    np.testing.assert_array_equal(read.sample, reference.sample)
    assert read.symbol.tolist() == reference.symbol
    assert read.aux == {i: note.rstrip("\x00") for i, note in enumerate(reference.aux_note) if note}


def test_own_tick_rate_is_converted(tmp_path: Path) -> None:
    wfdb.wrann("r", "atr", np.array([0, 500, 1000]), ["N", "V", "N"], fs=1000, write_dir=str(tmp_path))
    read = read_annotation_file(tmp_path / "r.atr")
    assert read.ticks_hz == 1000
    assert positions_at_rate(read, 250.0).tolist() == [0, 125, 250]


@pytest.mark.parametrize("content", [b"", b"\x01", bytes(range(4, 60)), b"\x05\x04\x00\xec\x00\x00"])
def test_a_file_without_its_end_mark_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.atr"
    path.write_bytes(content)
    with pytest.raises(HeartlmError, match="no end mark") as caught:
        read_annotation_file(path)
    assert "\n" not in str(caught.value)


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x00\x00"]))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes, end: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "r.atr")
        path.write_bytes(content + end)
        try:
            read = read_annotation_file(path)
        except HeartlmError as error:
            assert "\n" not in str(error)
            return
    assert len(read.sample) == len(read.code) == len(read.symbol)
    assert all(0 <= index < len(read.sample) for index in read.aux)


@pytest.mark.parametrize("rate", ["0", "1.2.3", "."])
def test_a_tick_rate_that_is_none_is_refused(tmp_path: Path, rate: str) -> None:
    note = f"## time resolution: {rate}".encode()
    words = (22 << 10).to_bytes(2, "little") + (63 << 10 | len(note)).to_bytes(2, "little")
    (tmp_path / "r.atr").write_bytes(words + note + bytes(len(note) % 2) + b"\x00\x00")
    with pytest.raises(HeartlmError, match="time resolution"):
        read_annotation_file(tmp_path / "r.atr")


def test_modifiers_and_texts_stay_with_their_annotation(tmp_path: Path) -> None:
    def word(code: int, data: int) -> bytes:
        return (code << 10 | data).to_bytes(2, "little")

    sub_chn_num = word(61, 3) + word(62, 1) + word(60, 255)
    content = word(1, 10) + sub_chn_num + word(63, 3) + b"abc\x00" + word(28, 5) + word(63, 2) + b"(N" + word(5, 1)
    (tmp_path / "r.atr").write_bytes(content + word(0, 0) + b"after the end")
    read = read_annotation_file(tmp_path / "r.atr")
    assert (read.sample.tolist(), read.symbol.tolist()) == ([10, 15, 16], ["N", "+", "V"])
    assert read.aux == {0: "abc", 1: "(N"}
    assert read.faults == ("r.atr: more bytes follow the end mark, which stands behind 3 annotations",)


def test_truncation_of_a_real_file_is_noticed(tmp_path: Path) -> None:
    content = shared_data("mitdb/100.atr").read_bytes()
    path = tmp_path / "100.atr"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(HeartlmError, match="truncated"):
        read_annotation_file(path)


def write_out_of_order(path: Path) -> None:
    """N at 100, V at 50 (a step back by SKIP), N at 50 again, N at 400."""

    def word(code: int, step: int) -> bytes:
        return (code << 10 | step).to_bytes(2, "little")

    back = (-50 & 0xFFFFFFFF).to_bytes(4, "little")
    skip = word(59, 0) + back[2:] + back[:2]
    path.write_bytes(word(1, 100) + skip + word(5, 0) + word(1, 0) + word(1, 350) + b"\x00\x00")


def test_beats_are_sorted_and_those_left_out_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.atr"
    write_out_of_order(path)
    sample, symbol, ignored = beats_of(read_annotation_file(path), 360.0, 400)
    assert sample.tolist() == [50, 100]
    assert symbol.tolist() == ["V", "N"]
    assert ignored == {"past the end": 1, "at the sample of another beat": 1}


def test_rhythm_spans_reach_to_the_next_change_and_the_end(tmp_path: Path) -> None:
    wfdb.wrann(
        "r",
        "atr",
        np.array([10, 50, 90, 200, 1000]),
        ["+", "N", "+", "+", "+"],
        aux_note=["(N\x00", "", "(AFIB", "(WHATEVER", "(N"],
        write_dir=str(tmp_path),
    )
    spans, ignored = rhythms_of(read_annotation_file(tmp_path / "r.atr"), 250.0, 500)
    assert [(span.start, span.stop, span.name) for span in spans] == [
        (10, 90, "N"),
        (90, 200, "AFIB"),
        (200, 500, "OTHER"),
    ]
    assert ignored == {"rhythm change past the end": 1}


def test_brackets_are_a_rhythm_only_where_the_database_says_so(tmp_path: Path) -> None:
    wfdb.wrann("r", "atr", np.array([10, 50, 90]), ["[", "]", "["], write_dir=str(tmp_path))
    file = read_annotation_file(tmp_path / "r.atr")
    assert rhythms_of(file, 250.0, 100) == ((), {})
    spans, _ = rhythms_of(file, 250.0, 100, bracketed="VFIB")
    assert [(span.start, span.stop, span.name) for span in spans] == [(10, 50, "VFIB"), (90, 100, "VFIB")]


def test_notes_are_the_texts_of_note_annotations_inside_the_recording(tmp_path: Path) -> None:
    write_record(tmp_path)
    symbols, notes = ["N", '"', "+", '"', "N", '"'], ["", "patient pressed", "(AFIB", "", "qrs note", "late"]
    wfdb.wrann("r", "atr", np.array([10, 20, 30, 40, 50, 1000]), symbols, aux_note=notes, write_dir=str(tmp_path))
    found = open_database(tmp_path).recording("r").annotations
    assert found is not None
    assert found.notes == (Note(20, 20, "patient pressed"),)
    assert (found.sample.tolist(), found.rhythms[0].name) == ([10, 50], "AFIB")
