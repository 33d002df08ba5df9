"""`heartlm compare`: the numbers of the WFDB programs, and what the command reads, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.evaluation.agreement import agreement, kappa
from heartlm.evaluation.ec57 import LABELS, BeatComparison, beat_ratios, compare_beats
from heartlm.formats.annotation_file import AnnotationFile, read_annotation_file
from tests.conftest import Refused, shared_data

GOLDEN = json.loads((Path(__file__).parent / "golden" / "ec57.json").read_text())
"""Drawn annotations and what bxb and epicmp of WFDB 10.7 print of them."""

Entries = list[tuple[int, str, int, str]]


def write(folder: Path, name: str, entries: Entries, rate_hz: float = 250) -> None:
    sample, symbol, subtype, aux = map(list, zip(*entries, strict=True))
    record, _, annotator = name.partition(".")
    place: dict[str, Any] = {"fs": rate_hz, "write_dir": str(folder)}
    wfdb.wrann(record, annotator, np.array(sample), symbol, np.array(subtype), aux_note=aux, **place)


def beats(*positions: int, symbols: str = "") -> Entries:
    return [(at, symbol, 0, "") for at, symbol in zip(positions, symbols or "N" * len(positions), strict=True)]


def files(folder: Path, reference: Entries, test: Entries) -> tuple[AnnotationFile, AnnotationFile]:
    write(folder, "r.atr", reference)
    write(folder, "r.tst", test)
    return read_annotation_file(folder / "r.atr"), read_annotation_file(folder / "r.tst")


def compared(folder: Path, reference: Entries, test: Entries, **options: Any) -> BeatComparison:
    return compare_beats(*files(folder, reference, test), 250, 80_000, **options)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_numbers_are_those_of_bxb_and_epicmp(case: dict[str, Any], tmp_path: Path) -> None:
    rate_hz, length = case["rate_hz"], case["num_samples"]
    (tmp_path / "r.hea").write_text(f"r 0 {rate_hz} {length}\n")
    write(tmp_path, "r.atr", case["reference"], rate_hz)
    write(tmp_path, "r.tst", case["test"], rate_hz)
    assert main(["compare", str(tmp_path / "r"), "--annotators", "atr,tst", "--out", str(tmp_path / "o.json")]) == 0
    row = json.loads((tmp_path / "o.json").read_text())["records"][0]

    assert row["matrix"][:5] == case["matrix"][:5]
    assert [counts[:5] for counts in row["matrix"][5:]] == case["matrix"][5:]
    scores = [row[name] for name in ("qrs_se", "qrs_ppv", "v_se", "v_ppv", "s_se", "s_ppv")]
    assert ["-" if value is None else f"{100 * value:.2f}" for value in scores] == case["percent"]
    assert ("-" if row["rr_error_ms"] is None else f"{row['rr_error_ms']:.2f}") == case["rr_error_ms"]
    assert row["shutdown_s"] == case["shutdown_s"]
    for kind in ("AF", "VF"):
        found = row[kind]
        episodes = [found[f"num_{name}"] for name in ("found", "reference", "confirmed", "predicted")]
        assert episodes == case[kind]["episodes"]
        seconds = [found["both_s"], found["reference_s"], found["both_s"], found["predicted_s"]]
        assert [round(1000 * each) for each in seconds] == case[kind]["milliseconds"]


def test_a_later_beat_may_leave_an_earlier_pair_alone(tmp_path: Path) -> None:
    """The published example of bxb: the second pair is nearer, so that the first one stays together."""
    pairs = compared(tmp_path, beats(75_096, 75_160), beats(75_128, 75_185))
    assert pairs.matrix[0].tolist() == [2, 0, 0, 0, 0, 0, 0]


def test_nothing_of_the_learning_period_counts(tmp_path: Path) -> None:
    reference, test = beats(1000, 2000, 76_000, symbols="NNV"), beats(1500, 76_010, symbols="VV")
    assert compared(tmp_path, reference, test).matrix.sum() == 1
    assert compared(tmp_path, reference, test, learning_s=0).matrix[[0, 5, 2], [5, 2, 2]].tolist() == [2, 1, 1]


def test_beats_during_fibrillation(tmp_path: Path) -> None:
    marks: Entries = [(76_000, "[", 0, ""), (77_000, "]", 0, "")]
    reference = sorted(beats(75_500, 77_500) + marks)
    test = beats(75_500, 76_300, 76_600, 77_500)
    assert compared(tmp_path, reference, test).matrix[:, 0].tolist() == [2, 0, 0, 0, 0, 0, 0]
    assert compared(tmp_path, reference, test, exclude_vf=False).matrix[:, 0].tolist() == [2, 0, 0, 0, 0, 2, 0]


def test_beats_missed_while_the_signal_is_unreadable(tmp_path: Path) -> None:
    reference = beats(75_500, 76_000, 76_500, 77_000)
    test = sorted([*beats(75_500, 77_000), (75_800, "~", -1, ""), (76_200, "~", 0, "")])
    found = compared(tmp_path, reference, test)
    assert found.matrix[0].tolist() == [2, 0, 0, 0, 0, 1, 1]
    assert found.shutdown_s == 2


def test_a_file_of_finer_ticks(tmp_path: Path) -> None:
    """Sample 76,038.5 is read as 76,039, which is just too far away; 76,538.25 as 76,538, which is not."""
    write(tmp_path, "r.atr", beats(75_500, 76_000, 76_500))
    write(tmp_path, "r.tst", beats(302_000, 304_154, 306_153), rate_hz=1000)
    reference, test = (read_annotation_file(tmp_path / f"r.{name}") for name in ("atr", "tst"))
    assert test.ticks_hz == 1000
    assert compare_beats(reference, test, 250, 80_000).matrix[0, 0] == 2


def test_f_beats_called_v_are_no_error_of_v() -> None:
    matrix = np.zeros((7, 7), np.int64)
    matrix[LABELS.index("V"), LABELS.index("V")] = 3
    matrix[LABELS.index("F"), [LABELS.index("V"), LABELS.index("S")]] = 5, 2
    ratios = beat_ratios(matrix)
    assert (ratios["v_se"], ratios["v_ppv"], ratios["s_ppv"], ratios["qrs_se"]) == (1, 1, 0, 1)
    assert np.isnan(ratios["s_se"])


@pytest.fixture
def pair(tiny_database: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A simulated database, and a folder of test annotations for three of its records."""
    (test := tmp_path / "test").mkdir()
    database = open_database(tiny_database)
    for record_id in database.record_ids[:3]:
        known = database.annotations(record_id)
        assert known is not None
        entries = beats(*known.sample[::2].tolist(), symbols="".join(known.symbol[::2].tolist()))
        write(test, f"{record_id}.hlm", entries, known.rate_hz)
    return tiny_database, test


