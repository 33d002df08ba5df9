"""Pictures of scores: intervals of the model next to its baselines, confusion matrix, patients one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from heartlm.report.numbers import Score, count, percent
from heartlm.report.svg import Markup, Scale, drawing, group, line, rectangle, tag, text, x_grid
from heartlm.typed import is_number

WIDTH = 400
MAX_PATIENTS = 60
"""The most patients that a page shows: those with the most wrong beats."""

ROW = 15
ROOMY_CELL = 46.0
"""In a cell of the confusion matrix narrower than this the numbers are set smaller."""

MARKS = ("accent", "grey-1", "grey-2", "grey-3", "grey-4")


def forest_chart(rows: Mapping[str, Mapping[str, Score]], *, label: str) -> Markup | None:
    """Draw scores between 0 and 1 with their intervals.

    Args:
        rows: for each row, such as a beat class, the scores by method; the first method is the model.
        label: what is drawn, for screen readers.

    Returns:
        The drawing, or None when no row has a score.
    """
    methods = list(dict.fromkeys(method for row in rows.values() for method in row))
    if not any(score.value is not None for row in rows.values() for score in row.values()):
        return None
    top, gap = 18 + 16 * math.ceil(len(methods) / 2), 12
    pitch = ROW * len(methods) + gap
    height = top + pitch * len(rows) + 24
    x = Scale(0, 1, 76, WIDTH - 14)
    parts = [x_grid(x, top - 6, height - 22)]
    for place, method in enumerate(methods):
        left, upper = 12 + 196 * (place % 2), 10 + 16 * (place // 2)
        parts += [_mark(left, upper, place), text(left + 11, upper + 4, method, class_="tick")]
    for number, (name, row) in enumerate(rows.items()):
        y = top + number * pitch
        parts.append(text(64, y + pitch / 2, name, class_="row-label", text_anchor="end"))
        if number:
            parts.append(line(8, y - 1, WIDTH - 14, y - 1, class_="grid"))
        parts += [
            _interval(row[method], x, y + gap / 2 + ROW * (0.5 + place), place, f"{name}, {method}")
            for place, method in enumerate(methods)
            if method in row
        ]
    return drawing(WIDTH, height, label, *parts)


def _interval(score: Score, x: Scale, y: float, place: int, name: str) -> Markup:
    if score.value is None:
        return text(x.first + 4, y + 4, "–", class_="tick")
    parts = [tag("title", f"{name}: {score.text} {score.interval and f'({score.interval})'}".strip())]
    if score.low is not None and score.high is not None:
        parts.append(line(x(score.low), y, x(score.high), y, class_=f"whisker stroke-{MARKS[place % len(MARKS)]}"))
    parts.append(_mark(x(score.value), y, place))
    return group(*parts)


def _mark(x: float, y: float, place: int) -> Markup:
    """The model is a filled disc; baselines are grey, each of another shape."""
    colour = MARKS[place % len(MARKS)]
    if place % 4 == 0:
        return tag("circle", cx=x, cy=y, r=4.5, class_=f"fill-{colour}")
    if place % 4 == 1:
        return rectangle(x - 3.4, y - 3.4, 6.8, 6.8, class_=f"fill-{colour}")
    corners = ((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)) if place % 4 == 2 else ((-4.4, 3.6), (4.4, 3.6), (0, -4.4))
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return tag("polygon", points=points, class_=f"fill-{colour}")


def confusion_chart(block: Mapping[str, Any]) -> Markup | None:
    """Draw the confusion matrix of a block of scores, rows the reference, shaded by share of the row; None without."""
    matrix = block.get("confusion") or []
    labels = block.get("confusion_labels") or block.get("classes") or []
    size = len(labels)
    if not size or [len(row) for row in matrix] != [size] * size:
        return None
    left, top, cell = 64, 44, min(64.0, (WIDTH - 64 - 60) / size)
    parts = [
        text(left, 12, "the model says", class_="axis-title"),
        text(0, 12, "reference", class_="axis-title"),
        text(left + size * cell + 10, 34, "beats", class_="tick"),
    ]
    for i, (name, row) in enumerate(zip(labels, matrix, strict=True)):
        middle, total = top + (i + 0.5) * cell, sum(row)
        parts.append(text(left + (i + 0.5) * cell, 34, name, class_=f"class-label class-{name}", text_anchor="middle"))
        parts.append(text(left - 14, middle + 5, name, class_=f"class-label class-{name}", text_anchor="end"))
        parts.append(text(left + size * cell + 10, middle + 4, count(total), class_="tick"))
        for j, number in enumerate(row):
            share, right = number / total if total else 0.0, i == j
            x, y = left + j * cell, top + i * cell
            words = "on-shade" if share > (0.5 if right else 0.75) else "number"
            words += " dense" if cell < ROOMY_CELL else ""
            box = (x + 1, y + 1, cell - 2, cell - 2)
            shade, told = "cell-right" if right else "cell-wrong", percent(share) if total else ""
            place = (x + cell / 2, y + cell / 2)
            parts.append(
                group(
                    tag("title", f"{name} called {labels[j]}: {count(number)} beats, {percent(share)}"),
                    rectangle(*box, rx=3, class_="cell"),
                    rectangle(*box, rx=3, class_=shade, fill_opacity=share),
                    text(*place, count(number), class_=words, text_anchor="middle"),
                    text(place[0], place[1] + 14, told, class_=f"{words} small", text_anchor="middle"),
                )
            )
    return drawing(WIDTH, top + size * cell + 8, "confusion matrix", *parts)


def num_wrong(patient: Mapping[str, Any]) -> int:
    """Count a patient's beats that lie off the diagonal of the confusion matrix."""
    matrix = patient.get("confusion") or []
    return int(sum(number for i, row in enumerate(matrix) for j, number in enumerate(row) if i != j))


