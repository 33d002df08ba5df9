"""What a monitor keeps on disk survives restarts, power failures and years: messages, alarms, strips, silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.errors import HeartlmError
from heartlm.monitor import engine
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.engine import Monitor
from heartlm.monitor.journal import MessageJournal
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward, WatchedLead

RATE_HZ = 250


@pytest.fixture(scope="module")
def models() -> LiveModels:
    import torch

    torch.set_num_threads(1)
    return LiveModels()


def message(second: int, mv: float = 0.0, name: str = "bed", rate_hz: int = RATE_HZ) -> bytes:
    """A second of a signal that is not flat."""
    values = [mv + 0.01 * (sample % 7) for sample in range(rate_hz)]
    return json.dumps({"stream": name, "rate_hz": rate_hz, "start": second * rate_hz, "mv": values}).encode()


def opened(models: LiveModels, folder: Path | None) -> Monitor:
    return Monitor(Ward(models), folder, log=lambda _: None)


def watch(monitor: Monitor, seconds: range, mv: float = 0.0) -> None:
    for second in seconds:
        monitor.receive(message(second, mv))
        monitor.run()


def raise_alarm(monitor: Monitor, second: int, stop: int | None = None) -> str:
    """Raise a pause, and end it."""
    alarm = Alarm("bed", "pause", second * RATE_HZ, second * RATE_HZ, None, 1.0, float(RATE_HZ))
    monitor._update_alarm(alarm)
    if stop is not None:
        monitor._publish_once(alarm.to_json() | {"stop_s": float(stop)})
    return alarm.key


def test_zeros_at_the_end_of_the_journal_are_no_messages(tmp_path: Path, models: LiveModels) -> None:
    """Some filesystems extend a file before they write its data, so that a power failure leaves zeros."""
    journal = MessageJournal(tmp_path)
    journal.append(b"a message", "bed")
    journal.close()
    log = tmp_path / "messages-000000.log"
    size = log.stat().st_size
    with log.open("ab") as torn:
        torn.write(bytes(4096))
    assert list(MessageJournal(tmp_path).recover()[1]) == [(b"a message", "bed")]
    assert log.stat().st_size == size


def test_the_name_of_a_new_file_of_messages_is_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = list[str]()
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(Path(f"/proc/self/fd/{number}").readlink().name))
    journal = MessageJournal(tmp_path / "journal")
    journal.append(b"a message")
    journal.flush()
    assert flushed == ["journal", "messages-000000.log"]
    journal.close()


def test_an_alarm_after_an_incomplete_line_is_not_lost(tmp_path: Path, models: LiveModels) -> None:
    first = opened(models, tmp_path)
    watch(first, range(2))
    before = raise_alarm(first, 1, stop=2)
    first.close()
    with (tmp_path / "alarms.jsonl").open("a") as log:
        log.write('{"key": "bed/torn')
    second = opened(models, tmp_path)
    after = raise_alarm(second, 2)
    second.close()
    third = opened(models, tmp_path)
    assert list(third.alarms) == [before, after]
    third.close()


def test_a_log_of_many_alarms_is_read_and_the_last_ones_are_kept(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_MAX_ALARMS", 20)
    monkeypatch.setattr("heartlm.storage.reading.MAX_JSON_BYTES", 1000)  # of a file that is read as a whole
    first = opened(models, tmp_path)
    watch(first, range(2))
    keys = [raise_alarm(first, second, stop=second + 1) for second in range(30)]
    first.close()
    second = opened(models, tmp_path)
    assert list(second.alarms) == keys[-20:]
    second.close()


def test_no_strip_replaces_that_of_another_alarm(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_MAX_ALARMS", 2)
    names = list[str]()
    for begin in (0, 40):
        monitor = opened(models, tmp_path)
        monitor.listeners.append(lambda entry: names.append(entry["strip"]) if entry["strip"] else None)
        for number in range(4):
            watch(monitor, range(begin + 10 * number, begin + 10 * number + 10))
            raise_alarm(monitor, begin + 10 * number + 10, stop=begin + 10 * number + 11)
        watch(monitor, range(begin + 40, begin + 41))
        monitor.close()
    assert len(names) > 5 and len(set(names)) == len(names)


def test_the_strip_of_a_voltage_beyond_16_bits_is_clipped(tmp_path: Path, models: LiveModels) -> None:
    """A lead of 20 mV, such as that of a dry electrode, once raised an IndexError of wfdb that ended the monitor."""
    import wfdb

    monitor = opened(models, tmp_path)
    watch(monitor, range(10), mv=20.0)
    key = raise_alarm(monitor, 10)
    watch(monitor, range(10, 21), mv=0.5)
    strip = wfdb.rdrecord(str(tmp_path / "strips" / monitor.alarms[key]["strip"]))
    assert np.allclose(strip.p_signal[:2500], 16.3835) and np.abs(strip.p_signal[2500:] - 0.53).max() < 0.04
    monitor.close()


def test_an_alarm_that_ended_before_a_restart_gets_its_strip(tmp_path: Path, models: LiveModels) -> None:
    first = opened(models, tmp_path)
    watch(first, range(12))
    key = raise_alarm(first, 11, stop=12)
    first.close()
    second = opened(models, tmp_path)
    watch(second, range(12, 23))
    assert second.alarms[key]["strip"] == "strip_000001"
    second.close()


def test_a_silence_across_a_restart_ends_with_the_next_message(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    first = opened(models, tmp_path)
    watch(first, range(3))
    now[0] += 6
    first.run()
    assert [alarm["kind"] for alarm in first.open_alarms()] == ["signal lost"]
    first.close()
    second = opened(models, tmp_path)
    assert [alarm["kind"] for alarm in second.open_alarms()] == ["signal lost"]
    second.receive(message(3))
    assert not second.open_alarms()
    second.close()


@pytest.mark.parametrize("first_second", [0, 3 * 86_400], ids=["counts from 0 again", "is days ahead"])
def test_a_sender_whose_frames_are_all_dropped_is_silent(
    models: LiveModels, monkeypatch: pytest.MonkeyPatch, first_second: int
) -> None:
    now = [100.0]
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    monitor = opened(models, None)
    monitor.clock = lambda: now[0]
    watch(monitor, range(60))
    for second in range(first_second, first_second + 8):
        now[0] += 1
        watch(monitor, range(second, second + 1))
    assert [alarm["kind"] for alarm in monitor.open_alarms()] == ["signal lost"]
    watch(monitor, range(60, 61))
    assert not monitor.open_alarms()


def test_no_heart_rate_is_computed_across_a_lost_signal(models: LiveModels) -> None:
    monitor = opened(models, None)
    watch(monitor, range(3))
    beats = monitor.patients["bed"].beats
    beats.extend((float(second), "N") for second in range(9))
    assert monitor.patients["bed"].rate_bpm == 60
    monitor.receive(b'{"stream": "bed", "rate_hz": 250, "start": 750, "mv": [%s]}' % b",".join([b"null"] * 2500))
    monitor.run()
    assert monitor.patients["bed"].stream.rules.lost and monitor.patients["bed"].rate_bpm is None


def test_the_state_of_another_build_is_refused_and_says_what_to_do(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(models, tmp_path)
    watch(first, range(2))
    first.close()
    init = WatchedLead.__init__

    def larger(lead: WatchedLead, *arguments: Any) -> None:
        init(lead, *arguments)
        lead.memory = np.append(lead.memory, np.zeros(64, np.uint8))

    monkeypatch.setattr(WatchedLead, "__init__", larger)
    with pytest.raises(HeartlmError, match=f"^{tmp_path}: state of a lead: .*another build.*: choose another --out$"):
        opened(models, tmp_path)
