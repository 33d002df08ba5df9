"""`Ward`: the streams that are watched, judged together second by second.

samples of each stream ─► seconds ─► WatchedLead (beats, tokens, windows)
                                          │ of all streams together
                                     LiveModels ─► Rules of each stream ─► alarms
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.leads import NO_ECG_LEAD, ecg_leads
from heartlm.ecg.recording import ARTEFACT, Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.inference.waveform import LEAST_VF, regular_waves
from heartlm.labels.waveform import CLASSES as WAVE_CLASSES
from heartlm.labels.waveform import VF
from heartlm.monitor.af_onset import AfMeasures
from heartlm.monitor.alarms import Alarm, AlarmRules
from heartlm.monitor.models import AF_BEATS, LiveModels
from heartlm.monitor.rules import COMPLETE, LIMITS, JudgedSeconds, Rules, update_rules
from heartlm.monitor.signal import SecondsKernel, SecondsOfLeads, seconds_kernel
from heartlm.monitor.state import Stateful
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.comparisons import IRREGULAR
from heartlm.tokenizers.waveform import LEAST_SCALE_MV

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

BLOCK_S = 60
"""Seconds of a recording that are read at once."""
AF_EVERY, AF_STILL_EVERY = 64, 48
"""Number of beats after which the model of AF is evaluated again; the second number applies during AF."""
REGULAR = 0.3
"""With a smaller fraction of irregular intervals there is no AF, and the model is not evaluated: of 10,223 such
stretches of DS1, afdb, nsrdb, svdb and cudb it called one AF (docs/log/monitor-speed.md)."""
UNKNOWN_BEATS = 8
"""Number of first beats of a stream whose class is unknown (Q), as there are none to compare them with."""
NUM_LEADS = 2
"""Leads of a recording that are watched by default."""
# Bytes of a cache line of the processor, to which the memory of a lead is aligned.
_CACHE_LINE = 64


class WatchedLead(Stateful):
    """One lead of a stream. Everything that C code reads and writes is in one block of memory.

    Args:
        models: models that judge the lead.
        rate_hz: samples per second.

    Attributes:
        kernel: processes the seconds of the lead.
        memory: the block of memory.
        signal_at: address of the state of `kernel`.
        tokens_at: address of the state of the tokenizer.
        cache_at: address of the keys and values of the model of beats.
        history_at: address of the history of `AfMeasures`.
        num_beats: beats so far.
        num_beats_at_af: `num_beats` when AF was last judged by a long window.
        usual_mv: range that three of four beats exceed, NaN if unknown.
        positions: samples of the last beats, for AF.

    Raises:
        ValueError: the rate is too low for the detector.
    """

    STATE = ("memory", "num_beats", "num_beats_at_af", "usual_mv", "positions")

    def __init__(self, models: LiveModels, rate_hz: float) -> None:
        self.kernel = _kernel(models, rate_hz)
        sizes = (
            self.kernel.num_bytes,
            models.live_tokenizer.num_bytes,
            models.beats_kernel.cache_bytes,
            AfMeasures.num_bytes,
        )
        ends = np.cumsum([-(-size // _CACHE_LINE) * _CACHE_LINE for size in sizes])
        whole = np.zeros(ends[-1] + _CACHE_LINE, np.uint8)
        self.memory = whole[-whole.ctypes.data % _CACHE_LINE :][: ends[-1]]
        self.signal_at = self.memory.ctypes.data
        self.tokens_at, self.cache_at, self.history_at = (self.signal_at + int(end) for end in ends[:-1])
        self.num_beats, self.num_beats_at_af, self.usual_mv = 0, 0, math.nan
        self.positions = deque[int](maxlen=AF_BEATS[-1] + 64)

    def forget_intervals(self) -> None:
        """Let no interval reach across a gap."""
        begin = self.history_at - self.signal_at
        self.memory[begin : begin + 8] = 0  # its first number, an int64, which counts the beats since the gap

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes.

        Raises:
            HeartlmError: another build of heartlm saved them.
        """
        if (size := state["memory"].size) != self.memory.size:
            sizes = f"{size:,} bytes found, {self.memory.size:,} expected"
            raise HeartlmError(f"state of a lead: {sizes}: written by another build of heartlm")
        super().restore(state)


