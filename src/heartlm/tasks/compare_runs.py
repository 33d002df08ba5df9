"""Comparison of runs: settings that differ, losses, and scores of the same recordings with intervals of the difference.

    runs ─► settings, losses
        └► predictions of the same recordings ─► scores in the same resamples of patients ─► differences, with intervals

Patients differ more from each other than models do. Both models of a pair are therefore scored in the same resamples:
the interval of the difference is narrower than those of the two scores suggest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import Estimate, Resampling, estimate
from heartlm.evaluation.results import Predictions
from heartlm.models.pretrained import is_shipped, shipped_name
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.reading import read_json
from heartlm.tasks.task import task_of

UNCOMPARED = ("out", "resume")
"""Settings of places, in which all runs differ."""
ENVIRONMENT = ("heartlm", "torch", "device", "num_ranks", "git_revision")


def compare_runs(runs: Sequence[RunFolder], resampling: Resampling) -> dict[str, Any]:
    """Compare each run with the first one.

    Args:
        runs: two or more runs.
        resampling: settings of the intervals.

    Returns:
        JSON values: `runs`; `settings`, a row for each that differs, with `values` by run; `losses`, likewise;
        `scores`, an entry for each name of scores that all runs have: `rows` with `values` and `differences` from the
        first run, both with intervals, and the number of recordings and patients that all share; `notes`.

    Raises:
        HeartlmError: a folder is no run, or a file cannot be read.
    """
    notes = list[str]()
    settings = [dict(_settings(run)) for run in runs]
    names = list(dict.fromkeys(name for each in settings for name in each))
    rows = [{"setting": name, "values": [each.get(name) for each in settings]} for name in names]
    scores = [{path.parent.name: path.parent for path in run.scores.glob("*/predictions.parquet")} for run in runs]
    shared = sorted(set.intersection(*map(set, scores)))
    if not shared:
        known = "; ".join(
            f"{run.path.name} has {', '.join(sorted(each)) or 'none'}" for run, each in zip(runs, scores, strict=True)
        )
        notes.append(f"no scores of the same name in all runs ({known}): evaluate them on the same recordings")
    compared = [(name, _compared_scores([each[name] for each in scores], resampling)) for name in shared]
    notes += [f"{name}: {result}" for name, result in compared if isinstance(result, str)]
    return {
        "runs": [_about(run) for run in runs],
        "settings": [row for row in rows if any(value != row["values"][0] for value in row["values"])],
        "losses": _losses(runs),
        "scores": [{"name": name, **result} for name, result in compared if not isinstance(result, str)],
        "num_bootstrap": resampling.num_bootstrap,
        "seed": resampling.seed,
        "notes": notes,
    }


def _about(run: RunFolder) -> dict[str, Any]:
    kept = ("kind", "task", "objective", "num_parameters", "steps", "finished", "command")
    about = {key: run.about.get(key) for key in kept}
    return {"path": shipped_name(run.path) if is_shipped(run.path) else str(run.path), "name": run.path.name, **about}


def _settings(run: RunFolder) -> Iterator[tuple[str, Any]]:
    about = run.run_json
    yield from ((key, about.get(key)) for key in ("kind", "parent", "from_scratch", "num_parameters"))
    if run.config_file.is_file():
        yield from ((key, value) for key, value in run.settings.items() if key not in UNCOMPARED)
    for corpus in run.corpora[:1]:
        manifest = corpus.get("manifest") or {}
        databases = ", ".join(str(each.get("name")) for each in manifest.get("databases") or [])
        yield "databases", databases
        yield "tokenizer", "{kind} {hash:.12}".format(**manifest["tokenizer"]) if "tokenizer" in manifest else None
        yield "data", str(about.get("manifest_hash"))[:12]
    yield from ((key, run.environment[key]) for key in ENVIRONMENT if key in run.environment)


def _losses(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the last training loss, and the last and the lowest validation loss with its step, by run."""
    training = [run.curve("train", "loss") for run in runs]
    validation = [run.curve("validation", "loss") for run in runs]
    rows: dict[str, list[float | None]] = {
        "training, last": [losses[-1] if losses else None for _, losses in training],
        "validation, last": [losses[-1] if losses else None for _, losses in validation],
        "validation, lowest": [min(losses, default=None) for _, losses in validation],
        "step of the lowest": [
            round(steps[losses.index(min(losses))]) if losses else None for steps, losses in validation
        ],
    }
    return [
        {"loss": name, "values": values} for name, values in rows.items() if any(each is not None for each in values)
    ]


def _compared_scores(folders: Sequence[Path], resampling: Resampling) -> dict[str, Any] | str:
    """Return scores of the recordings and patients that all have, or the reason why there are none."""
    contents = [read_json(folder / "scores.json", dict[str, Any]) for folder in folders]
    tables = [Predictions.read(folder) for folder in folders]
    for field in ("task", "positive"):
        if len(values := {str(each.get(field)) for each in contents}) > 1:
            return f"{field} differs: {', '.join(sorted(values))}"
    classes = tuple(name for name in tables[0].classes if all(name in each.classes for each in tables))
    records = set.intersection(*({*each.records} for each in tables))
    # A patient counts if every table has a reference of it, so that each resample has the same patients in all.
    patients = set.intersection(*({*each.patients[each.columns["reference"] != None]} for each in tables))  # noqa: E711
    if not records or not patients or not classes:
        return "they have no recording, patient or class in common"
    chosen = [
        each.of_classes(classes).chosen(np.isin(each.records, [*records]) & np.isin(each.patients, [*patients]))
        for each in tables
    ]
    task = task_of(contents[0]["task"])
    scores = [
        dict(_estimates(task.score_predictions(table, [content], resampling)))
        for table, content in zip(chosen, contents, strict=True)
    ]
    first = scores[0]
    rows = [
        {
            "score": name,
            "values": [each[name] for each in scores],
            "differences": [None, *(_difference(each[name], first[name], len(patients)) for each in scores[1:])],
        }
        for name in first
        if all(name in each for each in scores)
    ]
    windows, shared = [each.get("window") for each in contents], {*chosen[0].records}
    return {
        "task": contents[0]["task"],
        "num_recordings": len(shared),
        "num_patients": len({*chosen[0].patients}),
        "num_recordings_not_shared": len(set.union(*({*each.records} for each in tables)) - shared),
        "windows": windows if len({*windows}) > 1 else None,
        "rows": rows,
    }


def _difference(one: Estimate, other: Estimate, num_patients: int) -> Estimate:
    """Return `one` less `other`, with the interval of the difference in the same resamples."""
    values = one["value"], other["value"]
    value = np.nan if None in values else values[0] - values[1]
    return estimate(value, one.drawn - other.drawn, num_patients)


def _estimates(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Estimate]]:
    """Yield all scores with resamples, by name; those of classes as `V f1`."""
    for name, part in block.items():
        if isinstance(part, Estimate):
            yield f"{prefix}{name}", part
        elif isinstance(part, Mapping):
            yield from _estimates(part, prefix if name == "per_class" else f"{prefix}{name} ")


def check_comparable(runs: Sequence[Path]) -> None:
    """Raise a HeartlmError unless there are two different runs or more."""
    if len({path.resolve() for path in runs}) < max(2, len(runs)):
        raise HeartlmError(f"runs: {' '.join(map(str, runs))} found, two different runs or more expected")
