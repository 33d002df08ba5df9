"""`heartlm bench`: what this machine can do, and whether heartlm's way pays on it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError, needs

SUBCOMMANDS: dict[str, str] = {
    "locality": "windows of ECG from shards to a small network: random, contiguous, pinned, mapped, ahead, on the GPU",
    "loader": "heartlm's feed against PyTorch's DataLoader and its like, at widths 128 to 1024",
    "conv1d": "heartlm's convolution against PyTorch's, over shapes that ECG networks have",
    "allreduce": "latency and rate of adding up among ranks: shared memory, gloo, NCCL, MPI",
    "tokenize": "recordings to beat tokens, on one core and on several, and how long an archive would take",
    "train": "pretraining on one rank and on two against a plain PyTorch model of the same size",
}
"""Benches, each the module `heartlm.bench.NAME` with `Options`, `EXAMPLES` and `run`, and what they compare."""

WITHOUT_TORCH = ("tokenize",)


def run(arguments: Sequence[str]) -> int:
    """Run one bench: print its tables, write them and their figure; return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name = arguments[0]
    if name not in SUBCOMMANDS:
        raise HeartlmError(f"no bench {name!r}; it is one of {', '.join(SUBCOMMANDS)}")
    module = importlib.import_module(f"heartlm.bench.{name}")
    summary = f"{SUBCOMMANDS[name][0].upper()}{SUBCOMMANDS[name][1:]}."
    options = parse(module.Options, arguments[1:], command=f"bench {name}", summary=summary, examples=module.EXAMPLES)
    if name not in WITHOUT_TORCH and importlib.util.find_spec("torch") is None:
        raise needs("train", "torch")
    if importlib.util.find_spec("matplotlib") is None:
        raise needs("report", "matplotlib")
    from heartlm.bench.output import show, write

    begin_s = time.monotonic()
    tables = module.run(options)
    if not tables:  # a rank that has nothing to say
        return 0
    show(tables)
    for path in write(name, options, tables, time.monotonic() - begin_s):
        print(path)
    sys.stdout.flush()
    return 0


def usage() -> str:
    """The text of `heartlm bench --help`."""
    width = max(map(len, SUBCOMMANDS))
    lines = [
        "usage: heartlm bench NAME [options]        heartlm bench NAME --help  explains one, with examples",
        "",
        *(f"  {name:<{width}}  {summary}" for name, summary in SUBCOMMANDS.items()),
        "",
        "Rivals take turns in one run; a table is printed, and written with a figure to bench/NAME.json and NAME.png.",
    ]
    return "\n".join(lines)
