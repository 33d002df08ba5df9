"""`heartlm federate`: train over clients without sharing their recordings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from heartlm.cli.options import given_to_resume, parse
from heartlm.extensions.federated.study_file import LAYOUT, FederatedConfig
from heartlm.extensions.federated.sweep_file import SweepConfig


def run(arguments: Sequence[str]) -> int:
    """Train over clients without sharing their recordings: heartlm federate STUDY.yaml --out FOLDER

    Examples:
        heartlm federate examples/federated_patients.yaml --corpus corpora/mitdb --out studies/patients
        mpiexec -n 4 heartlm federate examples/federated_patients.yaml --corpus corpora/mitdb --out studies/mpi
        torchrun --nproc-per-node 2 -m heartlm federate STUDY.yaml --staleness 1 --out studies/stale
        heartlm federate STUDY.yaml --engine flower --nodes 4 --out studies/flower
        heartlm federate sweep examples/federated_sweep.yaml --out sweeps/laptop
        heartlm federate --resume studies/patients
    """
    if arguments and arguments[0] == "sweep":
        return sweep(arguments[1:])
    study = parse(FederatedConfig, arguments, "federate", run, config_file=True, opens_recordings=True)
    changed = given_to_resume(arguments, LAYOUT, "study") if study.resume is not None else []
    if study.engine == "flower":
        from heartlm.extensions.federated.flower_app import run_with_flower

        print(f"wrote {run_with_flower(study)}")
        return 0

    from heartlm.extensions.federated.federate import federate
    from heartlm.extensions.federated.scores import shown

    outcome = federate(study, changed)
    if outcome.scores:  # only the first rank has scores
        print(f"{outcome.folder}: {shown(outcome.scores)}")
    return 0


def sweep(arguments: Sequence[str]) -> int:
    """Run a grid of short federated studies: heartlm federate sweep SWEEP.yaml --out FOLDER.

    Finished studies are skipped. The exit status is 1 if a study failed.

    Examples:
        heartlm federate sweep examples/federated_sweep.yaml --out sweeps/laptop
        heartlm federate sweep SWEEP.yaml --world-sizes '[1, 2]' --repeats 2 --out sweeps/quick
        heartlm federate sweep SWEEP.yaml --slurm meluxina.yaml --nodes 2 --out sweeps/meluxina
    """
    config = parse(SweepConfig, arguments, "federate sweep", sweep, config_file=True)

    from heartlm.cli.score_table import aligned
    from heartlm.extensions.federated.page import sweep_table
    from heartlm.extensions.federated.sweep import run_sweep

    rows, failed = run_sweep(config)
    for line in aligned(sweep_table(rows)) if rows else []:
        print(line)
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    return 1 if failed else 0
