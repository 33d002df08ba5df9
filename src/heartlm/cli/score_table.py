"""Scores as a text table: the model with its confidence intervals, and its baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heartlm.report.numbers import Score, decimal
from heartlm.report.scores import MEASURES, MODEL, is_binary, method_scores, of_class, table_rows
from heartlm.system.progress import plural
from heartlm.tasks.task import task_of

Scores = Mapping[str, Any]

CALLED_VF = {"vt_called_vf": "VT called VF", "noise_called_vf": "noise called VF"}
"""Scores of the task waveform that are printed next to those of VF against other rhythms, with their titles."""
DELAYS = ("delay_median_s", "delay_p90_s", "delay_worst_s")


def score_table(scores: Scores) -> list[str]:
    """Return the scores of `scores.json` as lines of text."""
    rows = _binary_rows(scores) if is_binary(scores) else _class_rows(scores)
    left_out = scores["records_left_out"]
    lines = [_heading(scores), *aligned(rows), *_episode_lines(scores)]
    lines += [f"  left out: {entry['record']}: {entry['reason']}" for entry in left_out]
    return lines + [f"  note: {note}" for note in scores["notes"]]


def _heading(scores: Scores) -> str:
    block = scores["scores"]
    fields = {**scores, **block, "detection": _detection_errors(scores)}
    what, unscored = (text.format(**fields) for text in task_of(scores["task"]).heading)
    return (
        f"{scores['on']}, {scores['split']} split: {what}, "
        f"{plural(len(scores['records']), 'recording')}, {plural(block['num_patients'], 'patient')}; "
        f"{unscored} not scored"
    )


def _detection_errors(scores: Scores) -> str:
    """Return the number of missed and false beats of the detector, if beats were detected."""
    if scores["beats"] != "detected" or is_binary(scores):
        return ", annotated"
    labels, confusion = scores["scores"]["confusion_labels"], scores["scores"]["confusion"]
    # Rows are reference classes, columns predicted ones.
    none = labels.index("none") if "none" in labels else None
    missed, extra = (0, 0) if none is None else (sum(row[none] for row in confusion), sum(confusion[none]))
    return f" ({missed:,} not detected, and {extra:,} detections that are no beat)"


def _class_rows(scores: Scores) -> list[list[str]]:
    methods = method_scores(scores)
    if "macro_auroc" in scores["scores"]:
        return _statement_rows(scores, methods)
    rows = [["class", "beats", "Se", "+P", "F1", *(f"F1, {name}" for name in methods if name != MODEL)]]
    for row in table_rows(scores):
        f1, se, ppv, _ = (_with_interval(each) if each else "" for each in row["own"])
        rows.append([row["name"], row["support"], se, ppv, f1, *(each.text for each in row["others"])])
    return rows


def _statement_rows(scores: Scores, methods: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    others = [block for name, block in methods.items() if name != MODEL]
    rows = [["statement", "recordings", "Se", "+P", "F1", "AUROC", *(f"AUROC, {name}" for name in list(methods)[1:])]]
    for row in table_rows(scores)[:-1]:
        f1, se, ppv, _ = (_with_interval(each) if each else "" for each in row["own"])
        areas = [Score.of(of_class(block, row["name"]).get("auroc")) for block in (scores["scores"], *others)]
        rows.append(
            [row["name"], row["support"], se, ppv, f1, _with_interval(areas[0]), *(each.text for each in areas[1:])]
        )
    for key, title in (
        ("macro_auroc", "mean"),
        ("superclass_auroc", "mean of superclasses"),
        ("challenge_2021", "metric of the Challenge 2021"),
    ):
        if key in scores["scores"]:
            own, *rest = (Score.of(block.get(key)) for block in (scores["scores"], *others))
            rows.append([title, "", "", "", "", _with_interval(own), *(each.text for each in rest)])
    return rows


def _binary_rows(scores: Scores) -> list[list[str]]:
    apart = {key: title for key, title in CALLED_VF.items() if key in scores["scores"]}
    rows = [[f"{scores['positive']}, by window", *MEASURES.values(), "threshold", *apart.values()]]
    for name, block in method_scores(scores).items():
        rows.append([name, *_cells(block, MEASURES), decimal(block["threshold"], 3), *_cells(block, apart)])
    rows += [[name, *_cells(block, MEASURES)] for name, block in _by_time(scores).items()]
    for flutter, methods_of in scores.get("flutter_counted", {}).items():
        rows.append([f"heartlm, flutter {flutter}", *_cells(methods_of["model"], MEASURES)])
    return rows


def _by_time(scores: Scores) -> dict[str, Scores]:
    return {key.replace("durations", "by time"): block for key, block in scores.items() if key.startswith("durations")}


def _episode_lines(scores: Scores) -> list[str]:
    lines = []
    for name, block in _by_time(scores).items():
        se, ppv, *delays = _cells(block, ("episode_se", "episode_ppv", *DELAYS))
        lines.append(
            f"  episodes{name.removeprefix('by time')}: {block['num_found']:,} of {block['num_reference']:,} found, "
            f"Se {se}; {block['num_confirmed']:,} of {block['num_predicted']:,} true, +P {ppv}; onset found "
            "after {} s (median), {} s (90th percentile), {} s (worst)".format(*delays)
        )
    return lines


def _cells(block: Scores, keys: Iterable[str]) -> list[str]:
    return [_with_interval(Score.of(block.get(key))) for key in keys]


def _with_interval(score: Score) -> str:
    return f"{score.text} ({score.interval})" if score.interval else score.text


def aligned(rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.rjust) -> list[str]:
    """Format rows as aligned lines: the first column left-aligned, the others by `justify`."""
    width = max(map(len, rows))
    full = [[*row, *[""] * (width - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(justify, row[1:], widths[1:])]).rstrip() for row in full]
