"""`heartlm demo`: run all commands on a simulated database.

simulate ─► verify ─► tokenize ─► pretrain ─► finetune (twice) ─► evaluate ─► predict ─► report
simulate a day ─► analyze, with the models that come with heartlm ─► page

The commands are in `demo.yaml`.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.main import main
from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, require
from heartlm.storage.reading import read_yaml


@dataclass(frozen=True)
class DemoOptions:
    """Options of `heartlm demo`.

    Attributes:
        out: output folder, empty or not existing.
        seed: random seed of patients, training and sampling.
        threads: CPU threads of torch, by default one per core; with 1, the same seed gives identical scores anywhere.
        patients: number of simulated patients; about six in ten are for training, three for the test.
        minutes: length of each recording in minutes.
        depth: number of transformer blocks.
        steps: number of pretraining steps.
        finetune_steps: number of fine-tuning steps, also for the same model from random weights.
        hours: length in hours of the recording that is analysed at the end.
    """

    out: Path = Path("demo")
    seed: int = 0
    threads: int | None = None
    patients: int = 160
    minutes: float = 4.0
    depth: int = 3
    steps: int = 500
    finetune_steps: int = 250
    hours: float = 24.0


def run(arguments: Sequence[str]) -> int:
    """Run all steps on a simulated database: from recordings to a scored model and its report.

    Examples:
        heartlm demo
        heartlm demo --out elsewhere --seed 1 --threads 2
        heartlm demo --out quick --patients 30 --minutes 2 --steps 60 --finetune-steps 40
    """
    options = parse(DemoOptions, arguments, "demo", run)
    # The simulator's limits; the day is simulated after the trainings, too late to refuse it.
    require(options, lambda hours: 0.25 <= 60 * hours <= 1440, "0.01 to 24", "hours")
    if options.out.is_file() or (options.out.is_dir() and any(options.out.iterdir())):
        raise HeartlmError(f"{options.out} exists and is not empty: remove it, or give another --out")
    begin = time.monotonic()
    values = {**vars(options), "out": shlex.quote(str(options.out)), "day_minutes": 60 * options.hours}
    values["threads"] = f"--threads {options.threads} " if options.threads else ""
    steps = read_yaml(Path(__file__).with_suffix(".yaml"), "the steps of the demo")
    for number, (title, command) in enumerate(steps.items(), start=1):
        if "{record}" in command:
            from heartlm.databases.database import open_database

            database = open_database(options.out / "data")
            test = [name for name in database.record_ids if database.split_of(name) == "test"]
            values["record"] = (test or list(database.record_ids))[0]  # few patients may leave the test split empty
        line = command.format(**values)
        print(f"\n{number}. {title.format(**values)}\n$ heartlm {line}", flush=True)
        sys.argv = ["heartlm", *shlex.split(line)]  # the run folders record it as their command
        if status := main(sys.argv[1:]):
            return status
    print(f"\nAll of it took {time.monotonic() - begin:.0f} s.")
    print(f"Open the page of a simulated day:      {next((options.out / 'analysis').glob('*.html'))}")
    print(f"Open the report of the training runs:  {options.out / 'report.html'}")
    return 0
