"""Where messages come from: recordings as a ward, lines of standard input, Lab Streaming Layer, an MQTT broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.database import open_database
from heartlm.ecg.detect import LOWEST_RATE_HZ
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError, needs
from heartlm.monitor.engine import Monitor
from heartlm.monitor.link import MOST_BYTES, MOST_LEADS
from heartlm.monitor.stream import NUM_LEADS, ecg_leads

FRAME_S = 1.0
"""Length of the frames of a replay."""
_BLOCK_S = 60
"""So much of a recording is read at once."""


class Replay:
    """A folder of recordings as streams, each recording repeated without an end.

    Args:
        folder: of recordings.
        num_streams: by default one for each recording; with more, further ones begin later in a recording.
        most_leads: of each recording, at most.

    Raises:
        HeartlmError: no recording of the folder has an ECG lead.
    """

    def __init__(self, folder: Path, num_streams: int | None = None, most_leads: int = NUM_LEADS) -> None:
        database = open_database(folder)
        found = list[tuple[Recording, tuple[int, ...]]]()
        for record_id in database.record_ids:
            recording = database.recording(record_id)
            leads = ecg_leads(recording, most_leads)
            if leads and recording.rate_hz >= LOWEST_RATE_HZ:
                found.append((recording, leads))
        if not found:
            raise HeartlmError(f"{folder}: no recording with an ECG lead (one measured in mV), so nothing to replay")
        self._streams = list[Iterator[bytes]]()
        for place in range(num_streams or len(found)):
            turn, which = divmod(place, len(found))
            recording, leads = found[which]
            self._streams.append(_frames(f"{place + 1:04d}-{recording.record_id}", recording, leads, turn))

    def messages(self) -> Iterator[bytes]:
        """The next second of each stream."""
        return map(next, self._streams)


def _frames(name: str, recording: Recording, leads: tuple[int, ...], turn: int) -> Iterator[bytes]:
    """The messages of one stream of a replay, without an end."""
    rate_hz, total = recording.rate_hz, recording.num_samples
    place, start = round(turn * 97 * rate_hz) % total, 0
    mv = np.empty((len(leads), 0), np.float32)
    while True:
        stop = round((start / rate_hz + FRAME_S) * rate_hz)
        while mv.shape[1] < stop - start:
            end = min(place + round(_BLOCK_S * rate_hz), total)
            mv = np.concatenate([mv, recording.signal(place, end, leads)], axis=1)
            place = end % total
        frame, mv = mv[:, : stop - start].tolist(), mv[:, stop - start :]
        values = [[None if math.isnan(value) else round(value, 4) for value in lead] for lead in frame]
        own = values[0] if len(values) == 1 else values
        yield json.dumps({"stream": name, "rate_hz": rate_hz, "start": start, "mv": own}).encode()
        start = stop


async def replay(monitor: Monitor, source: Replay, speed: float) -> None:
    """Send the frames of a replay, `speed` seconds of each stream every second."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        for message in source.messages():
            monitor.receive(message, "replay")
        due += FRAME_S / speed
        await asyncio.sleep(max(0.0, due - loop.time()))


