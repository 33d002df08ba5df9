"""`benchmarks/machine.py locality` in small: shards as the study writes them, labels that differ, ways that agree."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from bench.locality import Options, run
from bench.shards import labelled_windows, leads_of, read_shard, simulated_leads, write_shards
from hypothesis import given
from hypothesis import strategies as st
from machine import main

from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from tests.conftest import shared_data


def annotations(samples: list[int], symbols: str) -> Annotations:
    return Annotations(360.0, np.array(samples, np.int64), np.array(list(symbols)))


def test_a_window_is_labelled_by_the_beat_in_its_middle():
    left_out: Counter[str] = Counter()
    signal = np.zeros(40, np.float32)
    first, label = labelled_windows(signal, annotations([4, 16, 34], "NVA"), 10, 10, left_out)
    assert first.tolist() == [0, 10, 30]
    assert label.tolist() == [0, 2, 1]
    assert left_out == Counter({"without a beat": 1, "with an unclassified beat": 0, "with invalid samples": 0})


def test_windows_with_invalid_samples_are_left_out_and_counted():
    left_out: Counter[str] = Counter()
    signal = np.zeros(40, np.float32)
    signal[12] = np.nan
    first, _ = labelled_windows(signal, annotations([4, 16, 34], "NVA"), 10, 10, left_out)
    assert first.tolist() == [0, 30]
    assert left_out["with invalid samples"] == 1


@given(st.lists(st.integers(0, 399), min_size=1, max_size=20, unique=True), st.integers(1, 60), st.integers(16, 90))
def test_every_window_is_labelled_or_counted(beats: list[int], stride: int, length: int):
    left_out: Counter[str] = Counter()
    signal = np.zeros(400, np.float32)
    first, label = labelled_windows(signal, annotations(sorted(beats), "V" * len(beats)), length, stride, left_out)
    assert len(first) + left_out.total() == len(range(0, 400 - length + 1, stride))
    assert set(label.tolist()) <= {2}
    for begin in first.tolist():
        nearest = min(sorted(beats), key=lambda beat: abs(beat - begin - length // 2))
        assert begin <= nearest < begin + length


def test_shards_are_in_the_format_of_the_study(tmp_path: Path):
    shards = write_shards(tmp_path / "w", simulated_leads(64, 250), length=500, stride=250, num_windows=64)
    raw = shards.paths[0].read_bytes()
    assert struct.unpack("<qq", raw[:16]) == (64, 500)
    assert len(raw) == 16 + 4 * 64 * 500 == shards.shard_bytes
    signal = np.fromfile(shards.signal, np.float32)
    for window, begin in zip(read_shard(shards.paths[0]), shards.first, strict=True):
        assert np.array_equal(window, signal[begin : begin + 500])


def test_a_shard_cut_short_is_refused(tmp_path: Path):
    shards = write_shards(tmp_path / "w", simulated_leads(8, 250), length=500, stride=250, num_windows=8)
    shards.paths[0].write_bytes(shards.paths[0].read_bytes()[:-4])
    with pytest.raises(HeartlmError, match="no shard of windows"):
        read_shard(shards.paths[0])


def test_ways_agree_and_all_promised_columns_are_there(tmp_path: Path):
    options = Options(out=tmp_path, rounds=2, windows=256, batch_sizes=(32, 64), turn_windows=128, device="cpu")
    (table,) = run(options)
    assert table.columns[:7] == ("way", "precision", "batch", "data ms", "H2D ms", "compute ms", "step ms")
    assert set(table.column("H2D ms")) == {"none"}
    assert table.column("batch") == [32] * 7 + [64] * 7
    assert [cells[0] for cells in table.rows if cells[3] is None] == [
        "A2 contiguous, pinned",
        "A3 contiguous, pinned, non-blocking",
    ] * 2
    labelled = next(note for note in table.notes if "labelled" in note)
    assert sum(name in labelled for name in ("N ", "S ", "V ", "F ", "Q ")) > 1
    assert any("same losses" in note for note in table.notes)


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--windows", "64", "--batch_sizes", "[32]", "--turn_windows", "64", "--rounds", "1", "--device", "cpu"]
    assert main(["locality", "--out", str(tmp_path / "b"), *words]) == 0
    printed = capsys.readouterr().out
    assert "A0 random" in printed and printed.rstrip().endswith("locality.png")
    content = json.loads((tmp_path / "b/locality.json").read_text())
    assert content["options"]["batch_sizes"] == [32] and content["environment"]["cores"] >= 1
    assert content["tables"][0]["probe_before"] > 0
    assert (tmp_path / "b/locality.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"locality.json", "locality.png"}


def test_real_recordings_have_more_than_one_class(tmp_path: Path):
    leads = leads_of(shared_data("mitdb"), 2048, 500, 250)
    shards = write_shards(tmp_path / "w", leads, length=500, stride=250, num_windows=2048)
    assert len(shards) > 1800 and len(shards.class_counts) >= 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--recordings", "/nowhere"], "/nowhere: no such folder"),
        (["--batch_sizes", "[0]"], "batch_sizes: 0 found, at least 1"),
        (["--batch_sizes", "[512]", "--windows", "100"], "windows: 100 found, at least 512"),
        (["--stride", "0"], "stride: 0 found"),
        (["--rounds", "0"], "rounds: 0 found"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["locality", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def test_an_unknown_bench_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["gpu"])
    assert "locality" in capsys.readouterr().err
