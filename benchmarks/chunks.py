"""The published way to watch many patients: 10-s chunks of ECG as HTTP requests, each analysed in Python.

    N patients ─► sender: POST of a chunk, N / 10 a second, evenly ─► uvicorn, one process for each core
                                    number of beats, mean rate ◄─ neurokit2.ecg_process

The server has the best reasonable settings. Each process is pinned to its core and has a port of its own, over which
the patients are spread. It analyses one chunk after the other in its event loop, because threads would only share the
core. Libraries use one thread, each patient keeps a connection, nothing is logged, and each process analyses some
chunks before the time is taken. The bodies of the requests are made in advance. The sender runs on the same cores, as
there is no other machine; its part of them has a column of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lab.measure import BenchTable, Table

CHUNK_S = 10
LIMIT_S = 10.0
"""A chunk is answered before the patient's next one, or its request failed."""
HELD_S = 3.0
"""A load is held if no request fails and 95 % are answered within this time."""
PER_CORE = (100, 150, 200, 250, 300, 400)
"""Patients on a core, tried in turn until a load is not held."""
START_S = 120.0
KEPT_S = 60
"""A connection without a request is closed after this time by the sender, and after twice the time by the server."""

Bodies = Sequence[Sequence[bytes]]
"""Requests of different patients, those of a patient one after the other; more patients, or a longer time, repeat
them."""


async def analyse(request: Request) -> JSONResponse:
    """Answer a chunk, `{"rate_hz": 250, "mv": [...]}`, by its number of beats and mean rate in beats per minute."""
    import neurokit2

    chunk = json.loads(await request.body())
    signal_mv, rate_hz = np.array(chunk["mv"]), chunk["rate_hz"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            signals, info = neurokit2.ecg_process(signal_mv, sampling_rate=rate_hz)
            return JSONResponse({"beats": len(info["ECG_R_Peaks"]), "bpm": float(signals["ECG_Rate"].mean())})
        except Exception:  # of any kind, in a flat line or in flutter (mitdb 207); the request itself has not failed
            return JSONResponse({"beats": None, "bpm": None})


app = Starlette(routes=[Route("/", analyse, methods=["POST"])])


def start_server(core: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start a process of the server on one core; return it and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = str(Path(__file__).parents[1])
    words = [sys.executable, "-m", "uvicorn", "benchmarks.chunks:app", "--app-dir", folder, "--port", str(port)]
    words += ["--timeout-keep-alive", str(2 * KEPT_S), "--no-access-log", "--log-level", "error"]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    server = subprocess.Popen(words, env=os.environ | one_thread, preexec_fn=lambda: os.sched_setaffinity(0, [core]))
    return server, f"http://127.0.0.1:{port}/"


async def warm_up(address: str, body: bytes) -> None:
    """Wait until a process answers, and let it analyse some chunks.

    Raises:
        TimeoutError: it does not answer.
    """
    async with asyncio.timeout(START_S), ClientSession() as session:
        answered = 0
        while answered < 5:
            try:
                async with session.post(address, data=body):
                    answered += 1
            except ClientError:
                await asyncio.sleep(0.1)


async def send(bodies: Bodies, num_patients: int, addresses: Sequence[str], seconds: int) -> list[float]:
    """Send the chunks of patients whose turns are spread evenly over `CHUNK_S`.

    Returns:
        Seconds from when each chunk was due to its answer; infinite if the request failed.
    """
    clock = asyncio.get_running_loop().time
    async with ClientSession(connector=TCPConnector(limit=0, keepalive_timeout=KEPT_S)) as session:

        async def post(address: str, body: bytes, due: float) -> float:
            try:
                async with session.post(address, data=body, timeout=ClientTimeout(LIMIT_S)) as answer:
                    await answer.read()
                    return clock() - due if answer.status == 200 else math.inf
            except (ClientError, TimeoutError):
                return math.inf

        # Each patient's connection is opened before: uvloop accepts new ones late while it has requests to answer.
        opened = [session.get(addresses[patient % len(addresses)]) for patient in range(num_patients)]
        for answer in await asyncio.gather(*opened):
            answer.release()
        begin, waiting = clock(), list[asyncio.Task[float]]()
        for number in range(num_patients * seconds // CHUNK_S):
            due = begin + number * CHUNK_S / num_patients
            await asyncio.sleep(due - clock())
            turn, patient = divmod(number, num_patients)
            own = bodies[patient % len(bodies)]
            request = post(addresses[patient % len(addresses)], own[turn % len(own)], due)
            waiting.append(asyncio.create_task(request))
        return await asyncio.gather(*waiting)


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_chunks(
    bodies: Bodies, cores: Sequence[int], seconds: int, per_core: Sequence[int] = PER_CORE
) -> BenchTable:
    """Send the chunks of more and more patients for `seconds` each, until the server does not hold the load."""
    columns = ("patients", "requests/s", "failed, %", "s from the last sample of a chunk to its answer: median")
    table = Table(
        f"The published way for {seconds} s: chunks of {CHUNK_S} s as HTTP requests, each analysed by NeuroKit2, "
        f"cores: {len(cores)}",
        (*columns, "95 %", "99 %", "cores busy, %", "with the sender, %"),
    )
    allowed, held = os.sched_getaffinity(0), 0
    servers, addresses = zip(*map(start_server, cores), strict=True)
    try:
        os.sched_setaffinity(0, cores)
        for address in addresses:
            asyncio.run(warm_up(address, bodies[0][0]))
        for number in (each * len(cores) for each in per_core):
            before, own_s, begin_s = sum(map(cpu_s, servers)), time.process_time(), time.monotonic()
            delays_s = np.array(asyncio.run(send(bodies, number, addresses, seconds)))
            core_s = (time.monotonic() - begin_s) * len(cores)
            served_s, own_s = sum(map(cpu_s, servers)) - before, time.process_time() - own_s
            # A failed request counts as answered at the limit, or the percentiles of an overload would look good.
            quantiles = np.percentile(np.minimum(delays_s, LIMIT_S), (50, 95, 99))
            table.add(
                f"{number:,}",
                f"{number / CHUNK_S:g}",
                f"{100 * np.mean(~np.isfinite(delays_s)):.1f}",
                *(f"{value:.2f}" for value in quantiles),
                f"{100 * served_s / core_s:.0f}",
                f"{100 * (served_s + own_s) / core_s:.0f}",
            )
            if not np.isfinite(delays_s).all() or quantiles[1] >= HELD_S:
                break
            held = number
    finally:
        for server in servers:
            server.kill()
            server.wait()
        os.sched_setaffinity(0, allowed)
    table.notes.append(
        f"Held, with no failed request and 95 % answered within {HELD_S:g} s: {held:,} patients, "
        f"{held // len(cores)} on a core. A request fails by an error or {LIMIT_S:g} s without an answer."
    )
    return table.close()