async def read_lines(monitor: Monitor) -> None:
    """Read one message a line from standard input until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MOST_BYTES + 1, loop=loop)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the limit; the reader has dropped what it held of the line
            monitor.faults["standard input"] += 1
            monitor.log(f"standard input: refused: a line of more than {MOST_BYTES:,} bytes")
            continue
        if not line:
            return
        if line.strip():
            monitor.receive(line.strip(), "standard input")


async def read_lsl(monitor: Monitor) -> None:
    """Watch all streams of type ECG in the Lab Streaming Layer, also those that appear later, until cancelled.

    A stream has the name of its outlet. Its first `MOST_LEADS` channels are leads; the unit of the first channel counts
    for all: microvolts, or millivolts, which is also taken where there is none.

    Raises:
        HeartlmError: pylsl is not installed, or finds no liblsl.
    """
    with needs("monitor"):
        try:
            import pylsl  # loads liblsl, which the package of pylsl holds on most systems
            from pylsl.util import LostError
        except RuntimeError:
            raise ModuleNotFoundError(name="liblsl") from None
    resolver, inlets = pylsl.ContinuousResolver(prop="type", value="ECG"), dict[str, _Inlet]()
    while True:
        for info in resolver.results():
            if info.uid() not in inlets:
                inlet = pylsl.StreamInlet(info, processing_flags=pylsl.proc_clocksync)
                with contextlib.suppress(RuntimeError):  # lost, or too late: it is tried again
                    inlets[info.uid()] = _Inlet(inlet, await asyncio.to_thread(inlet.info, 5.0))
        for uid, each in list(inlets.items()):
            try:
                for message in each.messages():
                    monitor.receive(message, f"LSL {each.name[:64]}", each.name)
            except LostError:
                monitor.log(f"LSL {each.name[:64]}: the outlet closed")
                del inlets[uid]
        await asyncio.sleep(_LSL_POLL_S)


class _Inlet:
    """Samples of one outlet as messages. Nothing is lost while it is connected, so samples are counted."""

    def __init__(self, inlet: Any, info: Any) -> None:
        self.inlet, self.name, self.rate_hz = inlet, info.name(), info.nominal_srate()
        unit = info.desc().child("channels").child("channel").child_value("unit").lower()
        self.mv = 1e-3 if unit in ("microvolts", "microvolt", "uv", "\u00b5v", "\u03bcv") else 1.0
        self.num_channels, self.next_sample, self.last_s = info.channel_count(), 0, -math.inf

    def messages(self) -> Iterator[bytes]:
        """What came since the last time, a message for each piece without a gap."""
        samples, times_s = self.inlet.pull_chunk(timeout=0.0, max_samples=int(10 * max(1.0, self.rate_hz)))
        leads = self.mv * np.asarray(samples, np.float64).reshape(-1, self.num_channels).T[:MOST_LEADS]
        begins = np.flatnonzero(np.diff(times_s, prepend=self.last_s) > _LSL_GAP_S).tolist()
        for begin, end in pairwise(sorted({0, *begins, len(times_s)})):
            if begin in begins:  # the clock of this machine numbers the first sample, and the first after a gap
                self.next_sample = max(self.next_sample, round(times_s[begin] * self.rate_hz))
            piece = leads[:, begin:end].round(5).tolist()
            mv = [[value if math.isfinite(value) else None for value in lead] for lead in piece]
            message = {"rate_hz": self.rate_hz, "start": self.next_sample, "mv": mv}
            self.next_sample, self.last_s = self.next_sample + end - begin, times_s[end - 1]
            yield json.dumps(message).encode()


class Mqtt:
    """Messages of an MQTT broker, and alarms back to it.

    Streams publish to `heartlm/ecg/NAME`; alarms go to `heartlm/alarms/NAME`.

    Args:
        address: host, or host:port.
        monitor: gets the messages in its own thread of control.

    Raises:
        HeartlmError: no such broker, or paho-mqtt is not installed.
    """

    def __init__(self, address: str, monitor: Monitor, loop: asyncio.AbstractEventLoop) -> None:
        with needs("monitor"):
            from paho.mqtt import client, enums
        host, _, port = address.partition(":")
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            raise HeartlmError(f"mqtt: {address!r} found, host or host:port expected")
        self._client = client.Client(enums.CallbackAPIVersion.VERSION2)
        self._client.max_queued_messages_set(0)
        self._client.on_connect = lambda mqtt, *_: mqtt.subscribe(f"{_TOPIC}/#", qos=1)

        def received(_client: Any, _data: Any, message: Any) -> None:
            name = message.topic.removeprefix(f"{_TOPIC}/")
            loop.call_soon_threadsafe(monitor.receive, bytes(message.payload), f"MQTT {name[:64]}", name)

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
        """Send what waits, and part from the broker."""
        self._client.disconnect()
        self._client.loop_stop()


_TOPIC = "heartlm/ecg"
_LSL_POLL_S, _LSL_GAP_S = 0.25, 0.5
