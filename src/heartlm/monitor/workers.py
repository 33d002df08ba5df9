"""Which worker owns which partition of the streams: a function of the names of the workers that live.

Every second each worker tells all others that it lives. For a moment two workers may differ about who lives, and both
judge a partition, or neither does. This changes no alarm: alarms are a function of the messages, which the broker
keeps, and it drops an alarm that it has already.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from functools import lru_cache

NUM_PARTITIONS = 64
SUBJECT = "heartlm.workers"
"""Subject of the heartbeats: the name of a worker and when it began, or only the name of one that leaves."""
EXPIRY_S = 4.0
"""The partitions of a worker are given to others after this time without a heartbeat."""
_LISTEN_S = 2.0
"""Time for which a new worker listens for others before it owns anything."""


@lru_cache(maxsize=64)
def owners_of(workers: frozenset[str]) -> tuple[str, ...]:
    """Return the owner of each partition: of the workers with fewer than an equal share, the one with the highest hash.

    Hence few partitions change their owner when a worker joins or leaves.
    """
    equal_share, count, owners = math.ceil(NUM_PARTITIONS / len(workers)), Counter[str](), list[str]()
    for number in range(NUM_PARTITIONS):
        free = (name for name in workers if count[name] < equal_share)
        owner = max(free, key=lambda name: hashlib.sha256(f"{name}/{number}".encode()).digest())
        count[owner] += 1
        owners.append(owner)
    return tuple(owners)


class Workers:
    """What one worker knows of itself and the others.

    Args:
        name: name of this worker.

    Attributes:
        heartbeat: message that says that this worker lives.
        replaced: a worker that began later has the name of this one.
    """

    def __init__(self, name: str) -> None:
        self.name, self.replaced = name, False
        self._began, self._heard = time.time_ns(), dict[str, float]()
        self.heartbeat = f"{name} {self._began}".encode()
        self._listens_until = math.inf

    def hear(self, heartbeat: bytes) -> None:
        """Note a heartbeat of any worker, this one too."""
        name, _, began = heartbeat.decode().partition(" ")
        now = time.monotonic()
        if not began:
            self._heard.pop(name, None)
            return
        if name == self.name:
            self.replaced = self.replaced or int(began) > self._began
            self._listens_until = min(self._listens_until, now + _LISTEN_S)
        self._heard[name] = now

    @property
    def owned(self) -> list[int]:
        """Partitions of this worker.

        Others have expired if their last heartbeat is far before that of this worker. So none expires while the broker
        is away, or while this worker is stopped.
        """
        last = self._heard.get(self.name)
        if last is None or time.monotonic() < self._listens_until:
            return []
        live = frozenset(name for name, heard in self._heard.items() if last - heard < EXPIRY_S)
        return [number for number, owner in enumerate(owners_of(live)) if owner == self.name]
