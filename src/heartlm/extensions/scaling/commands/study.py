"""`heartlm scale run` and `heartlm scale report`: run a scaling study and report its results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse
from heartlm.extensions.scaling.study import ScalingStudyConfig


@dataclass
class StudyReportOptions:
    """Options of `heartlm scale report`.

    Attributes:
        study: folder of the study, as scale run wrote it.
        out: folder for the page, figures and tables; by default report in the study's folder.
    """

    study: Path
    out: Path | None = None


def run_study(arguments: Sequence[str]) -> int:
    """Measure a grid of short trainings: heartlm scale run STUDY.yaml; measured cells are skipped.

    The exit status is 1 if a measurement failed.

    Examples:
        heartlm scale run examples/scaling_study.yaml --out studies/laptop
        heartlm scale run STUDY.yaml --slurm meluxina.yaml --nodes '[1, 2]' --ranks '[1, 2, 4, 8]' --device cuda
        heartlm scale run --databases '{mitdb: corpora/mitdb}' --windows '[128, 1024]' --out studies/two-widths
    """
    config = parse(ScalingStudyConfig, arguments, "scale run", run_study, config_file=True)
    config.check()
    folder = config.folder()

    from heartlm.extensions.cluster.cells import cells_on
    from heartlm.extensions.scaling.run import run_study as measure

    measurements = measure(config, cells_on(config.slurm, config.device, config.timeout_s))
    failed = [each for each in measurements if each.failed is not None]
    print(
        f"{folder}: {len(measurements)} measured" + (f", {len(failed)} of them FAILED and not used" if failed else "")
    )
    for each in failed:
        print(f"failed: {each.cell.name}, repeat {each.repeat + 1}: {each.failed}", file=sys.stderr)
    print(f"next:  heartlm scale report {folder}")
    return 1 if failed else 0


def run_report(arguments: Sequence[str]) -> int:
    """Report speedup, efficiency and overhead of a study: an HTML page, SVG figures and CSV tables.

    Examples:
        heartlm scale report studies/laptop
        heartlm scale report studies/laptop --out figures
    """
    options = parse(StudyReportOptions, arguments, "scale report", run_report, positionals=["study"])
    folder = existing(options.study, "folder of a study")

    from heartlm.extensions.scaling.page import write_scaling_report

    for path in write_scaling_report(folder, options.out):
        print(f"wrote {path}")
    return 0
