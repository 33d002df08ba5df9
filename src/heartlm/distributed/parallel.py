"""Processes that train together: they take their cores, meet, fail together and add up numbers."""

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

from heartlm.cores import cpus_of, pin, share_of_cores, usable_cores
from heartlm.distributed.agreement import RankConsensus, host_group
from heartlm.distributed.device import device_and_precision
from heartlm.distributed.ranks import PeerLost, Ranks, ReportedByPeer
from heartlm.distributed.shared_memory import RankGone, shared_sum_of
from heartlm.errors import HeartlmError
from heartlm.network import address_towards, interface_of

Result = TypeVar("Result")

_ALONE = Ranks()
_TOLD = "heartlm: told"
HEARD_WITHIN_S = 3.0

NCCL_HANDLING = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
}
"""What torch's NCCL watchdog does when a rank is lost, unless the user sets it otherwise.

By default it aborts the process, so no rank could say which checkpoint is good. 2 aborts the communicators alone: the
device continues with wrong numbers, and the next sum on the host, which every rank waits for before it takes
a step or writes a model, raises. Without the dump for the flight recorder torch's monitor does not end the process
either, and the watchdog does not first wait a minute for it (four times the last value).
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
    """Take this rank's cores and meet the other ranks, if there are any.

    Args:
        device: as in `TrainingConfig`, like the four arguments after it.
        precision: only to see that the device has it.
        threads: of torch.
        pin: stay on this rank's cores.
        timeout_s: after which a rank that does not answer counts as gone.
        ranks: where this process stands; by default as `torchrun` says.
        meet_at: where ranks meet, as torch writes it; by default where `torchrun` says.

    Raises:
        HeartlmError: the device is not there, or the others cannot be met.
        ReportedByPeer: a HeartlmError, here or inside, when another rank has raised one already.
    """
    ranks = ranks or Ranks.from_environment()
    store = _store(ranks, meet_at, timeout_s) if ranks.world_size > 1 else None
    try:
        place, _ = device_and_precision(device, precision, ranks.local_rank)
        take_cores(ranks, threads, pinned=pin and place.type == "cpu")
        if store is not None:
            _meet(ranks, store, place, timeout_s)
        yield ranks
    except HeartlmError as error:
        if store is not None and _told(store, ranks):
            raise ReportedByPeer(str(error)) from error
        raise
    if store is not None:
        dist.destroy_process_group()  # not after an error: a rank may have gone, and NCCL would wait for it


def _store(ranks: Ranks, meet_at: str, timeout_s: float) -> Store:
    """Where ranks leave word for each other."""
    try:
        place = (meet_at, ranks.rank, ranks.world_size)
        store: Store = next(rendezvous(*place, timeout=timedelta(seconds=timeout_s)))[0]
    except (RuntimeError, ValueError) as error:
        raise PeerLost(
            f"rank {ranks.rank} of {ranks.world_size} cannot meet the others ({reason_of(error)}): "
            "start all of them with torchrun"
        ) from error
    return store


def choose_interface(ranks: Ranks) -> None:
    """Let the groups of this process use the interface towards the other nodes, or none of the network on one machine.

    gloo by itself takes the address that the host name means, which may be 127.0.1.1. NCCL chooses well between nodes.
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
        raise PeerLost(
            f"rank {ranks.rank} waited {timeout_s:g} s for the other {ranks.world_size - 1} ({reason_of(error)})"
        ) from error


def _told(store: Store, ranks: Ranks) -> bool:
    """Whether another rank has reported what went wrong; from now on, one has.

    The store may be held by the first rank, so that one stays until the others have asked, or have gone.
    """
    try:
        is_told = int(store.add(_TOLD, 1)) > 1
        give_up_s = time.monotonic() + HEARD_WITHIN_S
        while ranks.is_first and int(store.add(_TOLD, 0)) < ranks.world_size and time.monotonic() < give_up_s:
            time.sleep(0.02)
    except RuntimeError:  # the store ended with the rank that held it
        return False
    return is_told


def take_cores(ranks: Ranks, threads: int | None, pinned: bool) -> None:
    """Take this rank's share of the cores of its machine and as many threads; alone, leave all as it is.

    Args:
        ranks: where this process stands.
        threads: of torch; None for one a core.
        pinned: stay on these cores. Processes that the kernel may move can share one core while another idles.
    """
    if ranks.local_world_size > 1:
        cores = share_of_cores(usable_cores(), ranks.local_rank, ranks.local_world_size)
        if pinned:
            pin(cpus_of(cores))
        threads = threads or len(cores)
    if threads:
        torch.set_num_threads(threads)


def together(act: Callable[[], Result]) -> Result:
    """Call `act` on every rank; where it fails on one, it fails on all.

    Raises:
        HeartlmError: `act` failed on another rank; what it raised on this one is raised here.
    """
    results: list[Result] = []
    RankConsensus().all(lambda: results.append(act()))
    return results[0]


def is_peer_failure(error: Exception) -> bool:
    """Whether `error` says that another rank does not answer any more."""
    words = "gloo", "NCCL", "Wait timeout"
    return isinstance(error, dist.DistError | RankGone) or any(word in str(error) for word in words)


def reason_of(error: Exception) -> str:
    """The last part of what torch says, without its source files."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rpartition("] ")[2]


class HostAllReduce:
    """Adds up numbers of all ranks on the host, so that no device is waited for. All ranks make it together.

    Args:
        ranks: of this process.
        timeout_s: after which a rank that does not answer counts as gone.
    """

    def __init__(self, ranks: Ranks = _ALONE, timeout_s: float = 600.0) -> None:
        self._shared = shared_sum_of(ranks, timeout_s)
        self._group = host_group(timeout_s)

    def __call__(self, *numbers: float) -> list[float]:
        """Add up each of `numbers` over the ranks."""
        return self.begin(*numbers)()

    def begin(self, *numbers: float) -> Callable[[], list[float]]:
        """Begin to add up; the result is a function that waits for the sums, before anything else is added up."""
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
