"""Parallel encoding in several processes with results in a fixed order: the corpus does not depend on their number.

Each process encodes one part of the plan at a time; the writing process does almost no work per recording. At most a
few parts per process are in progress, so memory does not grow with the number of parts.
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
from heartlm.system.cores import bind, usable_cpus
from heartlm.system.memory import keep_memory
from heartlm.system.parent import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4
"""Maximum number of parts per process that may be ahead of the writer."""

# The work function, inherited by forked processes instead of pickled.
_work: Callable[[int], Any] | None = None


def _do_work(number: int) -> Any:
    assert _work is not None, "set before the processes were forked"
    return _work(number)


def encode_all(encode: Callable[[int], Result], numbers: Sequence[int], processes: int) -> Generator[Result]:
    """Encode the parts `numbers` in `processes` forked processes, or in this process if `processes` is 1; in order.

    Raises:
        HeartlmError: a recording is unreadable and unreadable recordings are not skipped, or a process was killed.
    """
    global _work
    keep_memory()
    if processes == 1 or not numbers:
        yield from map(encode, numbers)
        return
    context, cores = multiprocessing.get_context("fork"), usable_cpus()
    free_indices = context.SimpleQueue()
    for index in range(processes):
        free_indices.put(index)
    beginning = os.getpid(), free_indices, cores if len(cores) == processes else []
    pool = ProcessPoolExecutor(min(processes, len(numbers)), context, _begin_process, beginning)
    _work = encode
    try:
        yield from in_order(pool, _do_work, numbers, AHEAD * processes, "encodes")
    finally:
        _work = None


def in_order(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], ahead: int, does: str
) -> Generator[Result]:
    """Call `work` on each item in the processes of `pool`, and yield the results in the order of the items.

    Args:
        pool: the process pool. It is shut down at the end, and pending items are cancelled.
        work: function that a process calls with an item.
        items: the items, in the order of the results.
        ahead: maximum number of items in progress beyond the one whose result is awaited.
        does: description of the work for the error message.

    Raises:
        HeartlmError: a process was killed. Exceptions of `work` are also raised.
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


def _begin_process(parent: int, free_indices: Any, cores: Sequence[int]) -> None:
    """Ignore interrupts, exit if the parent is killed, and pin the process to one of `cores` if any are given.

    Schedulers may place busy processes on few cores; pinning gives each process its own core.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    if cores:
        bind({cores[free_indices.get()]})