def _kernel(models: LiveModels, rate_hz: float) -> SecondsKernel:
    window = models.beat_tokenizer.window
    return seconds_kernel(rate_hz, window.rate_hz, tuple(window.times_s.tolist()))


@dataclass
class LiveStream(Stateful):
    """The stream of one patient: samples that wait to be judged, leads and rules.

    Attributes:
        name: name of the stream.
        rate_hz: samples per second.
        leads: leads of the stream; none before its first second, because their state is large.
        rules: rules that raise its alarms.
        pending: samples that are not judged, in pieces `[num_leads, num_samples]`.
        num_pending: number of these samples.
        num_seconds: seconds that were judged.
        beats: detections of the last second in the lead in use: sample, and class, | for what is no heartbeat.
        last_beat: sample of the last detection in the lead in use.
    """

    STATE = ("rate_hz", "leads", "rules", "pending", "num_pending", "num_seconds", "last_beat")

    name: str
    rate_hz: float
    rules: Rules
    leads: list[WatchedLead] = field(default_factory=list)
    pending: list[Floats] = field(default_factory=list)
    num_pending: int = 0
    num_seconds: int = 0
    beats: list[tuple[int, str]] = field(default_factory=list)
    last_beat: int = -(2**53)

    def first_sample(self, second: int) -> int:
        """Return the first sample of a second of the stream."""
        # Each second is rounded from the start of the stream, so that a rate such as 62.5 Hz adds up no error.
        return round(second * self.rate_hz)

    @property
    def ready(self) -> bool:
        """Whether a whole second waits to be judged."""
        return self.num_pending >= self.first_sample(self.num_seconds + 1) - self.first_sample(self.num_seconds)

    def pop_second(self) -> Floats:
        """Remove and return the samples of the next second, `[num_leads, num_samples]`; the stream must be `ready`."""
        length = self.first_sample(self.num_seconds + 1) - self.first_sample(self.num_seconds)
        # An hour of a lost signal may wait in one piece, which must not be copied every second.
        samples = self.pending[0] if len(self.pending) == 1 else np.concatenate(self.pending, axis=1)
        self.pending = [samples[:, length:]] if samples.shape[1] > length else []
        self.num_pending = samples.shape[1] - length
        self.num_seconds += 1
        return samples[:, :length]


