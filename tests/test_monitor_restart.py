"""What a monitor keeps on disk survives restarts, power failures and years: messages, alarms, strips, silence."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.monitor import alarm_log
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.engine import Monitor
from heartlm.monitor.journal import MessageJournal
from heartlm.monitor.link import MAX_GAP_S, Frame, FrameLink
from heartlm.monitor.models import LiveModels
from heartlm.monitor.stream import Ward, WatchedLead

RATE_HZ = 250


def message(second: int, mv: float = 0.0, name: str = "bed", rate_hz: int = RATE_HZ) -> bytes:
    """A second of a signal that is not flat."""
    values = [mv + 0.01 * (sample % 7) for sample in range(rate_hz)]
    return json.dumps({"stream": name, "rate_hz": rate_hz, "start": second * rate_hz, "mv": values}).encode()


def opened(models: LiveModels, folder: Path | None) -> Monitor:
    return Monitor(Ward(models), folder, log=lambda _: None)


def watch(monitor: Monitor, seconds: Iterable[int], mv: float = 0.0) -> None:
    for second in seconds:
        monitor.receive(message(second, mv))
        monitor.run()


def beating(second: int) -> bytes:
    """A second of a lead whose beats are 0.8 s apart."""
    time_s = np.arange(RATE_HZ) / RATE_HZ + second
    mv = 1.2 * np.exp(-(((time_s % 0.8 - 0.4) / 0.012) ** 2)) + 0.01 * np.sin(40 * time_s)
    values = np.round(mv, 4).tolist()
    return json.dumps({"stream": "bed", "rate_hz": RATE_HZ, "start": second * RATE_HZ, "mv": values}).encode()


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
    monkeypatch.setattr(alarm_log, "_MAX_ALARMS", 20)
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
    monkeypatch.setattr(alarm_log, "_MAX_ALARMS", 2)
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
def test_a_sender_that_counts_again_is_silent_and_then_watched(
    models: LiveModels, monkeypatch: pytest.MonkeyPatch, first_second: int
) -> None:
    """Its first frames are held, not lost, and the new part starts where the samples before it end."""
    now, lines = [100.0], list[str]()
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    monitor = Monitor(Ward(models), log=lines.append)
    monitor.clock = lambda: now[0]
    watch(monitor, range(60))
    now[0] += 5  # it starts again
    open_alarms = list[list[str]]()
    for second in range(first_second, first_second + 8):
        now[0] += 1
        watch(monitor, range(second, second + 1))
        open_alarms.append([alarm["kind"] for alarm in monitor.open_alarms()])
    needed = 2 if first_second else 6
    assert open_alarms == [["signal lost"]] * (needed - 1) + [[]] * (9 - needed)
    patient = monitor.patients["bed"]
    assert (patient.num_samples, patient.stream.rules.begin_s) == (8 * RATE_HZ, 60.0)
    assert patient.link.counts["new counts"] == 1 and "lost samples" not in patient.link.counts
    assert "bed: its sender counts its samples again: a new part of the stream starts" in lines


@pytest.mark.parametrize("snapshot_after", [None, 61])
def test_a_new_count_continues_after_a_restart_without_a_beat_across_it(
    tmp_path: Path, models: LiveModels, snapshot_after: int | None
) -> None:
    """Also if the monitor is killed while it holds the first frames of the new count."""
    frames = [beating(second) for second in (*range(59), *range(20))]
    unbroken = opened(models, None)
    for frame in frames:
        unbroken.receive(frame)
        unbroken.run()
    first = opened(models, tmp_path)
    for number, frame in enumerate(frames[:62]):
        first.receive(frame)
        first.run()
        if number == snapshot_after:
            first.save()
    assert first.journal is not None
    first.journal.flush()  # and then it is killed
    second = opened(models, tmp_path)
    for frame in frames[62:]:
        second.receive(frame)
        second.run()
    for monitor in (unbroken, second):
        patient = monitor.patients["bed"]
        assert (patient.num_samples, patient.stream.rules.begin_s) == (20 * RATE_HZ, 59.0)
    lead, same = (each.patients["bed"].stream.leads[0] for each in (second, unbroken))
    assert np.array_equal(lead.memory, same.memory) and lead.num_beats > 15
    assert second.patients["bed"].trend.to_json() == unbroken.patients["bed"].trend.to_json()
    # The beats are 0.8 s apart, and an interval across would not be.
    assert second.patients["bed"].trend.to_json()["bpm"] == pytest.approx([75.0, 75.0], abs=0.1)
    second.close()


def test_frames_that_are_sent_a_second_time_are_no_new_count(models: LiveModels) -> None:
    monitor = opened(models, None)
    watch(monitor, [*range(300), *range(250, 300), *range(300, 310)])
    patient = monitor.patients["bed"]
    assert (patient.num_samples, patient.link.counts) == (310 * RATE_HZ, {"late or double": 50})


def test_a_clock_that_is_set_back_is_a_new_count(models: LiveModels) -> None:
    """The sender gives times, which are never near 0. A minute of them alone is enough."""
    monitor = opened(models, None)
    for t in (*range(10_000, 10_100), *range(7_000, 7_100)):
        content = json.loads(message(0)) | {"start": None, "t": float(t)}
        monitor.receive(json.dumps(content).encode())
        monitor.run()
    patient = monitor.patients["bed"]
    assert (patient.num_samples, patient.stream.rules.begin_s) == (100 * RATE_HZ, 100.0)


@pytest.mark.parametrize("counted", [True, False])
def test_a_long_gap_is_reported_as_lost_signal_and_not_filled(models: LiveModels, counted: bool) -> None:
    monitor, lines, pushed = opened(models, None), list[str](), list[int]()
    monitor.log = lines.append
    push = monitor.ward.push
    monitor.ward.push = lambda name, mv: (pushed.append(np.asarray(mv).shape[-1]), push(name, mv))[1]  # type: ignore[method-assign]
    for second in (*range(10), *range(80_000, 80_010)):
        content = json.loads(message(second))
        content |= {} if counted else {"start": None, "t": float(second)}
        monitor.receive(json.dumps(content).encode())
        monitor.run()
    patient = monitor.patients["bed"]
    assert max(pushed) == MAX_GAP_S * RATE_HZ
    assert (patient.num_samples, patient.stream.rules.begin_s) == (10 * RATE_HZ, 80_000.0)
    assert patient.link.counts == {"gaps": 1, "lost samples": 79_990 * RATE_HZ}
    assert lines == ["bed: 79,990 s of signal are lost: a new part of the stream starts"]
    lost = [(alarm["kind"], alarm["raised_s"], alarm["stop_s"]) for alarm in monitor.alarms.values()]
    assert lost == [("signal lost", 15.0, 80_000.0)]


def test_a_single_wrong_number_changes_nothing(models: LiveModels) -> None:
    monitor = opened(models, None)
    watch(monitor, [*range(10), 5_000, 10, 3, 9_000, *range(11, 30)])
    patient = monitor.patients["bed"]
    assert (patient.num_samples, patient.link.counts) == (30 * RATE_HZ, {"too far ahead": 2, "late or double": 1})


@given(st.lists(st.tuples(st.booleans(), st.integers(-5, 20), st.integers(0, 5)), max_size=120))
@settings(max_examples=100)
def test_no_order_of_frames_makes_a_link_hold_much(frames: list[tuple[bool, int, int]]) -> None:
    """Numbers are near those before, or anywhere, by count or time."""
    link, start = FrameLink(100.0), 0
    for counted, step, power in frames:
        start = max(0, start + step * 100 * 10**power)
        mv = np.zeros((1, 100), np.float32)
        frame = Frame("bed", 100.0, start, None, mv) if counted else Frame("bed", 100.0, None, start / 100, mv)
        pieces = link.push(frame)
        if link.is_replaced:
            assert link.other is not None
            link, pieces = link.other, link.held
        waiting = [*link.held, *link.early.values(), *(link.other.early.values() if link.other else ())]
        assert sum(piece.shape[1] for piece in pieces) <= 100 * (MAX_GAP_S + 10)
        assert sum(piece.shape[1] for piece in waiting) <= 100 * (60 + 10)


def test_frames_of_another_count_that_are_far_apart_are_not_filled() -> None:
    link = FrameLink(100.0)
    for start in (0, *range(10**7, 0, -5_000)):
        link.push(Frame("bed", 100.0, start, None, np.zeros((1, 10), np.float32)))
    for start in range(10**6, 2 * 10**6, 5_000):
        link.push(Frame("bed", 100.0, start, None, np.zeros((1, 10), np.float32)))
        assert not link.is_replaced and sum(piece.shape[1] for piece in link.held) <= 10


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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: seconds[0])
    return seconds


def fill_disk(monitor: Monitor, path: Path) -> None:
    """Let a file that a monitor writes take nothing."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")
    if path.name == "alarms.jsonl":
        monitor.alarm_log.file = path.open("ab")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["journal/messages-000000.log", "alarms.jsonl"])
