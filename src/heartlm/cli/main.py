"""`heartlm`: run a command; print a `HeartlmError` as one line and exit with status 2.

`heartlm --help` uses only the table below and those of extensions, so it imports no heavy package.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from heartlm import __version__
from heartlm.cli.registry import registered
from heartlm.cli.subcommands import nearest, run_located
from heartlm.distributed.ranks import LINGER_S, ReportedByPeer
from heartlm.errors import HeartlmError, needs
from heartlm.system.parent import end_with_parent
from heartlm.system.printable import show_control_characters
from heartlm.system.progress import show_progress

COMMANDS: dict[str, str] = {
    "analyze": "find beats, rhythms and events in recordings, and draw a page; no training needed",
    "review": "see a recording whole in the browser, correct what was found, and write it again",
    "alarms": "find the alarms that a monitor would have raised in recordings",
    "delineate": "find P, QRS and T in recordings: intervals, amplitudes, annotations",
    "data": "list, simulate, download, verify and draw ECG databases",
    "tokenize": "turn recordings into a corpus of tokens",
    "pretrain": "train a foundation model on a corpus",
    "finetune": "add a head to a pretrained model and train it on labelled tokens",
    "evaluate": "score a fine-tuned model with baselines and confidence intervals",
    "monitor": "watch live streams: alarms within seconds, on a page, by MQTT and webhooks",
    "export": "export a live-stream model as an ONNX or ExecuTorch file",
    "embed": "write a model's hidden states as vectors of beats or windows",
    "predict": "annotate one recording",
    "compare": "compare two annotation files beat by beat and episode by episode",
    "compare-runs": "compare trained runs: settings, losses, scores with intervals of the difference",
    "report": "write one self-contained HTML page about a run",
    "plan": "the memory of a rank in a training step, computed without training",
    "demo": "run the whole pipeline on a simulated database, in a few minutes",
}
"""What each command of the core does, by name; its module in `heartlm.cli` has the same name, with _ for -."""


def usage() -> str:
    """Return the text of `heartlm --help`."""
    found = registered(COMMANDS)
    summaries = COMMANDS | {name: summary for name, (_, summary) in found.commands.items()}
    width = max(map(len, summaries))
    lines = [
        f"heartlm {__version__}: heart language models, transformers that read an ECG as a sentence of heartbeats.",
        "",
        "usage: heartlm COMMAND [options]        heartlm COMMAND --help  explains one command, with examples",
        "",
        *(f"  {name:<{width}}  {summary}" for name, summary in summaries.items()),
        "",
        *found.faults,
        "Start with:  heartlm demo",
        "Research software, not a medical device.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 for success, 2 for a user error, 130 if interrupted."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # also after --help: a closed pipe must not print a traceback
    except ReportedByPeer:
        time.sleep(LINGER_S)
        return 2
    except HeartlmError as error:
        print(f"heartlm {argv[0]}: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):  # another pipe is broken: a defect
            raise
        # Python flushes its streams once more when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"heartlm {__version__}")
        return 0
    where = f"heartlm.cli.{argv[0].replace('-', '_')}:run"
    if argv[0] not in COMMANDS:
        found = registered(COMMANDS)
        if argv[0] not in found.commands:
            hint = nearest(argv[0], [*COMMANDS, *found.commands])
            print("\n".join([f"heartlm: no command {argv[0]!r}; {hint}", *found.faults]), file=sys.stderr)
            return 2
        where = found.commands[argv[0]][0]
    with show_progress(), needs("train", "torch"):
        return run_located(where, argv[1:])


def run_process() -> NoReturn:
    """Run `heartlm` in its own process and exit.

    A rank exits without destroying torch's process groups. After another rank has exited, their threads and
    destructors can abort the process and its status is lost. With FSDP2 this also happened after successful runs
    (docs/log, SIGABRT).
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()  # otherwise, if the launcher is killed, its ranks keep training
    show_control_characters()
    status = main()
    distributed, is_rank = sys.modules.get("torch.distributed"), os.environ.get("WORLD_SIZE", "1") != "1"
    if distributed and (is_rank or (distributed.is_available() and distributed.is_initialized())):
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()  # as Python does at exit: a checkpoint may be in progress
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run_process()
