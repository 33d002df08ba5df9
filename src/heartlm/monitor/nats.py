"""Streams shared among any number of monitors (workers) by NATS JetStream.

    sender ─► heartlm.ecg.PARTITION.STREAM ─► worker that owns the partition ─► heartlm.alarms.STREAM
                                                  │ state and sequence number ─► object store

The alarms of a partition are a function of its messages in their order; silence is judged by the broker's timestamps of
messages. A worker that takes over a partition restores its last saved state and processes the messages after it, so it
raises the same alarms to the last bit. Alarms that were already published have the same message id, and the broker
drops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from heartlm.errors import HeartlmError, needs
from heartlm.monitor.alarms import ALARM_FIELDS
from heartlm.monitor.connection import Access, Connection, is_loopback, read_address, reason_of
from heartlm.monitor.engine import Monitor
from heartlm.monitor.leases import NUM_PARTITIONS, Leases
from heartlm.monitor.state import packed, unpacked

TICK_S = 0.5
"""Time between heartbeats of a worker."""
SAVE_S = 15.0
"""Time between saves of the state of a partition. A worker that takes it over processes this much signal again."""
KEPT_S = 3600.0
"""Time for which the broker keeps messages, states, and the ids of alarms by which it finds duplicates."""
_HEARTBEAT_S, _CONNECT_S, _ANSWER_S = 2.0, 10.0, 5.0
# A connection counts as restored after this time without an error: requests may still wait for an answer.
_QUIET_S = _ANSWER_S + 1
# A worker stops reading when this many messages have arrived since it last had nothing to judge.
_MAX_WAITING = 20_000
# Partitions whose states are fetched at the same time: each takes several requests.
_NUM_ACQUIRED_TOGETHER = 8
# Chunks of an object, 128 KiB each, that are asked for at once.
_CHUNKS_TOGETHER = 16
# Time for which messages are collected before they are judged together.
_COLLECT_S = 0.25
_ECG, _ALARMS, _LEASES, _STATES = "heartlm-ecg", "heartlm-alarms", "heartlm-leases", "heartlm-states"
# Takes the place of a stream's token in messages that only carry the broker's time. No token equals it, as `quote`
# writes a percent sign as %25.
_TICK = "%tick"
_SAFE = "!\"#$&'()+,/:;<=?@[\\]^`{|}~"


def token_of(stream: str) -> str:
    """Return the name of a stream as a token of a subject: `.`, space, `*`, `>`, `%` and non-ASCII become `%XX`."""
    return quote(stream, safe=_SAFE).replace(".", "%2E")


def partition_of(token: str) -> int:
    """Return the partition of a stream: FNV-1a of its token, as the broker's `partition()` computes it."""
    value = 0x811C9DC5  # offset basis and prime of FNV with 32 bits
    for byte in token.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % NUM_PARTITIONS


def subject_of(stream: str) -> str:
    """Return the subject of the messages of a stream."""
    return f"heartlm.ecg.{partition_of(token_of(stream))}.{token_of(stream)}"


def _credentials_fault(path: Path) -> str | None:
    """Return what is wrong with a credentials file. nats-py does not check it, and may read it forever."""
    import nkeys  # type: ignore[import-untyped, import-not-found, unused-ignore]

    try:
        text = path.read_text(encoding="utf-8")
        seed = re.search(r"-BEGIN USER NKEY SEED-+\s+(\w+)\s", text)
        if not re.search(r"-BEGIN NATS USER JWT-+\r?\n\S", text) or seed is None:
            return "a credentials file of a NATS user expected"
        nkeys.from_seed(bytearray(seed[1].encode())).wipe()
    except OSError as error:
        return error.strerror
    except (ValueError, nkeys.NkeysError):
        return "its seed is damaged"
    return None


