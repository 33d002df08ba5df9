"""ECG strips are true to scale, mark what they are told to, and are written whole."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.report.figures import save_strip
from heartlm.report.strip import Beat, Strip, sheet

RATE_HZ = 250.0


def spikes(times_s: list[float], duration_s: float, height_mv: float = 1.2) -> NDArray[np.float64]:
    signal = np.zeros(round(duration_s * RATE_HZ))
    signal[[round(time_s * RATE_HZ) for time_s in times_s]] = height_mv
    return signal


def strip(duration_s: float = 10.0, start_s: float = 60.0) -> Strip:
    times_s = [1.0, 2.0, 2.6]
    return Strip(
        signal_mv=np.stack([spikes(times_s, duration_s), -spikes(times_s, duration_s)]),
        rate_hz=RATE_HZ,
        lead_names=["MLII", "V1"],
        start_s=start_s,
        beats=[Beat(start_s + time_s, name) for time_s, name in zip(times_s, ["N", "V", None], strict=True)],
        rhythms=[(0.0, start_s + 2.3, "N"), (start_s + 2.3, start_s + 900.0, "VT")],
    )


def drawn(strip: Strip) -> ElementTree.Element:
    return ElementTree.fromstring(sheet(strip, "a strip"))


def words(sheet: ElementTree.Element) -> dict[str, float]:
    """Each text, and how far from the left it stands."""
    return {each.text or "": float(each.attrib["x"]) for each in sheet.iter("text")}


def of_class(sheet: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in sheet.iter() if name in each.get("class", "").split()]


def traces(sheet: ElementTree.Element) -> list[NDArray[np.float64]]:
    """Corners of every trace and calibration pulse, in millimetres from the left and from the top."""
    found = []
    for path in of_class(sheet, "trace"):
        numbers = np.array(re.findall(r"-?[\d.]+(?:e-?\d+)?", path.attrib["d"]), float).reshape(-1, 2)
        found.append(numbers.cumsum(axis=0) / 4)
    return found


@pytest.mark.parametrize("duration_s", [3.0, 7.5, 10.0])
def test_a_second_is_25_mm_and_a_millivolt_10_mm(duration_s: float, tmp_path: Path):
    page = ElementTree.parse(save_strip(strip(duration_s), "", tmp_path / "strip.svg")).getroot()
    box = [float(each) for each in page.attrib["viewBox"].split()]
    assert [float(page.attrib[side].removesuffix("mm")) for side in ("width", "height")] == pytest.approx(
        [each / 4 for each in box[2:]]
    )
    drawing = next(each for each in page if each.tag.endswith("svg"))
    across, down = (float(drawing.attrib[side]) for side in ("width", "height"))
    assert across / 4 == pytest.approx((duration_s + 0.4) * 25)
    assert (across + 40, down + 40) == pytest.approx((box[2], box[3]))
    first, second = (trace for trace in traces(drawn(strip(duration_s))) if np.ptp(trace[:, 0]) > 50)
    for trace in (first, second):
        assert np.ptp(trace[:, 0]) == pytest.approx((duration_s - 1 / RATE_HZ) * 25, abs=0.1)
        assert np.ptp(trace[:, 1]) == pytest.approx(12, abs=0.1)
    assert first[:, 1].max() < second[:, 1].min()


def test_fine_lines_are_1_mm_apart_and_bold_ones_5_mm():
    for name, step in (("square-1mm", 4.0), ("square-5mm", 20.0)):
        (lines,) = of_class(drawn(strip()), name)
        columns, tops = (
            [float(each) for each in re.findall(pattern, lines.attrib["d"])]
            for pattern in (r"M([\d.]+) ", r"M0 ([\d.]+)H")
        )
        np.testing.assert_allclose(np.diff(np.unique(columns)), step)
        np.testing.assert_allclose(np.diff(tops), step)


def test_beats_are_lettered_in_their_colours_and_those_out_of_the_ordinary_get_a_band():
    sheet = drawn(strip())
    for letter, time_s in (("N", 1.0), ("V", 2.0), ("•", 2.6)):
        places = [float(each.attrib["x"]) for each in of_class(sheet, "beat") if each.text == letter]
        assert places == pytest.approx([100 * (time_s + 0.4)])
    assert [each.text for each in of_class(sheet, "class-V") if each.tag == "text"] == ["V"]
    (band,) = of_class(sheet, "beat-band")
    assert (float(band.attrib["x"]) + 12, band.attrib["width"]) == (240.0, "24")
    assert {"MLII", "V1"} <= words(sheet).keys()


def test_beats_outside_of_the_strip_are_left_out():
    far = strip()
    sheet = drawn(Strip(far.signal_mv, RATE_HZ, far.lead_names, start_s=500.0, beats=far.beats))
    assert not {"N", "V", "•"} & words(sheet).keys()


def test_rhythms_are_named_where_they_begin():
    assert (words(drawn(strip()))["VT"] - 2) / 100 == pytest.approx(2.3 + 0.4)


def test_the_time_axis_shows_whole_seconds_of_the_recording():
    sheet = drawn(strip(4.0, start_s=12.3))
    assert [word for word in words(sheet) if word.startswith("+")] == ["+0:13", "+0:14", "+0:15"]


def test_the_time_axis_shows_the_clock_where_it_is_known():
    sheet = drawn(replace(strip(4.0, start_s=12.3), clock_s=86_386.5))  # 23:59:46.5 at time 0
    clock = {word: place for word, place in words(sheet).items() if re.fullmatch(r"\d\d:\d\d:\d\d", word)}
    assert list(clock) == ["23:59:59", "00:00:00", "00:00:01", "00:00:02"]
    assert (clock["00:00:00"] - 3) / 100 == pytest.approx(13.5 - 12.3 + 0.4)


def test_long_strips_are_broken_into_rows_of_ten_seconds(tmp_path: Path):
    long = strip(24.0)
    rows = long.rows()
    assert [(row.start_s, row.duration_s) for row in rows] == [(60.0, 10.0), (70.0, 10.0), (80.0, 4.0)]
    np.testing.assert_array_equal(np.concatenate([row.signal_mv for row in rows], axis=1), long.signal_mv)
    page = ElementTree.parse(save_strip(long, "mitdb 100", tmp_path / "strip.svg")).getroot()
    sheets = [each for each in page if each.tag.endswith("svg")]
    ends = [float(each.attrib["y"]) + float(each.attrib["height"]) for each in sheets]
    assert len(sheets) == 3 and all(float(each.attrib["y"]) > end for each, end in zip(sheets[1:], ends, strict=False))
    assert [each.text for each in page if each.get("class") == "figure-title"] == ["mitdb 100"]


def test_leads_share_a_lane_one_after_the_other():
    signal = np.stack([spikes([0.5, 1.5, 2.5, 3.5], 4.0, 0.5 + 0.2 * lead) for lead in range(5)])
    shared = Strip(signal, RATE_HZ, ["a", "b", "c", "d", "e"], lanes=[(2, 0, 4, 1), (3,)])
    runs = [trace for trace in traces(drawn(shared)) if np.ptp(trace[:, 0]) > 20]
    assert [np.ptp(run[:, 1]) for run in runs] == pytest.approx([9, 5, 13, 7, 11], abs=0.1)
    assert [run[0, 0] for run in runs] == pytest.approx([10, 35, 60, 85, 10], abs=0.1)
    places = {each.text: float(each.attrib["x"]) for each in of_class(drawn(shared), "lead-name")}
    assert places == pytest.approx({"c": 4, "a": 144, "e": 244, "b": 344, "d": 4})


def test_lanes_are_as_close_as_their_traces_allow():
    up, down = spikes([1.0], 2.0, 3.0), -spikes([1.0], 2.0, 3.0)
    for lower, distance in ((spikes([1.5], 2.0, 3.0), 31), (up, 61), (down, 31), (0.1 * up, 34)):
        lanes = traces(drawn(Strip(np.stack([down, lower]), RATE_HZ, ["a", "b"])))
        first, second = (trace for trace in lanes if np.ptp(trace[:, 0]) > 40)
        assert second[0, 1] - first[0, 1] == pytest.approx(distance, abs=0.1)


def test_paper_that_would_be_too_high_has_half_the_gain_and_says_so():
    tall = Strip(np.stack([spikes([1.0], 2.0, 4.0), -spikes([1.0], 2.0, 3.0)]), RATE_HZ, ["a", "b"], tallest_mm=95.0)
    for limit, height, corner in ((95.0, 40, "25 mm/s · 10 mm/mV"), (85.0, 20, "25 mm/s · 5 mm/mV")):
        sheet = drawn(replace(tall, tallest_mm=limit))
        first = next(trace for trace in traces(sheet) if np.ptp(trace[:, 0]) > 40)
        pulse = next(trace for trace in traces(sheet) if np.ptp(trace[:, 0]) < 10)
        assert [np.ptp(first[:, 1]), np.ptp(pulse[:, 1])] == pytest.approx([height, height / 4], abs=0.1)
        assert corner in words(sheet)


def test_rhythms_of_the_whole_strip_share_a_row():
    whole = [(0.0, 900.0, "AF"), (50.0, 80.0, "tachycardia"), (61.0, 62.0, "VT")]
    named = [each.text for each in of_class(drawn(replace(strip(), rhythms=whole)), "rhythm-name")]
    assert named == ["AF, tachycardia", "VT"]


def test_gaps_stay_gaps_and_a_dead_lead_says_so():
    gappy = strip()
    gappy.signal_mv[0, 100:200] = np.nan
    gappy.signal_mv[1] = np.nan
    sheet = drawn(gappy)
    before, after = sorted(
        (float(trace[:, 0].min()), float(trace[:, 0].max())) for trace in traces(sheet) if trace[:, 0].min() > 9.9
    )
    assert after[0] - before[1] == pytest.approx(101 / RATE_HZ * 25, abs=0.1)
    assert "no signal" in words(sheet)


def test_a_picture_carries_its_colours(tmp_path: Path):
    written = save_strip(strip(), "", tmp_path / "strip.svg").read_text()
    assert "var(" not in written and ".class-V, .fill-class-V { fill: #98041d; }" in written


def test_another_ending_is_refused(tmp_path: Path):
    with pytest.raises(HeartlmError, match=r"must end in \.svg"):
        save_strip(strip(), "", tmp_path / "strip.bmp")
    assert not list(tmp_path.iterdir())


def test_an_empty_strip_is_refused(tmp_path: Path):
    with pytest.raises(HeartlmError, match="no signal to draw"):
        save_strip(Strip(np.zeros((0, 0)), RATE_HZ, []), "", tmp_path / "strip.svg")