def worst_first(patients: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort patients by wrong beats, most first, and keep the first `MAX_PATIENTS`."""
    return sorted(patients, key=num_wrong, reverse=True)[:MAX_PATIENTS]


def patients_chart(block: Mapping[str, Any]) -> Markup | None:
    """Draw a row a patient: F1 by class as discs, their areas following the beats, and wrong beats as a bar."""
    rows = worst_first(block.get("per_patient") or [])
    classes = block.get("confusion_labels") or block.get("classes") or []
    if not rows:
        return None
    pitch, top = 21, 34
    height = top + pitch * len(rows) + 26
    x = Scale(0, 1, 58, 292)
    most_wrong = max(*(num_wrong(each) for each in rows), 1)
    parts = [
        text(x.first, 12, "F1 in this patient", class_="axis-title"),
        text(312, 12, "wrong beats", class_="axis-title"),
        x_grid(x, top - 10, height - 22),
    ]
    for number, patient in enumerate(rows):
        y, wrong = top + pitch * (number + 0.5), num_wrong(patient)
        name = str(patient.get("patient", "")).rpartition("/")[2]  # the database is the same for most
        parts.append(text(48, y + 4, name[-8:], class_="tick", text_anchor="end"))
        parts.append(line(x.first, y, x.last, y, class_="grid"))
        parts += _patient_discs(patient, classes, x, y)
        parts.append(rectangle(312, y - 5, 44 * wrong / most_wrong, 10, class_="fill-grey-2"))
        parts.append(text(316 + 44 * wrong / most_wrong, y + 4, count(wrong), class_="tick"))
    return drawing(WIDTH, height, "F1 of each class, patient by patient", *parts)


def _patient_discs(patient: Mapping[str, Any], classes: Sequence[str], x: Scale, y: float) -> list[Markup]:
    support = {name: sum(row) for name, row in zip(classes, patient.get("confusion") or [], strict=False)}
    f1 = patient.get("f1") or {}
    most = max(support.values(), default=0)
    discs = []
    for name in sorted(support, key=lambda each: support[each], reverse=True):
        if not support[name] or not is_number(f1.get(name)):
            continue
        hover = tag("title", f"{patient.get('patient')}: {name} F1 {f1[name]:.3f}, {count(support[name])} beats")
        radius = 3.2 + 5 * math.sqrt(support[name] / most)
        discs.append(tag("circle", hover, cx=x(f1[name]), cy=y, r=radius, class_=f"disc class-{name}"))
    return discs
