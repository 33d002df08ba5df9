"""ECG strips are true to scale, mark what they are told to, and are written whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("matplotlib", reason="strips are drawn with matplotlib")

from matplotlib.axes import Axes
from matplotlib.colors import same_color

from heartlm.errors import HeartlmError
from heartlm.report.figures import save_figure, strip_figure
from heartlm.report.strip import Beats, Rhythm, Strip

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
        beats=Beats.of_classes(start_s + np.array(times_s), ["N", "V", None]),
        rhythms=[Rhythm(0.0, start_s + 2.3, "N"), Rhythm(start_s + 2.3, start_s + 900.0, "VT")],
    )


def words(axes: Axes) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in axes.texts}


def outlines(axes: Axes, linewidth: float) -> list[NDArray[np.float64]]:
    """Corners of what is drawn with a pen of a width, in millimetres from the left and from the top."""
    unit_pt = 72 / 25.4 / 4
    return [
        patch.get_path().vertices / 4
        for patch in axes.patches
        if patch.get_linewidth() == pytest.approx(linewidth * unit_pt) and patch.get_edgecolor()[3] > 0
    ]


@pytest.mark.parametrize("duration_s", [3.0, 7.5, 10.0])
def test_a_second_is_25_mm_and_a_millivolt_10_mm(duration_s: float):
    figure = strip_figure(strip(duration_s))
    (axes,) = figure.axes
    width_mm, height_mm = figure.get_size_inches() * 25.4 * (axes.get_position().width, axes.get_position().height)
    assert width_mm == pytest.approx((duration_s + 0.4) * 25)
    assert axes.get_xlim()[1] / 4 == pytest.approx(width_mm) and axes.get_ylim()[0] / 4 == pytest.approx(height_mm)
    first, second = (trace for trace in outlines(axes, 1.5) if np.ptp(trace[:, 0]) > 50)
    for trace in (first, second):
        assert np.ptp(trace[:, 0]) == pytest.approx((duration_s - 1 / RATE_HZ) * 25, abs=0.1)
        assert np.ptp(trace[:, 1]) == pytest.approx(12, abs=0.1)
    assert first[:, 1].max() < second[:, 1].min()


def test_fine_lines_are_1_mm_apart_and_bold_ones_5_mm():
    (axes,) = strip_figure(strip()).axes
    for width, step in ((0.6, 1.0), (0.9, 5.0)):
        (lines,) = outlines(axes, width)
        assert np.unique(np.diff(np.unique(lines[:, 0].round(6)))).round(6).tolist()[0] == step
        tops = np.unique(lines[:, 1].round(6))
        np.testing.assert_allclose(np.diff(tops), step)


def test_beats_are_lettered_in_their_colours_and_those_out_of_the_ordinary_get_a_band():
    (axes,) = strip_figure(strip()).axes
    places = words(axes)
    for letter, time_s in (("N", 1.0), ("V", 2.0), ("•", 2.6)):
        at = [text.get_position()[0] for text in axes.texts if text.get_text() == letter]
        assert 100 * (time_s + 0.4) in at
    assert any(same_color(text.get_color(), "#98041d") for text in axes.texts if text.get_text() == "V")
    bands = [patch.get_path().vertices[:, 0] for patch in axes.patches if patch.get_alpha() == pytest.approx(0.1)]
    assert [((band.min() + band.max()) / 2, np.ptp(band)) for band in bands] == [(240.0, 24.0)]
    assert {"MLII", "V1"} <= places.keys()


def test_beats_outside_of_the_strip_are_left_out():
    far = strip()
    (axes,) = strip_figure(Strip(far.signal_mv, RATE_HZ, far.lead_names, start_s=500.0, beats=far.beats)).axes
    assert not {"N", "V", "•"} & words(axes).keys()


def test_rhythms_are_named_where_they_begin():
    (axes,) = strip_figure(strip()).axes
    assert (words(axes)["VT"][0] - 2) / 100 == pytest.approx(2.3 + 0.4)


def test_the_time_axis_shows_whole_seconds_of_the_recording():
    (axes,) = strip_figure(strip(4.0, start_s=12.3)).axes
    assert [word for word in words(axes) if word.startswith("0:")] == ["0:13", "0:14", "0:15"]


def test_long_strips_are_broken_into_rows_of_ten_seconds():
    long = strip(24.0)
    rows = long.rows()
    assert [(row.start_s, row.duration_s) for row in rows] == [(60.0, 10.0), (70.0, 10.0), (80.0, 4.0)]
    np.testing.assert_array_equal(np.concatenate([row.signal_mv for row in rows], axis=1), long.signal_mv)
    axes = strip_figure(long).axes
    assert [axis.get_position().y0 for axis in axes] == sorted((axis.get_position().y0 for axis in axes), reverse=True)


def test_gaps_stay_gaps_and_a_dead_lead_says_so():
    gappy = strip()
    gappy.signal_mv[0, 100:200] = np.nan
    gappy.signal_mv[1] = np.nan
    (axes,) = strip_figure(gappy).axes
    pieces = [trace for trace in outlines(axes, 1.5) if np.ptp(trace[:, 0]) > 5]
    spans = [(float(piece[:, 0].min()), float(piece[:, 0].max())) for piece in pieces if np.ptp(piece[:, 0]) < 230]
    (before, after) = sorted(spans)[-2:]
    assert after[0] - before[1] == pytest.approx(101 / RATE_HZ * 25, abs=0.1)
    assert "no signal" in words(axes)


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_are_written_in_three_formats(tmp_path: Path, ending: str, magic: bytes):
    path = tmp_path / f"strip.{ending}"
    save_figure(strip_figure(strip()), path)
    assert path.read_bytes().startswith(magic)


def test_another_ending_is_refused(tmp_path: Path):
    with pytest.raises(HeartlmError, match=r"must end in \.png, \.svg, \.pdf"):
        save_figure(strip_figure(strip()), tmp_path / "strip.bmp")
    assert not list(tmp_path.iterdir())


def test_an_empty_strip_is_refused():
    with pytest.raises(HeartlmError, match="no signal to draw"):
        strip_figure(Strip(np.zeros((0, 0)), RATE_HZ, []))


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HeartlmError, match=r"pip install 'heartlm\[report\]'"):
        strip_figure(strip())
