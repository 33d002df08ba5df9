"""Recordings that can be read though they show damage: training data refuses them, all else warns and notes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import wfdb

from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.databases.verify import verify_database
from heartlm.ecg.recording import CLASS_OF_SYMBOL
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.formats.wfdb import read_wfdb
from tests.conftest import shared_data
from tests.test_ecg_wfdb import edit_header, write_record

RECORD = "s0001"


def flip_a_sample(folder: Path) -> None:
    content = bytearray((folder / f"{RECORD}.dat").read_bytes())
    content[1000] ^= 0x55
    (folder / f"{RECORD}.dat").write_bytes(content)


def zero_a_word(folder: Path) -> None:
    """Put an end mark in place of the eleventh beat from the end, which no text follows."""
    path = folder / f"{RECORD}.atr"
    content = bytearray(path.read_bytes())
    content[-24:-22] = bytes(2)
    path.write_bytes(content)


def step_far(folder: Path) -> None:
    """Let the first beat stand 100,000,000 ticks late, and all others with it."""
    path = folder / f"{RECORD}.atr"
    path.write_bytes(bytes([0, 59 << 2, 0xF5, 0x05, 0x00, 0xE1]) + path.read_bytes())


DAMAGES = {
    flip_a_sample: "the header's checksum is",
    zero_a_word: "more bytes follow the end mark",
    step_far: "beats are outside of the recording",
}


def damages() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)


@damages()
def test_training_data_refuses_a_damaged_recording(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(database)
    tokenize = ["tokenize", str(database), "--tokenizer", "sample", "--processes", "1", "--out", str(tmp_path / "out")]
    assert main(tokenize) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and DAMAGES[damage] in said and "--damaged warn" in said
    assert main([*tokenize, "--skip-unreadable"]) == 1
    assert "left out: 1 x" in capfd.readouterr().out
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (dropped,) = manifest["dropped"]
    assert dropped["record"] == f"tinydb/{RECORD}" and DAMAGES[damage] in dropped["reason"]
    assert (manifest["num_records"], manifest["damaged"]) == (4, [])


@damages()
def test_training_data_may_use_it_and_lists_it(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(database)
    words = ["tokenize", str(database), "--tokenizer", "sample", "--out", str(tmp_path / "out"), "--damaged", "warn"]
    assert main(words) == 0
    said = capfd.readouterr()
    assert "damaged or repaired, and used: 1 recordings" in said.out
    warnings = [line for line in said.err.splitlines() if line.startswith("warning: ")]
    assert all(f"{RECORD}.hea" in line for line in warnings) and any(DAMAGES[damage] in line for line in warnings)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {entry["record"] for entry in manifest["damaged"]} == {f"tinydb/{RECORD}"}
    assert any(DAMAGES[damage] in entry["fault"] for entry in manifest["damaged"])
    assert manifest["num_records"] == 5


@damages()
def test_verify_finds_it(database: Path, damage: Callable[[Path], None]) -> None:
    (database / "SHA256SUMS.txt").unlink()
    assert verify_database(database) == []
    damage(database)
    found = [(finding.severity, finding.message) for finding in verify_database(database)]
    expected = "past the end" if damage is step_far else DAMAGES[damage]
    assert any(expected in message for _, message in found)


@damages()
def test_show_warns_or_refuses(
    database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(database)
    show = ["data", "show", str(database / RECORD), "--start", "20", "--stop", "22", "--out", str(tmp_path / "x.svg")]
    assert main([*show, "--damaged", "refuse"]) == 2
    assert DAMAGES[damage] in capfd.readouterr().err and not (tmp_path / "x.svg").exists()
    assert main(show) == 0
    said = capfd.readouterr().err
    assert said.startswith("warning: ") and DAMAGES[damage] in said


@damages()
def test_predict_and_evaluate_say_so(
    database: Path,
    tiny_finetuned: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_finetuned, run)
    damage(database)
    predict = ["predict", str(run), str(database / RECORD), "--out", str(tmp_path)]
    assert main(predict) == 0
    said = capfd.readouterr()
    assert DAMAGES[damage] in said.err and "damaged: " in said.out
    evaluate = ["evaluate", str(run), "--on", str(database), "--split", "all", "--bootstrap", "20", "--no-baselines"]
    assert main([*evaluate, "--name", "scored"]) == 0
    scores = json.loads((run / "scores" / "scored" / "scores.json").read_text())
    assert {entry["record"] for entry in scores["records_damaged"]} == {f"tinydb/{RECORD}"}
    assert any(DAMAGES[damage] in entry["fault"] for entry in scores["records_damaged"])


def test_a_checksum_of_zero_is_one_that_nobody_computed(tmp_path: Path) -> None:
    """All headers of the CinC 2017 challenge state 0."""
    write_record(tmp_path)
    recording = read_wfdb(tmp_path / "r.hea")
    lines = (tmp_path / "r.hea").read_text().splitlines()
    fields = lines[1].split()
    edit_header(tmp_path, lines[1], " ".join([*fields[:6], "0", *fields[7:]]))
    recording = read_wfdb(tmp_path / "r.hea")
    recording.signal()
    assert recording.faults == []


@pytest.mark.parametrize("name", ["flacformats", "binformats", "310derive", "multi-segment/fixed1/v102s"])
def test_samples_that_the_wfdb_package_reads_are_summed_too(tmp_path: Path, name: str) -> None:
    source = shared_data(f"formats/{name}.hea")
    folder = tmp_path / "copy"
    shutil.copytree(source.parent, folder)
    header = folder / source.name
    recording = read_wfdb(header)
    recording.signal()
    assert recording.faults == []
    part = folder / "v102s_2.hea" if "segment" in name else header
    part.chmod(0o644)
    lines = part.read_text().splitlines()
    fields = lines[1].split()
    fields[6] = str(int(fields[6]) + 1)
    part.write_text("\n".join([lines[0], " ".join(fields), *lines[2:]]) + "\n")
    recording = read_wfdb(header)
    recording.signal()
    assert len(recording.faults) == 1 and "checksum" in recording.faults[0]


def test_a_compressed_matlab_file_is_no_signal(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    (tmp_path / "r.hea").write_text("r 1 300 3000\nr.mat 16+24 1000/mV 16 0 0 0 0 ECG\n")
    values = np.arange(3000, dtype=np.int16)[np.newaxis]
    io.savemat(tmp_path / "r.mat", {"val": values}, format="4")
    np.testing.assert_allclose(read_wfdb(tmp_path / "r.hea").signal()[0], values[0] / 1000, atol=1e-6)
    noise = np.random.default_rng(0).integers(-2000, 2000, (1, 6000)).astype(np.int16)
    for options in ({"do_compression": True}, {}):
        io.savemat(tmp_path / "r.mat", {"val": noise}, **options)
        with pytest.raises(HeartlmError, match=r"r\.mat: is a MATLAB file of version 5"):
            read_wfdb(tmp_path / "r.hea").signal()
    io.savemat(tmp_path / "r.mat", {"val": noise.astype(np.float64)}, format="4")
    with pytest.raises(HeartlmError, match="MATLAB header says type 0 and 1 rows, expected type 30"):
        read_wfdb(tmp_path / "r.hea").signal()


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """Flip a bit, exchange, insert, remove or clear a word, or cut the file."""
    changed, kind = bytearray(content), int(random.integers(7))
    at = int(random.integers(len(content) // 2 - 1)) * 2
    word = random.bytes(2)
    if kind == 0:
        changed[at] ^= 1 << int(random.integers(8))
    elif kind == 1:
        changed[at : at + 2] = word
    elif kind == 2:
        changed[at], changed[at + 1] = changed[at + 1], changed[at]
    elif kind == 3:
        changed[at:at] = word
    elif kind == 4:
        del changed[at : at + 2]
    elif kind == 5:
        changed[at : at + 2] = bytes(2)
    else:
        del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_no_damaged_annotation_file_gives_fewer_beats_without_a_word(tmp_path: Path, seed: int) -> None:
    """Compared with `wfdb`, which reads past end marks, over mutations of real files cut short."""
    random = np.random.Generator(np.random.Philox(seed))
    source = shared_data(["mitdb/100", "mitdb/207", "cudb/cu02", "mitdb/208"][seed] + ".atr")
    shutil.copy(source.with_suffix(".hea"), tmp_path / "r.hea")
    (tmp_path / "r.hea").chmod(0o644)
    (tmp_path / "r.hea").write_text((tmp_path / "r.hea").read_text().replace(source.stem, "r", 1))
    content, outcomes = source.read_bytes(), set[str]()
    for _ in range(150):
        length = 2 * int(random.integers(40, min(200, len(content) // 2)))
        (tmp_path / "r.atr").write_bytes(mutated(content[:length] + bytes(2), random))
        try:
            annotations = open_database(tmp_path).annotations("r")
        except HeartlmError:
            outcomes.add("refused")
            continue
        assert annotations is not None
        told = bool(annotations.faults or annotations.ignored)
        outcomes.add("told" if told else "read")
        try:
            reference = wfdb.rdann(str(tmp_path / "r"), "atr")
        except (IndexError, ValueError):
            continue  # the package stops at texts past the end; the file was refused or told of above
        is_beat = np.isin(reference.symbol, sorted(CLASS_OF_SYMBOL))
        assert told or annotations.num_beats >= len(set(reference.sample[is_beat].tolist()))
    assert outcomes == {"refused", "told", "read"}


def test_annotations_of_published_databases_show_no_damage() -> None:
    for folder in ("mitdb", "cudb", "svdb", "afdb", "nsrdb"):
        for path in sorted(shared_data(folder).iterdir()):
            if path.suffix in (".atr", ".qrs", ".qrsc"):
                assert read_annotation_file(path).faults == (), path
