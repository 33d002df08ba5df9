"""Rules of streams: from judged beats and seconds of their leads to alarms.

They are evaluated once per second of stream time on the seconds before, so alarms depend on the stream only. One call
of C (c/live_rules.c) evaluates the rules of thousands of streams. It reads the thresholds of `AlarmRules` and the
limits below from a struct, whose fields have their names.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.definitions import ALARMS, LETHAL, TECHNICAL, WARNING
from heartlm.kernels.library import constants, kernel, struct_of, structure
from heartlm.labels.waveform import ASYSTOLE, NOISE, VF, VT, WINDOW_S
from heartlm.monitor.alarms import MAX_RULE_BEATS, Alarm, AlarmRules
from heartlm.monitor.state import Stateful

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

COMPLETE = 0.9
"""Fraction of valid samples above which the gaps of a second cannot hide a beat."""
OFF_DELAY_S = {LETHAL: 60.0, WARNING: 300.0, TECHNICAL: 60.0}
"""Time without its condition after which an alarm ends, by severity."""
OUTRANKED_BY = {"run": ("VT", "VF"), "pause": ("asystole", "extreme bradycardia")}
"""Warnings that are not raised while an alarm of a graver form of the same condition lasts."""
_BITS = {kind: place for place, kind in enumerate(ALARMS)}
assert constants()["BEATS"] >= MAX_RULE_BEATS
LIMITS: dict[str, Any] = {
    # A lead vetoes a tachycardia or VT if its rate is below this fraction of the limit: leads miss some of the beats.
    "veto_rate": 0.7,
    # The same for a lead with a clear signal, if the tachycardia is found in leads without one only.
    "clear_veto_rate": 0.92,
    # Leads veto VT if the mean probability of ventricular beats over them is below.
    "veto_vt": 0.15,
    # A lead whose last beats, of this number, are surely not ventricular vetoes VT (`AlarmRules.vt_veto_below`): an
    # aberrant supraventricular tachycardia looks like VT in one lead and conducts as the usual beats in another.
    "vt_veto_beats": 8,
    # A lead with more noise than `AlarmRules.veto_noise` may still veto alarms of others, if it is not noise and has
    # this number of N beats of this probability in the last seconds.
    "sure_beats": 3,
    "sure": 0.9,
    "sure_s": 5,
    # A signal is lost after this number of seconds without valid samples, and found again after this number with them.
    "lost_s": 5,
    "found_s": 2,
    # Fraction of valid samples above which a second can be judged, and above which its gaps cannot hide a beat.
    "valid": 0.5,
    "complete": COMPLETE,
    # A second whose range is below this fraction of a usual beat's range contains no beat.
    "quiet": 0.35,
    # A beat is no heartbeat if the seconds around it have a range below this fraction of a usual beat's range.
    "silent": 0.05,
    # Bradycardia and asystole need a second whose range is below this fraction of a usual beat's range: after an
    # artefact, the detector may miss beats of usual height.
    "low": 0.7,
    # Mean interval between beats above which some second has none. The default limit, 40/min, is this interval.
    "empty_rr_s": 1.5,
    # A slow rhythm that began more than this time before noise may lack beats that the noise hides.
    "before_noise_s": 2.0,
    # Largest difference between the positions of one beat in two leads (the window of ANSI/AAMI EC57), and the last
    # beats of a lead among which those of another lead are looked for.
    "same_beat_s": 0.15,
    "beats_near": 4,
    # Time from the peak of a beat until it is known: 0.51 s for the detector, and the rest of the second.
    "beat_delay_s": 0.7,
    # Length of a window, and the indices of its classes.
    "window_s": WINDOW_S,
    "vt_wave": VT,
    "vf_wave": VF,
    "asystole_wave": ASYSTOLE,
    "noise_wave": NOISE,
    # VF began this long before it is called: three windows of four seconds reach 6 s back, and the first of them must
    # show VF for about half of its time. VF ends, and beats count again, this long after the last window that shows it.
    "vf_onset_s": 7.0,
    "vf_end_s": 4.0,
    "after_vf_s": 8.0,
    # Until a usual beat's height is known, VF needs its mean probability over this number of windows: an electrode that
    # settles sways.
    "start_windows": 5,
    # VF may be less probable if it lasts: over this number of windows, this fraction of its probability is enough.
    "slow_windows": 6,
    "slow_share": 5 / 6,
    # Two windows of VF are enough if there are at least this number of beats in the last one and their mean probability
    # of being ventricular is this high: in flutter the detector finds beats, and it may last little more than 4 s.
    "vf_beats": 6,
    "vf_beats_mean": 0.8,
    # What would be VF is VT if this number of the last three windows shows regular waves at a rate of VT.
    "regular_windows": 2,
    # An asystole that a beat has ended can still be raised for this time, as leads report that beat in different
    # seconds.
    "asystole_ended_s": 2.0,
    # Until a usual beat's height is known, asystole needs this mean probability in the waveform: at the start of a
    # recording, an electrode that settles hides beats.
    "least_asystole": 0.5,
    # VT may have this number of beats whose probability of being ventricular is below. Bigeminy has more.
    "most_others": 1,
    "other": 0.1,
    # The logistic regression of VT, fitted by recipes/vt.py, on six measures of the last beats and windows: the mean
    # probability that the beats are ventricular, the fraction of beats whose probability is above `perhaps`, the mean
    # probabilities of VT and of noise in the last three windows, one by the mean RR interval in seconds, and the
    # standard deviation of the intervals by their mean.
    "vt_weights": (5.80, 0.70, 1.58, -5.62, 2.12, -5.49),
    "vt_bias": -8.02,
    "perhaps": 0.3,
    # Until a usual beat's height is known, VT needs this mean probability in the waveform.
    "least_vt_at_start": 0.5,
    # VT by the waveform alone needs its mean probability in this number of last windows, and a mean probability that
    # the beats of the last seconds are ventricular, if there are any: detectors miss beats of VT whose shapes change.
    "vt_windows": 4,
    "vt_s": 5.0,
    "vt_mean": 0.6,
    # The onset of AF is found by a CUSUM (Page, Biometrika 41:100, 1954): the sum, never below 0, of the log odds of
    # the beats, each the mean over the leads that have the beat, limited to ±`af_clip` and reduced by `af_drift`. With
    # the sum `af_excess`, AF is as probable as not.
    "af_drift": 1.0,
    "af_clip": 3.0,
    "af_excess": 6.4,
    # The sum at the start of a stream, which may begin in AF (Lucas and Crosier, Technometrics 24:199, 1982), and its
    # largest value, so that it falls to 0 once AF has ended.
    "af_head_start": 5.5,
    "most_af": 20.0,
    # Hysteresis: an alarm of a rate holds until the rate is beyond the limit by this fraction of it, those of VF and VT
    # as long as their probability is at least this fraction of the limit.
    "rate_margin": 0.07,
    "vf_margin": 0.6,
    "vt_margin": 0.5,
    # During AF the usual number of beats is enough for bradycardia if the rate is below the limit by this fraction.
    "af_margin": 0.25,
    # The life of an alarm. IEC 60601-1-8 leaves its times to the maker; bedside monitors do not announce the same
    # arrhythmia again for up to five minutes. An alarm ends when its condition has been absent for `off_delay_s`. A
    # condition that was absent for `repeat_s` and holds again before is a repetition, which the alarm counts.
    "off_delay_s": tuple(OFF_DELAY_S[severity] for severity in ALARMS.values()),
    "repeat_s": 5.0,
    # Bits of the kinds whose alarm keeps a warning from being raised, by kind: bedside monitors chain alarms so.
    "outranked_by": tuple(sum(1 << _BITS[graver] for graver in OUTRANKED_BY.get(kind, ())) for kind in ALARMS),
}
"""Limits that are the same for all patients, by their names in `struct rules` of kernels.h."""


def limits_of(rules: AlarmRules, rate_hz: float) -> dict[str, Any]:
    """Return the fields of `struct rules` of kernels.h: whole numbers, floats, and tuples of them."""
    return {"rate_hz": float(rate_hz), **vars(rules), "off": sum(1 << _BITS[kind] for kind in set(rules.off)), **LIMITS}


def c_name(kind: str) -> str:
    """Return the name of a kind of alarm in C."""
    return kind.upper().replace(" ", "_")


class JudgedBeat(NamedTuple):
    """A beat with its class.

    Attributes:
        sample: position of the beat.
        symbol: AAMI class, Q if unknown, | for what is no heartbeat.
        probability: probability of that class.
        ventricular: probability of the class V if it is a heartbeat.
        faint: much lower than the previous beats and of another shape, as detections in a silent signal are.
        af: log odds of AF, see `heartlm.monitor.af_onset`; 0 if unknown.
    """

    sample: int
    symbol: str
    probability: float
    ventricular: float
    faint: bool = False
    af: float = 0.0


class LeadSecond(NamedTuple):
    """Results of one second of one lead.

    Attributes:
        beats: beats that became known in this second, in order.
        wave: probabilities of the five waveform classes in the last four seconds; None if unknown.
        valid: fraction of valid samples in the second.
        height: range of the second divided by the usual range of a beat; NaN if unknown.
        regular: whether the last four seconds show regular waves at a rate of VT, see
            `heartlm.inference.waveform.regular_waves`; looked at only where VF is probable.
    """

    beats: Sequence[JudgedBeat]
    wave: list[float] | None
    valid: float
    height: float
    regular: bool = False


@dataclass
class JudgedSeconds:
    """Results of one second of each of many leads, see `LeadSecond` and `JudgedBeat`.

    Attributes:
        waves: float32 `[num_leads, 5]`.
        has_wave: whether they are known, `[num_leads]`.
        regular: `[num_leads]`; `valid` and `heights` likewise.
        first_beat: number of beats of the leads before, `[num_leads + 1]`.
        samples: beats of the leads one after the other, `[num_beats]`.
        symbols: classes, `[num_beats]`; `probability`, `ventricular`, `faint` and `af` likewise.
    """

    waves: Floats
    has_wave: NDArray[np.bool_]
    regular: NDArray[np.bool_]
    valid: Doubles
    heights: Doubles
    first_beat: Integers
    samples: Integers
    symbols: NDArray[np.str_]
    probability: Floats
    ventricular: Floats
    faint: NDArray[np.bool_]
    af: Doubles

    @classmethod
    def of(cls, leads: Sequence[LeadSecond]) -> JudgedSeconds:
        """Join the results of leads."""
        beats = [beat for lead in leads for beat in lead.beats]
        sample, symbol, probability, ventricular, faint, af = zip(*beats, strict=True) if beats else [()] * 6
        return cls(
            np.array([lead.wave or [0.0] * 5 for lead in leads], np.float32),
            np.array([lead.wave is not None for lead in leads]),
            np.array([lead.regular for lead in leads]),
            np.array([lead.valid for lead in leads], float),
            np.array([lead.height for lead in leads], float),
            np.cumsum([0, *(len(lead.beats) for lead in leads)]),
            np.array(sample, np.int64),
            np.array(symbol, "<U1"),
            np.array(probability, np.float32),
            np.array(ventricular, np.float32),
            np.array(faint, np.bool_),
            np.array(af, float),
        )

    def of_lead(self, lead: int) -> LeadSecond:
        """Return the results of one lead."""
        of_this_lead = slice(*self.first_beat[lead : lead + 2])
        columns = self.samples, self.symbols, self.probability, self.ventricular, self.faint, self.af
        beats = [JudgedBeat(*beat) for beat in zip(*(each[of_this_lead].tolist() for each in columns), strict=True)]
        wave = self.waves[lead].tolist() if self.has_wave[lead] else None
        return LeadSecond(beats, wave, float(self.valid[lead]), float(self.heights[lead]), bool(self.regular[lead]))


# States of a stream and of a lead. Those of its leads follow that of the stream.
_Alarms, _Lead = structure("alarms"), structure("ruled")


class Rules(Stateful):
    """Rules of one stream with their state.

    With several leads, a readable lead may veto an alarm of another, because noise, a loose electrode and a low QRS
    complex mostly affect a single lead. VF, asystole, bradycardia and pauses are vetoed by a lead that does not find
    them; VT and runs by a low mean probability of ventricular beats over the leads; VT and a tachycardia by a far lower
    rate. A lead that shows asystole vetoes VF and asystole only.

    Args:
        stream: name of the stream.
        rules: thresholds.
        rate_hz: samples per second.
        begin_s: time of sample 0 in the stream.
        num_leads: leads of the stream.

    Attributes:
        memory: state of the rules and their leads, one block that C code reads and writes.
        addresses: of the limits and of the state, and the number of leads.
        active: alarms that last, by kind.
    """

    STATE = ("begin_s", "memory", "active")

    def __init__(
        self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1
    ) -> None:
        self.stream, self.rate_hz, self.begin_s = stream, rate_hz, begin_s
        self.memory = np.zeros(ctypes.sizeof(_Alarms) + num_leads * ctypes.sizeof(_Lead), np.uint8)
        assert all(constants().get(c_name(kind)) == bit for kind, bit in _BITS.items()), (
            "kernels.h is older than the table of alarms: make header"
        )
        self._limits = struct_of("rules", limits_of(rules, rate_hz))
        self._state: Any = _Alarms.from_buffer(self.memory.data)
        self.addresses = ctypes.addressof(self._limits), self.memory.ctypes.data, num_leads
        self.active = dict[str, Alarm]()

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes."""
        super().restore(state)
        self.active = {kind: Alarm(**alarm) for kind, alarm in state["active"].items()}

    @property
    def lost(self) -> bool:
        """Whether the signals of all leads are lost."""
        return bool(self._state.lost)

    @property
    def lead_in_use(self) -> int:
        """The first lead whose beats are heartbeats, when last any were."""
        return int(self._state.lead_in_use)

    @property
    def af_onset(self) -> int:
        """Sample at which the last AF began."""
        return int(self._state.af_onset)

    @property
    def leads(self) -> list[Any]:
        """States of the leads."""
        first, size = ctypes.sizeof(_Alarms), ctypes.sizeof(_Lead)
        return [_Lead.from_buffer(self.memory.data, first + size * lead) for lead in range(self.addresses[2])]

    def holds(self, kind: str) -> bool:
        """Whether the condition of an alarm holds now; the alarm may last longer."""
        return bool(self._state.active >> _BITS[kind] & 1)

    def absent_since(self, kind: str) -> int | None:
        """The sample since which the condition of an alarm that lasts is absent, None if it holds."""
        return self._state.absent[_BITS[kind]] or None

    def update(self, now: int, leads: Sequence[LeadSecond], af: tuple[float, int] | None) -> list[Alarm]:
        """Evaluate the rules of this stream alone after one more second, see `update_rules`."""
        return update_rules([self], [now], JudgedSeconds.of(leads), [af]).get(0, [])

    def changed(
        self, now: int, raised: int, repeated: int, ended: int, starts: Integers, confidences: Doubles
    ) -> list[Alarm]:
        """Return the alarms that ended, those whose condition holds again, and those that were raised.

        Args:
            now: samples of each lead so far.
            raised: bits of kinds, as in kernels.h; `repeated` and `ended` likewise.
            starts: where those that were raised began and those that ended did so, `[num_kinds]`.
            confidences: of those that were raised, `[num_kinds]`.
        """
        changes = [
            replace(self.active.pop(kind), stop=int(starts[bit])) for kind, bit in _BITS.items() if ended >> bit & 1
        ]
        for kind, bit in _BITS.items():
            if repeated >> bit & 1:
                self.active[kind] = replace(self.active[kind], count=self.active[kind].count + 1)
                changes.append(self.active[kind])
        for kind, bit in _BITS.items():
            if raised >> bit & 1:
                start, confidence = max(0, int(starts[bit])), float(confidences[bit])
                alarm = Alarm(self.stream, kind, start, now, None, confidence, self.rate_hz, self.begin_s)
                self.active[kind] = alarm
                changes.append(alarm)
        return changes


