"""Streams shared among any number of monitors (workers) by NATS JetStream.

    sender ─► heartlm.ecg.PARTITION.STREAM ─► the worker that owns the partition ─► heartlm.alarms.STREAM
                                                  │ state and sequence number ─► object store

Everything a worker does is a function of the messages of a partition in their order: silence, too, is judged by the
broker's times of messages. So a worker that takes a partition over loads the last state, reads the messages after it,
and raises the same alarms to the last bit. Those that were published before carry the same id, and the broker drops
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from heartlm.errors import HeartlmError, needs
from heartlm.monitor.engine import Monitor
from heartlm.monitor.journal import packed, unpacked
from heartlm.monitor.leases import NUM_PARTITIONS, Leases

TICK_S = 1.0
"""How often a worker shows that it lives."""
SAVE_S = 15.0
"""How often the state of each partition is saved: the signal that a taker goes through again."""
KEPT_S = 3600.0
"""How long messages and states are kept, and ids of alarms: nothing older than a message can come twice."""
_HEARTBEAT_S, _CONNECT_S = 2.0, 10.0
_MOST_WAITING = 20_000
"""Messages taken in since all was judged; a worker that is further behind reads no more."""
_TAKEN_TOGETHER = 8
"""Partitions whose states are fetched at once: the broker answers some questions for each."""
_TOGETHER_S = 0.25
"""Time in which messages are collected, to be judged together."""
_ECG, _ALARMS, _LEASES, _STATES = "heartlm-ecg", "heartlm-alarms", "heartlm-leases", "heartlm-states"
_TICK = "%tick"
"""In place of a stream's name, which never looks like this: so late is it, by the broker's clock."""
_SAFE = "!\"#$&'()+,/:;<=?@[\\]^`{|}~"
_FIELDS = ("key", "stream", "kind", "severity", "start_s", "raised_s", "stop_s", "confidence")


def token_of(stream: str) -> str:
    """A stream's name as a part of a subject: a point, a space, `*`, `>`, `%` and all beyond ASCII become `%XX`."""
    return quote(stream, safe=_SAFE).replace(".", "%2E")


def partition_of(token: str) -> int:
    """The partition of a stream: FNV-1a of its token, as the broker's `partition()` computes it."""
    value = 0x811C9DC5
    for byte in token.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % NUM_PARTITIONS


def subject_of(stream: str) -> str:
    """Where the messages of a stream are published."""
    return f"heartlm.ecg.{partition_of(token_of(stream))}.{token_of(stream)}"


@dataclass
class _Partition:
    """A partition that this worker owns.

    Attributes:
        sequence: of the last message taken in.
        names: of its streams.
        heard: when its consumer last sent something.
        received: messages of its consumer, which the broker counts too.
    """

    number: int
    sequence: int = 0
    names: set[str] = field(default_factory=set)
    saved_at: float = field(default_factory=time.monotonic)
    saved: int = 0
    heard: float = -math.inf
    received: int = 0
    subscription: Any = None


