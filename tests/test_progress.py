"""Progress by a clock that the test turns."""

from __future__ import annotations

import pytest

from heartlm import progress
from heartlm.progress import Measure, Meter, track


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_items_tell_how_many_and_the_time_left() -> None:
    clock = Clock()
    meter = Meter[int](10, None, clock)
    for _ in range(4):
        clock.now += 5
        meter.count(0)
    assert meter.state() == "4 of 10, 30 s left"


def test_a_measure_tells_the_rate_of_this_run_and_the_share_of_all_runs() -> None:
    clock = Clock()
    measure = Measure[int](
        total=1000, share=lambda item: 100 * item, amount=lambda item: 5.0 * item, unit="MB", done=400
    )
    meter = Meter(99, measure, clock)
    for item in (1, 2):
        clock.now += 10
        meter.count(item)
    assert meter.state() == "70 %, 0.8 MB/s, 20 s left"


def test_before_the_first_item_nothing_is_divided_by() -> None:
    meter = Meter(0, Measure[int](0.0, lambda _: 0.0, lambda _: 0.0, "MB"), Clock())
    assert meter.state() == "0 %, 0.0 MB/s, 0 s left"


def test_a_log_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", -1.0)
    measure = Measure[int](total=4, share=lambda _: 2, amount=lambda item: item, unit="M samples")
    assert list(track(iter([1, 2]), 2, "tokenize", measure)) == [1, 2]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("tokenize: 50 %, ") and " M samples/s, " in lines[0]


def test_quick_work_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(3), 3, "tokenize")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
