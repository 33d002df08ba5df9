"""Two monitors that share streams by NATS JetStream while one of them is killed repeatedly.

    python benchmarks/monitor_nats.py --work FOLDER [--streams 2000] [--kills 20]

A sender publishes recordings of mitdb as streams in real time, frames of 1 s. Two workers (`heartlm monitor --nats`),
each on a core of its own, share them with the sender and the broker on the same cores. One of the two is killed by
SIGKILL at a random moment and started again once the other has all of its partitions. A partition is taken over when
its new owner has restored its streams and says so by a tick. At the end the alarms that the broker keeps are compared
with those of one monitor that read all messages without a break; an alarm that is missing, doubled or different in any
field counts as wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import Event, Process
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

import nats
import numpy as np
import torch
from bench.measure import Table, cores
from bench.output import write_results

from heartlm.monitor.engine import Monitor
from heartlm.monitor.leases import NUM_PARTITIONS
from heartlm.monitor.models import LiveModels
from heartlm.monitor.nats import partition_of, subject_of, token_of
from heartlm.monitor.sources import replay_streams
from heartlm.monitor.stream import Ward

DATA = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
NUM_BEDS = 240
"""Different stretches of recordings; more streams repeat them."""
SLICES = 20
"""Parts of a second in which the streams are sent one after the other, as if their clocks were apart."""
LIMIT_S = 120.0
OWN = ("time", "acknowledged", "strip", "stream")


def frames(num_beds: int) -> Any:
    """The next second of each bed without a name, again and again."""
    streams = replay_streams(DATA / "mitdb", num_beds, 1)
    while True:
        yield [b"{" + own[own.index(b",") + 1 :] for own in map(next, streams)]


def send(address: str, num_streams: int, stop: Flag, out: Path) -> None:
    """Publish a second of every stream each second until told to stop; keep when each slice was sent."""

    async def sending() -> None:
        client = await nats.connect(address, pending_size=256 << 20)
        beds, sent = frames(min(num_streams, NUM_BEDS)), list[list[float]]()
        begin = time.time() + 1
        while not stop.is_set():
            second, times = next(beds), list[float]()
            for part in range(SLICES):
                await asyncio.sleep(max(0.0, begin + len(sent) + part / SLICES - time.time()))
                times.append(time.time())
                for stream in range(part, num_streams, SLICES):
                    await client.publish(subject_of(f"bed{stream}"), second[stream % len(second)])
            sent.append(times)
        await client.flush(30)
        await client.close()
        np.save(out, np.array(sent))

    asyncio.run(sending())


class Workers:
    """The two monitors as processes, each on its core."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.processes = dict[str, subprocess.Popen[bytes]]()
        self.cpu_s = Counter[str]()

    def start(self, name: str) -> None:
        core = cores()[("a", "b").index(name) % len(cores())]
        command = [sys.executable, "-m", "heartlm", "monitor", "--nats", self.address, "--no-page", "--client-id", name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )

    def used(self, name: str) -> tuple[float, float]:
        """Seconds of its core and the largest memory in MB so far."""
        process = Path(f"/proc/{self.processes[name].pid}")
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
        peak = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024

    def end(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)
        self.processes[name].wait(LIMIT_S)


