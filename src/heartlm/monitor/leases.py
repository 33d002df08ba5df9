"""Which worker owns which partition of the streams: a table in a key-value bucket of NATS JetStream."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from heartlm.errors import HeartlmError

NUM_PARTITIONS = 64
EXPIRY_S = 4.0
"""The partitions of a worker of which nothing was heard for so long are taken."""


class LeaseTable(NamedTuple):
    """Who owns which partition.

    Attributes:
        workers: that live, in the order of their names.
        owners: of each partition; None without any worker.
    """

    workers: tuple[str, ...] = ()
    owners: tuple[str | None, ...] = (None,) * NUM_PARTITIONS

    def settled(self, workers: set[str]) -> LeaseTable:
        """The table of these workers: partitions without an owner go to those who have fewest."""
        owners = [owner if owner in workers else None for owner in self.owners]
        count = Counter({worker: owners.count(worker) for worker in sorted(workers)})
        for place, owner in enumerate(owners):
            if owner is None and workers:
                owners[place] = taker = min(count, key=lambda name: count[name])
                count[taker] += 1
        return LeaseTable(tuple(sorted(workers)), tuple(owners))

    def surplus(self, worker: str) -> tuple[int, str] | None:
        """A partition that a worker has beyond its fair share, and who is to have it."""
        if worker not in self.workers:
            return None
        share, count = math.ceil(NUM_PARTITIONS / len(self.workers)), Counter(self.owners)
        taker = min(self.workers, key=lambda name: count[name])
        if count[worker] <= share or count[taker] >= share:
            return None
        return max(place for place, owner in enumerate(self.owners) if owner == worker), taker

    def moved(self, place: int, worker: str) -> LeaseTable:
        """The table with another owner of one partition."""
        return self._replace(owners=(*self.owners[:place], worker, *self.owners[place + 1 :]))


class Leases:
    """The table in a key-value bucket, changed by compare-and-set, with a key for the heartbeat of each worker."""

    def __init__(self, bucket: Any, worker: str) -> None:
        self.worker, self.table = worker, LeaseTable()
        self._bucket = bucket
        self._beats = dict[str, tuple[int, float]]()
        self._last, self._joined = -math.inf, False

    async def read(self) -> tuple[LeaseTable, int]:
        """The table as it is now, and its revision."""
        from nats.js.errors import KeyNotFoundError

        try:
            entry = await self._bucket.get("table")
        except KeyNotFoundError:
            return LeaseTable(), 0
        content = json.loads(entry.value)
        self.table = LeaseTable(tuple(content["workers"]), tuple(content["owners"]))
        return self.table, entry.revision

    async def change(self, change: Callable[[LeaseTable], LeaseTable]) -> None:
        """Change the table as it is now; again, if another worker was faster."""
        from nats.js.errors import KeyWrongLastSequenceError

        while True:
            old, revision = await self.read()
            if (new := change(old)) == old:
                return
            with contextlib.suppress(KeyWrongLastSequenceError):
                await self._bucket.update("table", json.dumps(new._asdict()).encode(), revision)
                self.table = new
                return

    async def beat(self) -> None:
        """Show that this worker lives, and see which do not: theirs goes to the living."""
        await self._bucket.put(f"worker.{self.worker}", b"")
        table, _ = await self.read()
        beats = dict[str, tuple[int, float]]()
        for worker in table.workers:
            revision = (await self._bucket.get(f"worker.{worker}")).revision
            known = self._beats.get(worker)
            beats[worker] = known if known and known[0] == revision else (revision, time.monotonic())
        now = time.monotonic()
        if now - self._last > EXPIRY_S / 2:  # this worker or the broker was away: all get their time again
            beats = {worker: (revision, now) for worker, (revision, _) in beats.items()}
        self._beats, self._last = beats, now
        dead = {worker for worker, (_, seen) in beats.items() if now - seen > EXPIRY_S}
        same = {worker for worker in table.workers if worker.rpartition("-")[0] == self.worker.rpartition("-")[0]}
        if self.worker not in table.workers and same:
            if self._joined:
                raise HeartlmError(
                    f"worker: {self.worker.rpartition('-')[0]}: another worker of this name took its place"
                )
            dead |= same  # it is what this worker was before a restart
        await self.change(lambda old: old.settled({*old.workers, self.worker} - (dead - {self.worker})))
        self._joined = True
