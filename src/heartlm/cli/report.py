"""`heartlm report`: write one self-contained HTML page about a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import check_out, parse
from heartlm.models.pretrained import find_run, is_shipped, shipped_name


@dataclass
class ReportOptions:
    """Options of `heartlm report`.

    Attributes:
        run: run folder of pretrain or finetune, or name of a shipped model.
        out: output HTML file; by default report.html in the run folder, or MODEL.html here for a shipped model.
    """

    run: Path
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Write one self-contained HTML page about a run: data, tokens, training and scores.

    Examples:
        heartlm report runs/beats
        heartlm report runs/beats --out beats.html
    """
    options = parse(ReportOptions, arguments, "report", run, positionals=["run"])
    check_out(options.out, ending=".html")
    folder = find_run(options.run)
    from heartlm.report.page import write_report

    out = options.out or (Path(f"{shipped_name(folder)}.html") if is_shipped(folder) else None)
    print(f"wrote {write_report(folder, out)}")
    return 0