class Ward:
    """Streams and the models that judge them.

    Args:
        models: models of beats, AF and waveform.
        rules: rules of all streams.
        of_patients: rules of single streams, by name.

    Attributes:
        streams: streams by name.
        waiting: names of the streams that have a whole second to judge.
    """

    def __init__(
        self, models: LiveModels, rules: AlarmRules | None = None, of_patients: Mapping[str, AlarmRules] | None = None
    ) -> None:
        self.models, self.rules, self.of_patients = models, rules or AlarmRules(), of_patients or {}
        self.streams = dict[str, LiveStream]()
        self.waiting = set[str]()

    def add(self, name: str, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1) -> LiveStream:
        """Add a stream, or start a new part of a stream whose sampling rate or number of leads changed.

        Args:
            name: name of the stream.
            rate_hz: samples per second.
            begin_s: time of its first sample in the stream.
            num_leads: leads of the stream.

        Raises:
            HeartlmError: the rate is too low for the detector.
        """
        rate_hz = float(rate_hz)  # kernels take no integers
        try:
            _kernel(self.models, rate_hz)
        except ValueError as error:
            raise HeartlmError(f"{name}: {error}") from None
        rules = Rules(name, self.of_patients.get(name, self.rules), rate_hz, begin_s, num_leads)
        stream = LiveStream(name, rate_hz, rules)
        self.streams[name] = stream
        self.waiting.discard(name)
        return stream

    def start(self, stream: LiveStream) -> None:
        """Create the leads of a stream whose first second has arrived."""
        stream.leads = [WatchedLead(self.models, stream.rate_hz) for _ in range(stream.rules.addresses[2])]

    def remove(self, name: str) -> None:
        """Remove a stream with its state."""
        del self.streams[name]
        self.waiting.discard(name)

    def push(self, name: str, samples_mv: Floats) -> None:
        """Add samples to a stream; `step` judges them.

        Args:
            name: name of the stream.
            samples_mv: float32 `[num_leads, num_samples]`, or `[num_samples]` for one lead; NaN where invalid.
        """
        stream, samples = self.streams[name], np.asarray(samples_mv, np.float32)
        samples = samples if samples.ndim == 2 else samples[None]
        stream.pending.append(samples)
        stream.num_pending += samples.shape[1]
        if stream.ready:
            self.waiting.add(name)

    def step(self) -> tuple[list[LiveStream], list[Alarm]]:
        """Judge one second of each stream that has one.

        Returns:
            These streams in the order of their names, and the alarms that were raised or ended, in the same order.
        """
        streams = [self.streams[name] for name in sorted(self.waiting)]
        if not streams:
            return [], []
        groups = dict[SecondsKernel, list[LiveStream]]()
        for stream in streams:
            if not stream.leads:
                self.start(stream)
            groups.setdefault(stream.leads[0].kernel, []).append(stream)
        judged = [(group, self._judge_seconds(kernel, group)) for kernel, group in groups.items()]
        self.waiting = {stream.name for stream in streams if stream.ready}
        rhythms, changes = self._judge_rhythms(streams), dict[str, list[Alarm]]()
        for group, seconds in judged:
            changes |= self._apply_rules(group, seconds, rhythms)
        return streams, [alarm for stream in streams for alarm in changes.get(stream.name, ())]

    def run(self) -> list[Alarm]:
        """Judge all whole seconds that wait."""
        changes = list[Alarm]()
        while self.waiting:
            changes += self.step()[1]
        return changes

    def _judge_seconds(self, kernel: SecondsKernel, streams: list[LiveStream]) -> JudgedSeconds:
        """Judge the next second of streams of one sampling rate."""
        leads = [lead for stream in streams for lead in stream.leads]
        samples = [lead_mv for stream in streams for lead_mv in stream.pop_second()]
        seconds = kernel.take(np.array([lead.signal_at for lead in leads]), samples)
        usual_mv = np.array([lead.usual_mv for lead in leads])
        heights = seconds.range_mv / np.maximum(usual_mv, LEAST_SCALE_MV)
        judged_beats = self._judge_beats(leads, seconds)
        waves = np.zeros((len(leads), len(WAVE_CLASSES)), np.float32)
        if seconds.has_window.any():
            waves[seconds.has_window] = self.models.judge_windows(seconds.windows[seconds.has_window])
        # Regular waves matter only where the network sees VF, and searching for them takes longer than the network.
        regular = seconds.has_window & (waves[:, VF] >= LEAST_VF)
        regular[regular] = regular_waves(seconds.windows[regular])
        for index in np.flatnonzero(seconds.valid < COMPLETE).tolist():
            leads[index].forget_intervals()
        # `of_lead` is ascending, so the beats of lead i are those from first_beat[i] to below first_beat[i + 1].
        first_beat = np.searchsorted(seconds.of_lead, np.arange(len(leads) + 1))
        return JudgedSeconds(
            waves, seconds.has_window, regular, seconds.valid, heights, first_beat, seconds.beats, *judged_beats
        )

    def _judge_beats(
        self, all_leads: list[WatchedLead], seconds: SecondsOfLeads
    ) -> tuple[NDArray[np.str_], Floats, Floats, NDArray[np.bool_], Doubles]:
        """Judge the first beat of each lead in this second together, then the second beat of each, and so on.

        Returns:
            Class of each beat, its probability, the probability that a heartbeat there is of the class V, whether the
            beat is faint, and its log odds of AF.
        """
        of_lead, num = seconds.of_lead, len(seconds.of_lead)
        symbols = np.array([*self.models.beats.info.classes, ARTEFACT, "Q"])
        is_beat_class, v_index = symbols[:-2] != ARTEFACT, self.models.beats.info.classes.index("V")
        artefact, unknown = len(symbols) - 2, len(symbols) - 1
        which, faint, af = np.empty(num, np.int64), np.empty(num, np.bool_), np.zeros(num)
        probability, ventricular = np.empty((2, num), np.float32)
        turn = np.arange(num) - np.searchsorted(of_lead, of_lead)  # 0 for the first beat of a lead, 1 for the second
        for current in range(int(turn.max(initial=-1)) + 1):
            rows = np.flatnonzero(turn == current)
            samples, waves = seconds.beats[rows], seconds.waves[rows]
            leads = [all_leads[index] for index in of_lead[rows].tolist()]
            states = [(lead.tokens_at, lead.cache_at, lead.history_at, lead.num_beats) for lead in leads]
            tokens_at, caches_at, histories_at, positions = np.array(states).T.copy()  # C reads contiguous columns
            rates_hz = np.array([lead.kernel.rate_hz for lead in leads])
            codes, usual_mv, is_faint = self.models.live_tokenizer.push(tokens_at, samples, rates_hz, waves)
            answer, hidden = self.models.judge_beats(codes, positions, caches_at)
            is_known = positions >= UNKNOWN_BEATS
            # A detection is no heartbeat if that is more probable than not. It is named so and tells nothing of AF, but
            # rules count it like a beat whose class is unknown: a beat in VT may look like an artefact, and an artefact
            # may hide a beat.
            p_artefact = answer[:, ~is_beat_class].sum(axis=1)  # 0 by a model without this class
            is_artefact = is_known & (p_artefact > 0.5)
            measures, has_measures = self.models.af_measures.take(
                histories_at, samples, rates_hz, answer, codes, is_faint | is_artefact
            )
            af[rows[has_measures]] = self.models.af_onset.judge(measures[has_measures], hidden[has_measures])
            # Probabilities given that it is a heartbeat; the bound avoids a division by zero.
            of_beats = answer * is_beat_class / np.maximum(1 - p_artefact, 1e-6)[:, None]
            best = np.where(is_artefact, artefact, of_beats.argmax(axis=1))
            which[rows], faint[rows] = np.where(is_known, best, unknown), is_faint
            probability[rows] = np.where(is_artefact, p_artefact, of_beats.max(axis=1)) * is_known
            ventricular[rows] = of_beats[:, v_index] * is_known
            for lead, sample, usual in zip(leads, samples.tolist(), usual_mv.tolist(), strict=True):
                lead.num_beats += 1
                lead.usual_mv = usual
                lead.positions.append(sample)
        return symbols[which], probability, ventricular, faint, af

    def _apply_rules(
        self, streams: list[LiveStream], seconds: JudgedSeconds, rhythms: Mapping[str, tuple[float, int]]
    ) -> dict[str, list[Alarm]]:
        """Return the alarms of streams that were raised or ended, by stream, and set the `beats` of each stream."""
        all_rules, now = [stream.rules for stream in streams], [each.first_sample(each.num_seconds) for each in streams]
        changes = update_rules(all_rules, now, seconds, [rhythms.get(stream.name) for stream in streams])
        beats = list(zip(seconds.samples.tolist(), seconds.symbols.tolist(), strict=True))
        first_beat, lead = seconds.first_beat.tolist(), 0
        for stream in streams:
            in_use = lead + stream.rules.lead_in_use
            # The lead that was in use in the second before may have reported the first of these beats.
            earliest = stream.last_beat + LIMITS["same_beat_s"] * stream.rate_hz
            stream.beats = [each for each in beats[first_beat[in_use] : first_beat[in_use + 1]] if each[0] > earliest]
            if stream.beats:
                stream.last_beat = stream.beats[-1][0]
            lead += len(stream.leads)
        return {streams[row].name: alarms for row, alarms in changes.items()}

    def _judge_rhythms(self, streams: Iterable[LiveStream]) -> dict[str, tuple[float, int]]:
        """Return the probability of AF and where it began, of the streams for which it is time to judge it."""
        rhythms, codes = dict[str, tuple[float, int]](), list[NDArray[np.uint16]]()
        windows = list[tuple[LiveStream, int]]()
        for stream in streams:
            lead, in_af = stream.leads[stream.rules.lead_in_use], stream.rules.holds("AF")
            if lead.num_beats < lead.num_beats_at_af + (AF_STILL_EVERY if in_af else AF_EVERY):
                continue
            positions = np.array(lead.positions, np.int64)
            last = positions[-AF_BEATS[-1] :]
            # During AF the window does not begin before it.
            num_beats = int((last >= stream.rules.af_onset).sum()) if in_af else len(last)
            if num_beats < (AF_STILL_EVERY if in_af else AF_BEATS[0]):
                continue
            lead.num_beats_at_af = lead.num_beats
            length = max(each for each in AF_BEATS if each <= num_beats)
            irregular = np.abs(np.diff(np.log(np.diff(last)))) > IRREGULAR
            if irregular[2 - length :].mean() < REGULAR:  # `length` beats have two changes of intervals fewer
                rhythms[stream.name] = 0.0, int(last[-1])
                continue
            # AF began where, from there to the end, irregular changes exceed regular ones by most. Change k is that of
            # the intervals on both sides of beat k + 1.
            excess = np.cumsum(np.where(irregular, 1, -1)[::-1])[::-1]
            symbols = np.full(len(positions), "Q", "<U1")
            beats = Annotations(stream.rate_hz, positions, symbols, beats_labelled=False)
            codes.append(self.models.rhythm_tokenizer.encode(Lead(beats)).codes[-length:])
            windows.append((stream, int(last[np.argmax(excess) + 1])))
        probabilities = self.models.judge_rhythms(codes).tolist() if codes else []
        for (stream, onset), af in zip(windows, probabilities, strict=True):
            rhythms[stream.name] = af, onset
        return rhythms