@dataclass
class _Partition:
    """A partition that this worker owns.

    Attributes:
        number: number of the partition.
        sequence: sequence number of the last message that was processed.
        names: names of its streams.
        saved_at: when its state was saved.
        saved: sequence number of the saved state.
        heard_at: when the broker's consumer last sent something; the past makes the worker subscribe again.
        num_received: messages from the consumer, which the broker counts too.
        subscription: subscription to the consumer; None to ignore its messages.
    """

    number: int
    sequence: int = 0
    names: set[str] = field(default_factory=set)
    saved_at: float = field(default_factory=time.monotonic)
    saved: int = 0
    heard_at: float = -math.inf
    num_received: int = 0
    subscription: Any = None


class Worker:
    """Feeds the partitions that it owns to a monitor, and publishes the alarms.

    Args:
        monitor: a monitor without a folder; the worker calls its `step`.
        address: address of the broker: host, host:port, `nats://HOST` or, with TLS, `tls://HOST`.
        name: name of this worker: letters, digits, `-` and `_`. A new worker replaces one of the same name.
        access: user, password, credentials and certificates.

    Attributes:
        connection: state of the connection.

    Raises:
        HeartlmError: an argument is wrong.
    """

    def __init__(self, monitor: Monitor, address: str, name: str, access: Access = Access()) -> None:  # noqa: B008
        if not re.fullmatch(r"[\w-]{1,64}", name, re.ASCII):
            raise HeartlmError(f"client_id: {name!r} found, 1 to 64 letters, digits, - and _ expected")
        host, port, self._has_tls = read_address("nats", address, {"nats": 4222, "tls": 4222}, access)
        self._url = f"{'tls' if self._has_tls else 'nats'}://{f'[{host}]' if ':' in host else host}:{port}"
        self.monitor, self._access = monitor, access
        self.partitions = dict[int, _Partition]()
        self._name = f"{name}-{uuid4().hex[:8]}"
        self._unpublished = deque[tuple[int, str, bytes, str]]()
        self._broker_time, self._num_waiting = 0.0, 0
        self._failed_at = -math.inf
        self.leases: Leases
        self.connection = Connection(f"nats {host}:{port}", monitor.log, lambda: len(self._unpublished))
        if access.password is not None and not self._has_tls and not is_loopback(host):
            monitor.log(f"{self.connection.name}: user and password are sent unencrypted: tls:// encrypts them")
        monitor.clock = lambda: self._broker_time
        monitor.listeners.append(self._queue_alarm)

    async def connect(self) -> None:
        """Connect to the broker, and create the streams and buckets that it lacks.

        Raises:
            HeartlmError: there is no such broker, it refuses the client, JetStream is off, or a package is missing.
        """
        with needs("monitor"):
            import nats

            self._broker_errors = TimeoutError, OSError, nats.errors.Error
            try:
                await self._open()
            except self._broker_errors as error:
                raise HeartlmError(f"{self.connection.name}: {self._reason(error)}") from None

    async def _open(self) -> None:
        """Connect with a new client, which restores a lost connection by itself until the broker refuses it.

        Raises:
            Exception: one of `_broker_errors`.
        """
        import nats
        from nats.aio.client import Client
        from nats.js.api import StorageType, StreamConfig

        has_tls, access, opened = self._has_tls, self._access, False
        if access.credentials is not None and (fault := _credentials_fault(access.credentials)):
            raise nats.errors.Error(f"{access.credentials}: {fault}")
        first_error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        class CheckedClient(Client):
            def _connect_command(self) -> bytes:
                if has_tls and not self._server_info.get("tls_required"):
                    # nats-py would send the password unencrypted.
                    raise nats.errors.Error("the broker does not use TLS at this port")
                return super()._connect_command()

        async def failed(error: Exception) -> None:
            if not first_error.done():
                first_error.set_result(error)
            if opened:
                self._fail(self._reason(error))

        async def disconnected() -> None:
            if opened and not client.is_closed:
                self._fail("connection closed")

        async def reconnected() -> None:
            for partition in self.partitions.values():
                partition.heard_at = -math.inf

        client = CheckedClient()
        connecting = asyncio.create_task(
            client.connect(
                self._url,
                name=self._name,
                tls=access.tls(),
                user=access.user,
                password=access.password,
                user_credentials=access.credentials and str(access.credentials),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.5,  # type: ignore[arg-type]  # any number works
                ping_interval=5,
                disconnected_cb=disconnected,
                reconnected_cb=reconnected,
                error_cb=failed,
            )
        )
        try:
            # nats-py repeats its first attempt forever and only reports errors by the callback.
            await asyncio.wait((connecting, first_error), timeout=_CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
            if first_error.done():
                raise first_error.result()
            if not connecting.done():
                raise TimeoutError
            connecting.result()
            await client.publish(f"heartlm.ecg.0.{_TICK}", b"")
            await client.flush()
            if first_error.done():
                raise first_error.result()
            jetstream, file = client.jetstream(timeout=_ANSWER_S), StorageType.FILE
            for name, subjects in ((_ECG, "heartlm.ecg.*.*"), (_ALARMS, "heartlm.alarms.*")):
                limits: Any = {"max_age": KEPT_S} if name == _ECG else {"duplicate_window": KEPT_S}
                with contextlib.suppress(nats.js.errors.BadRequestError):  # exists, with the operator's settings
                    await jetstream.add_stream(StreamConfig(name=name, subjects=[subjects], storage=file, **limits))
            leases = Leases(await jetstream.create_key_value(bucket=_LEASES, storage=file), self._name)
            states = await jetstream.create_object_store(bucket=_STATES, storage=file, ttl=KEPT_S)
            if first_error.done():
                raise first_error.result()
            opened = True
        except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError):
            raise nats.errors.Error("JetStream is off: enable it in the broker and for the account") from None
        except self._broker_errors as error:
            # The broker does not answer a request without permission; the callback gets the reason.
            reports_permission = isinstance(error, TimeoutError) and first_error.done()
            raise first_error.result() if reports_permission else error from None
        finally:
            if not opened:
                connecting.cancel()
                await asyncio.wait((connecting,))
                with contextlib.suppress(*self._broker_errors):
                    await client.close()
        if self.partitions:
            leases.table = self.leases.table
        self._client, self._jetstream, self._states, self.leases = client, jetstream, states, leases
        for partition in self.partitions.values():
            partition.subscription, partition.heard_at = None, -math.inf

    def _reason(self, error: BaseException) -> str:
        text = reason_of(error).strip("'")
        if not isinstance(error, OSError):
            refused = "uthori" in text or "uthentication" in text  # the words of nats-server and nats-py
            return f"refused: {text} (--user, --password-file or --credentials)" if refused else text
        closed = isinstance(error, ConnectionResetError | BrokenPipeError)  # which one, depends on who is faster
        no_certificate = closed and self._has_tls and self._access.certificate is None
        return f"{text}: does the broker require a --client-certificate?" if no_certificate else text

    def _fail(self, problem: str) -> None:
        self._failed_at = time.monotonic()
        self.connection.fail(problem if self._client.is_connected else f"reconnecting: {problem}")

    async def run(self) -> None:
        """Work until cancelled; then save the owned partitions and release them."""
        tasks = [asyncio.create_task(self._repeat(each)) for each in (self._send_heartbeat, self._work)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            while running := [task for task in tasks if not task.done()]:
                for task in running:
                    task.cancel()  # repeated: wait_for of Python 3.11 may lose a cancellation
                await asyncio.wait(running, timeout=1)
            with contextlib.suppress(Exception):  # without a broker nothing can be saved
                await asyncio.wait_for(self._release_all(), 30)
            await self._client.close()

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` forever; after an error of the broker, try again."""
        while True:
            try:
                await work()
                if self._client.is_connected and time.monotonic() - self._failed_at > _QUIET_S:
                    self.connection.restore()
            except self._broker_errors as error:
                if self.connection.problem is None or not isinstance(error, TimeoutError):
                    self._fail(self._reason(error))
                self._failed_at = time.monotonic()
                await asyncio.sleep(0.5)

    async def _send_heartbeat(self) -> None:
        if self._client.is_closed:  # nats-py gives up when the broker refuses the user of an open connection
            await self._open()
        await self.leases.heartbeat()
        for partition in self.partitions.values():
            if partition.names:
                await self._client.publish(f"heartlm.ecg.{partition.number}.{_TICK}", b"")
        await asyncio.sleep(TICK_S)

    async def _work(self) -> None:
        """Judge a second of each stream, publish alarms, then acquire, release or save partitions."""
        self.monitor.step()
        if not (behind := len(self.monitor.ward.waiting)):
            self._num_waiting = 0
        await self._publish_alarms()
        table, now = self.leases.table, time.monotonic()
        for number in [number for number in self.partitions if table.owners[number] != self._name]:
            await self._release(number)
        for partition in list(self.partitions.values()):
            if now - partition.heard_at > 3 * _HEARTBEAT_S:
                await self._subscribe(partition)
        missing = [n for n, owner in enumerate(table.owners) if owner == self._name and n not in self.partitions]
        if missing:
            acquired = map(self._acquire, missing[:_NUM_ACQUIRED_TOGETHER])
            # All end before an error is raised: otherwise the next attempt would acquire a partition a second time.
            for error in filter(None, await asyncio.gather(*acquired, return_exceptions=True)):
                raise error
        elif (surplus := table.surplus(self._name)) is not None:
            number, receiver = surplus
            await self._save(self.partitions[number])
            await self._release(number)
            await self.leases.change(
                lambda old: old.with_owner(number, receiver) if old.owners[number] == self._name else old
            )
        elif self.partitions:
            oldest = min(self.partitions.values(), key=lambda each: each.saved_at)
            if now - oldest.saved_at > SAVE_S:
                await self._save(oldest)
        # While seconds or partitions wait, only let heartbeats and messages through. Otherwise collect the seconds of
        # many streams, which are judged fastest together.
        await asyncio.sleep(0.005 if behind or missing else _COLLECT_S)

    async def _acquire(self, number: int) -> None:
        """Continue a partition from its last saved state, or from the first message that the broker keeps."""
        from nats.js.errors import ObjectNotFoundError

        partition, name = _Partition(number), f"partition-{number}"
        try:
            content = await self._read_object(name)
        except ObjectNotFoundError:
            pass
        else:
            try:
                state = unpacked(content)
                self.monitor.restore(state["streams"])
            except HeartlmError as error:
                raise HeartlmError(f"nats: {name}: {error}: stop its workers, or wait an hour") from None
            for stream, received_at, silent in state["silence"]:
                patient = self.monitor.patients[stream]
                patient.received_at, patient.silent = received_at, silent
            self.monitor.alarms.update({entry["key"]: entry for entry in state["alarms"]})
            partition.sequence = partition.saved = state["sequence"]
            partition.names = set(state["streams"])
        self.partitions[number] = partition
        await self._subscribe(partition)

    async def _read_object(self, name: str) -> bytes:
        """Read an object. `get` of nats-py waits for flow control, half a second for each object."""
        from nats.js.api import AckPolicy, ConsumerConfig

        info, chunks = await self._states.get_info(name), list[bytes]()
        reader = await self._jetstream.pull_subscribe(
            f"$O.{_STATES}.C.{info.nuid}",
            stream=f"OBJ_{_STATES}",
            config=ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True),
        )
        while (left := (info.chunks or 0) - len(chunks)) > 0:
            messages = await reader.fetch(min(_CHUNKS_TOGETHER, left), timeout=5)
            chunks += [message.data for message in messages]
        await reader.unsubscribe()
        return b"".join(chunks)

    async def _save(self, partition: _Partition) -> None:
        """Save the state of a partition after its last message, once all alarms before it are published."""
        await self._publish_alarms()
        # Set before the write: a partition whose write fails waits for its next turn, so that the others get theirs.
        partition.saved_at = time.monotonic()
        if partition.sequence == partition.saved:
            return
        partition.names &= self.monitor.patients.keys()
        patients = {name: self.monitor.patients[name] for name in partition.names}
        state: dict[str, Any] = {
            "sequence": partition.sequence,
            "streams": self.monitor.state(partition.names),
            "silence": [(name, patient.received_at, patient.silent) for name, patient in patients.items()],
            "alarms": [entry for entry in self.monitor.open_alarms() if entry["stream"] in partition.names],
        }
        await self._states.put(f"partition-{partition.number}", packed(state))
        partition.saved = state["sequence"]  # messages may have arrived meanwhile

    async def _release(self, number: int) -> None:
        partition = self.partitions.pop(number)
        self.monitor.remove(partition.names & self.monitor.patients.keys())
        if partition.subscription is not None:
            await partition.subscription.unsubscribe()

    async def _release_all(self) -> None:
        for partition in list(self.partitions.values()):
            await self._save(partition)
        await self.leases.change(lambda old: old.with_workers(set(old.workers) - {self._name}))

    async def _subscribe(self, partition: _Partition) -> None:
        """Read the messages after the last one. Called again when the consumer is lost or a message was missed.

        The ordered consumer of nats-py is not used: it notices lost messages only after it has delivered later ones.
        """
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        old, partition.subscription = partition.subscription, None
        if old is not None:
            await old.unsubscribe()
        inbox = self._client.new_inbox()
        partition.num_received = 0

        async def received(message: Any) -> None:
            if self.partitions.get(partition.number) is not partition or partition.subscription is not subscription:
                return
            partition.heard_at = time.monotonic()
            while self._num_waiting > _MAX_WAITING:
                await asyncio.sleep(0.05)
            is_control = bool(message.headers and message.headers.get("Status"))  # a heartbeat, or flow control
            if is_control:
                if message.reply:
                    await message.respond(b"")
                last = message.headers.get("Nats-Last-Consumer")
                num_sent = partition.num_received if last is None else int(last)
            else:
                num_sent = message.metadata.sequence.consumer - 1
            if num_sent != partition.num_received:  # a message was lost
                partition.heard_at = -math.inf
                partition.subscription = None
            elif not is_control:
                partition.num_received += 1
                self._receive(partition, message)

        subscription = partition.subscription = await self._client.subscribe(inbox, cb=received)
        await self._jetstream.add_consumer(
            _ECG,
            ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=partition.sequence + 1,
                ack_policy=AckPolicy.NONE,
                filter_subject=f"heartlm.ecg.{partition.number}.*",
                flow_control=True,
                idle_heartbeat=_HEARTBEAT_S,
            ),
        )
        partition.heard_at = time.monotonic()

    def _receive(self, partition: _Partition, message: Any) -> None:
        metadata = message.metadata
        partition.sequence, self._broker_time = metadata.sequence.stream, metadata.timestamp.timestamp()
        partition.names &= self.monitor.patients.keys()  # the monitor forgets streams
        self.monitor.check_silence(self._broker_time, partition.names)
        token = message.subject.rpartition(".")[2]
        if token == _TICK:
            return
        name = unquote(token)
        if subject_of(name) != message.subject:
            self.monitor.reject(f"NATS {message.subject}", f"subject {subject_of(name)} expected")
            return
        self._num_waiting += 1
        self.monitor.receive(message.data, f"NATS {name[:64]}", name)
        if name in self.monitor.patients:
            partition.names.add(name)

    def _queue_alarm(self, entry: dict[str, Any]) -> None:
        """Queue an alarm for publication, with an id by which the broker finds duplicates."""
        token, event = token_of(entry["stream"]), "begin" if entry["stop_s"] is None else "end"
        message_id = hashlib.sha256(f"{entry['key']}/{event}/{entry['count']}".encode()).hexdigest()
        content = json.dumps({name: entry[name] for name in ALARM_FIELDS}).encode()
        self._unpublished.append((partition_of(token), f"heartlm.alarms.{token}", content, message_id))

    async def _publish_alarms(self) -> None:
        """Publish the queued alarms of the partitions that are still owned, and wait until the broker has them."""
        while batch := list(self._unpublished):
            table, _ = await self.leases.read()
            owned = [each for each in batch if table.owners[each[0]] == self._name]
            # They are sent in order, and all answers are awaited together.
            await asyncio.gather(
                *(
                    self._jetstream.publish(subject, content, headers={"Nats-Msg-Id": message_id})
                    for _, subject, content, message_id in owned
                )
            )
            for _ in batch:
                self._unpublished.popleft()
