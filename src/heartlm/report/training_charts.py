"""The course of training: curves of this run and of its parent, and what each facet of a token has become worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.report.line_chart import Series, line_chart
from heartlm.report.numbers import count, decimal, duration, significant
from heartlm.runs.run_folder import RunFolder
from heartlm.typed import is_number

KINDS = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}


def training_figures(folder: RunFolder) -> list[dict[str, Any]]:
    """Return drawings with captions for the run and its parents, the eldest first, without empty ones."""
    figures = []
    for run in folder.lineage():
        kind = KINDS.get(str(run.run_json.get("kind")), "Training")
        figures += [_loss_figure(run, kind), _f1_figure(run, kind)]
    figures += [_rate_figure(folder), _speed_figure(folder)]
    return [figure for figure in figures if figure["drawing"] is not None]


def _loss_figure(folder: RunFolder, kind: str) -> dict[str, Any]:
    series = [
        Series("training", *folder.curve("train", "loss"), "grey-3"),
        Series("validation", *folder.curve("validation", "loss"), "accent", dots=True),
    ]
    steps, losses = series[1].steps, series[1].values
    caption = "Grey is the loss of the training batches."
    if losses:
        lowest = losses.index(min(losses))
        caption = (
            f"Lowest on the validation patients: {decimal(losses[lowest], 3)} at step {count(steps[lowest])}. "
            "Blue rising while grey falls would mean that the model memorises its patients."
        )
    return {
        "title": f"{kind}: loss",
        "caption": caption,
        "drawing": line_chart(series, title="loss", unit="nats per token", log=True),
    }


def _f1_figure(folder: RunFolder, kind: str) -> dict[str, Any]:
    series = [
        Series(name, *folder.curve("validation", f"f1_{name}"), f"class-{name}", dots=True) for name in BEAT_CLASSES
    ]
    series.append(Series("macro", *folder.curve("validation", "macro_f1"), "accent"))
    return {
        "title": f"{kind}: F1 on the validation patients",
        "caption": "A class that stays at the bottom was not learnt; one that jumps about has few beats.",
        "drawing": line_chart(series, title="F1", from_zero=True),
    }


def _rate_figure(folder: RunFolder) -> dict[str, Any]:
    series = [Series("", *folder.curve("train", "learning_rate"), "accent")]
    peak = max(series[0].values, default=None)
    return {
        "title": "Learning rate",
        "caption": f"Warm-up to {significant(peak, 2)}, then decay.",
        "drawing": line_chart(series, title="learning rate", from_zero=True),
    }


def _speed_figure(folder: RunFolder) -> dict[str, Any]:
    series = [Series("", *folder.curve("train", "tokens_per_s"), "accent")]
    speeds = sorted(series[0].values)
    median = speeds[len(speeds) // 2] if speeds else None
    return {
        "title": "Throughput",
        "caption": f"Median {count(median)} tokens a second on {folder.environment.get('device') or 'this machine'}; "
        "dips are evaluations, checkpoints or a busy machine.",
        "drawing": line_chart(series, title="tokens per second", from_zero=True),
    }


def training_facts(folder: RunFolder) -> list[tuple[str, str]]:
    """Return what there is to say about the run in pairs of name and value."""
    run = folder.run_json
    _, elapsed = folder.curve("train", "elapsed_s")
    facts = [
        ("parameters", count(run.get("num_parameters"))),
        ("steps", count(run.get("steps"))),
        ("objective", str(run.get("objective") or run.get("task") or "–")),
        ("started from", "random weights" if folder.parent is None and not run.get("parent") else _parent_name(folder)),
        ("time in training", duration(elapsed[-1] if elapsed else None)),
        ("started", str(run.get("created") or "–")),
        ("finished", str(run.get("finished") or "not finished")),
    ]
    if folder.num_torn_lines:
        facts.append(("unreadable lines in metrics.jsonl", count(folder.num_torn_lines)))
    return facts


def _parent_name(folder: RunFolder) -> str:
    if folder.run_json.get("from_scratch"):
        return "random weights"
    missing = "" if folder.parent else " (not found here, so its curves are missing)"
    return f"{folder.run_json.get('parent')}{missing}"


def facet_losses(folder: RunFolder, facets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row a facet: its last validation loss in pretraining next to `ln(size)`, the loss of a blind guess.

    `gain` is the share of that guess's loss which the model has removed, 0 to 1, or None without a loss.
    """
    pretraining = next((run for run in folder.lineage() if run.run_json.get("kind") == "pretrain"), folder)
    rows = []
    for facet in facets:
        name, size = str(facet.get("name", "–")), facet.get("size")
        _, losses = pretraining.curve("validation", f"loss/{name}")
        guess = math.log(size) if is_number(size) and size > 1 else None
        rows.append(
            {
                "name": name,
                "size": count(size),
                "causal": facet.get("causal"),
                "guess": decimal(guess, 2),
                "loss": decimal(losses[-1] if losses else None, 2),
                "gain": min(max(1 - losses[-1] / guess, 0.0), 1.0) if losses and guess else None,
            }
        )
    return rows
