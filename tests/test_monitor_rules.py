"""The rules of alarms in C against those in Python: drawn streams, of several leads and limits, in any grouping."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.ecg.definitions import ALARMS, WARNING
from heartlm.kernels.library import using, variants
from heartlm.labels.waveform import ASYSTOLE, NOISE, VF, VT
from heartlm.monitor.alarms import MAX_RULE_BEATS, SECOND_OPINION, Alarm, AlarmRules
from heartlm.monitor.header import HEADER, updated
from heartlm.monitor.rules import _BITS, LIMITS, JudgedBeat, JudgedSeconds, LeadSecond, Rules, update_rules
from heartlm.monitor.state import packed, unpacked
from tests.live_rules_reference import Found, ReferenceStream

STEP = 64
"""Drawn probabilities are multiples of 1 / STEP, so that their sums are exact in any order."""


@dataclass(frozen=True)
class Scene:
    """What a lead shows for some seconds.

    Attributes:
        rr_s: interval between beats; None without beats.
        jitter: fraction by which intervals differ from it.
        ventricular: probability of V of its beats, in steps.
        faint: every how many-th beat is faint; 0 for none.
        af: log odds of AF of each beat.
        wave: class of its windows, and the probability of that class in steps; None if unknown.
        valid: fraction of valid samples in a second.
        height: range of a second by the usual range of a beat.
        regular: fraction of windows with regular waves, in steps.
    """

    rr_s: float | None
    jitter: float
    ventricular: int
    faint: int
    af: float
    wave: tuple[int, int] | None
    valid: float
    height: float
    regular: int = 0


STEPS = st.sampled_from([0, 1, 2, 5, 7, 16, 20, 31, 32, 40, 48, 54, 56, 60, 64])
MANY = st.sampled_from([48, 54, 56, 60, 64])
HEIGHTS = st.sampled_from(
    [1.0] * 8 + [2.0, 0.72, 0.7, 0.68, 0.36, 0.35, 0.34, 0.2, 0.06, 0.05, 0.04, 0.0] + [math.nan] * 3
)
ODDS = st.sampled_from([-4.0, -1.0, 0.0, 0.5, 2.0, 3.0, 5.0])
ANY_SCENE = st.builds(
    Scene,
    rr_s=st.sampled_from(
        [0.25, 0.35, 0.42, 0.43, 0.5, 0.55, 0.6, 0.61, 0.8, 0.8, 1.0, 1.4, 1.5, 1.6, 2.0, 2.5, 4.5, None]
    ),
    jitter=st.sampled_from([0.0, 0.0, 0.05, 0.4]),
    ventricular=STEPS,
    faint=st.sampled_from([0, 0, 0, 0, 3]),
    af=ODDS,
    wave=st.one_of(st.none(), *[st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), STEPS)] * 6),
    valid=st.sampled_from([1.0] * 12 + [0.95, 0.9, 0.85, 0.5, 0.4, 0.0, 0.0]),
    height=HEIGHTS,
    regular=st.sampled_from([0, 0, 32, STEP]),
)


def scenes(rr_s: list[float | None], ventricular: list[int], wave: int) -> st.SearchStrategy[Scene]:
    """Scenes of a readable lead whose windows mostly show one class."""
    waves = st.tuples(st.just(wave), MANY)
    values = st.sampled_from(rr_s), st.sampled_from([0.0, 0.05]), st.sampled_from(ventricular)
    return st.builds(Scene, *values, st.just(0), ODDS, waves, st.just(1.0), HEIGHTS, st.sampled_from([0] * 5 + [STEP]))


SCENES = st.one_of(
    ANY_SCENE,
    ANY_SCENE,
    scenes([0.8, 0.8, 1.0, 1.6], [0, 1, 2], 0),
    scenes([0.3, 0.35, 0.5, 0.8], [0, 40, 56, 64], VT),
    scenes([2.5, 4.5, None, None], [0, 40, 64], VT),
    scenes([0.35, 0.6, None, None], [40, 56, 64], VF),
    scenes([4.5, None], [0, 64], ASYSTOLE),
    scenes([0.35, 0.8, None], [0, 64], NOISE),
    st.just(Scene(None, 0.0, 0, 0, 0.0, None, 0.0, math.nan)),  # a signal that is lost
)
BEATS = st.integers(2, MAX_RULE_BEATS)
RULES = st.one_of(
    st.sampled_from([AlarmRules(), SECOND_OPINION]),
    st.builds(
        AlarmRules,
        asystole_s=st.sampled_from([2.0, 3.0, 6.0]),
        bradycardia_bpm=st.sampled_from([30.0, 50.0, 75.0]),
        bradycardia_beats=st.one_of(st.integers(2, 6), BEATS),
        bradycardia_in_af_beats=st.one_of(st.integers(2, 9), BEATS),
        tachycardia_bpm=st.sampled_from([90.0, 120.0, 160.0]),
        tachycardia_beats=BEATS,
        vt_bpm=st.sampled_from([60.0, 100.0, 140.0]),
        vt_beats=st.one_of(st.integers(2, 8), BEATS),
        v_probability=st.sampled_from([0.25, 0.5, 0.75]),
        vf_probability=st.sampled_from([0.5, 0.875, 1.0]),
        vt_probability=st.sampled_from([0.3, 0.6]),
        vt_probability_at_once=st.sampled_from([0.5, 0.9]),
        vt_waveform_probability=st.sampled_from([0.375, 0.75]),
        vt_veto_below=st.sampled_from([0.0, 1 / STEP, 2 / STEP, 0.5]),
        veto_noise=st.sampled_from([0.125, 0.25, 0.75]),
        run_beats=st.integers(2, 5),
        pause_s=st.sampled_from([1.0, 2.0, 2.5]),
        af_probability=st.sampled_from([0.25, 0.83]),
        noise_probability=st.sampled_from([0.25, 0.5, 0.875]),
        off=st.one_of(st.just(()), st.lists(st.sampled_from(list(ALARMS)), max_size=3, unique=True).map(tuple)),
    ),
)


@dataclass(frozen=True)
class Drawn:
    """A stream: its limits, its rate, and episodes of some seconds with a scene of each lead."""

    rules: AlarmRules
    rate_hz: float
    num_leads: int
    episodes: list[tuple[int, list[Scene]]]
    seed: int

    def seconds(self) -> list[tuple[int, list[LeadSecond], tuple[float, int] | None]]:
        """What the rules are given, second by second."""
        random = np.random.default_rng(self.seed)
        own, ends = list[tuple[int, list[LeadSecond], tuple[float, int] | None]](), 0
        next_s, waiting = [0.0] * self.num_leads, [list[JudgedBeat]() for _ in range(self.num_leads)]
        for length, scenes in self.episodes:
            for _ in range(length):
                ends += 1
                leads = list[LeadSecond]()
                for lead, scene in enumerate(scenes[: self.num_leads]):
                    while scene.rr_s and next_s[lead] < ends:
                        waiting[lead].append(self.beat(scene, next_s[lead], random))
                        next_s[lead] += max(0.22, scene.rr_s * (1 + scene.jitter * random.uniform(-1, 1)))
                    next_s[lead] = max(next_s[lead], ends)
                    known = ends * self.rate_hz - self.rate_hz * random.choice([0, 0.5, 1.1])
                    num = sum(beat.sample < known for beat in waiting[lead])
                    beats, waiting[lead] = waiting[lead][:num], waiting[lead][num:]
                    regular = bool(random.integers(STEP) < scene.regular)
                    leads.append(LeadSecond(beats, wave_of(scene), scene.valid, scene.height, regular))
                is_judged = random.random() < 0.05
                af = (int(random.integers(STEP + 1)) / STEP, max(0, round((ends - 9) * self.rate_hz)))
                own.append((round(ends * self.rate_hz), leads, af if is_judged else None))
        return own

    def beat(self, scene: Scene, at_s: float, random: np.random.Generator) -> JudgedBeat:
        ventricular = min(STEP, max(0, scene.ventricular + int(random.integers(-1, 2)) * (scene.jitter > 0)))
        symbol = "V" if ventricular >= STEP // 2 else "NNNSFQ"[int(random.integers(6))]
        probability = max(ventricular, STEP - ventricular) / STEP
        faint = bool(scene.faint and random.integers(scene.faint) == 0)
        return JudgedBeat(int(at_s * self.rate_hz), symbol, probability, ventricular / STEP, faint, scene.af)


def wave_of(scene: Scene) -> list[float] | None:
    """Probabilities of the classes of a window: the rest is that of class 0, or of class 4 if it is that one's."""
    if scene.wave is None:
        return None
    index, steps = scene.wave
    wave = [0.0] * 5
    wave[index], wave[0 if index else 4] = steps / STEP, (STEP - steps) / STEP
    return wave


