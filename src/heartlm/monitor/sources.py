"""Sources of messages: replayed recordings, lines of standard input, the Lab Streaming Layer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.databases.database import open_database
from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError, needs
from heartlm.monitor.engine import Monitor
from heartlm.monitor.link import MAX_BYTES, MAX_LEADS
from heartlm.monitor.stream import BLOCK_S, watched_leads

FRAME_S = 1.0
"""Length of the frames of a replay."""
# Time between requests for new samples, and difference of timestamps from which on samples were lost.
_LSL_POLL_S, _LSL_GAP_S = 0.25, 0.5


def replay_streams(
    folder: Path, num_streams: int | None = None, monitor: Monitor | None = None
) -> list[Iterator[bytes]]:
    """Return the messages of the recordings of a folder as streams. Each recording is repeated forever.

    Args:
        folder: folder of recordings.
        num_streams: number of streams, by default one for each recording. With more, recordings are used again from
            other places.
        monitor: where it knows a stream from before a restart, the stream continues with its next sample. A count
            from 0 would be that of a restarted sender, whose signal is lost until the monitor is sure of it.

    Raises:
        HeartlmError: no recording of the folder has an ECG lead.
    """
    database = open_database(folder)
    usable = list[tuple[Recording, tuple[int, ...]]]()
    for record_id in database.record_ids:
        recording = database.recording(record_id)
        leads = watched_leads(recording)
        if leads and recording.rate_hz >= LOWEST_RATE_HZ:
            usable.append((recording, leads))
    if not usable:
        raise HeartlmError(f"{folder}: no recording with an ECG lead (one measured in mV), so nothing to replay")
    streams = list[Iterator[bytes]]()
    for number in range(num_streams or len(usable)):
        round_number, index = divmod(number, len(usable))
        recording, leads = usable[index]
        name = f"{number + 1:04d}-{recording.record_id}"
        start = monitor.patients[name].link.next or 0 if monitor and name in monitor.patients else 0
        streams.append(_replay_messages(name, recording, leads, 97 * round_number, start))
    return streams


def _replay_messages(
    name: str, recording: Recording, leads: tuple[int, ...], begin_s: int, start: int
) -> Iterator[bytes]:
    """Yield the messages of one stream of a replay forever, from sample `start` on."""
    rate_hz, total = recording.rate_hz, recording.num_samples
    position = (round(begin_s * rate_hz) + start) % total
    mv = np.empty((len(leads), 0), np.float32)
    while True:
        stop = round((start / rate_hz + FRAME_S) * rate_hz)
        while mv.shape[1] < stop - start:
            end = min(position + round(BLOCK_S * rate_hz), total)
            mv = np.concatenate([mv, recording.signal(position, end, leads)], axis=1)
            position = end % total
        frame, mv = mv[:, : stop - start].tolist(), mv[:, stop - start :]
        values = [[None if math.isnan(value) else round(value, 4) for value in lead] for lead in frame]
        mv_field = values[0] if len(values) == 1 else values
        yield json.dumps({"stream": name, "rate_hz": rate_hz, "start": start, "mv": mv_field}).encode()
        start = stop


async def replay(monitor: Monitor, streams: list[Iterator[bytes]], speed: float) -> None:
    """Pass the messages of a replay to a monitor, `speed` seconds of each stream every second, until cancelled."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        for messages in streams:
            monitor.receive(next(messages), "replay")
        due += FRAME_S / speed
        await asyncio.sleep(max(0.0, due - loop.time()))


async def read_lines(monitor: Monitor) -> None:
    """Pass lines of standard input to a monitor, one message a line, until the input ends."""
    loop, source = asyncio.get_running_loop(), "standard input"
    reader = asyncio.StreamReader(limit=MAX_BYTES + 1, loop=loop)
    is_file = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)  # asyncio reads pipes, sockets and terminals only
    if not is_file:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while True:
        try:
            line = await (asyncio.to_thread(sys.stdin.buffer.readline) if is_file else reader.readline())
        except ValueError:  # the reader has dropped the line
            monitor.reject(source, f"a line of more than {MAX_BYTES:,} bytes")
            continue
        if not line:
            return
        if line.strip():
            monitor.receive(line.strip(), source)


async def read_lsl(monitor: Monitor) -> None:
    """Pass all streams of type ECG in the Lab Streaming Layer to a monitor, also those that appear later.

    A stream has the name of its outlet. Its first `MAX_LEADS` channels are its leads. The unit of the first channel is
    used for all; without one it is millivolts. Runs until cancelled.

    Raises:
        HeartlmError: pylsl is not installed, or finds no liblsl.
    """
    with needs("monitor"):
        try:
            import pylsl  # loads liblsl, which the package of pylsl contains on most systems
            from pylsl.util import LostError
        except RuntimeError:
            raise ModuleNotFoundError(name="liblsl") from None
    resolver, inlets = pylsl.ContinuousResolver(prop="type", value="ECG"), dict[str, _Inlet]()
    while True:
        for info in resolver.results():
            if info.uid() not in inlets:
                inlet = pylsl.StreamInlet(info, processing_flags=pylsl.proc_clocksync)
                with contextlib.suppress(RuntimeError):  # no answer: it is tried again
                    inlets[info.uid()] = _Inlet(inlet, await asyncio.to_thread(inlet.info, 5.0))
        for uid, inlet in list(inlets.items()):
            try:
                for message in inlet.messages():
                    monitor.receive(message, f"LSL {inlet.name[:64]}", inlet.name)
            except LostError:
                monitor.log(f"LSL {inlet.name[:64]}: the outlet closed")
                del inlets[uid]
        await asyncio.sleep(_LSL_POLL_S)


class _Inlet:
    """Samples of one outlet as messages. A connected inlet loses nothing, so samples are counted.

    Args:
        inlet: inlet of pylsl.
        info: full information of its outlet.
    """

    def __init__(self, inlet: Any, info: Any) -> None:
        self.inlet, self.name, self.rate_hz = inlet, info.name(), info.nominal_srate()
        unit = info.desc().child("channels").child("channel").child_value("unit").lower()
        self.mv = 1e-3 if unit in ("microvolts", "microvolt", "uv", "\u00b5v", "\u03bcv") else 1.0
        self.num_channels, self.next_sample, self.last_s = info.channel_count(), 0, -math.inf

    def messages(self) -> Iterator[bytes]:
        """Yield the samples since the last call, one message for each part without a gap."""
        samples, times_s = self.inlet.pull_chunk(timeout=0.0, max_samples=int(10 * max(1.0, self.rate_hz)))
        leads = self.mv * np.asarray(samples, np.float64).reshape(-1, self.num_channels).T[:MAX_LEADS]
        after_gap = np.flatnonzero(np.diff(times_s, prepend=self.last_s) > _LSL_GAP_S).tolist()
        for begin, end in pairwise(sorted({0, *after_gap, len(times_s)})):
            if begin in after_gap:  # the first sample, and the first after a gap, are numbered by the clock
                self.next_sample = max(self.next_sample, round(times_s[begin] * self.rate_hz))
            part = leads[:, begin:end].round(5).tolist()
            mv = [[value if math.isfinite(value) else None for value in lead] for lead in part]
            message = {"rate_hz": self.rate_hz, "start": self.next_sample, "mv": mv}
            self.next_sample, self.last_s = self.next_sample + end - begin, times_s[end - 1]
            yield json.dumps(message).encode()
