"""`benchmarks/chunks.py` in small: what the server answers, requests that fail, and the load at which it ends."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest
import requests

from benchmarks import chunks
from lab.measure import cores
from tests.synthetic_leads import ecg_mv

pytest.importorskip("neurokit2", reason="NeuroKit2 is not installed")

TIMES_S = np.arange(2500) / 250
WRONG = b"{}"


def body(signal_mv: np.ndarray) -> bytes:
    return json.dumps({"rate_hz": 250, "mv": signal_mv.round(4).tolist()}).encode()


BEATS = body(ecg_mv(TIMES_S, np.arange(0.4, 10, 0.8)))
"""12 beats, 75 a minute."""


@pytest.fixture(autouse=True)
def short_and_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one second, which slow machines may answer late."""
    monkeypatch.setattr(chunks, "CHUNK_S", 1)
    monkeypatch.setattr(chunks, "LIMIT_S", 600.0)
    monkeypatch.setattr(chunks, "HELD_S", math.inf)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server, address = chunks.start_server(cores()[0])
    asyncio.run(chunks.warm_up(address, BEATS))
    yield address
    server.kill()
    server.wait()


def test_a_chunk_is_answered_by_its_beats_and_their_rate(address: str):
    answer = requests.post(address, BEATS, timeout=600).json()
    assert answer["beats"] == 12
    assert answer["bpm"] == pytest.approx(75, abs=0.5)


def test_a_chunk_that_neurokit2_cannot_analyse_is_answered(address: str):
    answer = requests.post(address, body(np.zeros(2500)), timeout=600)
    assert answer.status_code == 200 and answer.json() == {"beats": None, "bpm": None}


def test_each_patient_sends_its_own_chunks_in_turn(address: str):
    delays_s = asyncio.run(chunks.send([[BEATS, WRONG], [BEATS]], 4, [address], 2))
    assert [math.isfinite(delay) for delay in delays_s] == [True] * 4 + [False, True, False, True]


def test_a_request_later_than_the_limit_has_failed(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunks, "LIMIT_S", 1e-6)
    assert asyncio.run(chunks.send([[BEATS]], 1, [address], 1)) == [math.inf]


def test_loads_grow_until_one_is_not_held():
    before = os.sched_getaffinity(0)
    table = chunks.measure_chunks([[BEATS], [BEATS], [WRONG]], cores()[:1], 1, (2, 3, 4))
    assert table.column("patients") == ["2", "3"] and table.column("failed, %") == ["0.0", "33.3"]
    assert "answered within inf s: 2 patients, 2 on a core" in table.notes[0]
    assert os.sched_getaffinity(0) == before
