"""Page of a run: read the folder, compute the template's values, and write one self-contained HTML file.

Jinja escapes the template's text; drawings are inserted as SVG. The page contains its style and script and makes no
network requests.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.errors import HeartlmError, needs
from heartlm.files import atomic_file
from heartlm.report import data_tables, score_charts, story, svg_strip, training_charts
from heartlm.report.numbers import Score, clock, count, decimal, duration, percent, rates
from heartlm.report.scores import (
    BY_WINDOW,
    MODEL,
    block_of,
    confusion_rows,
    method_scores,
    missing_baselines,
    patient_rows,
    score_rows,
)
from heartlm.report.strip import Beats, Strip
from heartlm.runs.run_folder import RunFolder, WrittenScores
from heartlm.typed import is_number

REPORT_NAME = "report.html"
WRITTEN = (clock, count, decimal, duration, percent, rates)
"""Number formats that templates use as filters."""


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page about the run folder `run` to `out`, by default `report.html` in the folder; return its path.

    Raises:
        HeartlmError: `run` is not a run folder, a file in it is unreadable, Jinja is not installed, or `out` cannot be
            written; an earlier page is then unchanged.
    """
    out = Path(out) if out else Path(run) / REPORT_NAME
    folder = RunFolder(run)
    try:
        page = render("page.html", context(folder))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # the results have dozens of shapes, and only the page reads them
        raise HeartlmError(f"{run}: a result file holds something else than expected ({error!r})") from error
    with atomic_file(out) as stream:
        stream.write(page)
    return out


def render(template: str, shown: Mapping[str, Any]) -> str:
    """Render a template of this package with the values `shown`; return the HTML.

    Raises:
        HeartlmError: Jinja is not installed.
    """
    return str(_environment().get_template(template).render(**shown))


@functools.cache  # a folder of recordings renders one template a thousand times
def _environment() -> Any:
    with needs("report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader("heartlm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {each.__name__: each for each in WRITTEN}
    return environment


def context(folder: RunFolder) -> dict[str, Any]:
    """Return all values of the template, arranged and formatted."""
    strip = next((strip for each in folder.score_sets for strip in each.strips), None)
    newest = folder.score_sets[0] if folder.score_sets else None
    return {
        "kind": str(folder.run_json.get("kind") or "pretrain"),
        "date": str(folder.run_json.get("finished") or folder.run_json.get("created") or "")[:10],
        "path": str(folder.path),
        "name": str(folder.run_json.get("name") or folder.path.name),
        "title": story.title(folder),
        "lead": list(story.sentences(folder)),
        "banner": strip and svg_strip.banner(strip.get("signal_mv") or [], strip.get("rate_hz") or 0),
        "cards": story.score_cards(newest) if newest else [],
        "next_step": story.next_step(folder),
        "corpora": data_tables.corpora_of(folder),
        "splits": data_tables.SPLITS,
        "beat_classes": BEAT_CLASSES,
        "tokenizer": data_tables.tokenizer_of(folder),
        "facts": training_charts.training_facts(folder),
        "figures": training_charts.training_figures(folder),
        "score_sets": [_score_set(each) for each in folder.score_sets],
        "environment": [(key, plain(value)) for key, value in folder.environment.items()],
        "commands": commands(folder),
        "config": folder.config_file.read_text(errors="replace") if folder.config_file.is_file() else "",
        "manifest_hash": folder.run_json.get("manifest_hash"),
    }


def commands(folder: RunFolder) -> list[str]:
    """Return the commands that lead from recordings to this page, each once, in order."""
    lines = [corpus["manifest"].get("command") for corpus in data_tables.corpora_of(folder)]
    lines += [run.run_json.get("command") for run in folder.lineage()]
    lines += [each.scores.get("command") for each in reversed(folder.score_sets)]
    return list(dict.fromkeys([str(line) for line in lines if line] + [f"heartlm report {folder.path}"]))


def _score_set(score_set: WrittenScores) -> dict[str, Any]:
    scores = score_set.scores
    block, methods, is_beats = block_of(scores), method_scores(scores), scores.get("task") not in BY_WINDOW
    return {
        "name": score_set.name,
        "is_beats": is_beats,
        "on": story.corpus_name(scores),
        "split": scores.get("split") or "–",
        "beats": scores.get("beats"),
        "num_left_out": count(block.get("num_left_out")) if block.get("num_left_out") else None,
        "window": f"{count(scores.get('window'))} {'s' if scores.get('task') == 'waveform' else 'beats'}",
        "labels": scores.get("labels"),
        "positive": scores.get("positive") or "–",
        "others": [name for name in methods if name != MODEL],
        "missing": missing_baselines(scores),
        "rows": story.table_rows(scores, methods) if is_beats else [],
        "measures": [
            (name, [row.get(method, Score()) for method in methods]) for name, row in score_rows(scores).items()
        ],
        "forest": score_charts.forest_chart(score_rows(scores), label="scores with 95 % intervals"),
        "confusion": confusion_rows(block),
        "patients": patient_rows(block),
        "durations": _flat(scores.get("durations")),
        "strips": [strip_of(each) for each in score_set.strips],
    }


def strip_of(strip: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing and texts of a section of one lead, with the reference and the prediction of each beat."""
    beats = [beat for beat in strip.get("beats") or [] if is_number(beat.get("time_s"))]
    names = [[str(beat.get(key) or "") for beat in beats] for key in ("reference", "predicted")]
    # class Q is not scored, so its beats never count as wrong
    wrong = [bool(name and answer) and name not in (answer, "Q") for name, answer in zip(*names, strict=True)]
    signal_mv, rate_hz = np.array([strip.get("signal_mv") or []], np.float64), strip.get("rate_hz") or 0
    start_s = float(strip.get("start_s") or 0)
    hovers = [
        f"{decimal(beat['time_s'], 2)} s: reference {name or 'unlabelled'}"
        + (f", the model says {answer} ({percent(beat.get('probability'))})" if answer else "")
        for beat, name, answer in zip(beats, *names, strict=True)
    ]
    times_s = start_s + np.array([beat["time_s"] for beat in beats])
    drawn = Beats(times_s, names[0], wrong, hovers=hovers, answers=names[1])
    label = f"ECG strip with {len(beats)} beats"
    return {
        "title": strip.get("title") or f"record {strip.get('record', '–')}",
        "place": _place(strip),
        "verdict": f"{sum(wrong)} of {len(beats)} beats wrong" if any(wrong) else f"all {len(beats)} beats right",
        "is_wrong": any(wrong),
        "drawing": svg_strip.sheet(Strip(signal_mv, rate_hz, [str(strip.get("lead") or "")], start_s, drawn), label)
        if rate_hz > 0 and np.isfinite(signal_mv).any()
        else None,
    }


def _place(strip: Mapping[str, Any]) -> str:
    parts = [f"record {strip['record']}" if strip.get("record") else "", str(strip.get("lead") or "")]
    if is_number(strip.get("start_s")):
        minutes, seconds = divmod(float(strip["start_s"]), 60)
        parts.append(f"from {minutes:.0f}:{seconds:04.1f}")
    return ", ".join(part for part in parts if part)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested mappings of scores into pairs of name and value."""
    if isinstance(value, Mapping) and "value" in value:
        score = Score.of(value)
        return [(prefix, f"{score.text} ({score.interval})" if score.interval else score.text)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items() for pair in _flat(part, f"{prefix} {key}".strip())]
    if value is None and not prefix:
        return []
    return [(prefix, decimal(value, 3) if isinstance(value, float) or value is None else plain(value))]


def plain(value: Any) -> str:
    """Format a value of a JSON file."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
