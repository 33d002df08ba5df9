"""What a cart wrote next to the signal, and the leads that it does not store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heartlm
from heartlm.cli.main import main
from heartlm.ecg.cart import Cart
from heartlm.ecg.derived_leads import STORED, derive_leads
from heartlm.ecg.recording import Recording
from heartlm.report.holter import context
from tests.clinical_files import write_cardiosoft, write_muse
from tests.test_delineate import heart_mv

MEASURED = (
    "<RestingECGMeasurements><VentricularRate>75</VentricularRate><PRInterval>160</PRInterval><QRSDuration>94"
    "</QRSDuration><QTInterval>380</QTInterval><QTCorrected>425</QTCorrected><PAxis>45</PAxis><RAxis>30</RAxis><TAxis>"
    "0</TAxis></RestingECGMeasurements><Diagnosis><Modality>RESTING</Modality><DiagnosisStatement><StmtText>Normal "
    "sinus rhythm&#x202e;</StmtText></DiagnosisStatement><DiagnosisStatement><StmtText>Left axis deviation</StmtText>"
    "</DiagnosisStatement></Diagnosis>"
)


def eight_leads() -> np.ndarray:
    heart = heart_mv(0.5 + 0.8 * np.arange(12), 10.0, 500.0)
    return np.stack([np.round(400 * heart * size) for size in (0.6, 1.0, -0.4, 0.3, 0.8, 1.1, 1.0, 0.7)]).astype(
        np.int16
    )


@pytest.fixture(scope="module")
def muse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cart") / "muse.xml"
    write_muse(path, eight_leads(), leads=STORED)
    path.write_text(
        path.read_text().replace("<Waveform><WaveformType>Rhythm", f"{MEASURED}<Waveform><WaveformType>Rhythm")
    )
    return path


def test_measurements_and_statements_of_a_muse_file(muse: Path) -> None:
    cart = heartlm.open_recording(muse).cart
    assert cart is not None
    assert cart.statements == ("Normal sinus rhythm", "Left axis deviation")
    expected = {"rate_bpm": 75, "pr_ms": 160, "qrs_ms": 94, "qt_ms": 380, "axis_degrees": 30}
    assert "qtc_ms" not in cart.measured  # by which formula is not stated
    assert {name: cart.measured[name] for name in expected} == expected


def test_cardiosoft(tmp_path: Path) -> None:
    path = tmp_path / "c.xml"
    write_cardiosoft(path, eight_leads(), leads=STORED)
    measured = "<RestingECGMeasurements><VentricularRate>61</VentricularRate><PQInterval>0</PQInterval><QRSDuration>x"
    measured += "</QRSDuration></RestingECGMeasurements><Interpretation><Diagnosis><DiagnosisText>Sinus rhythm"
    measured += "</DiagnosisText></Diagnosis></Interpretation>"
    path.write_text(path.read_text().replace("<StripData>", f"{measured}<StripData>"))
    assert heartlm.open_recording(path).cart == Cart({"rate_bpm": 61.0}, ("Sinus rhythm",), "machine")


def test_files_without_any_have_no_cart(tmp_path: Path) -> None:
    write_cardiosoft(tmp_path / "c.xml", eight_leads(), leads=STORED)
    assert heartlm.open_recording(tmp_path / "c.xml").cart is None


def test_limb_leads_follow_from_two(muse: Path) -> None:
    recording = heartlm.open_recording(muse)
    assert recording.lead_names == (*STORED, "III", "aVR", "aVL", "aVF")
    assert recording.comments == ("derived from I and II: III, aVR, aVL, aVF",)
    first, second, third, right, left, foot = recording.signal(leads=["I", "II", "III", "aVR", "aVL", "aVF"])
    np.testing.assert_allclose(first + third, second, atol=1e-6)
    np.testing.assert_allclose(right + left + foot, 0, atol=1e-6)
    np.testing.assert_allclose(foot, (second + third) / 2, atol=1e-6)
    part = recording.signal(100, 200, leads=["aVF", "V1", "I"])
    np.testing.assert_array_equal(
        part, np.stack([foot[100:200], recording.signal(100, 200, ["V1"])[0], first[100:200]])
    )


def test_leads_are_derived_only_from_both_in_millivolts() -> None:
    recording = Recording.from_array(np.ones((2, 100)), rate_hz=100.0, leads=["I", "II"])
    assert derive_leads(recording).num_leads == 6
    assert derive_leads(replace(recording, lead_names=("I", "V1"))).num_leads == 2
    assert derive_leads(replace(recording, units=("mV", "adu"))).num_leads == 2
    assert derive_leads(derive_leads(recording)).num_leads == 6


def test_the_page_marks_what_differs_and_anonymous_results_have_no_texts(muse: Path, tmp_path: Path) -> None:
    assert main(["analyze", str(muse), "--out", str(tmp_path / "a")]) == 0
    content = json.loads((tmp_path / "a/muse.json").read_text())
    assert content["cart"]["statements"] == ["Normal sinus rhythm", "Left axis deviation"]
    page = (tmp_path / "a/muse.html").read_text()
    assert "Unconfirmed: Normal sinus rhythm; Left axis deviation" in page
    findings = heartlm.load_model("beats").analyze(heartlm.open_recording(muse))
    assert findings.recording.cart is not None
    changed = replace(
        findings.recording, cart=replace(findings.recording.cart, measured={"rate_bpm": 90.0, "qrs_ms": 94})
    )
    rows = {row["name"]: row for row in context(replace(findings, recording=changed))["cart"]["rows"]}
    assert rows["Rate"] == {"name": "Rate", "theirs": "90/min", "own": "75/min", "differs": True}
    assert not rows["QRS"]["differs"] or rows["QRS"]["own"] != "94\u202fms"
    assert main(["analyze", str(muse), "--out", str(tmp_path / "b"), "--anonymous"]) == 0
    hidden = json.loads((tmp_path / "b/muse.json").read_text())["cart"]
    assert hidden["statements"] == [] and hidden["confirmed_by"] == "" and hidden["measured"]["rate_bpm"] == 75
    assert "Left axis" not in (tmp_path / "b/muse.html").read_text()
