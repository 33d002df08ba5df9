"""Elastic training: it continues when nodes are lost or added, with the same loss curve.

    main job, minimum nodes ──── torchrun ─┐
    helper job, one node ─────── torchrun ─┼─ meet ─► ranks ─► a node leaves or joins ─► meet again, from a checkpoint
    helper job, one node ─────── torchrun ─┘

Each node above the minimum is a separate job. SLURM removes a failed node from a job permanently, even with
`--no-kill`; but it requeues a job whose node failed, and the next free node joins the training. The main job hosts the
rendezvous: if its first node fails, all jobs are requeued.

The training depends on the seed and the step, never on the number of ranks (`training.layout`). The losses are
therefore those of an uninterrupted run, up to the order of sums.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from heartlm.cluster.torchrun import STOPPED_STATUS
from heartlm.distributed.ranks import LOST_STATUS
from heartlm.errors import HeartlmError
from heartlm.files import read_json

MAX_RESTARTS = 3
"""Maximum number of rank failures on a node. Lost or new nodes do not count."""


MOST_REQUEUES = 20
"""Maximum number of requeues of a helper job: a node that always fails would keep interrupting the others."""


def nodes_of(text: str) -> tuple[int, int]:
    """Return the minimum and the maximum number of nodes from text such as `1:4`.

    Raises:
        HeartlmError: the text has another form.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or not 1 <= int(found[1]) < int(found[2]):
        raise HeartlmError(f"elastic: {text!r} found, the fewest and the most nodes expected, for example 1:4")
    return int(found[1]), int(found[2])


# --- torchrun ---------------------------------------------------------------------------------------------------------


def use_elastic_agent(is_host: bool, asked: Event) -> None:
    """Patch torchrun in this process so that it restarts ranks after recoverable failures and resumes the run.

    Args:
        is_host: whether this node hosts the rendezvous, which stays open when another node leaves.
        asked: event that is set when ranks of this node were asked to stop.
    """
    # Otherwise ranks of a later round get the store of an earlier round, whose address new nodes never receive.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.launcher import api

    class ElasticAgent(LocalElasticAgent):
        first_args: tuple[Any, ...] | None = None
        _remaining_restarts: int

        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            # All nodes have met, and no rank starts a run before all ranks have met: every node sees the same folder.
            spec = worker_group.spec
            self.first_args = self.first_args or spec.args
            spec.args = tuple(continued(self.first_args))
            if worker_group.group_rank == 0:
                words = f"{worker_group.group_world_size} node(s) train together"
                print(words, file=sys.stderr, flush=True)
            started: dict[int, Any] = super()._start_workers(worker_group)
            return started

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            if result.state != WorkerState.FAILED:
                return result
            again = starts_again([failure.exitcode for failure in result.failures.values()], asked.is_set())
            if again == "free":
                self._remaining_restarts += 1
            elif again == "never":
                self._remaining_restarts = 0
            if self._remaining_restarts == 0 and not is_host:
                raise SignalException("this node leaves, the others continue", signal.SIGTERM)
            return result

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            if asked.is_set():  # another node already waits for the next round, which this node does not join
                self._stop_workers(worker_group)
                raise SignalException("this node was asked to stop", signal.SIGTERM)
            super()._restart_workers(worker_group)

    vars(api)["LocalElasticAgent"] = ElasticAgent  # torchrun has no option for it


def starts_again(statuses: Sequence[int], was_asked: bool) -> str:
    """Return whether ranks that ended with `statuses` restart: free, counted or never.

    If other ranks were lost or asked to stop, the ranks here are not at fault. A rank that was killed (negative status)
    or ended by a defect (1) may succeed next time. A user error (2) is never retried.
    """
    if was_asked:
        return "never"
    if all(status in (LOST_STATUS, STOPPED_STATUS) for status in statuses):
        return "free"
    return "counted" if all(status < 2 or status in (LOST_STATUS, STOPPED_STATUS) for status in statuses) else "never"


def continued(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a rank, changed to resume the run if it has started and is not finished."""
    words = list(arguments)
    out = next((word.removeprefix("--out=") for word in words if str(word).startswith("--out=")), None)
    if out is None or not (note := Path(out, "run.json")).is_file():
        return words
    if read_json(note, dict[str, Any]).get("finished", "") is not None:
        return words
    command = words.index("heartlm") + 1
    return [*words[: command + 1], f"--resume={out}"]
