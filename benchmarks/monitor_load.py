"""The number of live streams that a core holds, next to the published method on the same cores.

    python -m benchmarks.monitor_load --streams 50 100 150 --seconds 60 [--cores 2] [--chunks]

Recordings of mitdb at 250 Hz are sent as streams in real time, to one monitor per core, without a journal. With
`--chunks` the published method follows, with the load that it holds: a request with 10 s of a stream to a server that
analyses it in Python (chunks.py).
"""

from __future__ import annotations

import json
import os
import resource
import time
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from scipy.signal import resample_poly

from benchmarks.chunks import CHUNK_S, measure_chunks
from heartlm.databases.database import open_database
from heartlm.monitor.engine import Monitor, tune_garbage_collector
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward, watched_leads
from heartlm.system.cores import limit_threads
from heartlm.system.parent import end_with_parent
from lab.measure import BenchTable, Table, cores, kilobytes
from lab.output import write_results
from lab.places import DATA, options

RATE_HZ = 250
MOST_BEDS, MADE_S = 240, 120
"""Different stretches of recordings in a load, and seconds of them; more streams, and a longer time, repeat them."""
BEGIN_S = 60
"""Seconds in which the streams of a load begin: patients are not admitted at once."""
CHUNKS_S = 60
"""Longest time in which each load of the published method is sent."""


def stretches(number: int, seconds: int) -> list[list[float]]:
    """Seconds of recordings of mitdb at `RATE_HZ`, in mV, one stretch for each bed."""
    database, signals = open_database(DATA / "mitdb"), []
    for place in range(number):
        turn, which = divmod(place, len(database.record_ids))
        recording = database.recording(database.record_ids[which])
        start, stop = (round((97 * turn + second) * recording.rate_hz) for second in (0, seconds))
        signal = recording.signal(start, stop, watched_leads(recording, 1))[0].astype(float)
        signals.append(resample_poly(signal, RATE_HZ, round(recording.rate_hz)).round(4).tolist())
    return signals


def beds(number: int, seconds: int) -> list[list[bytes]]:
    """Of each second the end of a message for each bed."""
    signals = stretches(number, seconds)
    starts = range(0, seconds * RATE_HZ, RATE_HZ)
    return [[b'"mv": %s}' % json.dumps(own[start : start + RATE_HZ]).encode() for own in signals] for start in starts]


def watch(core: int, number: int, seconds: int, ready: Barrier, results: Queue[tuple[Any, ...]]) -> None:
    """Judge streams in real time on one core; their messages are made before, for senders make them elsewhere."""
    end_with_parent()
    os.sched_setaffinity(0, [core])
    limit_threads(1)
    tune_garbage_collector()
    made = beds(min(number, MOST_BEDS), min(seconds, MADE_S))
    monitor = Monitor(Ward(LiveModels()), log=lambda _: None)
    begins = [place * min(BEGIN_S, seconds) // number for place in range(number)]
    ready.wait()
    before, begin, delays = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), list[float]()
    memory = list[int]()
    for second in range(seconds):
        due, own = begin + second, made[second % len(made)]
        time.sleep(max(0.0, due - time.monotonic()))
        for place, first in enumerate(begins):
            if first <= second:
                head = b'{"stream": "%d", "rate_hz": %d, "start": %d, ' % (place, RATE_HZ, RATE_HZ * (second - first))
                monitor.receive(head + own[place % len(own)])
        monitor.run()
        delays.append(time.monotonic() - due)
        memory.append(kilobytes("VmRSS"))
        if second % 60 == 59:
            print(f"core {core}, {second + 1} s: {max(delays[-60:]):.2f} s, {memory[-1] >> 10} MB", flush=True)
    took = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    judged = sum(patient.stream.num_seconds for patient in monitor.patients.values())
    lost = sum(seconds - first for first in begins) - judged
    results.put((busy_s / took, took, delays, memory, lost + monitor.faults.total(), len(monitor.alarms)))


def study_load(counts: list[int], seconds: int, num_cores: int) -> list[BenchTable]:
    """Streams in real time, an equal share of them on each core."""
    own_cores = cores()[:num_cores]
    columns: tuple[str, ...] = ("streams", "cores busy, %", "memory after a third, MB", "at the end, MB")
    columns += ("s from the last sample of a second to the last of its alarms: median", "95 %", "99 %")
    columns += ("seconds late at the end", "seconds of streams lost", "alarms", "ms of a core for a stream and second")
    table = Table(
        f"Streams of mitdb in real time for {seconds} s, {RATE_HZ} Hz, frames of 1 s, cores: {len(own_cores)}",
        columns,
    )
    context = get_context("spawn")
    for number in counts:
        ready, results = context.Barrier(len(own_cores)), context.Queue()
        shares = [number // len(own_cores)] * len(own_cores)
        workers = [
            context.Process(target=watch, args=(core, share, seconds, ready, results), daemon=True)
            for core, share in zip(own_cores, shares, strict=True)
        ]
        for worker in workers:
            worker.start()
        busy, took, delays, memory, lost, alarms = zip(*(results.get() for _ in workers), strict=True)
        for worker in workers:
            worker.join()
        delays_s, memory_mb = np.concatenate(delays), np.sum(memory, axis=0) / 1024
        table.add(
            f"{sum(shares):,}",
            f"{100 * np.mean(busy):.0f}",
            *(f"{memory_mb[place]:.0f}" for place in (seconds // 3, -1)),
            *(f"{np.percentile(delays_s, share):.2f}" for share in (50, 95, 99)),
            f"{max(0.0, max(took) - seconds):.1f}",
            sum(lost),
            f"{sum(alarms):,}",
            f"{1000 * np.dot(busy, took) / seconds / sum(shares):.3f}",
        )
        print(f"{number} streams: {100 * np.mean(busy):.0f} %", flush=True)
    return [table.close()]


def study_chunks(counts: list[int], seconds: int, num_cores: int) -> list[BenchTable]:
    """The load, and the published way with the load that it holds, one after the other on the same cores."""
    starts, length = range(0, MADE_S * RATE_HZ, CHUNK_S * RATE_HZ), CHUNK_S * RATE_HZ
    bodies = [
        [json.dumps({"rate_hz": RATE_HZ, "mv": own[start : start + length]}).encode() for start in starts]
        for own in stretches(MOST_BEDS, MADE_S)
    ]
    chunks = measure_chunks(bodies, cores()[:num_cores], min(seconds, CHUNKS_S))
    return [*study_load(counts, seconds, num_cores), chunks]


def main() -> None:
    parser = options(__doc__, seconds=60, cores=1)
    parser.add_argument("--streams", type=int, nargs="+", default=[50, 100, 150, 200, 300])
    parser.add_argument("--chunks", action="store_true", help="the published method too")
    settings = parser.parse_args()
    limit_threads(1)
    if settings.chunks:
        title = "The published way next to heartlm"
        write_results("monitor-chunks", title, study_chunks(settings.streams, settings.seconds, settings.cores))
    else:
        tables = study_load(settings.streams, settings.seconds, settings.cores)
        write_results("monitor-load", "Streams that cores hold", tables)


if __name__ == "__main__":
    main()
