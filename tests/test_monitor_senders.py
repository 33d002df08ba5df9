"""Senders as documented, frames of 16-bit integers, and a replay that is started again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from base64 import b64encode
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Access
from heartlm.monitor.engine import Monitor
from heartlm.monitor.link import FrameLink, read_frame
from heartlm.monitor.models import LiveModels
from heartlm.monitor.sources import replay_streams
from heartlm.monitor.stream import Ward
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from heartlm.simulate.write import write_record
from tests.brokers import OPEN, Broker, program

DOCUMENT = Path(__file__).parents[1] / "docs" / "monitor.md"


def block(language: str) -> str:
    """The block of the section on senders in a language."""
    section = DOCUMENT.read_text().split("## Senders")[1].split("\n## ")[0]
    found = re.search(f"```{language}\n(.*?)```", section, re.S)
    assert found is not None
    return found[1]


def beats(num_samples: int) -> list[float]:
    """What the documented senders send."""
    return [float(sample % 200 < 8) for sample in range(num_samples)]


def test_the_sender_in_python_is_watched(tmp_path: Path, models: LiveModels) -> None:
    pytest.importorskip("paho.mqtt")
    from heartlm.monitor.mqtt import Mqtt

    broker = Broker("mosquitto", tmp_path, OPEN)
    code = block("python").replace('"broker.ward", 1883', f'"127.0.0.1", {broker.port}')
    monitor = Monitor(Ward(models), log=lambda _: None)

    async def watch() -> None:
        link = Mqtt(f"127.0.0.1:{broker.port}", monitor, Access(), "heartlm/ecg/#", "alarms", "monitor")
        await link.connect()
        sender = subprocess.Popen([sys.executable, "-c", code])
        try:
            while "bed-7" not in monitor.patients or monitor.patients["bed-7"].num_samples < 500:
                assert sender.poll() is None
                await asyncio.sleep(0.02)
        finally:
            sender.kill()
            sender.wait()
            link.close()

    asyncio.run(asyncio.wait_for(watch(), 60))
    broker.stop()
    assert monitor.patients["bed-7"].history[0, :500].tolist() == beats(500)
    assert not monitor.faults


def test_the_command_line_sends_frames(tmp_path: Path) -> None:
    instead = tmp_path / "mosquitto_pub"  # prints its arguments, and what it would send line by line
    instead.write_text('#!/bin/sh\nprintf \'%s\\n\' "$@"\nfor each; do test "$each" = -l && cat; done\nexit 0\n')
    instead.chmod(0o755)
    (tmp_path / "sender").write_text('#!/bin/sh\necho \'{"rate_hz": 250, "seq": 7, "mv": [0, 1]}\'\n')
    (tmp_path / "sender").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", block("sh")], cwd=tmp_path, env=path, capture_output=True, text=True, check=True
    )
    frames = [read_frame(line, "bed-7") for line in done.stdout.splitlines() if line.startswith("{")]
    assert [frame.start for frame in frames] == [0, 14]
    assert np.array_equal(frames[0].mv, np.array([[0.01, 0.02, np.nan]], np.float32), equal_nan=True)


@pytest.mark.parametrize("length", [249, 250, 251])  # without padding of base64, and with one and two characters
def test_the_sender_in_c_is_read(tmp_path: Path, length: int) -> None:
    code = tmp_path / "sender.c"
    code.write_text(block("c").replace("LENGTH = 250", f"LENGTH = {length}"))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([program("cc"), *flags, "-o", str(tmp_path / "sender"), str(code)], check=True)
    with subprocess.Popen([str(tmp_path / "sender")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = list(islice(process.stdout, 3))
        process.kill()
    assert length != 250 or max(map(len, lines)) in range(720, 740)
    link = FrameLink(250.0)
    samples = [piece for line in lines for piece in link.push(read_frame(line, "bed-7"))]
    assert np.concatenate(samples, axis=1)[0].tolist() == beats(3 * length)
    assert not link.counts


def message(**fields: Any) -> str:
    return json.dumps({"stream": "a", "rate_hz": 250, "seq": 3, "gain": 200} | fields)


def coded(*steps: int) -> str:
    return b64encode(np.array(steps, "<i2").tobytes()).decode()


def test_integers_are_millivolts_by_their_gain() -> None:
    frame = read_frame(message(int16=[coded(200, -100, -32768), coded(32767, 0, 1)]))
    assert (frame.start, frame.t, frame.mv.dtype) == (9, None, np.float32)
    expected = np.array([[1, -0.5, np.nan], [163.835, 0, 0.005]], np.float32)
    assert np.array_equal(frame.mv, expected, equal_nan=True)
    assert read_frame(message(int16=coded(1, 2), start=77)).start == 77  # which says more than the number of the frame
    assert np.isnan(read_frame(message(int16=coded(1), gain=1e-300)).mv).all()  # no ECG


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"int16": coded(1), "gain": 0}, "a: gain: 0 found, the steps per millivolt expected"),
        ({"int16": coded(1), "gain": None}, "a: gain: None found"),
        ({"int16": coded(1), "mv": [1]}, "a: int16: found together with mv"),
        ({"int16": "AAA="[:3]}, "a: int16: base64 of little-endian"),
        ({"int16": "AA=="}, "a: int16: base64 of little-endian"),
        ({"int16": 7}, "a: int16: base64 of little-endian"),
        ({"int16": [coded(1), coded(1, 2)]}, "a: int16: .* of equal length"),
        ({"int16": []}, "a: int16: 1 to 3 leads"),
        ({"int16": ""}, "a: int16: 1 to 3 leads"),
        ({"int16": coded(1), "seq": -1}, "a: seq: -1 found, a frame number"),
        ({"int16": coded(1), "seq": 0.5}, "a: seq: 0.5 found"),
        ({"int16": coded(1), "seq": None}, "a: start: missing; .* or seq"),
    ],
)
def test_wrong_integers_are_refused_by_name(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(HeartlmError, match=text):
        read_frame(message(**fields))


def test_a_replay_that_is_started_again_continues_its_streams(tmp_path: Path, models: LiveModels) -> None:
    config = SimulationConfig(minutes=0.25)
    signal, annotations = simulate_recording(config, 0)[:2]
    (tmp_path / "ward").mkdir()
    write_record(tmp_path / "ward", "t", signal[:, :3000], config.leads, 250, annotations, [])

    def replayed(seconds: int) -> Monitor:
        monitor = Monitor(Ward(models), tmp_path / "out", log=lambda _: None)
        for messages in replay_streams(tmp_path / "ward", 3, monitor):
            for each in islice(messages, seconds):
                monitor.receive(each, "replay")
        monitor.run()
        return monitor

    replayed(20).close()
    again = replayed(5)
    for patient in again.patients.values():
        assert patient.num_samples == 25 * patient.link.rate_hz
        assert not patient.link.counts
        recording = patient.history[:, : -round(12 * patient.link.rate_hz)]  # it is repeated after 12 s
        assert np.array_equal(recording, patient.history[:, round(12 * patient.link.rate_hz) :])
    again.check_silence(time.monotonic(), again.patients)
    assert not any(each["kind"] == "signal lost" for each in again.alarms.values())
    again.close()
