"""Benchmarks of heartlm and alternatives on this machine; all run in turns.

    python benchmarks/machine.py NAME [options]        # NAME --help explains one, with examples
    python benchmarks/machine.py --all --data FOLDER   # all but conv1d, at their defaults, into results/bench.md

Each bench prints a table, and writes it with a figure to runs/bench/NAME.json and NAME.png. `--all` takes about five
minutes on two idle cores; conv1d has a separate benchmark.
"""

from __future__ import annotations

import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonargparse
from bench import allreduce, conv1d, loader, locality, tokenize, train
from bench.output import show, write_bench, write_results

from heartlm.errors import HeartlmError

BENCHES: dict[str, Any] = {
    "locality": locality,
    "loader": loader,
    "conv1d": conv1d,
    "allreduce": allreduce,
    "tokenize": tokenize,
    "train": train,
}


class _Formatter(jsonargparse.DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of the description."""


def measure_all(data: Path | None, rounds: int | None) -> None:
    """Run all benches except conv1d, and write their tables to one result file.

    Args:
        data: folder that contains mitdb; by default patients are simulated.
        rounds: number of rounds of every bench; by default that of each bench.
    """
    often: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    recordings = data / "mitdb" if data else None
    tables = []
    for bench, options in (
        (locality, locality.Options(recordings=recordings, **often)),
        (locality, locality.Options(recordings=recordings, convolution="heartlm", batch_sizes=(256,), **often)),
        (loader, loader.Options(**often)),
        (allreduce, allreduce.Options(**often)),
        (tokenize, tokenize.Options(recordings=recordings, **often)),
        (train, train.Options(**often)),
    ):
        measured = bench.run(options)
        show(measured)
        tables += measured
    write_results("bench", "What `benchmarks/machine.py` finds", tables)


def main(words: Sequence[str] | None = None) -> int:
    """Run one bench or all of them; return the exit status."""
    parser = jsonargparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--all", action="store_true", help="all benches but conv1d")
    parser.add_argument("--data", type=Path | None, help="with --all: the folder that holds mitdb")
    parser.add_argument("--rounds", type=int | None, help="with --all: of every bench; by default each takes its own")
    benches = parser.add_subcommands(required=False, metavar="NAME", title="benches")
    for name, bench in BENCHES.items():
        each = jsonargparse.ArgumentParser(description=bench.__doc__, formatter_class=_Formatter)
        each.add_class_arguments(bench.Options, as_group=False)
        benches.add_subcommand(name, each, help=bench.__doc__.splitlines()[0])
    given = parser.parse_args(words)
    if given.all == bool(given.subcommand):
        parser.error(f"one of {', '.join(BENCHES)} or --all expected")
    try:
        if given.all:
            measure_all(given.data, given.rounds)
            return 0
        begin_s = time.monotonic()
        options = BENCHES[given.subcommand].Options(**given[given.subcommand].as_dict())
        tables = BENCHES[given.subcommand].run(options)
        if tables:  # none on a rank other than the first
            show(tables)
            for path in write_bench(given.subcommand, options, tables, time.monotonic() - begin_s):
                print(path, flush=True)
    except HeartlmError as error:
        print(f"machine.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
