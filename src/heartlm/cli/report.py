"""`heartlm report`: one self-contained HTML page about a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse


@dataclass
class ReportOptions:
    """Which run to report, and where to.

    Attributes:
        run: the run folder, as pretrain or finetune wrote it.
        out: the HTML file to write; report.html in the run folder if not given.
    """

    run: Path
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Write the page and print where it is."""
    options = parse(
        ReportOptions,
        arguments,
        command="report",
        summary="Write one self-contained HTML page about a run: data, tokens, training, scores, strips.",
        examples=["heartlm report runs/beats", "heartlm report runs/beats --out beats.html"],
        positionals=["run"],
    )
    folder = existing(options.run, "run folder")

    from heartlm.report.page import write_report

    print(f"wrote {write_report(folder, options.out)}")
    return 0
