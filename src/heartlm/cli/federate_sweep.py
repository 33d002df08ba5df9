"""`heartlm federate sweep`: run short studies over a grid of ranks, batches and local steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from heartlm.cli.options import parse
from heartlm.federated.sweep_file import SweepConfig


def run(arguments: Sequence[str]) -> int:
    """Run a grid of short federated studies: heartlm federate sweep SWEEP.yaml --out FOLDER.

    Finished studies are skipped. The exit status is 1 if a study failed.

    Examples:
        heartlm federate sweep examples/federated_sweep.yaml --out sweeps/laptop
        heartlm federate sweep SWEEP.yaml --world-sizes '[1, 2]' --repeats 2 --out sweeps/quick
        heartlm federate sweep SWEEP.yaml --slurm meluxina.yaml --nodes 2 --out sweeps/meluxina
    """
    sweep = parse(SweepConfig, arguments, "federate sweep", run, config_file=True)

    from heartlm.cli.score_table import aligned
    from heartlm.federated.sweep import run_sweep
    from heartlm.report.federated import sweep_table

    rows, failed = run_sweep(sweep)
    for line in aligned(sweep_table(rows)) if rows else []:
        print(line)
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    return 1 if failed else 0