def update_rules(
    all_rules: Sequence[Rules], now: Sequence[int], seconds: JudgedSeconds, af: Iterable[tuple[float, int] | None]
) -> dict[int, list[Alarm]]:
    """Evaluate the rules of streams after one more second of each.

    Args:
        all_rules: rules of the streams.
        now: samples of each lead so far, of each stream.
        seconds: results of the second, of all leads of the first stream, then of the second one, and so on.
        af: of each stream, the probability of AF and the sample at which it began; None if it was not judged.

    Returns:
        Alarms that were raised, that ended with their `stop`, and that were repeated with their `count`, by the place
        of the stream in `all_rules`.
    """
    num = len(all_rules)
    rules, states, num_leads = np.array([each.addresses for each in all_rules]).T.copy()  # C reads contiguous columns
    assert num_leads.sum() == len(seconds.valid) == len(seconds.first_beat) - 1
    assert seconds.waves.shape[1] == constants()["WAVES"] and seconds.symbols.dtype == "<U1"
    long_af, long_af_onset = zip(*(each or (math.nan, 0) for each in af), strict=True)
    raised, repeated, ended = np.zeros((3, num), np.int64)
    starts, confidences = np.zeros((num, len(ALARMS)), np.int64), np.zeros((num, len(ALARMS)))
    streams = {"num": num, "rules": rules, "states": states, "num_leads": num_leads, "now": np.array(now)}
    streams |= {"long_af": np.array(long_af, float), "long_af_onset": np.array(long_af_onset, np.int64)}
    # NumPy stores a text of one character as its code point in 32 bits.
    streams |= vars(seconds) | {"symbols": seconds.symbols.view(np.uint32)}
    streams |= {"raised": raised, "repeated": repeated, "ended": ended, "starts": starts, "confidences": confidences}
    kernel("live_rules")(ctypes.byref(struct_of("streams", streams)))
    return {
        row: all_rules[row].changed(now[row], *bits, starts[row], confidences[row])
        for row, bits in enumerate(zip(raised.tolist(), repeated.tolist(), ended.tolist(), strict=True))
        if any(bits)
    }
