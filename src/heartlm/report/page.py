"""Page of a run: read the folder, arrange the values of the template, and write one self-contained HTML file.

The page contains its style and script and makes no network requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.report.charts import Series, line_chart
from heartlm.report.numbers import Score, count, decimal
from heartlm.report.render import render
from heartlm.report.scores import (
    block_of,
    confusion_rows,
    is_binary,
    key_scores,
    method_scores,
    patient_rows,
    score_rows,
    table_rows,
)
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import write_text

REPORT_NAME = "report.html"
SPLITS = ("train", "validation", "test", "excluded")


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page about the run folder `run` to `out`, by default `report.html` in the folder; return its path.

    Raises:
        HeartlmError: `run` is not a run folder, a file in it is unreadable, Jinja is not installed, or `out` cannot be
            written; an earlier page is then unchanged.
    """
    folder = RunFolder(run)
    try:
        page = render("page.html", **context(folder))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # the results have dozens of shapes, and only the page reads them
        raise HeartlmError(f"{run}: a result file holds something else than expected ({error!r})") from error
    return write_text(out or Path(run) / REPORT_NAME, page)


def context(folder: RunFolder) -> dict[str, Any]:
    """Return all values of the template."""
    run, corpora = folder.run_json, corpora_of(folder)
    manifests = [corpus.get("manifest") or {} for corpus in folder.corpora]
    commands = [corpus["manifest"].get("command") for corpus in corpora]
    commands += [each.run_json.get("command") for each in folder.lineage()]
    commands += [each.get("command") for each in reversed(folder.score_sets)]
    score_sets = [_score_set(each) for each in folder.score_sets]
    return {
        "path": str(folder.path),
        "name": str(run.get("name") or folder.path.name),
        "run": run,
        "lineage": [(each.run_json, database_names(each)) for each in folder.lineage()],
        "has_parent": folder.parent is not None,
        "elapsed_s": max(folder.curve("train", "elapsed_s")[1], default=None),
        "num_torn_lines": folder.num_torn_lines,
        "cards": key_scores(folder.score_sets[0]) if folder.score_sets else [],
        "corpora": corpora,
        "splits": SPLITS,
        "beat_classes": BEAT_CLASSES,
        "tokenizer": (tokenizer := next((each["tokenizer"] for each in manifests if each.get("tokenizer")), None)),
        "facets": facet_rows(folder, (tokenizer or {}).get("facets") or []),
        "figures": training_figures(folder),
        "score_sets": score_sets,
        "environment": folder.environment,
        "commands": list(dict.fromkeys([str(line) for line in commands if line] + [f"heartlm report {folder.path}"])),
        "config": folder.config_file.read_text("utf-8", errors="replace") if folder.config_file.is_file() else "",
    }


def database_names(folder: RunFolder) -> str:
    """Return the names of the databases on which a run was trained."""
    manifests = [corpus.get("manifest") or {} for corpus in folder.corpora]
    names = [str(each.get("name")) for manifest in manifests for each in manifest.get("databases") or []]
    return ", ".join(dict.fromkeys(names)) or "a corpus that data.json does not describe"


def corpora_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Describe each corpus of the run and its parents once, identified by path and tokenizer."""
    described: dict[tuple[str, str], dict[str, Any]] = {}
    for run in folder.lineage():
        for corpus in run.corpora:
            manifest = corpus.get("manifest") or {}
            path, databases = str(corpus.get("path", "")), manifest.get("databases") or []
            counts = {key: _by_split(databases, key) for key in ("beats_per_class", "rhythms")}
            entry = {"path": path, "used_by": [], "manifest": manifest, "databases": databases, **counts}
            entry = described.setdefault((path, str((manifest.get("tokenizer") or {}).get("hash"))), entry)
            entry["used_by"].append("pretraining" if run.run_json.get("kind") == "pretrain" else "fine-tuning")
    return list(described.values())


def _by_split(databases: Sequence[Mapping[str, Any]], key: str) -> dict[str, Counter[str]]:
    """Count labels over databases, for each non-empty split."""
    by_split = {split: Counter[str]() for split in SPLITS}
    for database in databases:
        for split, counts in (database.get("splits") or {}).items():
            known = {name: number for name, number in (counts.get(key) or {}).items() if number}
            by_split.setdefault(split, Counter()).update(known)
    return {split: counts for split, counts in by_split.items() if counts}


def facet_rows(folder: RunFolder, facets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per facet: its last validation loss in pretraining and `ln(size)`, the loss of a uniform guess.

    `gain` is the fraction of that loss that the model has removed, 0 to 1, or None without a loss.
    """
    pretraining = next((run for run in folder.lineage() if run.run_json.get("kind") == "pretrain"), folder)
    rows = []
    for facet in facets:
        losses, guess = pretraining.curve("validation", f"loss/{facet['name']}")[1], math.log(facet["size"])
        loss = losses[-1] if losses else None
        gain = min(max(1 - loss / guess, 0.0), 1.0) if loss is not None and guess else None
        rows.append({**facet, "loss": loss, "guess": guess, "gain": gain})
    return rows


def training_figures(folder: RunFolder) -> list[dict[str, Any]]:
    """Return loss and F1 with captions for the run and its parents, the oldest first; empty charts are omitted."""
    figures = []
    for run in folder.lineage():
        kind = "Pretraining" if run.run_json.get("kind") == "pretrain" else "Fine-tuning"
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
        figures.append((f"{kind}: loss", caption, line_chart(series, title="loss, nats per token")))
        macro = run.curve("validation", "macro_f1")
        caption = (
            f"Highest macro F1: {decimal(max(macro[1], default=None), 3)}, which is no score of the test split. "
            "A class that stays at the bottom was not learnt; one that jumps about has few beats."
        )
        curves = {name: run.curve("validation", f"f1_{name}") for name in BEAT_CLASSES}
        series = [Series(name, *curve, f"class-{name}", dots=True) for name, curve in curves.items()]
        chart = line_chart([*series, Series("macro", *macro, "accent")], title="F1", from_zero=True)
        figures.append((f"{kind}: F1 on the validation patients", caption, chart))
    return [{"title": title, "caption": caption, "drawing": drawing} for title, caption, drawing in figures if drawing]


def _score_set(scores: Mapping[str, Any]) -> dict[str, Any]:
    block, methods = block_of(scores), list(method_scores(scores))
    is_beats = not is_binary(scores)
    return {
        "scores": scores,
        "block": block,
        "is_beats": is_beats,
        "on": str(scores.get("on") or "a corpus").rstrip("/").rsplit("/", 1)[-1],
        "methods": methods,
        "missing": [name for name, baseline in (scores.get("baselines") or {}).items() if not baseline],
        "table": table_rows(scores) if is_beats else [],
        "rows": score_rows(scores),
        "confusion": confusion_rows(block),
        "patients": patient_rows(block),
        "durations": [(key, Score.of(each)) for key, each in (scores.get("durations") or {}).items()],
    }
