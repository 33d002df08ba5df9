"""All of `heartlm bench` but conv1d, which has a benchmark of its own, at their defaults, into one file of results.

    python benchmarks/bench.py --data FOLDER

`--data` holds mitdb; without it patients are simulated. About five minutes on two idle cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from timing import write

from heartlm.bench import allreduce, loader, locality, tokenize, train
from heartlm.bench.output import show


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder that holds mitdb")
    parser.add_argument("--rounds", type=int, help="of every bench; by default each takes its own")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    often: dict[str, Any] = {} if given.rounds is None else {"rounds": given.rounds}
    recordings = given.data / "mitdb" if given.data else None
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
    write("bench", "What `heartlm bench` finds", tables)


if __name__ == "__main__":
    main()
