"""Process group of a training run: CPU cores, rendezvous, joint failure and sums over ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from heartlm.distributed.agreement import RankConsensus, host_group
from heartlm.distributed.device import device_and_precision
from heartlm.distributed.ranks import Ranks, ReportedByPeer
from heartlm.distributed.shared_memory import RankGone, shared_sum_of
from heartlm.errors import HeartlmError
from heartlm.system.cores import cpus_of, default_threads, pin, share_of_cores, usable_cores
from heartlm.system.network import address_towards, interface_of

Result = TypeVar("Result")

_ALONE = Ranks()
_REPORTED = "heartlm: told"
REPORT_TIMEOUT_S = 3.0

NCCL_HANDLING = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
}
"""Defaults for the NCCL watchdog of torch when a rank is lost; the user can override them.

By default the watchdog aborts the process, so no rank could report the last good checkpoint. With 2 it aborts only the
communicators. The device then continues with wrong values, which queued steps may use, and the next sum on the host
raises; every rank waits for such a sum before it completes a checkpoint or writes a model. Without the flight recorder
dump, the monitor of torch does not abort the process, and the watchdog does not wait a minute for the dump (four times
the last value).
"""


@contextmanager
def joined(
    device: str,
    precision: str = "auto",
    threads: int | None = None,
    pin: bool = True,
    timeout_s: float = 600.0,
    ranks: Ranks | None = None,
    meet_at: str = "env://",
) -> Iterator[Ranks]:
    """Set the cores of this rank and join the process group, if there are several ranks.

    Args:
        device: as in `TrainingConfig`, like the next four arguments.
        precision: precision that the device must support.
        threads: CPU threads of torch.
        pin: whether to pin the process to the cores of this rank.
        timeout_s: seconds after which a rank that does not respond counts as lost.
        ranks: rank of this process and number of ranks; by default from `torchrun`.
        meet_at: rendezvous address in the format of torch; by default from `torchrun`.

    Raises:
        HeartlmError: the device is not available, or the rendezvous failed.
        ReportedByPeer: a HeartlmError was raised here or in the context after another rank reported one.
    """
    ranks = ranks or Ranks.from_environment()
    store = _store(ranks, meet_at, timeout_s) if ranks.world_size > 1 else None
    try:
        chosen, _ = device_and_precision(device, precision, ranks.local_rank)
        take_cores(ranks, threads, pinned=pin and chosen.type == "cpu")
        if store is not None:
            _meet(ranks, store, chosen, timeout_s)
        yield ranks
    except HeartlmError as error:
        if store is not None and _is_reported(store, ranks):
            raise ReportedByPeer(str(error)) from error
        raise
    if store is not None:
        dist.destroy_process_group()  # not after an error: NCCL would wait for a lost rank


def _store(ranks: Ranks, meet_at: str, timeout_s: float) -> Store:
    """Return the key-value store shared by the ranks."""
    try:
        group = (meet_at, ranks.rank, ranks.world_size)
        store: Store = next(rendezvous(*group, timeout=timedelta(seconds=timeout_s)))[0]
    except (RuntimeError, ValueError) as error:
        raise HeartlmError(
            f"rank {ranks.rank} of {ranks.world_size} cannot meet the others ({reason_of(error)}): "
            "start all of them with torchrun"
        ) from error
    return store


def choose_interface(ranks: Ranks) -> None:
    """Set the network interface of gloo and NCCL: loopback on one machine, else that of the route to the master.

    By default gloo resolves the host name, which may be 127.0.1.1. The default of NCCL between nodes is kept.
    """
    if ranks.world_size == ranks.local_world_size:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return
    address = address_towards(os.environ["MASTER_ADDR"])
    interface = address and interface_of(address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _meet(ranks: Ranks, store: Store, device: torch.device, timeout_s: float) -> None:
    choose_interface(ranks)
    for name, value in NCCL_HANDLING.items():
        os.environ.setdefault(name, value)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except RuntimeError as error:
        raise HeartlmError(
            f"rank {ranks.rank} waited {timeout_s:g} s for the other {ranks.world_size - 1} ({reason_of(error)})"
        ) from error


def _is_reported(store: Store, ranks: Ranks) -> bool:
    """Return whether another rank has reported an error, and mark the error as reported.

    Rank 0 may host the store, so it waits until the others have called this, at most `REPORT_TIMEOUT_S`.
    """
    try:
        is_reported = int(store.add(_REPORTED, 1)) > 1
        give_up_s = time.monotonic() + REPORT_TIMEOUT_S
        while ranks.is_first and int(store.add(_REPORTED, 0)) < ranks.world_size and time.monotonic() < give_up_s:
            time.sleep(0.02)
    except RuntimeError:  # the rank that hosts the store exited
        return False
    return is_reported


def take_cores(ranks: Ranks, threads: int | None, pinned: bool) -> None:
    """Set the cores and threads of this rank; a single rank on a machine keeps all cores.

    Args:
        ranks: rank of this process and number of ranks.
        threads: CPU threads of torch; None for one per core, for a single rank at most `default_threads`.
        pinned: whether to pin the process to its cores. Otherwise the kernel may put two ranks on one core.
    """
    if ranks.local_world_size > 1:
        cores = share_of_cores(usable_cores(), ranks.local_rank, ranks.local_world_size)
        if pinned:
            pin(cpus_of(cores))
        threads = threads or len(cores)
    if threads := threads or default_threads():
        torch.set_num_threads(threads)


def together(act: Callable[[], Result]) -> Result:
    """Call `act` on every rank and return its result; if it fails on one rank, it fails on all.

    Raises:
        HeartlmError: `act` failed on another rank; an error of this rank is raised unchanged.
    """
    results: list[Result] = []
    RankConsensus().all(lambda: results.append(act()))
    return results[0]


def is_peer_failure(error: Exception) -> bool:
    """Return whether `error` of this rank means that another rank does not respond.

    gloo raises a plain RuntimeError, as do errors of this rank alone. But it closes the connection to a rank that
    exited or timed out, so that sending fails at once. Otherwise the number sent here is not received, to no effect.
    """
    if isinstance(error, dist.DistError | RankGone):
        return True
    try:
        group = host_group()
        for peer in range(dist.get_world_size() if group else 0):
            if peer != dist.get_rank():
                dist.isend(torch.zeros(1), peer, group)
    except RuntimeError:
        return True
    return False


def reason_of(error: Exception) -> str:
    """Return the message of a torch error without source locations."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rpartition("] ")[2]


class HostAllReduce:
    """Sums numbers over ranks on the host, without device synchronisation. All ranks create it together.

    Args:
        ranks: rank of this process and number of ranks.
        timeout_s: seconds after which a rank that does not respond counts as lost.
    """

    def __init__(self, ranks: Ranks = _ALONE, timeout_s: float = 600.0) -> None:
        self._shared = shared_sum_of(ranks, timeout_s)
        self._group = host_group(timeout_s)

    def __call__(self, *numbers: float) -> list[float]:
        """Return the sum of each of `numbers` over the ranks."""
        return self.begin(*numbers)()

    def begin(self, *numbers: float) -> Callable[[], list[float]]:
        """Start summing; return a function that waits for the sums. Call it before the next sum starts."""
        if not dist.is_initialized():
            return lambda: list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        if self._shared is not None:
            wait_for = self._shared.begin(values)
        else:
            wait_for = dist.all_reduce(values, group=self._group, async_op=True).wait

        def wait() -> list[float]:
            wait_for()
            sums: list[float] = values.tolist()
            return sums

        return wait
