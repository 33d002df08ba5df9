"""Monitors that share streams by NATS JetStream: one, several, some killed, and the broker killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heartlm.monitor.engine import Monitor
from heartlm.monitor.leases import NUM_PARTITIONS
from heartlm.monitor.models import LiveModels
from heartlm.monitor.nats import Worker, partition_of, subject_of, token_of
from heartlm.monitor.stream import Ward
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from tests.brokers import Broker, working

nats = pytest.importorskip("nats", reason="nats-py is not installed")

Floats = NDArray[np.float32]
RATE_HZ = 250.0
CONFIG = SimulationConfig(minutes=1.5, seed=5)
PATIENTS = {"fibrillation": 22, "tachycardia 1.5": 25, "sinus": 5}
"""Simulated patients: VT and VF from second 43 on, VT from second 14 on, and nothing."""
WAIT_S = 240


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that computes the partitions itself."""
    partitions = f"{{{{partition({NUM_PARTITIONS},1)}}}}.{{{{wildcard(1)}}}}"
    config = f'listen: "127.0.0.1:PORT"\njetstream {{ store_dir: "{tmp_path}/store" }}\n'
    config += f'mappings {{ "heartlm.ecg.*": "heartlm.ecg.{partitions}" }}\n'
    with Broker("nats-server", tmp_path, config) as broker:
        yield broker


@pytest.fixture(scope="module")
def frames() -> list[tuple[str, bytes]]:
    """One second of each stream, then the next."""
    signals = {name: simulate_recording(CONFIG, index)[0][0][:16_500] for name, index in PATIENTS.items()}
    return [
        (name, json.dumps({"rate_hz": RATE_HZ, "start": at, "mv": own[at : at + 250].round(4).tolist()}).encode())
        for at in range(0, 16_500, 250)
        for name, own in signals.items()
    ]


@pytest.fixture(scope="module")
def plain(models: LiveModels, frames: list[tuple[str, bytes]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The alarms of a monitor without a broker."""
    found = list[dict[str, Any]]()
    monitor = Monitor(Ward(models), log=lambda _: None)
    monitor.listeners.append(found.append)
    for name, message in frames:
        monitor.receive(message, stream=name)
    while monitor.step():
        pass
    return by_event([{key: value for key, value in each.items() if key not in OWN} for each in found])


OWN = ("time", "acknowledged", "strip")
"""What an alarm has of the monitor that raised it, and not of the stream."""


def by_event(alarms: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Alarms by key and by what they tell, none twice; without those of silence, which the test's end brings about."""
    told = [(each["key"], "begin" if each["stop_s"] is None else "end") for each in alarms]
    assert len(told) == len(set(told)), Counter(told).most_common(3)
    return {event: each for event, each in zip(told, alarms, strict=True) if not event[0].endswith("/silent")}


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Any]:
    client = await nats.connect(f"127.0.0.1:{broker.port}", max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    yield client.jetstream(timeout=2)
    await client.close()


async def published(jetstream: Any) -> list[dict[str, Any]]:
    """All alarms that the broker keeps."""
    info = await jetstream.stream_info("heartlm-alarms")
    messages = [await jetstream.get_msg("heartlm-alarms", seq) for seq in range(1, info.state.last_seq + 1)]
    for each in messages:
        assert each.subject == f"heartlm.alarms.{token_of(json.loads(each.data)['stream'])}"
    return [json.loads(each.data) for each in messages]


async def until(jetstream: Any, expected: dict[tuple[str, str], Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The alarms, once there are as many as expected."""
    end = time.monotonic() + WAIT_S
    while True:
        found = by_event(await published(jetstream))
        if len(found) >= len(expected) or time.monotonic() > end:
            return found
        await asyncio.sleep(0.3)


async def send(jetstream: Any, name: str, message: bytes, number: int) -> None:
    """As a sender does that must lose nothing: again until the broker has it, with an id that it knows a copy by."""
    while True:
        with contextlib.suppress(nats.errors.Error):
            await jetstream.publish(subject_of(name), message, headers={"Nats-Msg-Id": str(number)})
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_killed", [False, True])
def test_one_worker_finds_what_a_monitor_finds_also_if_the_broker_is_killed(
    broker: Broker,
    models: LiveModels,
    frames: list[tuple[str, bytes]],
    plain: dict[tuple[str, str], Any],
    is_killed: bool,
) -> None:
    async def watch() -> dict[tuple[str, str], Any]:
        worker = Worker(Monitor(Ward(models), log=print), f"127.0.0.1:{broker.port}", "one")
        async with connected(broker) as jetstream:
            async with working(worker):
                for place, (name, message) in enumerate(frames):
                    await send(jetstream, name, message, place)
                    if is_killed and place == len(frames) // 2:
                        broker.kill()
                        broker.process = broker.start()
                found = await until(jetstream, plain)
            assert by_event(await published(jetstream)) == found
            return found

    assert plain
    assert asyncio.run(asyncio.wait_for(watch(), 2 * WAIT_S)) == plain


@pytest.mark.slow
def test_the_streams_of_a_killed_worker_are_taken_over_with_the_same_alarms(
    broker: Broker, frames: list[tuple[str, bytes]], plain: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    """Two processes; the one that owns the stream of most alarms is killed in the middle."""
    command = [sys.executable, "-m", "heartlm", "monitor", "--nats", f"127.0.0.1:{broker.port}", "--no-page"]
    started = {name: subprocess.Popen([*command, "--client-id", name]) for name in ("a", "b")}
    busiest = Counter(each["stream"] for each in plain.values()).most_common(1)[0][0]
    place = partition_of(token_of(busiest))

    async def watch() -> tuple[dict[tuple[str, str], Any], float]:
        async with connected(broker) as jetstream:

            async def owners() -> list[str]:
                try:
                    bucket = await jetstream.key_value("heartlm-leases")
                    content = json.loads((await bucket.get("table")).value)
                except nats.js.errors.NotFoundError:
                    return []
                return [owner.rpartition("-")[0] for owner in content["owners"] if owner]

            while Counter(await owners()) != {"a": NUM_PARTITIONS // 2, "b": NUM_PARTITIONS // 2}:
                await asyncio.sleep(0.1)
            half = len(frames) * 3 // 4
            for name, message in frames[:half]:
                await jetstream.publish(subject_of(name), message)
            while not any(each["stream"] == busiest for each in await published(jetstream)):
                await asyncio.sleep(0.1)
            killed = (await owners())[place]
            started[killed].kill()
            begin = time.monotonic()
            for name, message in frames[half:]:
                await jetstream.publish(subject_of(name), message)
            while killed in await owners():
                await asyncio.sleep(0.1)
            taken_s = time.monotonic() - begin
            return await until(jetstream, plain), taken_s

    try:
        found, taken_s = asyncio.run(asyncio.wait_for(watch(), 2 * WAIT_S))
    finally:
        for process in started.values():
            process.terminate()
            process.wait(60)
    assert found == plain
    print(f"taken over after {taken_s:.1f} s")
