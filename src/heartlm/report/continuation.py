"""Draw a continuation: the recording, and after it what a model wrote, as ECG paper or as a row of RR intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heartlm.report.figures import new_figure
from heartlm.report.strip import Beats, Rhythm, Strip, strip_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDED, WRITTEN = "#5b6068", "#0a64ad"


def continuation_figure(entry: Mapping[str, Any]) -> Figure:
    """Draw one entry of `generation.json`.

    Raises:
        HeartlmError: matplotlib is not installed.
    """
    title = f"{entry['record']} {entry['lead']}".strip() + f", continued by {entry['num_tokens']} tokens"
    if "generated_rr_s" in entry:
        return _interval_figure(entry["prompt_rr_s"], entry["generated_rr_s"], title)
    return _strip_figure(entry, title)


def _strip_figure(entry: Mapping[str, Any], title: str) -> Figure:
    """The whole strip, true to scale; a tint and a name tell what is the model's."""
    recorded, written = (np.array(entry[key], np.float64) for key in ("prompt_mv", "generated_mv"))
    seam_s, stop_s = (count / entry["rate_hz"] for count in (len(recorded), len(recorded) + len(written)))
    colours = [WRITTEN if beat["generated"] else RECORDED for beat in entry["beats"]]
    strip = Strip(
        signal_mv=np.concatenate([recorded, written])[None],
        rate_hz=entry["rate_hz"],
        lead_names=[entry["lead"]],
        beats=Beats(
            np.array([beat["time_s"] for beat in entry["beats"]]),
            labels=["•"] * len(colours),
            colours=colours,
            banded=[False] * len(colours),
        ),
        rhythms=[Rhythm(0.0, seam_s, "recorded"), Rhythm(seam_s, stop_s, "written by the model")],
    )
    figure = strip_figure(strip, title)
    for axes in figure.axes:
        left, right = axes.get_xlim()
        if right > seam_s:
            axes.axvspan(max(left, seam_s), right, color=WRITTEN, alpha=0.07, linewidth=0, zorder=2)
    return figure


def _interval_figure(recorded_s: Sequence[float | None], written_s: Sequence[float | None], title: str) -> Figure:
    """RR intervals beat by beat; the model's are joined to the last one recorded."""
    recorded, written = (np.array(values, np.float64) for values in (recorded_s, written_s))
    figure = new_figure(10, 3.2, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    place = np.arange(len(recorded) + len(written)) - len(recorded) + 1
    axes.plot(place[: len(recorded)], recorded, ".-", color=RECORDED, linewidth=1, label="recorded")
    axes.plot(
        place[len(recorded) - 1 :],
        np.concatenate([recorded[-1:], written]),
        ".-",
        color=WRITTEN,
        linewidth=1,
        label="written by the model",
    )
    axes.set(title=title, xlabel="beat, from the last one recorded", ylabel="RR interval (s)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
