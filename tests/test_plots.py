"""Pictures and one-line texts of the public classes, as a notebook shows them."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import heartlm
from heartlm.analysis.findings import Event, Findings
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.evaluation.results import Scores
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from tests.conftest import shared_data

RATE_HZ = 250.0


@pytest.fixture
def recording() -> Recording:
    time_s = np.arange(round(60 * RATE_HZ)) / RATE_HZ
    leads = np.stack([np.sin(2 * np.pi * time_s), np.cos(2 * np.pi * time_s)])
    return heartlm.Recording.from_array(leads, rate_hz=RATE_HZ, leads=["II", "V1"], record_id="<x>")


@pytest.fixture
def findings(recording: Recording) -> Findings:
    sample = np.arange(100, 14000, 250)
    events = (Event("pause", 2000, 2600, 0.9, 2, 25.0), Event("VT", 9000, 9700, 0.8, 4, 140.0))
    symbol = np.where(np.arange(len(sample)) == 36, "V", "N")
    return Findings(recording, (0, 1), sample, symbol, np.full(len(sample), 0.97, np.float32), events, np.ones((2, 6)))


def texts(svg: str) -> list[str]:
    elements = ElementTree.fromstring(svg).iter()
    return ["".join(each.itertext()).strip() for each in elements if each.tag.endswith("}text")]


def test_tab_completion_offers_public_names_alone() -> None:
    from heartlm import api

    assert {name for name in dir(heartlm) if not name.startswith("__")} == set(api.__all__)


def test_a_recording_is_one_line_and_a_strip(recording: Recording, tmp_path: Path) -> None:
    assert repr(recording) == "<Recording <x>: II, V1; 250 Hz, 60.0 s>"
    assert "<x>" not in recording._repr_html_().replace("&lt;x&gt;", "")
    shown = recording.plot(20, 23, ["V1"])
    assert {"+0:20", "+0:22", "V1"} <= set(texts(shown._repr_svg_())) and "II" not in texts(shown._repr_svg_())
    assert shown.save(tmp_path / "x.svg").read_text() == shown._repr_svg_()
    for wrong in ((70, None), (10, 5), (0, 61)):
        with pytest.raises(HeartlmError, match=r"x>|stop is|start is"):
            recording.plot(*wrong)


def test_findings_are_one_line_a_table_and_the_strip_of_an_event(findings: Findings, tmp_path: Path) -> None:
    assert "56 beats (N 55 V 1) in 60 s; VT 1, pause 1" in repr(findings)
    assert "pause" in texts(findings.plot()._repr_svg_()), "the first event"
    shown = texts(findings.plot(1)._repr_svg_())
    assert "VT" in shown and "V" in shown and "pause" not in shown
    assert findings.plot(findings.events[1])._repr_svg_() == findings.plot(1)._repr_svg_()
    for wrong in (9999, -1):
        with pytest.raises(HeartlmError, match=f"event: {wrong} found; there are 2, counted from 0"):
            findings.plot(wrong)
    assert re.search(r"<th[^>]*>VT</th><td[^>]*>1 in 2.8 s", findings._repr_html_())
    images = re.findall("src='data:image/svg\\+xml;base64,(.+?)'", findings._repr_html_())
    assert ["VT" in texts(b64decode(each).decode()) for each in images] == [True], "the most dangerous event"
    page = findings.report(tmp_path / "page.html").read_text()
    assert "Research software, not a medical device" in page and "VT" in page


def test_an_axes_of_matplotlib_can_be_drawn_on(findings: Findings) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2)
    assert findings.plot(ax=left) is left and findings.recording.plot(0, 2, ax=right) is right
    assert left.images[0].get_array().std() > 0.05, "something is drawn"
    pyplot.close(figure)


def test_scores_are_drawn_with_their_baselines() -> None:
    block = {"macro_f1": {"value": 0.8, "ci": [0.7, 0.9]}, "classes": ["N"], "per_class": {"N": {"f1": {"value": 0.9}}}}
    content = {"task": "beats", "on": "mitdb", "split": "test", "scores": block, "baselines": {"trees": block}}
    scores = Scores(content, Path("x"))
    assert repr(scores) == "<Scores beats on mitdb, test: macro_f1 0.800, per_class N f1 0.900>"
    drawn = texts(scores.plot()._repr_svg_())
    assert {"this model", "trees", "beats on mitdb", "macro F1", "N F1"} <= set(drawn)
    assert "0.800 [0.700, 0.900]" in scores._repr_html_()


def test_what_cannot_be_drawn_or_read_is_displayed_with_the_reason(recording: Recording, tmp_path: Path) -> None:
    def samples(*_: object) -> np.ndarray:
        raise HeartlmError("x.dat: cut off <here>")

    assert "x.dat: cut off &lt;here&gt;" in replace(recording, samples=samples)._repr_html_()
    assert "annotations only" in replace(recording, samples=None)._repr_html_()
    assert "no run.json" in repr(RunFolder(tmp_path))


def test_a_run_says_what_was_trained() -> None:
    assert re.match(r"<RunFolder .*/af: finetune, rhythm, finished>$", repr(RunFolder(find_run("af"))))


def test_models_and_annotations_are_one_line() -> None:
    recording = heartlm.open_recording(shared_data("mitdb") / "100")
    assert repr(recording.annotations).startswith("<Annotations by 100.atr: 2,2")
    assert re.match(
        r"<Model foundation: .* analyses with beats, af, waveform, statements>$", repr(heartlm.load_model())
    )
