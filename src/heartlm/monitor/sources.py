"""Sources of messages: replayed recordings, lines of standard input, an MQTT broker."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.database import open_database
from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError, needs
from heartlm.monitor.engine import Monitor
from heartlm.monitor.link import MAX_BYTES
from heartlm.monitor.stream import NUM_LEADS, ecg_leads

FRAME_S = 1.0
"""Length of the frames of a replay."""
_BLOCK_S = 60
"""Seconds of a recording that are read at once."""
_TOPIC = "heartlm/ecg"


def replay_streams(folder: Path, num_streams: int | None = None, max_leads: int = NUM_LEADS) -> list[Iterator[bytes]]:
    """Return the messages of the recordings of a folder as streams. Each recording is repeated forever.

    Args:
        folder: folder of recordings.
        num_streams: number of streams, by default one for each recording. With more, recordings are used again from
            other places.
        max_leads: largest number of leads of each recording.

    Raises:
        HeartlmError: no recording of the folder has an ECG lead.
    """
    database = open_database(folder)
    usable = list[tuple[Recording, tuple[int, ...]]]()
    for record_id in database.record_ids:
        recording = database.recording(record_id)
        leads = ecg_leads(recording, max_leads)
        if leads and recording.rate_hz >= LOWEST_RATE_HZ:
            usable.append((recording, leads))
    if not usable:
        raise HeartlmError(f"{folder}: no recording with an ECG lead (one measured in mV), so nothing to replay")
    streams = list[Iterator[bytes]]()
    for number in range(num_streams or len(usable)):
        round_number, index = divmod(number, len(usable))
        recording, leads = usable[index]
        name = f"{number + 1:04d}-{recording.record_id}"
        streams.append(_replay_messages(name, recording, leads, 97 * round_number))
    return streams


def _replay_messages(name: str, recording: Recording, leads: tuple[int, ...], begin_s: int) -> Iterator[bytes]:
    """Yield the messages of one stream of a replay forever."""
    rate_hz, total = recording.rate_hz, recording.num_samples
    position, start = round(begin_s * rate_hz) % total, 0
    mv = np.empty((len(leads), 0), np.float32)
    while True:
        stop = round((start / rate_hz + FRAME_S) * rate_hz)
        while mv.shape[1] < stop - start:
            end = min(position + round(_BLOCK_S * rate_hz), total)
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
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # the reader has dropped the line
            monitor.reject(source, f"a line of more than {MAX_BYTES:,} bytes")
            continue
        if not line:
            return
        if line.strip():
            monitor.receive(line.strip(), source)


class Mqtt:
    """Connection to an MQTT broker: messages from `heartlm/ecg/NAME`, alarms to `heartlm/alarms/NAME`.

    Args:
        address: host, or host:port.
        monitor: gets the messages in the thread of `loop`.
        loop: event loop of the monitor.

    Raises:
        HeartlmError: there is no such broker, or paho-mqtt is not installed.
    """

    def __init__(self, address: str, monitor: Monitor, loop: asyncio.AbstractEventLoop) -> None:
        with needs("monitor"):
            from paho.mqtt import client, enums
        host, _, port = address.partition(":")
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            raise HeartlmError(f"mqtt: {address!r} found, host or host:port expected")

        def received(_client: Any, _data: Any, message: Any) -> None:
            name = message.topic.removeprefix(f"{_TOPIC}/")
            loop.call_soon_threadsafe(monitor.receive, bytes(message.payload), f"MQTT {name[:64]}", name)

        self._client = client.Client(enums.CallbackAPIVersion.VERSION2)
        self._client.max_queued_messages_set(0)
        self._client.on_connect = lambda mqtt, *_: mqtt.subscribe(f"{_TOPIC}/#", qos=1)
        self._client.on_message = received
        try:
            self._client.connect(host, int(port or 1883))
        except OSError as error:
            raise HeartlmError(f"mqtt: {address}: no broker there ({error})") from None
        monitor.listeners.append(self._publish)
        self._client.loop_start()

    def _publish(self, entry: dict[str, Any]) -> None:
        name = entry["stream"].translate({ord(sign): "_" for sign in "/+#"})
        self._client.publish(f"heartlm/alarms/{name}", json.dumps(entry), qos=1)

    def close(self) -> None:
        """Send waiting messages and disconnect."""
        self._client.disconnect()
        self._client.loop_stop()
