"""`python -m heartlm.cluster.torchrun`: torchrun, which can be asked to stop in a way that lets ranks save their work.

    SLURM ─ SIGUSR1, SIGTERM ─► this, one a node ─ SIGUSR1 ─► its ranks ─► agreed checkpoint, status 143

torchrun by itself dies of SIGUSR1, answers SIGTERM by killing its ranks 30 seconds later, and ends with status 1
whatever happened. Here ranks take the time they need and their status is that of the whole: 0 done, 2 a mistake that
the user can mend, 143 stopped with a checkpoint. Ranks are started with SIGUSR1 blocked, so one that comes before they
listen is not lost and ends no process.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread

from heartlm.distributed.ranks import LOST_STATUS
from heartlm.network import address_towards, is_own_port

ASK = signal.SIGUSR1
STOPPED_STATUS = 128 + signal.SIGTERM
"""Of ranks that were asked to stop and left a checkpoint."""

HOSTS = "HEARTLM_HOSTS"
"""Names of all nodes, by which one that holds the meeting point finds the way to the others."""

NOT_SAID = (0, 2, LOST_STATUS, STOPPED_STATUS)
"""Statuses of ranks that have said themselves why they ended."""

LAST_CALL_S = 10
"""How long the nodes of an elastic run wait for further ones before the ranks start."""

OTHERS_END_WITHIN_S = 10.0
"""How long a node that ended waits for the last words of the others."""

asked = Event()
"""Whether this process was asked to stop its ranks."""


def main(arguments: Sequence[str]) -> int:
    """Be torchrun with `arguments`; return the status of the rank that ended first."""
    signal.signal(ASK, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {ASK})
    Thread(target=_pass_on, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(os.getpid(), ASK))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a node that ends before another is no news

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main as torchrun

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if is_elastic(arguments):
        from heartlm.cluster.elastic import use_elastic_agent

        use_elastic_agent(_is_host(arguments, os.environ), asked)
    try:
        torchrun(["--signals-to-handle=SIGHUP,SIGQUIT", *placed(arguments), *kept_apart(arguments)])
    except ChildFailedError as error:
        wait_for_others(arguments)
        rank, failure = error.get_first_failure()
        if failure.exitcode not in NOT_SAID:
            ended = f"status {failure.exitcode}" if failure.exitcode > 0 else failure.signal_name()
            print(f"rank {rank} on {socket.gethostname()} ended with {ended}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except RendezvousError as error:
        if not asked.is_set():  # when nodes stop together, one is the first to go
            print(f"{socket.gethostname()} cannot meet the other nodes: {error}", file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def wait_for_others(arguments: Sequence[str]) -> None:
    """Stay until torchrun of the other nodes has ended, too: when the store goes, it kills ranks in mid-sentence."""
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    num_nodes, host, port = _meeting(arguments)
    if num_nodes == 1 or not host or is_elastic(arguments):
        return
    with suppress(DistError):
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=OTHERS_END_WITHIN_S))
        give_up_s = time.monotonic() + OTHERS_END_WITHIN_S
        num_ended = store.add("heartlm: ended", 1)
        while num_ended < num_nodes and time.monotonic() < give_up_s:
            time.sleep(0.05)
            num_ended = store.add("heartlm: ended", 0)


def placed(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Options that say where this node is among the others.

    By itself torchrun compares names: a node whose own name means 127.0.1.1 does not know that it holds the meeting
    point, and offers the others that address.
    """
    num_nodes, host, _ = _meeting(arguments)
    if num_nodes == 1:
        return ["--local-addr=127.0.0.1"]
    if not host:  # of another kind of rendezvous
        return []
    conf = f"--rdzv-conf=is_host={_is_host(arguments, environment)}"
    if is_elastic(arguments):
        conf += f",last_call_timeout={LAST_CALL_S}"
    address = address_towards(host, environment.get(HOSTS, "").split())
    return [conf, *([f"--local-addr={address}"] if address else [])]


def _is_host(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this node holds the meeting point. Batch scripts meet at the first node, of an elastic run's main job."""
    num_nodes, host, port = _meeting(arguments)
    main = _options(arguments).get("rdzv-id", "").partition("-")[0]
    if is_elastic(arguments) and "SLURM_JOB_ID" in environment:
        return environment["SLURM_JOB_ID"] == main and environment["SLURM_NODEID"] == "0"
    if environment.get("SLURM_STEP_NUM_NODES") == str(num_nodes):
        return environment["SLURM_NODEID"] == "0"
    return is_own_port(host, port)


def is_elastic(arguments: Sequence[str]) -> bool:
    """Whether the number of nodes may change, as in `--nnodes=1:4`."""
    return ":" in _options(arguments).get("nnodes", "")


def _meeting(arguments: Sequence[str]) -> tuple[int, str, int]:
    """How many nodes meet at most, and at which host and port."""
    options = _options(arguments)
    host, _, port = options.get("rdzv-endpoint", ":0").rpartition(":")
    return int(options.get("nnodes", "1").rpartition(":")[2]), host, int(port)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Those of torchrun, which stand before the module."""
    return dict(word.removeprefix("--").partition("=")[::2] for word in takewhile(lambda word: word != "-m", arguments))


def kept_apart(arguments: Sequence[str]) -> list[str]:
    """`arguments` with `--` before the module: torchrun would take its `--run` for one of its own options cut short."""
    module = list(arguments).index("-m") + 1
    return [*arguments[:module], "--", *arguments[module:]]


def _pass_on() -> None:
    """Ask every rank of this node to save its work and stop, once there are ranks."""
    while True:
        signal.sigwait({ASK})
        asked.set()
        while not (ranks := children(os.getpid())):
            time.sleep(0.05)
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, ASK)


def children(parent: int) -> list[int]:
    """The processes that `parent` started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, of = path.read_text().rpartition(") ")[2].split()[:2]
            if int(of) == parent and state != "Z":
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
