"""Draw a continuation: the recording, and after it what a model wrote, as ECG paper or as a row of RR intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from heartlm.report.figures import figure_of, strip_figure
from heartlm.report.line_chart import Series, line_chart
from heartlm.report.strip import Beats, Rhythm, Strip

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def continuation_figure(entry: Mapping[str, Any]) -> Figure:
    """Draw one entry of `generation.json`; bands mark the beats of the model, names say where it begins to write.

    Raises:
        HeartlmError: matplotlib is not installed.
    """
    title = f"{entry['record']} {entry['lead']}".strip() + f", continued by {entry['num_tokens']} tokens"
    if "generated_rr_s" in entry:
        return figure_of([(title, _interval_chart(entry))])
    recorded, written = (np.array(entry[key], np.float64) for key in ("prompt_mv", "generated_mv"))
    seam_s, stop_s = (count / entry["rate_hz"] for count in (len(recorded), len(recorded) + len(written)))
    generated = [beat["generated"] for beat in entry["beats"]]
    strip = Strip(
        signal_mv=np.concatenate([recorded, written])[None],
        rate_hz=entry["rate_hz"],
        lead_names=[entry["lead"]],
        beats=Beats(np.array([beat["time_s"] for beat in entry["beats"]]), ["•"] * len(generated), generated),
        rhythms=[Rhythm(0.0, seam_s, "recorded"), Rhythm(seam_s, stop_s, "written by the model")],
    )
    return strip_figure(strip, title)


def _interval_chart(entry: Mapping[str, Any]) -> Any:
    """RR intervals beat by beat; the model's are joined to the last one recorded."""
    recorded, written = entry["prompt_rr_s"], entry["generated_rr_s"]
    known = [(place, rr_s) for place, rr_s in enumerate([*recorded, *written], 1 - len(recorded)) if rr_s is not None]
    series = [
        Series(name, [place for place, _ in part], [rr_s for _, rr_s in part], class_name, dots=True)
        for name, class_name, part in (
            ("recorded", "grey-1", [each for each in known if each[0] <= 0]),
            ("written by the model", "accent", [each for each in known if each[0] >= 0]),
        )
    ]
    return line_chart(series, title="RR interval", unit="s", from_zero=True, along="beat from the last one recorded")
