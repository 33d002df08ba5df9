"""`heartlm federate`: train over clients without sharing their recordings."""

from __future__ import annotations

from collections.abc import Sequence

from heartlm.cli.options import given_to_resume, parse
from heartlm.federated.study_file import LAYOUT, FederatedConfig


def run(arguments: Sequence[str]) -> int:
    """Train over clients without sharing their recordings: heartlm federate STUDY.yaml --out FOLDER

    Examples:
        heartlm federate examples/federated_patients.yaml --databases '[data/mitdb]' --out studies/patients
        mpiexec -n 4 heartlm federate examples/federated_patients.yaml --databases '[data/mitdb]' --out studies/mpi
        torchrun --nproc-per-node 2 -m heartlm federate STUDY.yaml --staleness 1 --out studies/stale
        heartlm federate STUDY.yaml --engine flower --nodes 4 --out studies/flower
        heartlm federate sweep examples/federated_sweep.yaml --out sweeps/laptop
        heartlm federate --resume studies/patients
    """
    if arguments and arguments[0] == "sweep":
        from heartlm.cli.federate_sweep import run as run_sweep

        return run_sweep(arguments[1:])
    study = parse(FederatedConfig, arguments, "federate", run, config_file=True)
    changed = given_to_resume(arguments, LAYOUT, "study") if study.resume is not None else []
    if study.engine == "flower":
        from heartlm.federated.flower_app import run_with_flower

        print(f"wrote {run_with_flower(study)}")
        return 0

    from heartlm.federated.federate import federate, shown

    outcome = federate(study, changed)
    if outcome.scores:  # only the first rank has scores
        print(f"{outcome.folder}: {shown(outcome.scores)}")
    return 0
