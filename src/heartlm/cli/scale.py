"""`heartlm scale`: measure, report and predict how training time changes with the number of processes."""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.cli.subcommands import Subcommands, run_subcommand

SUBCOMMANDS: Subcommands = {
    "run": ("heartlm.cli.scale_run:run_study", "measure a grid of trainings; continue with one that was interrupted"),
    "report": (
        "heartlm.cli.scale_run:run_report",
        "speedup, efficiency and overhead of a study: a page, figures, tables",
    ),
    "predict": ("heartlm.cli.scale_predict:run_predict", "what other numbers of ranks and nodes would take"),
    "validate": ("heartlm.cli.scale_predict:run_validate", "predicted next to measured, for the cells of a study"),
    "hardware": ("heartlm.cli.scale_predict:run_hardware", "measure an all-reduce on this machine"),
}


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand of `heartlm scale` and return the exit status."""
    return run_subcommand("scale", SUBCOMMANDS, arguments)
