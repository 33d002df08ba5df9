"""Exchanged electrodes of the arms are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.ecg.recording import Recording
from tests.test_delineate import heart_mv


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(1.0, 1.0, False), (-1.0, 1.0, True), (-1.0, -0.3, False)], ids=str
)
def test_lead_one_against_lead_six(first: float, last: float, expected: bool) -> None:
    heart = heart_mv(0.5 + 0.8 * np.arange(12), 10.0, 250.0)
    recording = Recording.from_array(
        np.stack([first * heart, heart, last * heart]), rate_hz=250.0, leads=["I", "II", "V6"]
    )
    findings = Analyst.load(Path("beats"), Path("af"), Path("waveform")).analyze(recording)
    assert bool(findings.warnings) == expected
    assert ("electrodes of the arms" in findings.reading()) == expected
    alone = Recording.from_array(first * heart[None], rate_hz=250.0, leads=["I"])
    assert Analyst.load(Path("beats"), Path("af"), Path("waveform")).analyze(alone).warnings == ()