@st.composite
def streams(draw: st.DrawFn) -> Drawn:
    num_leads = draw(st.integers(1, 3))
    episodes = list[tuple[int, list[Scene]]]()
    for _ in range(draw(st.integers(2, 8))):
        first = draw(SCENES)
        others = [draw(st.one_of(st.just(first), SCENES)) for _ in range(num_leads - 1)]
        episodes.append((draw(st.integers(1, 20)), [first, *others]))
    rate_hz = draw(st.sampled_from([128.0, 250.0, 360.0, 257.3]))
    return Drawn(draw(RULES), rate_hz, num_leads, episodes, draw(st.integers(0, 2**32 - 1)))


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-9)


def described(alarm: Alarm) -> tuple[Any, ...]:
    times = alarm.start, alarm.raised, alarm.stop, alarm.rate_hz, alarm.begin_s
    return alarm.kind, *times, near(alarm.confidence), alarm.count


def happened(alarm: Alarm) -> str:
    again = "again: " if alarm.count > 1 else ""
    return again + alarm.kind if alarm.stop is None else f"end of {alarm.kind}"


def assert_same(rules: Rules, expected: ReferenceStream) -> None:
    """The state of a stream in C, and of its leads, is that in Python."""
    state = rules._state
    assert rules.active.keys() == expected.active.keys()
    assert {kind for kind in ALARMS if rules.holds(kind)} == expected.held
    absent = {kind: rules.absent_since(kind) for kind in rules.active if rules.absent_since(kind) is not None}
    assert absent == expected.absent
    assert (state.lost, state.lead_in_use, state.af_onset) == (expected.lost, expected.lead_in_use, expected.af_onset)
    assert state.af == near(expected.af)
    for lead, expected_lead in zip(rules.leads, expected.leads, strict=True):
        num = len(expected_lead.beats)
        assert min(lead.num_beats, MAX_RULE_BEATS) == num
        kept = [(lead.num_beats - back) % MAX_RULE_BEATS for back in range(num, 0, -1)]
        for name in ("sample", "probability", "ventricular", "af"):
            own = getattr(lead, "samples" if name == "sample" else name)
            assert [own[place] for place in kept] == [getattr(beat, name) for beat in expected_lead.beats], name
        for name in ("num_seconds", "begin", "last_vf", "last_noise", "last_vt", "lost", "af_onset", "af_told"):
            assert getattr(lead, name) == getattr(expected_lead, name), name
        assert (lead.vt, lead.af_sum) == (near(expected_lead.vt), near(expected_lead.af_sum))
        if not expected.lost:  # else its rules were not judged in this second
            assert lead.has_beats == expected_lead.has_beats
            bits = {kind: bit for kind, bit in _BITS.items() if lead.found >> bit & 1}
            found = {kind: Found(lead.starts[bit], near(lead.confidences[bit])) for kind, bit in bits.items()}
            assert found == expected_lead.found
            measures = [math.nan] if expected_lead.vt_measures is None else expected_lead.vt_measures
            assert list(lead.vt_measures)[: len(measures)] == pytest.approx(measures, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("variant", variants())
def test_rules_in_c_are_those_in_python(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second, streams are judged in other groups; now and then a stream continues from a snapshot."""
    monkeypatch.setitem(LIMITS, "off_delay_s", tuple(np.linspace(16, 8, len(ALARMS))))  # drawn streams are short
    monkeypatch.setitem(LIMITS, "repeat_s", 1.5)
    seen = Counter[str]()

    @settings(max_examples=100)
    @given(st.lists(streams(), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
    def compare(drawn: list[Drawn], seed: int) -> None:
        random = np.random.default_rng(seed)
        arguments = [(f"stream-{row}", each.rules, each.rate_hz, 0.5, each.num_leads) for row, each in enumerate(drawn)]
        rules, references = [[kind(*each) for each in arguments] for kind in (Rules, ReferenceStream)]
        seconds = [each.seconds() for each in drawn]
        for second in range(max(map(len, seconds))):
            rows = [row for row, own in enumerate(seconds) if second < len(own)]
            cuts = np.flatnonzero(random.random(len(rows) - 1) < 0.5) + 1
            for group in np.split(random.permutation(rows), cuts):
                now, leads, af = zip(*(seconds[row][second] for row in group), strict=True)
                changes = update_rules([rules[row] for row in group], now, JudgedSeconds.of(list(chain(*leads))), af)
                for place, row in enumerate(group):
                    expected = references[row].update(now[place], leads[place], af[place])
                    assert [described(each) for each in changes.get(place, [])] == [
                        described(each) for each in expected
                    ]
                    assert_same(rules[row], references[row])
                    seen.update(happened(each) for each in expected)
                    if random.random() < 0.1:
                        saved, rules[row] = unpacked(packed(rules[row])), Rules(*arguments[row])
                        rules[row].restore(saved)

    with using(variant):
        compare()
    what = [f"{event}{kind}" for kind in ALARMS for event in ("", "end of ")]
    what += [f"again: {kind}" for kind in ALARMS if kind != "signal lost"]
    assert not {each for each in what if not seen[each]}, seen


def test_the_header_follows_from_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make header` writes kinds, and limits with their types; C code has neither a list nor an order of them."""
    header = HEADER.read_text(encoding="utf-8")
    assert updated(header) == header, "run: make header"
    monkeypatch.setattr("heartlm.monitor.header.ALARMS", {"new kind": WARNING, **ALARMS})
    monkeypatch.setitem(LIMITS, "new_s", (1.0, 2.0))
    monkeypatch.setitem(LIMITS, "new_beats", 3)
    changed = updated(header)
    assert "enum kinds { NEW_KIND, VF, ASYSTOLE," in changed
    assert re.search(r"double [^;]*\bnew_s\[2\][^;]*;\s*int64_t [^;]*\bnew_beats;", changed)
    assert changed.partition("enum kept")[2] == header.partition("enum kept")[2]
    code = (HEADER.parents[1] / "monitor" / "c" / "live_rules.c").read_text(encoding="utf-8")
    names = "|".join(kind.upper().replace(" ", "_") for kind in ALARMS)
    assert not re.search(rf"[<>]=?\s*({names})\b|\b({names})\s*[<>]=?", code)
