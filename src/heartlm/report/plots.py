"""Drawings of the pages in Python and notebooks: `plot` and the rich display of the public classes.

Classes of lower rooms call this module when they are drawn; see `heartlm.system.attached`.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from heartlm.analysis.findings import Event, Findings
from heartlm.ecg.recording import BEAT_CLASSES, UNLABELLED, Recording
from heartlm.errors import HeartlmError
from heartlm.report.charts import Series, line_chart
from heartlm.report.figures import drawn_rows, picture, save_drawings
from heartlm.report.holter import holter_page
from heartlm.report.holter_strips import strip_of, whole_recording
from heartlm.report.numbers import Interval, Score
from heartlm.report.render import Markup
from heartlm.report.scores import score_rows
from heartlm.report.strip import Beat, Strip
from heartlm.storage.atomic import write_text

USUAL_S, LONGEST_S = 10.0, 300.0
"""Length of a strip in seconds if no end is given, and the largest one."""


@dataclass(frozen=True)
class Picture:
    """Drawings with captions, one below the other; a notebook shows them.

    Attributes:
        drawings: captions and drawings.
    """

    drawings: tuple[tuple[str, Markup], ...]

    def _repr_svg_(self) -> str:
        return picture(self.drawings)

    def _repr_html_(self) -> str:
        # an image, because the style of an SVG inside of a page is valid for all drawings of the page
        content = b64encode(self._repr_svg_().encode()).decode()
        words = escape("; ".join(caption for caption, _ in self.drawings if caption))
        return f"<img alt='{words}' style='max-width:100%' src='data:image/svg+xml;base64,{content}'>"

    def save(self, path: str | Path) -> Path:
        """Write the picture as `.svg` or `.png`.

        Raises:
            HeartlmError: the suffix is another, or it cannot be written.
        """
        return save_drawings(self.drawings, Path(path))

    def on(self, ax: Any) -> Any:
        """Draw on a matplotlib axes, at 192 dots per inch, and return the axes."""
        import resvg_py

        image = sys.modules["matplotlib.image"]  # of the caller's matplotlib, which heartlm does not need
        content = bytes(resvg_py.svg_to_bytes(svg_string=picture(self.drawings), dpi=192))
        ax.imshow(image.imread(BytesIO(content)))
        ax.set_axis_off()
        return ax


def recording_strip(
    recording: Recording, start_s: float = 0.0, stop_s: float | None = None, leads: Sequence[int | str] | None = None
) -> Strip:
    """Return a section of a recording with its annotated beats and rhythms.

    Raises:
        HeartlmError: there is no signal or no such lead, or the section lies outside the recording or is too long.
    """
    if not recording.has_signal:
        raise HeartlmError(f"{recording.path}: this recording has annotations only, no signal to draw")
    rate_hz, end_s = recording.rate_hz, recording.duration_s
    if not 0 <= start_s < end_s:
        raise HeartlmError(f"start is {start_s:g} s; {recording.path} lasts from 0 to {end_s:g} s")
    stop_s = min(start_s + USUAL_S, end_s) if stop_s is None else stop_s
    if not start_s < stop_s <= end_s:
        raise HeartlmError(f"stop is {stop_s:g} s; expected more than start, {start_s:g}, and at most {end_s:g} s")
    if stop_s - start_s > LONGEST_S:
        raise HeartlmError(f"start to stop are {stop_s - start_s:g} s; a picture holds at most {LONGEST_S:g} s")
    first, last, annotations = round(start_s * rate_hz), round(stop_s * rate_hz), recording.annotations
    beats, rhythms = None, list[tuple[float, float, str]]()
    if annotations is not None:
        shown = (annotations.sample >= first) & (annotations.sample < last)
        names = [None if each == UNLABELLED else BEAT_CLASSES[each] for each in annotations.beat_classes()[shown]]
        times_s = (annotations.sample[shown] / rate_hz).tolist()
        beats = [Beat(time_s, name) for time_s, name in zip(times_s, names, strict=True)]
        rhythms = [(span.start / rate_hz, span.stop / rate_hz, span.name) for span in annotations.rhythms]
    chosen = [recording.lead_index(lead) for lead in (range(recording.num_leads) if leads is None else leads)]
    lead_names = [recording.lead_names[lead] for lead in chosen]
    signal_mv = recording.signal(first, last, chosen)
    return Strip(signal_mv, rate_hz, lead_names, first / rate_hz, beats=beats, rhythms=rhythms)


def plot_recording(
    recording: Recording, start_s: float, stop_s: float | None, leads: Sequence[int | str] | None, ax: Any
) -> Any:
    """Return the picture, or draw it on the axes `ax`; the arguments are those of `Recording.plot`."""
    strip = recording_strip(recording, start_s, stop_s, leads)
    drawn = Picture(tuple(drawn_rows(strip, f"{recording.database} {recording.record_id}".strip())))
    return drawn if ax is None else drawn.on(ax)


def plot_findings(findings: Findings, event: Event | int | None, ax: Any) -> Any:
    """See `Findings.plot`."""
    recording = findings.recording
    if event is None and not findings.events:
        shown = whole_recording(findings)[:1]
    else:
        chosen = 0 if event is None else event
        if not isinstance(chosen, Event):
            if not 0 <= chosen < len(findings.events):
                raise HeartlmError(f"event: {chosen!r} found; there are {len(findings.events)}, counted from 0")
            chosen = findings.events[chosen]
        length = min(round(USUAL_S * recording.rate_hz), recording.num_samples)
        middle = chosen.start + min(chosen.stop - chosen.start, length) // 2
        start = max(0, min(middle - length // 2, recording.num_samples - length))
        shown = [strip_of(findings, start, start + length, findings.leads, chosen.kind)]
    drawings = tuple((each["title"], each["drawing"]) for each in shown if each["drawing"] is not None)
    if not drawings:
        raise HeartlmError(f"{recording.path}: no signal to draw")
    return Picture(drawings) if ax is None else Picture(drawings).on(ax)


def write_page(findings: Findings, path: Path) -> Path:
    """See `Findings.report`."""
    return write_text(path, holter_page(findings))


def plot_scores(content: Mapping[str, Any], ax: Any) -> Any:
    """See `Scores.plot`."""
    rows = score_rows(content)
    methods = list(next(iter(rows.values()), {}))
    series = []
    for number, method in enumerate(reversed(methods)):
        known = [(row, rows[name].get(method, Score())) for row, name in enumerate(rows, 1)]
        known = [(row, score) for row, score in known if score.value is not None]
        places = [row + 0.08 * number for row, _ in known]
        intervals = [Interval(each.value or 0.0, each.low, each.high) for _, each in known]
        values = [each.value for each in intervals]
        colour = "accent" if method == methods[0] else f"tone-{(4 + 3 * number) % 8}"
        series.append(Series(method, places, values, colour, dots=True, joined=False, intervals=intervals))
    chart = line_chart(series, title="score", from_zero=True, along="", names=list(rows))
    if chart is None:
        raise HeartlmError("there is no score to draw")
    drawn = Picture(((f"{content.get('task', '')} on {content.get('on', '')}", chart),))
    return drawn if ax is None else drawn.on(ax)


def shown_html(title: str, rows: Sequence[tuple[str, Any]], draw: Callable[[], Picture] | None = None) -> str:
    """Return a title, a picture and a table of two columns, for the rich display of a notebook.

    If the picture cannot be drawn, its place has the reason: what is displayed raises no errors.
    """
    try:
        drawn = draw()._repr_html_() if draw is not None else ""
    except HeartlmError as error:
        drawn = f"<p>{escape(str(error))}</p>"
    left = "style='text-align:left'"  # notebooks align the cells of tables right
    cells = "".join(f"<tr><th {left}>{escape(n)}</th><td {left}>{escape(str(v))}</td></tr>" for n, v in rows)
    return f"<div><b>{escape(title)}</b>{drawn}<table>{cells}</table></div>"
