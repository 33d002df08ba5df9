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
from matplotlib.figure import Figure

from heartlm.errors import HeartlmError
from heartlm.report.strip import CLASS_COLOURS, Beats, Rhythm, Strip, save_figure, strip_figure

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


def texts(axes: Axes) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in axes.texts}


def size_mm(figure: Figure, axes: Axes) -> tuple[float, float]:
    box = axes.get_position()
    width, height = figure.get_size_inches() * 25.4
    return box.width * width, box.height * height


@pytest.mark.parametrize("duration_s", [2.0, 7.5, 10.0])
def test_a_second_is_25_mm_and_a_millivolt_10_mm(duration_s: float):
    figure = strip_figure(strip(max(duration_s, 3.0)))
    (axes,) = figure.axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    width_mm, height_mm = size_mm(figure, axes)
    assert width_mm == pytest.approx((right - left) * 25)
    assert height_mm == pytest.approx((top - bottom) * 10)


def test_fine_lines_are_1_mm_apart_and_bold_ones_5_mm():
    (axes,) = strip_figure(strip()).axes
    fine_x, fine_y, bold_x, bold_y = (
        np.array([path.vertices[0][axis] for path in lines.get_paths()])
        for lines, axis in zip(axes.collections[:4], (0, 1, 0, 1), strict=True)
    )
    for places, step in ((fine_x, 0.04), (fine_y, 0.1), (bold_x, 0.2), (bold_y, 0.5)):
        np.testing.assert_allclose(np.diff(places), step)
        np.testing.assert_allclose(places / step, np.round(places / step), atol=1e-6)


def test_leads_lie_below_one_another_and_keep_their_shape():
    drawn = strip()
    (axes,) = strip_figure(drawn).axes
    traces = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == drawn.signal_mv.shape[1]]
    assert len(traces) == 2
    for trace, signal in zip(traces, drawn.signal_mv, strict=True):
        np.testing.assert_allclose(trace - np.median(trace), signal - np.median(signal), atol=1e-9)
    assert traces[0].min() > traces[1].max()
    assert {"MLII", "V1"} <= texts(axes).keys()


def test_beats_are_lettered_above_their_peaks_in_their_colours():
    (axes,) = strip_figure(strip()).axes
    peak = axes.lines[0].get_ydata().max()
    for letter, time_s in (("N", 61.0), ("V", 62.0), ("•", 62.6)):
        candidates = [text for text in axes.texts if text.get_text() == letter and text.get_position()[0] == time_s]
        assert len(candidates) == 1 and candidates[0].get_position()[1] > peak
    assert any(same_color(text.get_color(), CLASS_COLOURS["V"]) for text in axes.texts if text.get_text() == "V")


def test_only_beats_out_of_the_ordinary_get_a_band():
    (axes,) = strip_figure(strip()).axes
    bands = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]
    assert [((band.x0 + band.x1) / 2, band.x1 - band.x0) for band in bands] == [pytest.approx((62.0, 0.3))]


def test_beats_outside_of_the_strip_are_left_out():
    far = strip()
    (axes,) = strip_figure(Strip(far.signal_mv, RATE_HZ, far.lead_names, start_s=500.0, beats=far.beats)).axes
    assert not {"N", "V", "•"} & texts(axes).keys()


def test_rhythms_are_named_where_they_begin():
    (axes,) = strip_figure(strip()).axes
    named = {text.get_text(): text.get_position()[0] for text in axes.texts if text.get_va() == "center"}
    assert named == {"N": pytest.approx(60.06), "VT": pytest.approx(62.36)}


def test_the_time_axis_shows_whole_seconds_of_the_recording():
    (axes,) = strip_figure(strip(4.0, start_s=12.3)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["13 s", "14 s", "15 s", "16 s"]


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
    assert np.isnan(axes.lines[0].get_ydata()).sum() == 100
    assert "no signal" in texts(axes)


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
