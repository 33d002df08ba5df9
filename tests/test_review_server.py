"""The server of `heartlm review` without a browser: its pyramid, who may ask, and questions that cannot be answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.monitor.connection import Connection
from heartlm.review.answers import pack
from heartlm.review.pyramid import BLOCK, FACTOR, FIRST, MISSING, NUM_LEVELS, UNIT_MV, Pyramid
from heartlm.review.records import Records
from tests.conftest import Refused
from tests.reviewed import FALSE_VT, beat_places, drawn, store

TOKEN = "0123456789abcdef"


def long_recording() -> Recording:
    """Two leads of a little more than four blocks, with invalid samples."""
    rng = np.random.default_rng(2)
    signal = rng.normal([[3.0], [-1.0]], 0.5, (2, 4 * BLOCK + 1234)).astype(np.float32)
    signal[0, 5000:5100] = np.nan
    signal[1, 2 * BLOCK + 777] = 60.0
    return Recording.from_array(signal, rate_hz=250, leads=["II", "V1"])


def test_each_level_has_the_extremes_of_the_samples(tmp_path: Path) -> None:
    recording = long_recording()
    pyramid, signal = Pyramid(recording, tmp_path), recording.signal()
    pyramid.build()
    samples, _ = pyramid.read(0, 4900, 300, [0])
    assert np.array_equal(samples[0] == MISSING, np.isnan(signal[0, 4900:5200]))
    for level in range(1, NUM_LEVELS + 1):
        size = FIRST * FACTOR ** (level - 1)
        first = 3 * FACTOR ** (NUM_LEVELS - level) // 2
        values, complete = pyramid.read(level, first, 40, [1, 0])
        assert complete and values.shape[1] == min(40, -(-recording.num_samples // size) - first)
        for bucket in range(values.shape[1]):
            for row, lead in enumerate((1, 0)):
                part = signal[lead, (first + bucket) * size : (first + bucket + 1) * size]
                found = values[row, bucket] * UNIT_MV + pyramid.level_mv[lead]
                assert np.allclose(found, [part.min(), part.max()], atol=UNIT_MV)
    invalid = pyramid.read(1, 5008 // FIRST, 1, [0])[0]
    assert invalid.tolist() == [[[MISSING, MISSING]]]
    assert not list(tmp_path.iterdir())  # the file has no name


def test_what_is_not_built_yet_is_built_if_it_is_little_and_else_missing(tmp_path: Path) -> None:
    pyramid = Pyramid(long_recording(), tmp_path)
    values, complete = pyramid.read(NUM_LEVELS, 0, 5, [0])
    assert not complete and (values == MISSING).all() and pyramid.num_built == 0
    assert pyramid.read(1, BLOCK // FIRST + 5, 10, [0])[1] and pyramid.num_built == 1
    values, complete = pyramid.read(NUM_LEVELS, 0, 5, [0])
    assert not complete and (values[0] == MISSING).all(axis=1).tolist() == [True, False, True, True, True]
    pyramid.build()
    assert pyramid.read(NUM_LEVELS, 0, 9, [0])[0].min() > MISSING


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    pyramid = Pyramid(long_recording(), tmp_path)
    assert pyramid.read(1, 10**9, 5, [0])[0].shape == (1, 0, 2)
    for level, start, num, leads in ((9, 0, 1, [0]), (1, -1, 1, [0]), (1, 0, 1, [2]), (0, 0, 1 << 24, [0])):
        with pytest.raises(HeartlmError):
            pyramid.read(level, start, num, leads)


def test_arrays_lie_where_the_header_says() -> None:
    content = pack({"id": 3}, {"a": np.arange(5, dtype=np.uint8), "b": np.ones((2, 3))})
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    kind, shape, offset = header["arrays"]["b"]
    found = np.frombuffer(content, kind, 6, 4 + length + offset)
    assert header["id"] == 3 and shape == [2, 3] and found.tolist() == [1] * 6 and (4 + length + offset) % 8 == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store(drawn(tmp_path / "data"), tmp_path / "out")
    return tmp_path


def test_only_who_has_the_token_is_answered_and_faults_are_one_line(folder: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from starlette.websockets import WebSocketDisconnect

    from heartlm.review.server import ReviewServer

    records = Records(folder / "out", Path("unused"), "")  # the folder of a review tells its recordings
    assert records.names == ["r1"] and records.out == folder / "out"
    page = testclient.TestClient(ReviewServer(records, TOKEN, Connection("page", print, lambda: 0)).app)
    assert page.get("/").status_code == page.get("/report/r1").status_code == 403
    assert page.get(f"/?token={TOKEN}").headers["content-security-policy"].startswith("default-src 'none'")
    assert page.get("/page/main.js").status_code == 200 and page.get("/page/..%2Fserver.py").status_code == 404
    with pytest.raises(WebSocketDisconnect), page.websocket_connect("/live", headers={"origin": "http://testserver"}):
        pass
    address, headers = f"/live?token={TOKEN}", {"origin": "http://testserver"}
    with page.websocket_connect(address, headers=headers) as live:

        def ask(what: str, **fields: Any) -> dict[str, Any]:
            live.send_text(json.dumps({"id": 1, "ask": what, **fields}))
            answer: dict[str, Any] = json.loads(live.receive_text())
            return answer

        assert ask("beats")["error"] == "open a recording first"
        assert ask("open", name="../r1")["error"] == "../r1: no such recording here"
        assert ask("open", name="r1")["leads"] == ["II", "V1"]
        live.send_text("[1, 2")
        for what, fields in (
            ("nothing", {}),
            ("signal", {"level": 0, "start": 0, "num": 10, "leads": [7]}),
            ("signal", {"level": "0"}),
            ("waves", {"start": 5, "stop": 5}),
            ("change", {"change": {"do": "name"}, "revision": 0}),
            ("change", {"change": {"do": "undo"}, "revision": 9}),
        ):
            error = ask(what, **fields)["error"]
            assert error and "\n" not in error and "Error" not in error, (what, error)
        change = {"do": "name", "beats": [int(beat_places()[FALSE_VT[0]])], "symbol": "N"}
        assert ask("change", change=change, revision=0)["revision"] == 1
        assert "another window" in ask("change", change=change, revision=0)["error"]
    page.close()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--host", "0.0.0.0"], "host: 0.0.0.0 found: others can reach it, so --token is needed"),
        (["--port", "70000"], "port"),
        (["--token", "short"], "5 characters found, a token of at least 16 expected"),
        (["--out", "data/r1.hea"], "out: data/r1.hea"),
    ],
)
def test_settings_that_cannot_be_are_one_line(
    folder: Path, options: list[str], line: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(folder)
    Path("short").write_text("short")
    assert line in refused("review", "data/r1", "--no-open", *options)
