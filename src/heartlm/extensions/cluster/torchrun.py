"""`python -m heartlm.extensions.cluster.torchrun`: torchrun that lets ranks save their work before they stop.

    SLURM ─ SIGUSR1, SIGTERM ─► this, one per node ─ SIGUSR1 ─► its ranks ─► agreed checkpoint, status 143

Plain torchrun is killed by SIGUSR1, kills its ranks 30 s after SIGTERM, and always ends with status 1. Here ranks
take the time they need, and their status is the exit status: 0 done, 2 a user error, 143 stopped with a checkpoint.
Ranks start with SIGUSR1 blocked, so a signal before their handler is installed is neither lost nor fatal.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread

from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.system.garbage import search_rarely
from heartlm.system.network import address_towards, is_own_port

ASK = signal.SIGUSR1

HOSTS = "HEARTLM_HOSTS"
"""Names of all nodes, by which the rendezvous host finds its address towards the others."""

NOT_SAID = (0, 2, STOPPED_STATUS)
"""Exit statuses of ranks that have already printed their reason."""

OTHERS_END_WITHIN_S = 10.0
"""Time in seconds that a finished node waits for the last output of the others."""

asked = Event()
"""Set when this process is asked to stop its ranks."""


def main(arguments: Sequence[str]) -> int:
    """Run torchrun with `arguments`; return the status of the rank that ended first."""
    signal.signal(ASK, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {ASK})
    Thread(target=_pass_on, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(os.getpid(), ASK))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no warning when a node ends before another

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main as torchrun

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    module = list(arguments).index("-m") + 1
    own = ["--signals-to-handle=SIGHUP,SIGQUIT", *placed(arguments), *arguments[:module]]
    try:
        # without `--`, torchrun reads the module's `--run` as an abbreviation of one of its own options
        torchrun([*own, "--", *arguments[module:]])
    except ChildFailedError as error:
        wait_for_others(arguments)
        rank, failure = error.get_first_failure()
        if failure.exitcode not in NOT_SAID:
            ended = f"status {failure.exitcode}" if failure.exitcode > 0 else failure.signal_name()
            print(f"rank {rank} on {socket.gethostname()} ended with {ended}", file=sys.stderr)
        # torch gives minus the number of a signal, shells and SLURM 128 plus it.
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except RendezvousError as error:
        if not asked.is_set():  # when nodes stop together, one of them is first
            print(f"{socket.gethostname()} cannot meet the other nodes: {error}", file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def wait_for_others(arguments: Sequence[str]) -> None:
    """Wait until torchrun has ended on the other nodes: closing the store would kill their ranks before they finish."""
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    num_nodes, host, port = _meeting(arguments)
    if num_nodes == 1 or not host:
        return
    with suppress(DistError):
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=OTHERS_END_WITHIN_S))
        give_up_s = time.monotonic() + OTHERS_END_WITHIN_S
        num_ended = store.add("heartlm: ended", 1)
        while num_ended < num_nodes and time.monotonic() < give_up_s:
            time.sleep(0.05)
            num_ended = store.add("heartlm: ended", 0)


def placed(arguments: Sequence[str]) -> list[str]:
    """Return torchrun's options with the address of the rendezvous and of this node.

    Plain torchrun compares host names: a node whose own name resolves to 127.0.1.1 does not detect that it is the
    rendezvous host, and gives the others that address.
    """
    num_nodes, host, port = _meeting(arguments)
    if num_nodes == 1:
        return ["--local-addr=127.0.0.1"]
    if not host:  # another kind of rendezvous
        return []
    is_step_of_all = os.environ.get("SLURM_STEP_NUM_NODES") == str(num_nodes)
    is_host = os.environ["SLURM_NODEID"] == "0" if is_step_of_all else is_own_port(host, port)
    address = address_towards(host, os.environ.get(HOSTS, "").split())
    return [f"--rdzv-conf=is_host={is_host}", *([f"--local-addr={address}"] if address else [])]


def _meeting(arguments: Sequence[str]) -> tuple[int, str, int]:
    """Return the number of nodes, and the host and port of the rendezvous; torchrun's options precede the module."""
    own = takewhile(lambda word: word != "-m", arguments)
    options = dict(word.removeprefix("--").partition("=")[::2] for word in own)
    host, _, port = options.get("rdzv-endpoint", ":0").rpartition(":")
    return int(options.get("nnodes", "1")), host, int(port)


def _pass_on() -> None:
    """Ask every rank of this node to save its work and stop, as soon as there are ranks."""
    while True:
        signal.sigwait({ASK})
        asked.set()
        while not (ranks := children(os.getpid())):
            time.sleep(0.05)
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, ASK)


def children(parent: int) -> list[int]:
    """Return the running child processes of `parent`."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may have any bytes: Linux cuts it after 15, even within a character of UTF-8.
            state, parent_pid = path.read_bytes().rpartition(b") ")[2].split()[:2]
            if int(parent_pid) == parent and state != b"Z":
                pids.append(int(path.parent.name))
    return pids


if __name__ == "__main__":
    search_rarely()
    sys.exit(main(sys.argv[1:]))