async def killed_again_and_again(settings: argparse.Namespace, address: str, work: Path) -> tuple[Table, Table]:
    choose, workers, stop = random.Random(settings.seed), Workers(address, work), Event()
    for name in ("a", "b"):
        workers.start(name)
    client = await nats.connect(address)
    jetstream = client.jetstream(timeout=30)
    ticks = dict.fromkeys(range(NUM_PARTITIONS), 0.0)

    async def ticked(message: Any) -> None:
        ticks[int(message.subject.split(".")[2])] = time.time()

    async def owners() -> list[str]:
        with contextlib.suppress(nats.errors.Error):
            content = json.loads((await (await jetstream.key_value("heartlm-leases")).get("table")).value)
            return [owner.rpartition("-")[0] for owner in content["owners"] if owner]
        return []

    async def shared_evenly() -> None:
        """Each has its half, and all streams are heard of."""
        limit = time.time() + LIMIT_S
        while True:
            half = dict.fromkeys(("a", "b"), NUM_PARTITIONS // 2)
            if (
                Counter(await owners()) == half
                and len(ticks)
                and min(map(ticks.get, range(NUM_PARTITIONS))) > time.time() - 2
            ):
                return
            if time.time() > limit:
                raise SystemExit(f"the streams were not shared evenly: {Counter(await owners())}")
            await asyncio.sleep(0.2)

    while len(await owners()) < NUM_PARTITIONS:
        await asyncio.sleep(0.2)
    await client.subscribe("heartlm.ecg.*.%tick", cb=ticked)
    sender = Process(target=send, args=(address, settings.streams, stop, work / "sent.npy"))
    sender.start()
    begin = time.time()
    await asyncio.sleep(40)  # until the state of every partition was saved
    taken, kills = list[float](), list[tuple[float, set[int]]]()
    for number in range(settings.kills):
        await shared_evenly()
        await asyncio.sleep(choose.uniform(0, 10))
        name = choose.choice(("a", "b"))
        lost = {place for place, owner in enumerate(await owners()) if owner == name}
        workers.end(name, signal.SIGKILL)
        at = time.time()
        while any(ticks[place] < at + 0.5 for place in lost):
            await asyncio.sleep(0.05)
            if time.time() > at + LIMIT_S:
                raise SystemExit(f"kill {number + 1}: not taken over in {LIMIT_S:.0f} s")
        taken.append(time.time() - at)
        kills.append((at, lost))
        print(f"kill {number + 1}, {name}: {len(lost)} partitions taken over after {taken[-1]:.1f} s", flush=True)
        workers.start(name)
    await shared_evenly()
    stop.set()
    sender.join(60)
    took = time.time() - begin
    sent = np.load(work / "sent.npy")
    before = -1
    while (state := (await jetstream.stream_info("heartlm-alarms")).state).messages != before:
        before = state.messages
        await asyncio.sleep(15)
    used = [workers.used(name) for name in ("a", "b")]
    raw = [await jetstream.get_msg("heartlm-alarms", seq) for seq in range(1, state.last_seq + 1)]
    ecg = (await jetstream.stream_info("heartlm-ecg")).state.messages
    for name in ("a", "b"):
        workers.end(name, signal.SIGTERM)
    await client.close()
    found = [(json.loads(each.data), each.time.timestamp()) for each in raw]
    right, wrong, delays, slow = compared(found, sent, settings.streams, kills)
    table = Table(
        f"{settings.streams:,} streams on two workers, {settings.kills} kills in {took / 60:.0f} minutes",
        ("what", "value"),
    )
    table.add("s from a kill until the last of the lost partitions was taken over: median", f"{np.median(taken):.1f}")
    table.add("largest", f"{max(taken):.1f}")
    table.add("messages sent", f"{sent.shape[0] * settings.streams:,}")
    table.add("alarms expected and found alike", f"{right:,}")
    table.add("alarms missing, doubled or different", f"{wrong:,}")
    table.add("s from a second's message to its alarms: median, 95 %, 99 %", quantiles(delays))
    table.add("the same for lost streams within 20 s of a kill: median, 95 %, largest", quantiles(slow, largest=True))
    table.add("largest memory of a worker, MB", f"{max(memory for _, memory in used):.0f}")
    table.close()
    each = Table("Each kill", ("kill", "partitions", "s until all were taken over"))
    for number, (seconds, (_, lost)) in enumerate(zip(taken, kills, strict=True)):
        each.add(number + 1, len(lost), f"{seconds:.1f}")
    print(f"{ecg:,} messages kept by the broker", flush=True)
    return table, each.close()


def compared(
    found: list[tuple[dict[str, Any], float]], sent: np.ndarray, num_streams: int, kills: list[tuple[float, set[int]]]
) -> tuple[int, int, list[float], list[float]]:
    """Alarms that one unbroken monitor raises, too, and others; delays of all, and of those that a kill concerns."""
    beds = frames(num_beds := min(num_streams, NUM_BEDS))
    expected = list[dict[str, Any]]()
    monitor = Monitor(Ward(LiveModels()), log=lambda _: None)
    monitor.listeners.append(expected.append)
    for _ in range(len(sent)):
        for place, message in enumerate(next(beds)):
            monitor.receive(message, stream=f"bed{place}")
        while monitor.step():
            pass
    by_bed: list[Counter[str]] = [Counter() for _ in range(num_beds)]
    for entry in expected:
        by_bed[int(entry["stream"].removeprefix("bed"))][text_of(entry)] += 1
    by_stream: list[Counter[str]] = [Counter() for _ in range(num_streams)]
    delays, slow = list[float](), list[float]()
    for entry, at in found:
        if entry["key"].endswith("/silent"):
            continue
        stream = int(entry["stream"].removeprefix("bed"))
        by_stream[stream][text_of(entry)] += 1
        second = math.ceil(entry["raised_s"]) - 1  # that the last sample lies in
        if entry["stop_s"] is not None or second >= len(sent):
            continue
        delays.append(at - sent[second, stream % SLICES])
        part = partition_of(token_of(entry["stream"]))
        if any(part in lost and killed - 2 < sent[second, 0] < killed + 20 for killed, lost in kills):
            slow.append(delays[-1])
    right = wrong = 0
    for stream, of_stream in enumerate(by_stream):
        of_bed = by_bed[stream % num_beds]
        same = sum((of_bed & of_stream).values())
        right += same
        wrong += sum(of_bed.values()) + sum(of_stream.values()) - 2 * same
    return right, wrong, delays, slow


def text_of(entry: dict[str, Any]) -> str:
    """An alarm without what it has of its stream's name and of the monitor that raised it."""
    kept = {name: value for name, value in entry.items() if name not in OWN}
    return json.dumps(kept | {"key": entry["key"].removeprefix(entry["stream"])}, sort_keys=True)


def quantiles(values: list[float], largest: bool = False) -> str:
    if not values:
        return "–"
    of = (50, 95, 100) if largest else (50, 95, 99)
    return ", ".join(f"{value:.2f}" for value in np.percentile(values, of)) + f" ({len(values):,})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keeps what the broker stores")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    program = shutil.which("nats-server") or shutil.which("/usr/sbin/nats-server")
    if program is None:
        raise SystemExit("nats-server is not installed")
    torch.set_num_threads(1)
    work = settings.work.resolve()
    shutil.rmtree(work / "store", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = work / "nats.conf"
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{work}/store" }}\n')
    with (work / "nats.log").open("wb") as log, subprocess.Popen([program, "-c", str(config)], stderr=log) as broker:
        try:
            time.sleep(2)
            tables = asyncio.run(killed_again_and_again(settings, f"127.0.0.1:{port}", work))
        finally:
            broker.kill()
    chosen = {"streams": settings.streams, "kills": settings.kills}
    write_results("monitor-nats", "Workers that are killed", list(tables), chosen)


if __name__ == "__main__":
    main()