def test_folders(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference, test = pair
    assert main(["compare", str(reference), str(test), "--learning", "0", "--out", str(tmp_path / "o.json")]) == 1
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "o.json").read_text())
    assert len(found["records"]) == 3
    num_records = len(open_database(reference).record_ids)
    assert len(found["left_out"]) == num_records - 3
    assert printed.endswith(f"3 recordings compared, {num_records - 3} left out\n")
    assert all(f"left out: {each['record']}: {each['reason']}\n" in printed for each in found["left_out"])
    assert found["gross"]["matrix"] == np.sum([row["matrix"] for row in found["records"]], axis=0).tolist()
    assert found["gross"]["qrs_ppv"] == {"value": 1.0, "ci": [1.0, 1.0]}
    assert found["average"]["qrs_se"] == pytest.approx(np.mean([row["qrs_se"] for row in found["records"]]))


def test_every_way_to_name_a_pair(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    reference, test = pair
    record = reference / open_database(reference).record_ids[0]
    printed = set()
    for words in (
        [f"{record}.atr", f"{test / record.name}.hlm"],
        [str(record), str(test / record.name)],
        [f"{record}.atr", str(test)],
    ):
        assert main(["compare", *words, "--learning", "0"]) == 0
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1
    assert main(["compare", str(record), "--annotators", "atr,atr", "--learning", "0"]) == 0
    assert "100.00" in capsys.readouterr().out


def test_wrong_input_is_one_line(pair: tuple[Path, Path], tmp_path: Path, refused: Refused) -> None:
    reference, test = pair
    record = open_database(reference).record_ids[0]
    (broken := tmp_path / f"{record}.bad").write_bytes(b"\x01\x02")
    back = [1 << 10 | 500, 1 << 10 | 200, 59 << 10, 0xFFFF, 0xFF00, 1 << 10, 0]  # N, N, a skip by −256, N, the end
    (tmp_path / f"{record}.back").write_bytes(np.array(back, "<u2").tobytes())
    cases = {
        "annotation 3 is earlier": [str(reference / record), f"{tmp_path / record}.back"],
        "learning period of 300 s": [f"{reference / record}.atr", str(test)],
        "no such recording": [str(reference / "none"), str(test)],
        "no such file": [str(reference / record), str(test / "none")],
        "no end mark": [str(reference / record), str(broken)],
        "two endings expected": [str(reference), str(test), "--annotators", "atr"],
        "a folder expected": [str(reference), f"{test / record}.hlm"],
        "test: no file": [f"{reference / record}.atr"],
        "no record compared": [str(reference), str(tmp_path)],
        "ends in .json expected": [str(reference), str(test), "--out", "o.txt"],
        "window: -1": [str(reference), str(test), "--window", "-1"],
    }
    for expected, words in cases.items():
        line = refused("compare", *words)
        assert expected in line, line


def test_real_records_against_themselves(tmp_path: Path) -> None:
    for name, record, vf in (("mitdb", "207", 6), ("cudb", "cu21", 5), ("cudb", "cu30", 3)):
        database = shared_data(name)
        out = tmp_path / "o.json"
        words = [str(database / record), "--annotators", "atr,atr", "--learning", "0", "--out", str(out)]
        assert main(["compare", *words]) == 0
        row = json.loads(out.read_text())["records"][0]
        assert (row["VF"]["num_found"], row["VF"]["num_reference"]) == (vf, vf)
        assert row["qrs_se"] == row["qrs_ppv"] == 1


def test_kappa_is_that_of_a_textbook() -> None:
    """Two readers of 50 X-rays: 20 yes by both, 15 no by both, 5 and 10 apart; kappa 0.4."""
    assert kappa([[20, 5], [10, 15]]) == pytest.approx(0.4)
    assert kappa([[7, 0], [0, 9]]) == 1 and kappa([[7, 0], [0, 0]]) is None and kappa([[0, 0], [0, 0]]) is None


def test_agreement_counts_beats_that_one_did_not_mark() -> None:
    matrix = np.zeros((7, 7), np.int64)
    matrix[0, 0], matrix[2, 2], matrix[0, 2], matrix[2, 5], matrix[0, 6] = 90, 6, 2, 1, 50
    found = agreement(matrix)
    assert found["num_beats"] == 99 and set(found["by_class"]) == {"N", "V"}
    assert found["by_class"]["V"] == pytest.approx(kappa([[6, 1], [2, 90]]))


def test_reviews_of_two_people_are_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    recordings, ours, theirs = tmp_path / "db", tmp_path / "a", tmp_path / "b"
    for folder in (recordings, ours, theirs):
        folder.mkdir()
    for name in ("r1", "r2"):
        wfdb.wrsamp(name, 250, ["mV"], ["MLII"], np.zeros((5000, 1)), fmt=["16"], write_dir=str(recordings))
    places = range(200, 4800, 200)
    for folder, symbols in ((ours, "NNV"), (theirs, "NNN")):
        write(folder, "r.hlm", beats(*places, symbols=("N" * 20 + symbols)))
        (folder / "r.hlm").rename(folder / "r1.reviewed.hlm")
    endings = ["--annotators", "reviewed.hlm,reviewed.hlm", "--recordings", str(recordings)]
    words = ["compare", str(ours), str(theirs), *endings, "--learning", "0", "--agreement"]
    assert main(words) == 0
    shown = capfd.readouterr().out
    assert "1 recordings compared, 0 left out" in shown
    table = shown[shown.index("agreement") :].splitlines()
    assert table[1].split() == ["r1", "23", "0.000", "0.000", "-", "0.000", "-"]
    assert "no files reviewed.hlm of its recordings" in refused(
        "compare", recordings, theirs, *endings, "--learning", "0"
    )
