"""`heartlm scale`: how training time changes with the number of processes: measured, reported, predicted."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from heartlm.errors import HeartlmError

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "run": ("heartlm.cli.scale_run:run_study", "measure a grid of trainings; go on with one that was interrupted"),
    "report": (
        "heartlm.cli.scale_run:run_report",
        "speedup, efficiency and overhead of a study: a page, figures, tables",
    ),
    "predict": ("heartlm.cli.scale_predict:run_predict", "what other numbers of ranks and nodes would take"),
    "validate": ("heartlm.cli.scale_predict:run_validate", "predicted beside measured, for the cells of a study"),
    "hardware": ("heartlm.cli.scale_predict:run_hardware", "measure the links of this machine, or list known machines"),
}
"""Subcommands: where their function is, and what they do."""


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand of `heartlm scale`; return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] not in SUBCOMMANDS:
        raise HeartlmError(f"no command 'scale {arguments[0]}'; it is one of {', '.join(SUBCOMMANDS)}")
    module, _, function = SUBCOMMANDS[arguments[0]][0].partition(":")
    status: int = getattr(importlib.import_module(module), function)(arguments[1:])
    return status


def usage() -> str:
    """The text of `heartlm scale --help`."""
    lines = [
        "usage: heartlm scale COMMAND [options]        heartlm scale COMMAND --help  explains one, with examples",
        "",
        *(f"  {name:<10}{summary}" for name, (_, summary) in SUBCOMMANDS.items()),
    ]
    return "\n".join(lines)
