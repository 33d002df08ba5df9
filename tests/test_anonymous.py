"""Nothing that identifies a patient is in any output of `analyze --anonymous` and `data convert --anonymize`.

Every text that a file can hold contains the word `leak`: comments, names and units of channels, notes, fields of
headers, names of patients and folders, and headers that cannot be read.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.ecg.leads import is_usual_name
from heartlm.errors import HeartlmError
from heartlm.formats.write_wfdb import annotation_bytes, write_signals
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from tests import clinical_files
from tests.edf_files import Lead, edf_bytes, times

CLINICAL = ("ishne.ecg", "dicom.dcm", "aecg.xml", "muse.xml", "kardia.json")
RATE_HZ, SECONDS = 250, 30


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings by different formats, some of which cannot be read."""
    patch = pytest.MonkeyPatch()
    for name in ("FIRST", "LAST", "IDENTIFIER"):
        patch.setattr(clinical_files, name, f"Leak{name[:2]}")
    folder = tmp_path_factory.mktemp("source") / "leakward"
    simulate_database(folder.parent / "own", SimulationConfig(patients=1, minutes=1, seed=2))
    database = open_database(folder.parent / "own")
    whole = database.recording(database.record_ids[0])
    signal = np.nan_to_num(whole.signal(0, SECONDS * round(whole.rate_hz), leads=[0])[0])
    places = np.arange(SECONDS * RATE_HZ) * whole.rate_hz / RATE_HZ
    digits = np.round(1000 * np.interp(places, np.arange(len(signal)), signal)).astype(np.int64)

    folder.mkdir()
    write_signals(
        folder,
        "w",
        np.stack([digits, digits // 2, digits // 9]),
        signal_format="16",
        rate_hz=RATE_HZ,
        leads=["ECG leaklead", "Leak Smith", "leakresp belt"],
        gain=1000.0,
        units=["mV", "mV", "leakunit"],
        comments=["<age>: 95 <sex>: F", "leakcomment", "<name>: Leakname", "left out: leaklabel, not in volts"],
    )
    beats = np.arange(1, 2 * SECONDS) * RATE_HZ // 2
    codes, texts = ["N"] * len(beats), [""] * len(beats)
    codes[3], texts[3] = "+", "(leakrhythm"
    codes[5], texts[5] = '"', "leaknote"
    texts[7] = "leakaux"
    (folder / "w.atr").write_bytes(annotation_bytes(beats, codes, texts, RATE_HZ))
    note = (3, b"+3.5\x14leakmark\x14\0")
    own = Lead("EDF Annotations", None, "", "-1", "1", texts=times(range(SECONDS), note))
    leads = [Lead("EKG Leak, A", digits), Lead("leakslow", digits[: 2 * SECONDS]), Lead("II", digits, "leakdim")]
    text = "P1 F 02-MAY-1951 Leak_Name"
    content = edf_bytes([*leads, own], SECONDS, reserved="EDF+C", patient=text, recording="Startdate X leak leak leak")
    (folder / "e.edf").write_bytes(content + b"leakrest")
    (folder / "b.edf").write_bytes(edf_bytes(leads[:1], SECONDS, patient=text, day="leak.day", stated="leak"))
    for name in CLINICAL:
        clinical_files.WRITERS[name](folder / f"c{name}", np.stack([digits] * 3).astype(np.int16), RATE_HZ)
    rows = "\n".join(f"{place / RATE_HZ:.3f},{value / 1000}" for place, value in enumerate(digits.tolist()))
    (folder / "t.csv").write_text(f"# leakcsv\ntime_s,ecg leakcolumn [mV]\n{rows}\nleakrow\n")
    (folder / "t.json").write_text(json.dumps({"comments": ["leaksidecar"], "patient": {"name": "leakside"}}))
    (folder / "leakfolder").mkdir()
    (folder / "leakfolder/x.hea").write_text("leakbroken 2 leakrate\nleakfile 16 leakgain\n")
    (folder / "y.hea").write_text(f"y 1 {RATE_HZ} 1000\nleakmissing.dat 16 200 16 0 0 0 0 II\n")
    (folder / "w2.hea").write_text((folder / "w.hea").read_text().replace("w 3", "w2 3", 1))
    (folder / "w2.atr").write_bytes(b"\x01\x04\x01")
    (folder / "database.json").write_text(json.dumps({"patients": {"w": "leakpatient", "w2": "leakpatient"}}))
    patch.undo()
    return folder


def outputs_with(word: str, folder: Path) -> list[str]:
    """The outputs with the word in their name or content, with what stands around it."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = str(path.relative_to(folder)).encode() + b"\0" + (path.read_bytes() if path.is_file() else b"")
        if (at := content.lower().find(word.encode())) >= 0:
            found.append(f"{path.name}: {content[max(0, at - 60) : at + 60]!r}")
    return found


@pytest.mark.parametrize("to", ["wfdb", "edf", "ishne", "parquet"])
def test_no_output_of_a_conversion_has_a_text_of_the_source(
    ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["data", "convert", str(ward), str(tmp_path / "out"), "--to", to, "--anonymize", "--processes", "1"]
    assert main([*words, "--damaged", "warn"]) == 1
    assert outputs_with("leak", tmp_path / "out") == []
    report = json.loads((tmp_path / "out/convert.json").read_text())
    assert report["num_records"] >= 6
    leads = {tuple(lead["name"] for lead in entry["leads"]) for entry in report["records"]}
    assert (("ECG 1",) if to == "ishne" else ("ECG 1", "lead 2", "lead 3")) in leads
    dropped = {reason for entry in report["records"] for reason in entry["dropped"]}
    assert {"name of ECG 1", "name of lead 2", "unit of lead 3", "4 comments"} <= dropped
    assert any("1 channels left out" in entry["changes"] for entry in report["records"])


def test_no_output_of_an_analysis_has_a_text_of_the_source(
    ward: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main(["analyze", str(ward), "--out", str(out), "--anonymous", "--processes", "1"]) == 1
    assert outputs_with("leak", out) == []
    page = (out / "index.html").read_text()
    assert "recording 1" in page and "recording 2" in page
    result = json.loads((out / "w.json").read_text())
    assert result["summary"]["patient"] == "" and "ECG 1" in result["summary"]["leads"]
    said = capfd.readouterr()
    assert "leakfolder/x" in said.out  # the terminal says which and why
    assert "results keep the names of the recordings" in said.err
    assert main(["analyze", str(ward / "w2"), "--out", str(out), "--anonymous"]) == 0
    assert main(["alarms", str(ward / "w"), "--out", str(out / "alarms")]) == 0
    assert outputs_with("leak", out) == []
    assert main(["analyze", str(ward / "w"), "--out", str(tmp_path / "named")]) == 0
    assert outputs_with("leaklead", tmp_path / "named")  # the search finds what is there


def test_an_anonymous_recording_says_nothing_of_a_file_that_cannot_be_read(ward: Path):
    with pytest.raises(HeartlmError, match=r"^a file of annotations is not readable$"):
        open_database(ward).recording("w2").anonymous().annotations  # noqa: B018


USUAL = (
    "I,II,aVR,V1,V5R,MLII,MCL1,ECG,ECG1,ECG I,EKG V2,ECG1-ECG2,lead 1,Lead II,ch 2,channel 12,RESP,Resp nasal,SpO2,"
    "PLETH,ABP,EEG C3-A2,EMG chin,Fp1-F3,Flow,Thorax effort,EOG ROC,ECG A-S,CC5,NASA,Resp 2,"
)


@pytest.mark.parametrize("name", USUAL.split(","))
def test_usual_names_are_kept(name: str):
    assert is_usual_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "ECG Smith",
        "Smith",
        "II Smith",
        "V1 (Smith)",
        "Smith-V1",
        "EKG_Meier",
        "ECG 1984",
        "Resp 1984",
        "ECG Chin",
        "a1",
    ],
)
def test_names_that_somebody_typed_are_not(name: str):
    assert not is_usual_name(name)