def test_a_full_disk_is_reported_in_one_line_and_alarms_continue(
    tmp_path: Path, models: LiveModels, now: list[float], name: str
) -> None:
    lines, raised = list[str](), list[str]()
    monitor = Monitor(Ward(models), tmp_path, log=lines.append)
    fill_disk(monitor, tmp_path / name)
    monitor.listeners.append(lambda entry: raised.append(entry["key"]))
    watch(monitor, range(5))
    keys = [raise_alarm(monitor, second, stop=second + 1) for second in (2, 3)]
    watch(monitor, range(5, 10))
    assert monitor.disk is not None and monitor.disk.problem is not None
    text = "No space left on device; what was there is untouched, free space or choose another place"
    why = f"cannot write {tmp_path / name}: {text}"
    assert lines == [f"out {tmp_path}: {why}: watching continues, but nothing is stored"]
    assert raised == [key for key in keys for _ in range(2)]
    number = str(tmp_path / "journal" / "messages-000001.log")
    (tmp_path / name).unlink()  # there is space again
    monitor.alarm_log.file = (tmp_path / "alarms.jsonl").open("ab")
    now[0] += 11
    monitor.run()
    watch(monitor, range(10, 12))
    assert lines[1:] == [f"out {tmp_path}: works again"] and Path(number).exists()
    restarted = opened(models, tmp_path)  # after a kill
    assert restarted.patients["bed"].num_samples == 12 * RATE_HZ
    assert [restarted.alarms[key]["stop_s"] for key in keys] == [3, 4]
    restarted.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_monitor_that_ends_with_a_full_disk_says_so(tmp_path: Path, models: LiveModels) -> None:
    monitor = opened(models, tmp_path)
    fill_disk(monitor, tmp_path / "alarms.jsonl")
    watch(monitor, range(3))
    raise_alarm(monitor, 2)
    with pytest.raises(
        HeartlmError, match=f"^cannot write {tmp_path}/alarms.jsonl: No space left on device; [^\n]*free space"
    ):
        monitor.close()


def test_part_of_a_line_is_continued(tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full takes a part of a line, and then nothing until there is space."""
    monitor, room, write = opened(models, tmp_path), [20], os.write

    def limited(number: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(number, bytes(content[: room[0]]))
        room[0] -= written
        return written

    monkeypatch.setattr("heartlm.monitor.alarm_log.os.write", limited)
    watch(monitor, range(3))
    keys = [raise_alarm(monitor, second, stop=second + 1) for second in (1, 2)]
    assert len((tmp_path / "alarms.jsonl").read_bytes()) == 20
    room[0] = 1 << 20
    monitor.close()
    entries = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert [entry["key"] for entry in entries] == [key for key in keys for _ in range(2)]


@pytest.mark.parametrize("name", ["alarms.jsonl", "strips"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, models: LiveModels, name: str) -> None:
    (tmp_path / name).mkdir() if name == "alarms.jsonl" else (tmp_path / name).touch()
    with pytest.raises(HeartlmError, match=f"^cannot write {tmp_path / name}: [^\n]*choose another place$"):
        opened(models, tmp_path)
