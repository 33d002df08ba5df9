"""A worker whose broker fails at a bad moment: what it does then, with a broker of a few lines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heartlm.errors import HeartlmError
from heartlm.monitor.engine import Monitor
from heartlm.monitor.leases import NUM_PARTITIONS, LeaseTable
from heartlm.monitor.models import LiveModels
from heartlm.monitor.nats import Worker, _Partition
from heartlm.monitor.state import packed
from heartlm.monitor.stream import Ward


class Leases:
    def __init__(self, table: LeaseTable) -> None:
        self.table = table

    async def read(self) -> tuple[LeaseTable, int]:
        return self.table, 1


class States:
    """Fails once, then stores objects."""

    def __init__(self) -> None:
        self.stored = dict[str, bytes]()
        self.has_failed = False

    async def put(self, name: str, content: bytes) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise TimeoutError
        self.stored[name] = content


@pytest.fixture
def worker(models: LiveModels) -> Worker:
    worker = Worker(Monitor(Ward(models), log=lambda _: None), "127.0.0.1", "a")
    worker.leases = Leases(LeaseTable((worker._name,), (worker._name,) * NUM_PARTITIONS))  # type: ignore[assignment]
    return worker


def test_a_state_that_the_broker_did_not_take_is_saved_again(worker: Worker) -> None:
    worker._states, partition = States(), _Partition(3, sequence=7)
    with pytest.raises(TimeoutError):
        asyncio.run(worker._save(partition))
    asyncio.run(worker._save(partition))
    assert list(worker._states.stored) == ["partition-3"] and partition.saved == 7


def test_no_partition_is_acquired_twice_at_once(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt fails while others still wait for the broker."""
    running = set[int]()

    async def acquire(number: int) -> None:
        assert number not in running
        running.add(number)
        await asyncio.sleep(0.02 * number)
        running.remove(number)
        if number == 0:
            raise TimeoutError
        worker.partitions[number] = _Partition(number, heard_at=float("inf"))

    async def attempt() -> None:
        with pytest.raises(TimeoutError):
            await worker._work()
        assert not running

    monkeypatch.setattr(worker, "_acquire", acquire)
    asyncio.run(attempt())
    assert set(worker.partitions) == set(range(1, 8))


def test_a_state_of_another_build_says_what_helps_a_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_: str) -> bytes:
        return packed({"streams": {}, "silence": [], "alarms": [], "sequence": 1})

    def refuse(_: Any) -> None:
        raise HeartlmError("written by another build of heartlm")

    pytest.importorskip("nats")
    monkeypatch.setattr(worker, "_read_object", read)
    monkeypatch.setattr(worker.monitor, "restore", refuse)
    with pytest.raises(HeartlmError, match=r"^nats: partition-5: written by another build.*: stop its workers"):
        asyncio.run(worker._acquire(5))
