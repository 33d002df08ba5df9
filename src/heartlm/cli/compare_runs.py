"""`heartlm compare-runs`: compare trained runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cli.options import check_out, parse
from heartlm.errors import require
from heartlm.models.pretrained import find_run


@dataclass
class CompareRunsOptions:
    """Options of `heartlm compare-runs`.

    Attributes:
        runs: two run folders or more, or names of shipped models; each is compared with the first.
        out: also write an HTML page with the curves of the losses to this file.
        json: print JSON instead of tables.
        bootstrap: number of bootstrap resamples of patients for the confidence intervals.
        seed: random seed of the confidence intervals.
    """

    runs: list[Path]
    out: Path | None = None
    json: bool = False
    bootstrap: int = 1000
    seed: int = 0


def run(arguments: Sequence[str]) -> int:
    """Compare runs: settings that differ, losses, and scores with intervals of the difference.

    Scores are compared where all runs were evaluated under one name, on the recordings that all have predictions of.
    Intervals are over patients, each resample with the same patients for both models.

    Examples:
        heartlm compare-runs runs/beats runs/scratch
        heartlm compare-runs runs/five runs/five-deeper --out comparison.html
        heartlm compare-runs runs/a runs/b runs/c --json
    """
    options = parse(CompareRunsOptions, arguments, "compare-runs", run, positionals=["runs"])
    require(options, lambda value: value >= 1, "at least 1", "bootstrap")
    require(options, lambda value: 0 <= value < 2**31, "0 to 2147483647", "seed")
    check_out(options.out, ending=".html")
    from heartlm.evaluation.bootstrap import Resampling
    from heartlm.runs.run_folder import RunFolder
    from heartlm.tasks.compare_runs import check_comparable, compare_runs

    check_comparable(options.runs)
    runs = [RunFolder(find_run(path)) for path in options.runs]
    result = compare_runs(runs, Resampling(options.bootstrap, options.seed))
    print(json.dumps(result) if options.json else "\n".join(_lines(result)))
    if options.out is not None:
        from heartlm.report.runs import write_comparison

        page = write_comparison(runs, result, options.out)
        if not options.json:
            print(f"wrote {page}")
    return 0


def _lines(result: dict[str, Any]) -> list[str]:
    """Return the comparison as text; runs are called A, B, …"""
    from heartlm.cli.score_table import aligned
    from heartlm.report.runs import difference, letters, setting

    names, widest = letters(len(result["runs"])), 44

    def shown(value: Any) -> str:
        text = setting(value)
        return text if len(text) <= widest else f"{text[: widest - 1]}…"

    lines = [f"{name}  {each['path']}" for name, each in zip(names, result["runs"], strict=True)]
    for title, key in (("settings that differ", "setting"), ("losses", "loss")):
        rows = [[row[key], *map(shown, row["values"])] for row in result["losses" if key == "loss" else "settings"]]
        lines += ["", *(aligned([[title, *names], *rows]) if rows else [f"  {title}: none"])]
    for each in result["scores"]:
        shared = f"{each['num_recordings']} recordings of {each['num_patients']} patients"
        lines += ["", f"{each['name']}, task {each['task']}, {shared}"]
        if each["num_recordings_not_shared"]:
            lines.append(f"  {each['num_recordings_not_shared']} other recordings are not in all of them")
        if each["windows"]:
            lines.append(f"  windows differ: {', '.join(map(str, each['windows']))} beats")
        rows = [["score", *names, *(f"{name} − A, 95 % interval" for name in names[1:])]]
        for row in each["rows"]:
            rows.append([row["score"], *(setting(value["value"]) for value in row["values"])])
            rows[-1] += map(difference, row["differences"][1:])
        lines += aligned(rows)
    return [*lines, *(f"note: {note}" for note in result["notes"])]
