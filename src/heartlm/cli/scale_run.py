"""`heartlm scale run` and `heartlm scale report`: a study, and its results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heartlm.cli.options import existing, parse
from heartlm.scaling.study import ScalingStudyConfig

if TYPE_CHECKING:
    from heartlm.scaling.run import CellTrainer


@dataclass
class StudyReportOptions:
    """Which study to report, and where to.

    Attributes:
        study: the folder of the study, as scale run wrote it.
        out: the folder for the page, figures and tables; report in the study's folder if not given.
    """

    study: Path
    out: Path | None = None


def run_study(arguments: Sequence[str]) -> int:
    """Measure a grid of short trainings: heartlm scale run STUDY.yaml; what is there is not measured again.

    The exit status is 1 where a measurement failed or the cost would be too high.

    Examples:
        heartlm scale run examples/scaling_study.yaml --out studies/laptop
        heartlm scale run STUDY.yaml --slurm meluxina.yaml --nodes '[1, 2]' --ranks '[1, 2, 4, 8]' --device cuda
        heartlm scale run --databases '{mitdb: corpora/mitdb}' --windows '[128, 1024]' --out studies/two-widths
    """
    config = parse(ScalingStudyConfig, arguments, "scale run", run_study, config_file=True)
    config.check()
    folder = config.folder()

    from heartlm.scaling.run import run_study as measure

    trainer: CellTrainer
    if config.slurm is not None:
        from heartlm.scaling.slurm import SlurmTrainer

        trainer = SlurmTrainer(config.slurm, config.device, config.timeout_s)
    else:
        from heartlm.scaling.local import LocalTrainer

        trainer = LocalTrainer(config.device, config.timeout_s)
    outcome = measure(config, trainer)
    told = [f"{outcome.num_measured} measured", f"{outcome.num_before} were there already"]
    told += [f"{len(outcome.skipped)} cells skipped"] if outcome.skipped else []
    told += [f"{len(outcome.failed)} FAILED and not used"] if outcome.failed else []
    told += [f"{outcome.num_left} left: {outcome.stopped}"] if outcome.stopped else []
    print(f"{folder}: {', '.join(told)}")
    for each in outcome.failed:
        print(f"failed: {each.cell.name}, repeat {each.repeat + 1}: {each.failed}", file=sys.stderr)
    print(f"next:  heartlm scale report {folder}")
    return 1 if outcome.failed or outcome.stopped else 0


def run_report(arguments: Sequence[str]) -> int:
    """What a study says of speedup, efficiency and overhead: an HTML page, SVG figures, tables as CSV.

    Examples:
        heartlm scale report studies/laptop
        heartlm scale report studies/laptop --out figures
    """
    options = parse(StudyReportOptions, arguments, "scale report", run_report, positionals=["study"])
    folder = existing(options.study, "folder of a study")

    from heartlm.report.scaling_page import write_scaling_report

    for path in write_scaling_report(folder, options.out):
        print(f"wrote {path}")
    return 0
