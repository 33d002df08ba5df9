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
    sweep.check()

    from heartlm.federated.sweep import run_sweep

    outcome = run_sweep(sweep)
    summary = [f"{outcome.num_run} studies run", f"{outcome.num_before} were there already"]
    summary += [f"{len(outcome.skipped)} not run: {outcome.skipped[0][1]}"] if outcome.skipped else []
    summary += [f"{len(outcome.failed)} FAILED"] if outcome.failed else []
    print(f"{sweep.folder()}: {', '.join(summary)}")
    for name, reason in outcome.failed:
        print(f"failed: {name}: {reason}", file=sys.stderr)
    if outcome.num_run + outcome.num_before:
        from heartlm.report.federated import write_sweep_report

        for path in write_sweep_report(sweep.folder()):
            print(f"wrote {path}")
    return 1 if outcome.failed else 0