class Worker:
    """Feeds the partitions it owns to a monitor, and publishes the alarms.

    Args:
        monitor: without a folder; it is the worker who takes it forward.
        address: of the broker: host, host:port, or an address with `nats://` or `tls://`, a user and a password.
        name: of this worker: letters, digits, `-` and `_`; another with the same name takes its place.
    """

    def __init__(self, monitor: Monitor, address: str, name: str) -> None:
        if not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII):
            raise HeartlmError(f"worker: {name!r} found, 1 to 64 letters, digits, - and _ expected")
        self.monitor, self.address = monitor, address
        self.partitions = dict[int, _Partition]()
        self._name = f"{name}-{uuid4().hex[:8]}"
        self._outbox = deque[tuple[int, str, bytes, str]]()
        self._time, self._waiting = 0.0, 0
        self._troubled = False
        monitor.clock = lambda: self._time
        monitor.listeners.append(self._announce)

    async def connect(self) -> None:
        """Connect, and create what the broker lacks.

        Raises:
            HeartlmError: no such broker, JetStream is off, or nats-py is not installed.
        """
        with needs("monitor"):
            import nats
            from nats.js.api import StorageType, StreamConfig

        async def again() -> None:
            self.monitor.log("nats: connected again")
            for each in self.partitions.values():
                each.heard = -math.inf

        async def trouble(error: Exception) -> None:
            self._trouble(error)

        self._errors = nats.errors.Error
        try:
            connecting = nats.connect(
                self.address,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.5,
                ping_interval=5,
                reconnected_cb=again,
                error_cb=trouble,
            )
            self._client = await asyncio.wait_for(connecting, _CONNECT_S)  # it tries for ever
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
            raise HeartlmError(f"nats: {self.address}: no broker there ({str(error) or 'no answer'})") from None
        self._jetstream = jetstream = self._client.jetstream(timeout=5)
        file = StorageType.FILE
        try:
            for name, subjects in ((_ECG, "heartlm.ecg.*.*"), (_ALARMS, "heartlm.alarms.*")):
                kept: Any = {"max_age": KEPT_S} if name == _ECG else {"duplicate_window": KEPT_S}
                with contextlib.suppress(nats.js.errors.BadRequestError):  # there already, as an operator wants it
                    await jetstream.add_stream(StreamConfig(name=name, subjects=[subjects], storage=file, **kept))
            bucket = await jetstream.create_key_value(bucket=_LEASES, storage=file)
            self._states = await jetstream.create_object_store(bucket=_STATES, storage=file, ttl=KEPT_S)
        except nats.js.errors.ServiceUnavailableError:
            raise HeartlmError(f"nats: {self.address}: JetStream is off: start nats-server with --jetstream") from None
        self.leases = Leases(bucket, self._name)

    async def run(self) -> None:
        """Work until cancelled; then save what is owned and give it to the others."""
        tasks = [asyncio.create_task(self._patiently(each)) for each in (self._beat, self._work)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            while running := [task for task in tasks if not task.done()]:
                for task in running:
                    task.cancel()  # again: wait_for of Python 3.11 loses one that comes as its answer does
                await asyncio.wait(running, timeout=1)
            with contextlib.suppress(Exception):  # without a broker there is nothing to give back to
                await asyncio.wait_for(self._leave(), 30)
            await self._client.close()

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again and again, whatever becomes of the broker."""
        while True:
            try:
                await work()
                self._troubled = False
            except (TimeoutError, OSError, self._errors) as error:
                self._trouble(error)
                await asyncio.sleep(0.5)

    def _trouble(self, error: Exception) -> None:
        if not self._troubled:
            self._troubled = True
            self.monitor.log(f"nats: {type(error).__name__} {error}: trying again")

    async def _beat(self) -> None:
        await self.leases.beat()
        for each in self.partitions.values():
            if each.names:
                await self._client.publish(f"heartlm.ecg.{each.number}.{_TICK}", b"")
        await asyncio.sleep(TICK_S)

    async def _work(self) -> None:
        """Judge a second of each stream, publish, and look after the partitions, taking some over at once."""
        self.monitor.step()
        if not (behind := len(self.monitor.ward.waiting)):
            self._waiting = 0
        await self._publish()
        table, now = self.leases.table, time.monotonic()
        for number in [each for each in self.partitions if table.owners[each] != self._name]:
            await self._drop(number)
        for each in list(self.partitions.values()):
            if now - each.heard > 3 * _HEARTBEAT_S:
                await self._subscribe(each)
        missing = [n for n, owner in enumerate(table.owners) if owner == self._name and n not in self.partitions]
        if missing:
            await asyncio.gather(*map(self._take_over, missing[:_TAKEN_TOGETHER]))
        elif (surplus := table.surplus(self._name)) is not None:
            await self._save(self.partitions[surplus[0]])
            await self._drop(surplus[0])
            await self.leases.change(lambda old: old.moved(*surplus) if old.owners[surplus[0]] == self._name else old)
        elif self.partitions:
            oldest = min(self.partitions.values(), key=lambda each: each.saved_at)
            if now - oldest.saved_at > SAVE_S:
                await self._save(oldest)
        # Some turns of the loop, for heartbeats and messages, between the seconds of a long replay; else a while in
        # which seconds of many streams come, since judging them together costs least.
        await asyncio.sleep(0.005 if behind or missing else _TOGETHER_S)

    async def _take_over(self, number: int) -> None:
        """Continue from the state that was saved last, or from the first message that is kept."""
        from nats.js.errors import ObjectNotFoundError

        each = _Partition(number)
        try:
            file = io.BytesIO()  # without it nats-py adds up chunks as bytes, in time that grows with the square
            await asyncio.wait_for(self._states.get(f"partition-{number}", file), 10)
        except ObjectNotFoundError:
            pass
        else:
            state = unpacked(file.getvalue())
            self.monitor.restore(state["streams"])
            for name, heard in state["heard"].items():
                patient = self.monitor.patients[name]
                patient.heard, patient.silent = heard["at"], heard["silent"]
            self.monitor.alarms |= {entry["key"]: entry for entry in json.loads(state["alarms"])}
            each.sequence = each.saved = state["sequence"]
            each.names = set(state["streams"])
        self.partitions[number] = each
        await self._subscribe(each)

    async def _save(self, each: _Partition) -> None:
        """Save a partition as it is after its last message, once all alarms before it are published."""
        await self._publish()
        each.saved_at = time.monotonic()
        if each.sequence == each.saved:
            return
        each.saved = each.sequence
        patients = {name: self.monitor.patients[name] for name in each.names}
        state = {
            "sequence": each.sequence,
            "streams": self.monitor.state(each.names),
            "heard": {name: {"at": own.heard, "silent": own.silent} for name, own in patients.items()},
            "alarms": json.dumps([entry for entry in self.monitor.open_alarms() if entry["stream"] in each.names]),
        }
        await self._states.put(f"partition-{each.number}", packed(state))

    async def _drop(self, number: int) -> None:
        each = self.partitions.pop(number)
        self.monitor.forget(each.names)
        if each.subscription is not None:
            await each.subscription.unsubscribe()

    async def _leave(self) -> None:
        for each in list(self.partitions.values()):
            await self._save(each)
        await self.leases.change(lambda old: old.settled(set(old.workers) - {self._name}))

    async def _subscribe(self, each: _Partition) -> None:
        """Read the messages after the last one; again, whenever the broker's consumer is lost or one was missed."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        old, each.subscription = each.subscription, None
        if old is not None:
            await old.unsubscribe()
        inbox = self._client.new_inbox()
        each.received = 0

        async def received(message: Any) -> None:
            if self.partitions.get(each.number) is not each or each.subscription is not own:
                return
            each.heard = time.monotonic()
            while self._waiting > _MOST_WAITING:
                await asyncio.sleep(0.05)
            if message.headers and message.headers.get("Status"):  # a heartbeat, or a question whether this is too fast
                if message.reply:
                    await message.respond(b"")
                last = message.headers.get("Nats-Last-Consumer")
                number = each.received if last is None else int(last)
            else:
                number = message.metadata.sequence.consumer - 1
            if number != each.received:
                each.heard = -math.inf
                each.subscription = None
            elif not (message.headers and message.headers.get("Status")):
                each.received += 1
                self._receive(each, message)

        own = each.subscription = await self._client.subscribe(inbox, cb=received)
        await self._jetstream.add_consumer(
            _ECG,
            ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=each.sequence + 1,
                ack_policy=AckPolicy.NONE,
                filter_subject=f"heartlm.ecg.{each.number}.*",
                flow_control=True,
                idle_heartbeat=_HEARTBEAT_S,
            ),
        )
        each.heard = time.monotonic()

    def _receive(self, each: _Partition, message: Any) -> None:
        each.sequence, self._time = message.metadata.sequence.stream, message.metadata.timestamp.timestamp()
        self.monitor.see_silence(self._time, each.names)
        token = message.subject.rpartition(".")[2]
        if token == _TICK:
            return
        name = unquote(token)
        if subject_of(name) != message.subject:
            self.monitor.refuse(f"NATS {message.subject}", f"expected as {subject_of(name)}")
            return
        self._waiting += 1
        self.monitor.receive(message.data, f"NATS {name[:64]}", name)
        if name in self.monitor.patients:
            each.names.add(name)

    def _announce(self, entry: dict[str, Any]) -> None:
        token, what = token_of(entry["stream"]), "begin" if entry["stop_s"] is None else "end"
        known = hashlib.sha256(f"{entry['key']}/{what}".encode()).hexdigest()
        content = json.dumps({name: entry[name] for name in _FIELDS}).encode()
        self._outbox.append((partition_of(token), f"heartlm.alarms.{token}", content, known))

    async def _publish(self) -> None:
        """Publish the alarms of the partitions that are still owned, each until the broker has it."""
        while self._outbox:
            table, _ = await self.leases.read()
            for partition, subject, content, known in list(self._outbox):
                if table.owners[partition] == self._name:
                    await self._jetstream.publish(subject, content, headers={"Nats-Msg-Id": known})
                self._outbox.popleft()
