"""Rules from beats and seconds to events."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.analysis.events import beat_events, second_events
from heartlm.analysis.findings import KINDS, Event, Findings
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError

RATE = 100.0


def events_of(symbols: str, rr_s: float | list[float] = 0.8, unclear: int | None = None) -> dict[str, list[Event]]:
    """Events by kind of beats with these symbols and intervals; the interval `unclear` cannot be read."""
    intervals = np.full(len(symbols) - 1, rr_s) if isinstance(rr_s, float) else np.array(rr_s)
    sample = np.concatenate([[0], np.cumsum(np.round(intervals * RATE))]).astype(np.int64)
    clear = np.ones(len(symbols) - 1, np.bool_)
    if unclear is not None:
        clear[unclear] = False
    found = beat_events(sample, np.array(list(symbols)), np.full(len(symbols), 0.9, np.float32), clear, RATE)
    return {kind: [event for event in found if event.kind == kind] for kind in KINDS}


def kinds(found: dict[str, list[Event]]) -> dict[str, int]:
    return {kind: len(events) for kind, events in found.items() if events}


def test_three_ventricular_beats_are_a_run_named_by_its_rate() -> None:
    fast = events_of("NNVVVNN", [0.8, 0.5, 0.5, 0.5, 0.9, 0.8])
    assert kinds(fast) == {"VT": 1}
    (run,) = fast["VT"]
    assert (run.num_beats, run.start, run.stop) == (3, 130, 231)
    assert run.rate_bpm == pytest.approx(120)
    assert run.confidence == pytest.approx(0.9)
    assert kinds(events_of("NNVVVNN", [0.8, 0.8, 0.7, 0.7, 0.9, 0.8])) == {"IVR": 1}


def test_two_ventricular_beats_are_a_couplet_and_one_is_nothing() -> None:
    assert kinds(events_of("NNVVNNNVNN")) == {"couplet": 1}


def test_supraventricular_runs_count_from_three_fast_beats_on() -> None:
    assert kinds(events_of("NNSSSNN", [0.8, 0.5, 0.5, 0.5, 0.9, 0.8])) == {"SVT": 1}
    assert kinds(events_of("NNSSNN", 0.5)) == {}
    assert kinds(events_of("NNSSSNN", 0.8)) == {}


def test_an_unreadable_interval_parts_a_run() -> None:
    intervals = [0.8, 0.5, 0.5, 0.5, 0.9, 0.8]
    assert kinds(events_of("NNVVVNN", intervals, unclear=2)) == {"couplet": 1}
    assert kinds(events_of("NNVVVNN", intervals, unclear=5)) == {"VT": 1}


def test_patterns_need_three_repeats() -> None:
    assert kinds(events_of("NVNVNVNN")) == {"bigeminy": 1}
    assert kinds(events_of("NVNVNNNV")) == {}
    assert kinds(events_of("NNVNNVNNVNNN")) == {"trigeminy": 1}
    assert kinds(events_of("NVNNNVNNNVNN")) == {"quadrigeminy": 1}
    assert kinds(events_of("NVNNNVNNNNVNNNV")) == {}
    assert events_of("VNNNVNNNVNNNV")["quadrigeminy"][0].num_beats == 13
    assert events_of("NVNVNVNVN")["bigeminy"][0].num_beats == 7


def test_pauses_become_asystole_at_four_seconds() -> None:
    assert kinds(events_of("NNN", [0.8, 2.0])) == {"pause": 1}
    assert kinds(events_of("NNN", [0.8, 3.99])) == {"pause": 1}
    assert kinds(events_of("NNN", [0.8, 4.0])) == {"asystole": 1}
    assert kinds(events_of("NNN", [0.8, 4.0], unclear=1)) == {}


def test_slow_and_fast_rates_are_means_over_beats() -> None:
    assert kinds(events_of("N" * 5, 1.3)) == {"bradycardia": 1}
    assert kinds(events_of("N" * 4, 1.3)) == {}
    assert kinds(events_of("N" * 16, 0.55)) == {"tachycardia": 1}
    assert kinds(events_of("N" * 15, 0.55)) == {}
    assert kinds(events_of("N" * 40, 0.8)) == {}


def test_fast_stretches_with_a_short_break_are_one() -> None:
    rr_s = [0.5] * 30 + [0.8] * 8 + [0.5] * 30
    assert kinds(events_of("N" * 69, rr_s)) == {"tachycardia": 1}
    rr_s = [0.5] * 30 + [0.8] * 60 + [0.5] * 30
    assert kinds(events_of("N" * 121, rr_s)) == {"tachycardia": 2}


RATES = st.lists(
    st.tuples(st.sampled_from([40, 55, 58, 60, 61, 70, 110, 119, 121, 140]), st.integers(1, 12)), max_size=40
)


@settings(max_examples=200, deadline=None)
@given(RATES, st.integers(0, 10**6))
def test_an_event_is_what_its_definition_says(steps: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    intervals = np.array([rr for rr, num in steps for _ in range(num)] + [80])
    symbol = rng.choice(list("NSV"), len(intervals) + 1, p=[0.5, 0.2, 0.3])
    sample = np.concatenate([[0], np.cumsum(intervals)])
    clear = rng.random(len(intervals)) < 0.98
    events = beat_events(sample, symbol, np.ones(len(sample), np.float32), clear, RATE)
    for event in events:
        first, last = np.searchsorted(sample, [event.start, event.stop - 1])
        own = np.diff(sample[first : last + 1])
        assert clear[first:last].all() and event.num_beats == last - first + 1
        assert event.rate_bpm == pytest.approx(60 * RATE / own.mean())
        if event.kind in ("VT", "SVT"):
            assert event.rate_bpm >= 100 and event.num_beats >= 3
            assert set(symbol[first : last + 1]) == {"V" if event.kind == "VT" else "S"}
        elif event.kind == "IVR":
            assert event.rate_bpm < 100 and set(symbol[first : last + 1]) == {"V"}
        elif event.kind == "tachycardia":
            assert event.rate_bpm > 100 and event.num_beats >= 16
        elif event.kind == "bradycardia":
            assert event.rate_bpm < 50 and event.num_beats >= 5
        elif event.kind in ("pause", "asystole"):
            assert event.num_beats == 2 and (own[0] >= 4 * RATE) == (event.kind == "asystole")
            assert own[0] >= 2 * RATE
        elif event.kind == "couplet":
            assert list(symbol[first : last + 1]) == ["V", "V"]
        else:
            period = {"bigeminy": 2, "trigeminy": 3, "quadrigeminy": 4}[event.kind]
            assert np.flatnonzero(symbol[first : last + 1] == "V").tolist() == list(range(0, last - first + 1, period))
    for kind in ("tachycardia", "bradycardia"):
        same = [event for event in events if event.kind == kind]
        # two may share a beat, not an interval
        assert all(one.stop - 1 <= other.start for one, other in itertools.pairwise(same))


def test_every_fast_or_slow_stretch_is_in_an_event() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        intervals = np.repeat(rng.choice([45, 58, 61, 75], 12), rng.integers(1, 25, 12))
        sample = np.concatenate([[0], np.cumsum(intervals)])
        symbol, sure = np.full(len(sample), "N"), np.ones(len(sample), np.float32)
        events = beat_events(sample, symbol, sure, np.ones(len(intervals), np.bool_), RATE)
        for first in range(len(intervals) - 15 + 1):
            if intervals[first : first + 15].sum() < 15 * 60:
                assert any(each.start < sample[first + 15] and sample[first] < each.stop - 1 for each in events)


def test_seconds_are_joined_over_short_breaks_and_short_stretches_left_out() -> None:
    called = np.array([c == "x" for c in "..xxxx.xxx......xx......"])
    edges = np.round(np.arange(len(called) + 1) * RATE).astype(np.int64)
    (event,) = second_events("VF", called * 0.9, called, 4.0, edges, RATE)
    assert (event.start, event.stop) == (200, 1000)
    assert event.confidence == pytest.approx(0.9 * 7 / 8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("NSVF"), st.integers(20, 600), st.booleans()), min_size=2, max_size=80))
def test_events_stay_within_the_beats_and_hours_count_every_beat(beats: list[tuple[str, int, bool]]) -> None:
    sample = np.cumsum([rr for _, rr, _ in beats]).astype(np.int64)
    symbol = np.array([name for name, _, _ in beats])
    clear = np.array([known for _, _, known in beats[1:]])
    probability = np.full(len(beats), 0.5, np.float32)
    found = beat_events(sample, symbol, probability, clear, RATE)
    assert all(sample[0] <= event.start < event.stop <= sample[-1] + 1 for event in found)
    assert all(event.num_beats >= 2 and event.kind in KINDS for event in found)
    recording = Recording(
        rate_hz=RATE, num_samples=int(sample[-1]) + 1, lead_names=("I",), units=("mV",), path=Path("r")
    )
    findings = Findings(recording, (0,), sample, symbol, probability, tuple(found), np.ones((1, 1), np.float32))
    assert sum(row["num_beats"] for row in findings.hours()) == len(beats)
    spans = findings.annotations().rhythms
    assert [spans[0].start, spans[-1].stop] == [0, recording.num_samples]
    assert all(one.stop == other.start and one.name != other.name for one, other in itertools.pairwise(spans))


def test_a_pause_over_the_hour_is_the_longest_interval_of_the_hour_in_which_it_begins() -> None:
    seconds = np.array([3590, 3592, 3598, 3603, 3605])
    recording = Recording(
        rate_hz=RATE, num_samples=round(3700 * RATE), lead_names=("I",), units=("mV",), path=Path("r")
    )
    symbol, sure = np.full(5, "N"), np.ones(5, np.float32)
    findings = Findings(
        recording, (0,), (seconds * RATE).astype(np.int64), symbol, sure, (), np.ones((1, 1), np.float32)
    )
    assert [row["longest_rr_s"] for row in findings.hours()] == [6.0, 2.0]
    seconds[2] = 3594
    findings = replace(findings, sample=(seconds * RATE).astype(np.int64))
    assert [row["longest_rr_s"] for row in findings.hours()] == [findings.summary()["longest_rr_s"], 2.0]


def test_events_tell_seconds_and_are_found_by_their_kind_in_any_case() -> None:
    samples = Recording.from_array(np.zeros((1, 1000), np.float32), rate_hz=100)
    found = Event("VT", 100, 450, 0.9)
    nothing = np.empty(0, np.int64), np.empty(0, "<U1"), np.empty(0, np.float32)
    findings = Findings(samples, (0,), *nothing, (found,), np.ones((1, 1), np.float32))
    (event,) = findings.of_kind("vt")
    assert event == found and (event.start_s, event.stop_s) == (1.0, 4.5)
    types = findings.events_frame().dtypes.to_dict()
    assert types == replace(findings, events=()).events_frame().dtypes.to_dict() and types["rate_bpm"] == np.float64
    with pytest.raises(HeartlmError, match=r"kind: 'tachy' found; one of VF, .*VT.* expected"):
        findings.of_kind("tachy")
