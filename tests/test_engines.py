"""Work by processes and by Dask: the same results in the same order, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heartlm.errors import HeartlmError
from heartlm.system.engine import EngineOptions
from heartlm.system.processes import Lost, is_worker, run_each, within_limit
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
        return number * number, is_worker()


@pytest.mark.parametrize("engine", ["fork", "spawn", pytest.param("dask", marks=pytest.mark.slow)])
def test_a_worker_that_ends_costs_its_item_alone(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options = EngineOptions(limit_s=1.0)
    if engine == "dask":
        options = EngineOptions(engine="dask", scheduler=request.getfixturevalue("scheduler"), limit_s=1.0)
    items = [(number, "") for number in range(40)]
    items[3], items[5], items[8] = (3, "dies once"), (5, "dies"), (8, "hangs")
    start = "fork" if engine == "fork" else "spawn"
    results = list(run_each(Fragile(tmp_path), items, options, 2, start=start))
    lost = [number for number, result in enumerate(results) if isinstance(result, Lost)]
    assert lost == [5, 8]
    assert "killed, or not done in 1 s" in str(results[5])
    assert all(result == (number**2, True) for number, result in enumerate(results) if number not in lost)


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
