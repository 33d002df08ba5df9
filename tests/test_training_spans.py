"""Spans: lines while training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heartlm.errors import HeartlmError
from heartlm.instrumentation.meters import Meters
from heartlm.instrumentation.spans import Spans


def events_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_trace_events(tmp_path: Path) -> None:
    spans = Spans(tmp_path / "deep" / "rank-3.jsonl", 3)
    spans.add("data", 100.0, 100.25, 7)
    spans.add("optimizer", 100.25, 100.75, 7)
    assert not spans.path.exists()
    spans.flush()
    first, second = events_of(spans.path)
    assert first | {"ts": 0} == {
        "name": "data", "ph": "X", "ts": 0, "dur": 250000.0, "pid": 3, "tid": 0, "args": {"step": 7}
    }  # fmt: skip
    assert second["ts"] - first["ts"] == pytest.approx(250000, abs=1)


def test_what_is_buffered_is_bounded_and_a_resumed_run_adds_to_the_file(tmp_path: Path) -> None:
    for _ in range(2):
        spans = Spans(tmp_path / "rank-0.jsonl")
        for step in range(Spans.BUFFERED + 1):
            spans.add("step", step, step + 1, step)
        assert len(events_of(spans.path)) % (Spans.BUFFERED + 1) == Spans.BUFFERED
        spans.flush()
        spans.flush()
    assert len(events_of(tmp_path / "rank-0.jsonl")) == 2 * (Spans.BUFFERED + 1)


def test_a_meter_writes_its_spans(tmp_path: Path) -> None:
    meters = Meters(spans=Spans(tmp_path / "rank-0.jsonl"))
    with meters.step(4), meters.span("data"):
        pass
    with meters.paused("validation"), meters.span("forward_backward"):
        pass
    meters.spans.flush()
    events = events_of(tmp_path / "rank-0.jsonl")
    assert [event["name"] for event in events] == ["data", "step", "forward_backward", "validation"]
    assert {event["args"]["step"] for event in events} == {4}
    assert events[1]["ts"] <= events[0]["ts"]
    assert events[1]["dur"] >= events[0]["dur"]


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeartlmError, match=r"^cannot write .*rank-0\.jsonl: [^\n]*$"):
        Spans(tmp_path / "file" / "rank-0.jsonl")
