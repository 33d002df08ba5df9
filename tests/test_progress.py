"""Progress by a clock that the test turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heartlm.system import progress
from heartlm.system.progress import track


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that advances by the items of this list."""
    passed = list[float]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: sum(passed))
    yield passed


def test_a_log_file_tells_how_many_and_the_time_left(
    waits: list[float], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", 15)
    for _ in track(range(10), 10, "tokenize"):
        waits.append(5)
    assert capfd.readouterr().err.splitlines() == [
        "tokenize: 4 of 10, 30 s left",
        "tokenize: 8 of 10, 10 s left",
    ]


def test_an_amount_tells_the_rate_of_this_run(
    waits: list[float], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY_S", 1)
    for _ in track((1, 2), 8, "download", lambda item: 5.0 * item, "MB", done=4):
        waits.append(10)
    assert capfd.readouterr().err.splitlines() == [
        "download: 5 of 8, 0.5 MB/s, 30 s left",
        "download: 6 of 8, 0.8 MB/s, 20 s left",
    ]


def test_quick_work_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(3), 3, "tokenize")) == [0, 1, 2]
    assert capfd.readouterr().err == ""
