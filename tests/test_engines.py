"""Work by processes and by Dask: the same results in the same order, whatever happens to a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from pathlib import Path

import pytest

from heartlm.errors import HeartlmError
from heartlm.system.engine import EngineOptions
from heartlm.system.processes import Lost, _DaskAnswer, is_worker, run_each, within_limit
from tests.conftest import ROOT
from tests.dask_cluster import dask_cluster

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


class Fragile:
    """Work that ends or halts its process at some items, once or always."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: tuple[int, str]) -> tuple[int, bool]:
        number, trouble = item
        mark = self.folder / f"{number}"
        with within_limit():
            if trouble == "dies" or (trouble == "dies once" and not mark.exists()):
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "hangs":
                time.sleep(600)
            if trouble == "fails":
                raise HeartlmError(f"item {number}")
        return number * number, is_worker()


@pytest.mark.parametrize("engine", ["fork", "spawn", pytest.param("dask", marks=pytest.mark.slow)])
def test_a_worker_that_ends_costs_its_item_alone(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options, first = EngineOptions(limit_s=1.0), 0
    if engine == "dask":
        first = 100  # further on, where items are sent in groups
        options = EngineOptions(engine="dask", scheduler=request.getfixturevalue("scheduler"), limit_s=1.0)
    items = [(number, "") for number in range(first + 40)]
    for place, trouble in ((3, "dies once"), (5, "dies"), (8, "hangs")):
        items[first + place] = (first + place, trouble)
    start = "fork" if engine == "fork" else "spawn"
    results = list(run_each(Fragile(tmp_path), items, options, 2, start=start))
    lost = [number for number, result in enumerate(results) if isinstance(result, Lost)]
    assert lost == [first + 5, first + 8]
    assert "killed, or not done in 1 s" in str(results[first + 5])
    assert all(result == (number**2, True) for number, result in enumerate(results) if number not in lost)


@pytest.mark.slow
def test_a_rank_of_mpi_loses_its_process_alone(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    from lab.steps import mpiexec

    try:
        ranks = [*mpiexec(3), sys.executable, "-m", "mpi4py.futures", "-m", "tests.mpi_client"]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    done = subprocess.run([*ranks, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    lost = {5: "Lost", 8: "Lost"}
    assert json.loads(done.stdout) == [lost.get(number, [number**2, True]) for number in range(20)]


@pytest.mark.slow
def test_an_exception_comes_after_the_results_before_it(tmp_path: Path, scheduler: str) -> None:
    options = EngineOptions(engine="dask", scheduler=scheduler)
    items, results = [(number, "fails" if number == 130 else "") for number in range(200)], list[object]()
    with pytest.raises(HeartlmError, match=r"^item 130$"):
        results.extend(iter(run_each(Fragile(tmp_path), items, options, 2)))
    assert results == [(number**2, True) for number in range(130)]


@pytest.mark.slow
def test_a_result_that_never_comes_ends_with_the_scheduler(tmp_path: Path) -> None:
    """Dask leaves a future as it is if the scheduler is lost while the result is fetched."""
    import distributed

    with ExitStack() as stack:
        address, process = stack.enter_context(dask_cluster(tmp_path))
        client = stack.enter_context(distributed.Client(address, timeout=2, set_as_default=False))
        waiting, failed = _DaskAnswer(Future(), client), Future[None]()
        failed.set_exception(TimeoutError("of the work"))
        with pytest.raises(TimeoutError, match="of the work"):
            _DaskAnswer(failed, client).result()
        process.kill()
        with pytest.raises(CancelledError):
            waiting.result()


@pytest.mark.slow
def test_a_lost_scheduler_is_one_line(tmp_path: Path) -> None:
    with dask_cluster(tmp_path) as (address, process):
        options = EngineOptions(engine="dask", scheduler=address)
        results = run_each(Fragile(tmp_path), ((number, "") for number in range(10**9)), options, 1)
        assert next(results) == (0, True)
        process.kill()
        with pytest.raises(HeartlmError, match=r"^the Dask scheduler tcp://\S+ was lost: .*repeat the command"):
            for _ in results:
                pass
