"""Page that compares several runs: settings, curves of the losses, scores and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from heartlm.report.charts import Series, line_chart
from heartlm.report.numbers import MISSING, Score, significant
from heartlm.report.render import plain, render
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_text
from heartlm.storage.typed import is_number


def write_comparison(runs: Sequence[RunFolder], result: Mapping[str, Any], out: Path) -> Path:
    """Write the page of a comparison (`tasks.compare_runs`) to `out`, and return its path.

    Raises:
        HeartlmError: Jinja is not installed, or `out` cannot be written.
    """
    names = letters(len(runs))
    tones = [f"tone-{index % 8}" for index in range(len(runs))]
    figures = []
    for split, title in (("validation", "Loss on the validation patients"), ("train", "Loss of the training batches")):
        curves = [
            Series(name, *run.curve(split, "loss"), tone, dots=split == "validation")
            for name, run, tone in zip(names, runs, tones, strict=True)
        ]
        if (drawing := line_chart(curves, title="loss")) is not None:
            figures.append((title, drawing))
    page = render("compare_runs.html", names=names, figures=figures, difference=difference, setting=setting, **result)
    return write_text(out, page)


def letters(num: int) -> list[str]:
    """Return short names of runs: A, B, …, and numbers where there are more than letters."""
    return list(ascii_uppercase[:num]) if num <= len(ascii_uppercase) else [str(index + 1) for index in range(num)]


def setting(value: Any) -> str:
    """Format a setting, a loss or a score."""
    return significant(value, 4) if isinstance(value, float) else str(value) if is_number(value) else plain(value)


def difference(entry: Any) -> str:
    """Format a difference of scores with its interval, with signs."""
    score = Score.of(entry)
    if score.value is None:
        return MISSING
    interval = "" if score.low is None else f" ({_signed(score.low)} to {_signed(score.high)})"
    return _signed(score.value) + interval


def _signed(value: float | None) -> str:
    return MISSING if value is None else f"{value:+.3f}".replace("-", "−")
