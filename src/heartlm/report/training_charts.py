"""Charts of the training: curves of the run and its parent, and the loss reduction of each token facet."""

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
    """Return drawings with captions for the run and its parents, the oldest first; empty drawings are omitted."""
    figures = []

    def add(name: str, caption: str, series: Sequence[Series], **axes: Any) -> None:
        if drawing := line_chart(series, **axes):
            figures.append({"title": name, "caption": caption, "drawing": drawing})

    for run in folder.lineage():
        kind = KINDS.get(str(run.run_json.get("kind")), "Training")
        steps, losses = run.curve("validation", "loss")
        caption = "Grey is the loss of the training batches."
        if losses:
            lowest = losses.index(min(losses))
            caption = (
                f"Lowest on the validation patients: {decimal(losses[lowest], 3)} at step {count(steps[lowest])}. "
                "Blue rising while grey falls would mean that the model memorises its patients."
            )
        series = [Series("training", *run.curve("train", "loss"), "grey-3")]
        series.append(Series("validation", steps, losses, "accent", dots=True))
        add(f"{kind}: loss", caption, series, title="loss", unit="nats per token", log=True)
        macro = run.curve("validation", "macro_f1")
        caption = (
            f"Highest macro F1: {decimal(max(macro[1], default=None), 3)}, which is no score of the test split. "
            "A class that stays at the bottom was not learnt; one that jumps about has few beats."
        )
        curves = {name: run.curve("validation", f"f1_{name}") for name in BEAT_CLASSES}
        series = [Series(name, *curve, f"class-{name}", dots=True) for name, curve in curves.items()]
        series.append(Series("macro", *macro, "accent"))
        add(f"{kind}: F1 on the validation patients", caption, series, title="F1", from_zero=True)
    steps, rates = folder.curve("train", "learning_rate")
    caption = f"Warm-up to {significant(max(rates, default=None), 2)}, then decay."
    add("Learning rate", caption, [Series("", steps, rates)], title="learning rate", from_zero=True)
    steps, speeds = folder.curve("train", "tokens_per_s")
    median = sorted(speeds)[len(speeds) // 2] if speeds else None
    caption = (
        f"Median {count(median)} tokens a second on {folder.environment.get('device') or 'this machine'}; "
        "dips are evaluations, checkpoints or a busy machine."
    )
    add("Throughput", caption, [Series("", steps, speeds)], title="tokens per second", from_zero=True)
    return figures


def training_facts(folder: RunFolder) -> list[tuple[str, str]]:
    """Return facts about the run as pairs of name and value."""
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
    """Return one row per facet: its last validation loss in pretraining and `ln(size)`, the loss of a uniform guess.

    `gain` is the fraction of that loss that the model has removed, 0 to 1, or None without a loss.
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
