"""`heartlm scale`: measure, report and predict how training time changes with the number of processes."""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.cli.subcommands import Subcommands, run_subcommand

_STUDY = "heartlm.extensions.scaling.commands.study"
_PREDICT = "heartlm.extensions.scaling.commands.predict"

SUBCOMMANDS: Subcommands = {
    "run": (
        f"{_STUDY}:run_study",
        "measure a grid of trainings; continue with one that was interrupted",
    ),
    "report": (
        f"{_STUDY}:run_report",
        "speedup, efficiency and overhead of a study: a page, figures, tables",
    ),
    "predict": (
        f"{_PREDICT}:run_predict",
        "what other numbers of ranks and nodes would take",
    ),
    "validate": (
        f"{_PREDICT}:run_validate",
        "predicted next to measured, for the cells of a study",
    ),
    "hardware": (f"{_PREDICT}:run_hardware", "measure an all-reduce on this machine"),
}


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand of `heartlm scale` and return the exit status."""
    return run_subcommand("scale", SUBCOMMANDS, arguments)