def watched_leads(recording: Recording, most: int = NUM_LEADS) -> tuple[int, ...]:
    """Return the leads to watch: the first of `ecg_leads`."""
    return ecg_leads(recording)[:most] if recording.num_samples else ()


def alarms_of(
    recording: Recording, models: LiveModels, rules: AlarmRules | None = None, most_leads: int = NUM_LEADS
) -> list[Alarm]:
    """Return the alarms that a monitor raises on the stream of a whole recording.

    Args:
        recording: has an ECG lead; the leads that `watched_leads` chooses are watched.
        models: models of live streams.
        rules: rules that raise alarms.
        most_leads: largest number of leads that are watched.

    Returns:
        Each alarm once, in the order in which they were raised, with its end if it ended.

    Raises:
        HeartlmError: no ECG lead, a rate too low for the detector, or an unreadable file.
    """
    leads = watched_leads(recording, most_leads)
    if not leads:
        raise HeartlmError(f"{recording.path}: {NO_ECG_LEAD}, so there is nothing to watch")
    ward = Ward(models, rules)
    stream = ward.add(recording.record_id, recording.rate_hz, num_leads=len(leads))
    alarms, block = dict[str, Alarm](), round(BLOCK_S * recording.rate_hz)
    for start in range(0, recording.num_samples, block):
        stop = min(start + block, recording.num_samples)
        ward.push(stream.name, recording.signal(start, stop, leads))
        alarms |= {alarm.key: alarm for alarm in ward.run()}
    return list(alarms.values())
