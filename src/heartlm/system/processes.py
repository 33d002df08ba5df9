"""Work on many items by an engine: processes of this machine, Dask or MPI; results in the order of the items.

    items ─► up to `AHEAD` per worker under way ─► work(item) in a worker ─► results, in order
                                                        └─ its worker ended: once more, then a `Lost`

Every engine is an executor with the interface of `concurrent.futures`. The results do not depend on the engine nor on
the number of workers. The work is sent to each worker once.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, chdir, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol, TypeVar

from heartlm.errors import HeartlmError, needs
from heartlm.system.cores import bind, usable_cpus
from heartlm.system.engine import EngineOptions
from heartlm.system.entry_points import entry_points
from heartlm.system.memory import keep_memory
from heartlm.system.parent import end_with_parent
from heartlm.system.progress import say

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4
"""Maximum number of items per worker that may be under way beyond the one whose result is awaited."""

AHEAD_BY_DASK = 32
"""The same for workers of Dask, in groups of items: a group takes some milliseconds to reach a worker and return."""

MOST_IN_GROUP, GROUP_S = 16, 0.25
"""Most items of a group, and the time in seconds that a group should take: long items are sent one by one."""

CLUSTERS = "heartlm.clusters"
"""Group of entry points that start Dask clusters: functions of a text and a number of workers that return a context
manager, which yields the address of the scheduler. `--scheduler NAME:TEXT` calls the one called NAME."""

CONNECT_S = 30
"""Time in seconds within which a Dask scheduler must answer."""


@dataclass(frozen=True)
class Lost:
    """Result of an item whose worker ended twice.

    Attributes:
        reason: what is known of it.
    """

    reason: str


class _Awaited(Protocol):
    """What a submitted item returns, as futures do."""

    def result(self) -> Any: ...
    def cancel(self) -> bool: ...


Submit = Callable[[Any], _Awaited]
Opened = tuple[Submit, int]
"""Function that submits an item to an executor, and how many items may be under way beyond the one that is awaited."""


def run_each(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    options: EngineOptions,
    processes: int,
    *,
    start: Literal["fork", "spawn"] = "spawn",
) -> Generator[Result | Lost]:
    """Call `work` on each item by the engine, and yield the results in the order of the items.

    Args:
        work: function of an item; it is pickled, except for processes that are forked.
        items: the items; at most a few per worker are taken in advance.
        options: the engine.
        processes: number of processes; 1 works in this process if the engine is `processes`.
        start: how processes start. A forked process that computes with torch can hang; a new one imports for a second.

    Raises:
        HeartlmError: the scheduler is lost, or a package is missing. Exceptions of `work` are also raised.
    """
    options.check_engine()
    keep_memory()
    if options.engine == "processes" and processes == 1:
        yield from map(work, items)
        return
    if options.engine == "dask":
        with _dask(work, options) as (submit, ahead), closing(_in_groups(submit, items, ahead, options)) as results:
            yield from results
        return
    limit_s = options.limit_s
    engine = _mpi(work, limit_s) if options.engine == "mpi" else _processes(work, processes, limit_s, start)
    with engine as (submit, ahead), closing(_in_order(submit, items, ahead)) as futures:
        for _, future in futures:
            yield future.result()


def _in_order(submit: Submit, items: Iterable[Any], ahead: int) -> Generator[tuple[Any, _Awaited]]:
    """Submit items, and yield each with its future when `ahead` more are under way."""
    waiting = deque[tuple[Any, _Awaited]]()
    try:
        for item in items:
            waiting.append((item, submit(item)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()


def _in_groups(submit: Submit, items: Iterable[Any], ahead: int, options: EngineOptions) -> Generator[Any]:
    """Submit items in groups, and yield their results; those of a group that is lost or fails are tried one by one."""
    size, left = 1, iter(items)
    groups = iter(lambda: list(islice(left, size)), [])
    with closing(_in_order(submit, groups, ahead)) as futures:
        for group, future in futures:
            try:
                results, seconds = future.result()
            except (Exception, CancelledError) as error:
                _refuse(error, len(group) > 1, options)
                # The scheduler also counts items against which another one of their worker ended it.
                for item in group:
                    yield _alone(submit([item]), options)
            else:
                size = max(1, min(int(GROUP_S * len(group) / max(seconds, 1e-9)), MOST_IN_GROUP))
                yield from results


def is_worker() -> bool:
    """Return whether this process works on items of another one."""
    return _limit_s is not None


@contextmanager
def within_limit() -> Iterator[None]:
    """End this process, if it is a worker, unless the block ends in time; its stack goes to standard error.

    A thread of C watches the time, so that a loop of C ends too.
    """
    if _limit_s:
        faulthandler.dump_traceback_later(_limit_s, file=2, exit=True)
    try:
        yield
    finally:
        if _limit_s:
            faulthandler.cancel_dump_traceback_later()


def _alone(future: _Awaited, options: EngineOptions) -> Any:
    try:
        return future.result()[0][0]
    except (Exception, CancelledError) as error:
        _refuse(error, False, options)
        return _lost(options.limit_s)


def _refuse(error: BaseException, has_others: bool, options: EngineOptions) -> None:
    """Raise what ends the command: a lost scheduler, or an exception of the work on one item, unless it has others."""
    if isinstance(error, CancelledError):
        raise HeartlmError(
            f"the Dask scheduler {options.scheduler or 'of this machine'} was lost: start it and repeat the command, "
            "which keeps complete results"
        )
    if type(error).__name__ != "KilledWorker" and not has_others:  # of Dask, by the scheduler's `allowed-failures`
        raise error


def _lost(limit_s: float) -> Lost:
    return Lost(f"its process ended without a result, twice: out of memory, killed, or not done in {limit_s:g} s")


# --- in a worker ------------------------------------------------------------------------------------------------------

# The work of this process, and the time in seconds that the work on a recording may take, 0 for any; None in others.
_work: Callable[[Any], Any]
_limit_s: float | None = None
_one_at_a_time = threading.Lock()
# What works for this rank of MPI.
_worker: _Process


def _begin(work: Callable[[Any], Any], limit_s: float, parent: int | None, cores: set[int]) -> None:
    global _work, _limit_s
    _work, _limit_s = work, limit_s
    # The parent ends this process when it is interrupted, which is safe because writes are atomic.
    if parent is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent(parent)
    keep_memory()
    if cores:
        bind(cores)


def _begin_rank(work: Callable[[Any], Any], limit_s: float) -> None:
    global _worker
    _worker = _Process(multiprocessing.get_context("spawn"), (work, limit_s, os.getpid(), set()))


def _do_in_rank(item: Any, limit_s: float) -> Any:
    return _worker.attempt(item, limit_s)


def _serve(connection: Connection, *beginning: Any) -> None:
    """Answer each item with whether there is a result, and the result or the exception, to the end of the client."""
    _begin(*beginning)
    with suppress(EOFError):
        while True:
            item = connection.recv()
            try:
                answer = True, _work(item)
            except BaseException as error:
                error.add_note(traceback.format_exc())  # where it was raised, which pickle drops
                answer = False, error
            connection.send(answer)


def _load(pickled: bytes, version: str) -> Any:
    import heartlm

    if heartlm.__version__ != version:
        raise HeartlmError(f"a Dask worker has heartlm {heartlm.__version__}, the client {version}")
    return pickle.loads(pickled)


def _do_in_dask(work: Callable[[Any], Any], limit_s: float, folder: str, items: list[Any]) -> tuple[list[Any], float]:
    """Return the results of a group, and the seconds that it took.

    One thread of a worker works at a time, in the folder of the client, whose paths are relative to it.
    """
    global _limit_s
    with _one_at_a_time:
        _limit_s = limit_s
        if not Path(folder).is_dir():
            raise HeartlmError(f"{folder}: the Dask worker has no such folder: start the command in a shared one")
        with chdir(folder):
            keep_memory()  # `_load` has run in one worker
            begin_s = time.perf_counter()
            results = [work(item) for item in items]
            return results, time.perf_counter() - begin_s


# --- engines ----------------------------------------------------------------------------------------------------------


_start_lock = threading.Lock()


class _EndedError(Exception):
    """A worker process ended without a result."""


class _Process:
    """One worker process, which can be started again. A process pool would wait for ever for half a result."""

    def __init__(self, context: Any, beginning: tuple[Any, ...]) -> None:
        self._context, self._beginning, self._stopped = context, beginning, False
        self.start()

    def start(self) -> None:
        with _start_lock:  # a process that is forked meanwhile would hold the other end open
            if self._stopped:
                raise _EndedError
            self._connection, its_own = self._context.Pipe()
            self.process = self._context.Process(target=_serve, args=(its_own, *self._beginning), daemon=True)
            self.process.start()
            its_own.close()  # then the connection ends with the process

    def result(self, item: Any) -> Any:
        try:
            self._connection.send(item)
            is_result, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise _EndedError from error
        if not is_result:
            raise value
        return value

    def attempt(self, item: Any, limit_s: float) -> Any:
        """Return the result of an item, for which the process may end once, or a `Lost`."""
        for _ in range(2):
            try:
                return self.result(item)
            except (_EndedError, MemoryError):
                self.end()
                self.start()
        return _lost(limit_s)

    def stop(self) -> None:
        """End the process for good; `result` in another thread raises."""
        with _start_lock:
            self._stopped = True
            self.process.kill()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._connection.close()


@contextmanager
def _processes(work: Any, processes: int, limit_s: float, start: str) -> Iterator[Opened]:
    """Yield an executor of threads, each of which waits for one process.

    If a process ends, it is known on what it worked, and the others continue.
    """
    context, cores = multiprocessing.get_context(start), usable_cpus()
    # Schedulers may place busy processes on few cores; pinning gives each process its own.
    own = [{core} for core in cores] if len(cores) == processes and start == "fork" else [set[int]()] * processes
    workers = [_Process(context, (work, limit_s, os.getpid(), each)) for each in own]
    free = SimpleQueue[_Process]()
    for each in workers:
        free.put(each)

    def attempt(item: Any) -> Any:
        worker = free.get()
        try:
            return worker.attempt(item, limit_s)
        finally:
            free.put(worker)

    threads = ThreadPoolExecutor(processes)
    try:
        yield lambda item: threads.submit(attempt, item), AHEAD * processes
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.end()


@contextmanager
def _dask(work: Any, options: EngineOptions) -> Iterator[Opened]:
    import heartlm

    with needs("dask", "distributed"):
        distributed = import_module("distributed")
    with ExitStack() as stack:
        log = logging.getLogger("distributed.client")  # logs with its stack what becomes one line here
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        address, processes = options.scheduler, options.processes or len(usable_cpus())
        name, _, text = (address or "").partition(":")
        starts = {point.name: point for point in entry_points(CLUSTERS)}
        if address is None:
            # without the profiler of each worker, which looks at its threads a hundred times a second
            stack.enter_context(import_module("dask").config.set({"distributed.worker.profile.enabled": False}))
            cluster = distributed.LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None)
            address = stack.enter_context(cluster).scheduler_address
        elif name in starts:
            address = stack.enter_context(starts[name].load()(text, processes))
        try:
            client = stack.enter_context(distributed.Client(address, timeout=CONNECT_S, set_as_default=False))
        except (OSError, ValueError) as error:
            raise HeartlmError(f"scheduler: no Dask scheduler answers at {address}: {error}") from error
        loaded = client.submit(_load, pickle.dumps(work), heartlm.__version__)
        threads = client.nthreads()
        if not threads:
            say(f"waiting for the first Dask worker of {options.scheduler or address}")
        num_workers = max(sum(threads.values()), options.processes or 1)
        pool = stack.enter_context(client.get_executor(pure=False))
        beginning = _do_in_dask, loaded, options.limit_s, str(Path.cwd())
        yield lambda items: _DaskAnswer(pool.submit(*beginning, items), client), AHEAD_BY_DASK * num_workers


@dataclass(frozen=True)
class _DaskAnswer:
    """Future of Dask, whose result also ends if the scheduler is lost while it is fetched: Dask then waits for ever."""

    future: Future[Any]
    client: Any

    def cancel(self) -> bool:
        return self.future.cancel()

    def result(self) -> Any:
        while True:
            try:
                return self.future.result(timeout=1)
            except TimeoutError:
                if self.future.done():  # it is that of the work
                    raise
                if self.client.status != "running":
                    raise CancelledError from None


@contextmanager
def _mpi(work: Any, limit_s: float) -> Iterator[Opened]:
    with needs("mpi", "mpi4py"):
        from mpi4py.futures import MPIPoolExecutor
    # A rank that ends takes the others with it, so each rank has a process that works and may end.
    with MPIPoolExecutor(initializer=_begin_rank, initargs=(work, limit_s)) as pool:
        yield lambda item: pool.submit(_do_in_rank, item, limit_s), AHEAD * pool.num_workers
