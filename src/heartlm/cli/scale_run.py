"""`heartlm scale run` and `heartlm scale report`: a study, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from heartlm.cli.options import parse
from heartlm.scaling.study import StudyConfig


def run_study(arguments: Sequence[str]) -> int:
    """Measure what is missing in a study; status 1 where a measurement failed or the cost would be too high."""
    config = parse(
        StudyConfig,
        arguments,
        command="scale run",
        summary="Measure a grid of short trainings: heartlm scale run STUDY.yaml; what is there is not measured again.",
        examples=[
            "heartlm scale run examples/scaling_study.yaml --out studies/laptop",
            "heartlm scale run --databases '{mitdb: corpora/mitdb}' --windows '[128, 1024]' --out studies/two-widths",
        ],
        config_file=True,
    )
    config.check()
    folder = config.folder()

    from heartlm.errors import needs

    try:
        from heartlm.scaling.local import LocalTrainer
        from heartlm.scaling.run import run_study as measure

        outcome = measure(config, LocalTrainer(config.device, config.timeout_s))
    except ModuleNotFoundError as error:
        raise needs("train", error.name or "torch") from None
    told = [f"{outcome.num_measured} measured", f"{outcome.num_before} were there already"]
    told += [f"{len(outcome.skipped)} cells skipped"] if outcome.skipped else []
    told += [f"{len(outcome.failed)} FAILED and not used"] if outcome.failed else []
    told += [f"{outcome.num_left} left: {outcome.stopped}"] if outcome.stopped else []
    print(f"{folder}: {', '.join(told)}")
    for each in outcome.failed:
        print(f"failed: {each.cell.name}, repeat {each.repeat + 1}: {each.failed}", file=sys.stderr)
    print(f"next:  heartlm scale report {folder}")
    return 1 if outcome.failed or outcome.stopped else 0
