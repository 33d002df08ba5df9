"""The lease table, which says which worker owns which partition of the streams, in a key-value bucket of JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from heartlm.errors import HeartlmError

NUM_PARTITIONS = 64
EXPIRY_S = 3.0
"""The partitions of a worker are given to others after this time without a heartbeat."""
# A longer time between two looks at the heartbeats counts as this: the broker may have been stopped, so that the
# others could not send theirs, or this worker was busy.
_LONGEST_WAIT_S = 1.0


class LeaseTable(NamedTuple):
    """Owners of the partitions.

    Attributes:
        workers: names of the live workers, sorted.
        owners: owner of each partition; None if there are no workers.
    """

    workers: tuple[str, ...] = ()
    owners: tuple[str | None, ...] = (None,) * NUM_PARTITIONS

    def with_workers(self, workers: set[str]) -> LeaseTable:
        """Return the table for these workers. Partitions without an owner go to the workers with the fewest."""
        owners = [owner if owner in workers else None for owner in self.owners]
        count = Counter({worker: owners.count(worker) for worker in sorted(workers)})
        for number, owner in enumerate(owners):
            if owner is None and workers:
                owners[number] = fewest = min(count, key=lambda name: count[name])
                count[fewest] += 1
        return LeaseTable(tuple(sorted(workers)), tuple(owners))

    def surplus(self, worker: str) -> tuple[int, str] | None:
        """Return a partition that a worker has beyond its fair share, and the worker that should get it."""
        if worker not in self.workers:
            return None
        fair, count = math.ceil(NUM_PARTITIONS / len(self.workers)), Counter(self.owners)
        receiver = min(self.workers, key=lambda name: count[name])
        if count[worker] <= fair or count[receiver] >= fair:
            return None
        return max(number for number, owner in enumerate(self.owners) if owner == worker), receiver

    def with_owner(self, number: int, worker: str) -> LeaseTable:
        """Return the table with another owner of one partition."""
        return self._replace(owners=(*self.owners[:number], worker, *self.owners[number + 1 :]))


class Leases:
    """Access of one worker to the table, which is changed by compare-and-set, and to the heartbeats of all workers.

    Args:
        bucket: key-value bucket with the key `table` and a key `worker.NAME` for each worker.
        worker: name of this worker.

    Attributes:
        table: the table as last read.
    """

    def __init__(self, bucket: Any, worker: str) -> None:
        self.worker, self.table = worker, LeaseTable()
        self._bucket = bucket
        self._ages = dict[str, tuple[int, float]]()
        """Revision of the heartbeat of each worker, and the time for which it has been seen, in seconds."""
        self._checked_at, self._joined = -math.inf, False

    async def read(self) -> tuple[LeaseTable, int]:
        """Read the table, and return it with its revision."""
        from nats.js.errors import KeyNotFoundError

        try:
            entry = await self._bucket.get("table")
        except KeyNotFoundError:
            return LeaseTable(), 0
        content = json.loads(entry.value)
        self.table = LeaseTable(tuple(content["workers"]), tuple(content["owners"]))
        return self.table, entry.revision

    async def change(self, change: Callable[[LeaseTable], LeaseTable]) -> None:
        """Replace the table by `change` of it, and try again if another worker changed it meanwhile."""
        from nats.js.errors import KeyWrongLastSequenceError

        while True:
            old, revision = await self.read()
            if (new := change(old)) == old:
                return
            with contextlib.suppress(KeyWrongLastSequenceError):
                await self._bucket.update("table", json.dumps(new._asdict()).encode(), revision)
                self.table = new
                return

    async def heartbeat(self) -> None:
        """Renew the lease of this worker, and give the partitions of expired workers to the live ones.

        Raises:
            HeartlmError: another worker of the same name replaced this one.
        """
        workers = self.table.workers
        # All at once: each answer waits until the worker has judged a second of its streams.
        _, (table, _), *entries = await asyncio.gather(
            self._bucket.put(f"worker.{self.worker}", b""),
            self.read(),
            *(self._bucket.get(f"worker.{worker}") for worker in workers),
        )
        now, ages = time.monotonic(), dict[str, tuple[int, float]]()
        waited, self._checked_at = min(now - self._checked_at, _LONGEST_WAIT_S), now
        for worker, entry in zip(workers, entries, strict=True):
            revision, age = self._ages.get(worker, (0, 0.0))
            ages[worker] = entry.revision, age + waited if entry.revision == revision else 0.0
        self._ages = ages
        expired = {worker for worker, (_, age) in ages.items() if age > EXPIRY_S}
        name = self.worker.rpartition("-")[0]
        same_name = {worker for worker in table.workers if worker.rpartition("-")[0] == name}
        if self.worker not in table.workers and same_name:
            if self._joined:
                raise HeartlmError(f"worker: {name}: another worker of this name replaced this one")
            expired |= same_name  # this worker before a restart
        await self.change(lambda old: old.with_workers({*old.workers, self.worker} - (expired - {self.worker})))
        self._joined = True
