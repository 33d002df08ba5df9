"""Content of a `scores.json`, arranged for tables and charts: rows are scores, columns are methods.

The first method is always the model; the baselines follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heartlm.report.numbers import Score, count

MODEL = "this model"

MEASURES = {"se": "Se", "sp": "Sp", "ppv": "+P", "f1": "F1", "accuracy": "accuracy", "auroc": "AUROC"}
"""Scores of a binary task in display order, with their names."""

Block = Mapping[str, Any]


def block_of(scores: Mapping[str, Any]) -> Block:
    """Return the model's own block of scores, or an empty one."""
    block = scores.get("scores")
    return block if isinstance(block, Mapping) else {}


def is_binary(scores: Mapping[str, Any]) -> bool:
    """Return whether the scores are of one class against all others; otherwise each class has its own."""
    return "f1" in block_of(scores)


def method_scores(scores: Mapping[str, Any]) -> dict[str, Block]:
    """Return the blocks by method, the model first; baselines that were not computed are omitted."""
    blocks = scores.get("baselines") or {}
    return {MODEL: block_of(scores)} | {name: block for name, block in blocks.items() if isinstance(block, Mapping)}


def of_class(block: Block, name: str) -> Block:
    """Return the measures and the number of beats of one class."""
    return (block.get("per_class") or {}).get(name) or {}


def score_rows(scores: Mapping[str, Any]) -> dict[str, dict[str, Score]]:
    """Return the scores of the chart, by row and method: F1 by class for beats, every measure for rhythm."""
    methods = method_scores(scores)
    if is_binary(scores):
        return {
            title: {method: Score.of(block.get(key)) for method, block in methods.items()}
            for key, title in MEASURES.items()
        }
    rows = {"macro F1": {method: Score.of(block.get("macro_f1")) for method, block in methods.items()}}
    for name in block_of(scores).get("classes") or []:
        rows[f"{name} F1"] = {method: Score.of(of_class(block, name).get("f1")) for method, block in methods.items()}
    return rows


def key_scores(scores: Mapping[str, Any]) -> list[tuple[str, Score, str]]:
    """Return the scores at the head of the page: name, score, and the best baseline with its score."""
    block, rows, cards = block_of(scores), score_rows(scores), list[tuple[str, Score, str]]()
    names = ["macro F1", *(f"{name} F1" for name in "VSF" if of_class(block, name).get("support"))]
    for name in ("F1", "Se", "Sp", "+P", "AUROC") if is_binary(scores) else names:
        own, *others = (rows.get(name) or {MODEL: Score()}).items()
        known = [(score.value, f"{method} {score.text}") for method, score in others if score.value is not None]
        cards.append((name, own[1], max(known, default=(0.0, ""))[1]))
    return cards


def table_rows(scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per class for the table of beat scores: beats, F1, Se, +P, Sp, and the F1 of the other methods."""
    own, *others = method_scores(scores).values()
    rows = [
        {
            "name": name,
            "support": count(of_class(own, name).get("support")),
            "own": [Score.of(of_class(own, name).get(measure)) for measure in ("f1", "se", "ppv", "sp")],
            "others": [Score.of(of_class(each, name).get("f1")) for each in others],
        }
        for name in own.get("classes") or []
    ]
    macro = [Score.of(each.get("macro_f1")) for each in (own, *others)]
    total = {"name": "macro", "support": count(own.get("num_beats"))}
    return [*rows, {**total, "own": [macro[0], None, None, None], "others": macro[1:]}]


def confusion_rows(block: Block) -> list[tuple[str, int, list[tuple[str, int, float]]]]:
    """Return one row per reference class: its name, its beats, and name, beats and row fraction of each prediction.

    The result is empty without a confusion matrix that fits the labels.
    """
    matrix = block.get("confusion") or []
    labels = block.get("confusion_labels") or block.get("classes") or []
    if [len(row) for row in matrix] != [len(labels)] * len(labels):
        return []
    rows = []
    for name, row in zip(labels, matrix, strict=True):
        cells = [(answer, number, number / max(sum(row), 1)) for answer, number in zip(labels, row, strict=True)]
        rows.append((name, sum(row), cells))
    return rows


def patient_rows(block: Block) -> list[tuple[str, int, list[float | None]]]:
    """Return one row per patient, most wrong beats first: name, wrong beats, F1 of each class or None.

    Names are without the database if all patients are of one.
    """
    labels, patients = block.get("confusion_labels") or block.get("classes") or [], block.get("per_patient") or []
    names = [str(patient.get("patient", "")).rpartition("/") for patient in patients]
    of_one_database = len({database for database, _, _ in names}) == 1
    rows = []
    for patient, parts in zip(patients, names, strict=True):
        matrix, f1 = patient.get("confusion") or [], patient.get("f1") or {}
        wrong = sum(number for i, row in enumerate(matrix) for j, number in enumerate(row) if i != j)
        beats = dict(zip(labels, map(sum, matrix), strict=False))
        name = parts[2] if of_one_database else "".join(parts)
        rows.append((name, wrong, [f1.get(label) if beats.get(label) else None for label in labels]))
    return sorted(rows, key=lambda row: row[1], reverse=True)
