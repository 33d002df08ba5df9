"""Encoding side by side: several processes, one order, so the corpus is the same whatever their number.

A process encodes a part of the plan at a time; the one that writes has next to nothing to do for a recording. Never
more than a few parts for each process are under way, so memory does not grow with their number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from heartlm.errors import HeartlmError
from heartlm.memory import keep_memory
from heartlm.parent import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4
"""Parts for each process that may be ahead of the writer."""

_work: Callable[[int], Any] | None = None
"""Inherited by forked processes, not sent."""


def _do_work(number: int) -> Any:
    assert _work is not None, "set before the processes were forked"
    return _work(number)


def encode_all(encode: Callable[[int], Result], numbers: Sequence[int], processes: int) -> Generator[Result]:
    """Encode the parts `numbers`, in order, by `processes` forked processes; by this one if it is one.

    Raises:
        HeartlmError: a recording is unreadable and none are to be skipped, or a process was killed.
    """
    global _work
    keep_memory()
    if processes == 1 or not numbers:
        yield from map(encode, numbers)
        return
    context, cores = multiprocessing.get_context("fork"), sorted(os.sched_getaffinity(0))
    places = context.SimpleQueue()
    for place in range(processes):
        places.put(place)
    beginning = os.getpid(), places, cores if len(cores) == processes else []
    pool = ProcessPoolExecutor(min(processes, len(numbers)), context, _begin_process, beginning)
    _work = encode
    try:
        yield from in_order(pool, _do_work, numbers, AHEAD * processes, "encodes")
    finally:
        _work = None


def in_order(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int, does: str
) -> Generator[Result]:
    """Do `work` on each item in the processes of `pool`; yield the results in the order of the items.

    Args:
        pool: shut down at the end, and what has not started is cancelled.
        work: what a process does with an item.
        items: in the order of the results.
        ahead: how many items may be under way beyond the one whose result is waited for.
        does: what a process does, for the error.

    Raises:
        HeartlmError: a process was killed; and whatever `work` raises.
    """
    waiting = deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise HeartlmError(f"a process that {does} was killed, maybe out of memory: use fewer --processes") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_process(parent: int, places: Any, cores: Sequence[int]) -> None:
    """Leave interrupts to the parent, end when it is killed, and keep to one of `cores` where there are any.

    Schedulers may pack busy processes on few cores; one core for each makes their number count.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    if cores:
        os.sched_setaffinity(0, {cores[places.get()]})
