"""`Ward`: the streams that are watched, judged together second by second.

samples of each stream ─► seconds ─► WatchedLead (beats, tokens, windows)
                                          │ of all streams at once
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

from heartlm.corpus.encode import NO_ECG_LEAD, chosen_leads
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.kernels.live_seconds import SecondsOfLeads
from heartlm.kernels.waveform import LEAST_SCALE
from heartlm.monitor.alarms import Alarm, AlarmRules
from heartlm.monitor.lead_rules import JudgedBeat, LeadSecond
from heartlm.monitor.models import AF_BEATS, LiveModels
from heartlm.monitor.rules import Rules
from heartlm.monitor.signal import seconds_kernel, take_seconds
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.comparisons import IRREGULAR

Floats = NDArray[np.float32]

_BLOCK_S = 60
"""So much of a recording is read at once."""
AF_EVERY, AF_STILL_EVERY = 16, 48
"""Beats after which the model of AF is asked again; the second number while there is AF."""
REGULAR = 0.3
"""With a smaller share of irregular intervals there is no AF, and the model is not asked: of 10,223 such stretches of
DS1, afdb, nsrdb, svdb and cudb it called one AF (LOG.md)."""
_ONSET_BEATS, _ONSET_EVERY, _ONSET_IRREGULAR, _ONSET_AF, _ONSET_ANSWERS = 16, 4, 0.5, 0.98, 3
"""A long window that begins before AF shows it late. So the model is also asked every 4 beats about the last 16, if half
of their intervals are irregular, and 3 answers of 0.98 or more in a row are AF: in 123 onsets of afdb after 13 s
instead of 51 (median; LOG.md)."""
UNKNOWN_BEATS = 8
"""The first beats of a stream have none to be compared with, so their class is unknown (Q)."""
NUM_LEADS = 2
"""Leads of a recording that are watched, unless another number is asked for."""
_LINE = 64
"""Bytes that a processor reads at once: what a lead remembers begins at a multiple of them."""


class WatchedLead:
    """One lead of a stream, and what is remembered of it: all that C reads and writes is one block of memory.

    Args:
        models: that watch it.
        rate_hz: samples a second.

    Attributes:
        kernel: takes in its seconds.
        memory: that block.
        signal_at: address of what `kernel` remembers.
        tokens_at: of what the tokenizer does.
        cache_at: of what the model of beats keeps.
        usual_mv: range of its beats that three of four exceed, NaN where unknown.
        positions: of the last beats, for AF.
        asked: beats when the model of AF was last asked.
        asked_of_onset: beats when it was last asked about the last `_ONSET_BEATS`.
        onset_answers: answers in a row that these are AF.
        beats: that were judged in the last step.

    Raises:
        ValueError: the rate is too low for the detector.
    """

    _NUMBERS = "num_beats", "usual_mv", "asked", "asked_of_onset", "onset_answers"

    def __init__(self, models: LiveModels, rate_hz: float) -> None:
        window = models.beat_tokenizer.window
        self.kernel = seconds_kernel(rate_hz, window.rate_hz, tuple(window.times_s.tolist()))
        sizes = self.kernel.num_bytes, models.live_tokenizer.num_bytes, models.trunk.kept_bytes
        ends = np.cumsum([-(-size // _LINE) * _LINE for size in sizes])
        whole = np.zeros(ends[-1] + _LINE, np.uint8)
        self.memory = whole[-whole.ctypes.data % _LINE :][: ends[-1]]
        self.signal_at = self.memory.ctypes.data
        self.tokens_at, self.cache_at = self.signal_at + int(ends[0]), self.signal_at + int(ends[1])
        self.num_beats, self.asked, self.usual_mv = 0, 0, math.nan
        self.asked_of_onset = self.onset_answers = 0
        self.positions = deque[int](maxlen=AF_BEATS[-1] + 64)
        self.beats = list[JudgedBeat]()

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs: numbers, texts, arrays, and dictionaries of them."""
        numbers = {name: getattr(self, name) for name in self._NUMBERS}
        return numbers | {"memory": self.memory.copy(), "positions": np.array(self.positions, np.int64)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which a lead of the same rate and models gave.

        Raises:
            HeartlmError: another build made the state.
        """
        kept = state.get("memory", np.empty(0, np.uint8))
        if kept.shape != self.memory.shape:
            sizes = f"{kept.size:,} bytes found, {self.memory.size:,} expected"
            raise HeartlmError(f"state of a lead: {sizes}: written by another build of heartlm: choose another --out")
        self.memory[:] = kept
        for name in self._NUMBERS:
            setattr(self, name, state[name])
        self.positions.extend(state["positions"].tolist())


@dataclass
class LiveStream:
    """One patient's stream: what has come of it and is not judged yet, and what is remembered.

    Attributes:
        name: of the stream.
        rate_hz: samples a second.
        leads: of it.
        rules: what is alarmed of.
        pending: samples `[num_leads, num_samples]` that are not a whole second yet, or wait to be judged, in pieces.
        num_pending: samples of these.
        num_seconds: seconds that are judged.
    """

    name: str
    rate_hz: float
    leads: list[WatchedLead]
    rules: Rules
    pending: list[Floats] = field(default_factory=list)
    num_pending: int = 0
    num_seconds: int = 0

    def edge(self, second: int) -> int:
        """The first sample of a second of the stream."""
        return round(second * self.rate_hz)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs: numbers, texts, arrays, and dictionaries of them."""
        return {
            "rate_hz": self.rate_hz,
            "begin_s": self.rules.begin_s,
            "leads": {str(place): lead.state() for place, lead in enumerate(self.leads)},
            "rules": self.rules.state(),
            "pending": np.concatenate([np.empty((len(self.leads), 0), np.float32), *self.pending], axis=1),
            "num_seconds": self.num_seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        for place, lead in enumerate(self.leads):
            lead.restore(state["leads"][str(place)])
        self.rules.restore(state["rules"])
        self.pending, self.num_seconds = [state["pending"]], state["num_seconds"]
        self.num_pending = state["pending"].shape[1]

    @property
    def ready(self) -> bool:
        """Whether a whole second waits."""
        return self.num_pending >= self.edge(self.num_seconds + 1) - self.edge(self.num_seconds)

    def next_second(self) -> Floats:
        """Take the samples of the next second, `[num_leads, num_samples]`, which is `ready`."""
        length = self.edge(self.num_seconds + 1) - self.edge(self.num_seconds)
        # An hour of a lost signal may wait in one piece, which is not to be copied every second.
        whole = self.pending[0] if len(self.pending) == 1 else np.concatenate(self.pending, axis=1)
        self.pending = [whole[:, length:]] if whole.shape[1] > length else []
        self.num_pending = whole.shape[1] - length
        self.num_seconds += 1
        return whole[:, :length]


class Ward:
    """Streams and the models that watch them.

    Args:
        models: of beats, AF and waveform.
        rules: when alarms are raised.
        of_patients: rules of single streams, by name.

    Attributes:
        streams: by name.
        waiting: names of those that have a whole second to judge.
    """

    def __init__(
        self, models: LiveModels, rules: AlarmRules | None = None, of_patients: Mapping[str, AlarmRules] | None = None
    ) -> None:
        self.models, self.rules, self.of_patients = models, rules or AlarmRules(), of_patients or {}
        self.streams = dict[str, LiveStream]()
        self.waiting = set[str]()

    def add(self, name: str, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1) -> LiveStream:
        """Begin a stream, or the next part of one whose rate has changed.

        Args:
            name: of the stream.
            rate_hz: samples a second.
            begin_s: where in the stream its first sample lies.
            num_leads: of the stream.

        Raises:
            HeartlmError: the rate is too low for the detector.
        """
        try:
            leads = [WatchedLead(self.models, rate_hz) for _ in range(num_leads)]
        except ValueError as error:
            raise HeartlmError(f"{name}: {error}") from None
        rules = Rules(name, self.of_patients.get(name, self.rules), rate_hz, begin_s, num_leads)
        stream = LiveStream(name, rate_hz, leads, rules)
        self.streams[name] = stream
        self.waiting.discard(name)
        return stream

    def remove(self, name: str) -> None:
        """Leave a stream to another ward."""
        del self.streams[name]
        self.waiting.discard(name)

    def push(self, name: str, samples_mv: Floats) -> None:
        """Take in samples of a stream that was added; `step` judges them.

        Args:
            name: of the stream.
            samples_mv: float32 `[num_leads, num_samples]`, of one lead also `[num_samples]`; NaN where invalid.
        """
        stream, samples = self.streams[name], np.atleast_2d(np.asarray(samples_mv, np.float32))
        stream.pending.append(samples)
        stream.num_pending += samples.shape[1]
        if stream.ready:
            self.waiting.add(name)

    def step(self) -> tuple[list[LiveStream], list[Alarm]]:
        """Judge one second of each stream that has one.

        Returns:
            Those streams, in the order of their names; and alarms raised and ended, in the order of these streams.
        """
        moved = [self.streams[name] for name in sorted(self.waiting)]
        if not moved:
            return [], []
        samples = [lead for stream in moved for lead in stream.next_second()]
        leads = [lead for stream in moved for lead in stream.leads]
        self.waiting = {stream.name for stream in moved if stream.ready}
        addresses = np.array([lead.signal_at for lead in leads])
        seconds = take_seconds([lead.kernel for lead in leads], addresses, samples)
        usual_mv = np.array([lead.usual_mv for lead in leads])
        heights = seconds.range_mv / np.maximum(usual_mv, LEAST_SCALE)
        self._judge_beats(leads, seconds)
        known = np.flatnonzero(seconds.has_window)
        waves: dict[int, list[float]] = {}
        if len(known):
            answers = self.models.judge_windows(seconds.windows[known]).tolist()
            waves = dict(zip(known.tolist(), answers, strict=True))
        columns = zip(leads, seconds.valid.tolist(), heights.tolist(), strict=True)
        shown = iter(
            [LeadSecond(lead.beats, waves.get(place), *numbers) for place, (lead, *numbers) in enumerate(columns)]
        )
        rhythms, changes = self._rhythms(moved), list[Alarm]()
        for stream in moved:
            now, of_leads = stream.edge(stream.num_seconds), [next(shown) for _ in stream.leads]
            changes += stream.rules.second(now, of_leads, rhythms.get(stream.name))
        return moved, changes

    def run(self) -> list[Alarm]:
        """Judge all whole seconds that wait."""
        changes = list[Alarm]()
        while self.waiting:
            changes += self.step()[1]
        return changes

    def _judge_beats(self, leads: list[WatchedLead], seconds: SecondsOfLeads) -> None:
        """Tokenise and judge the beats of a second: the first of each lead together, then the second, and so on."""
        for lead in leads:
            lead.beats = []
        classes = self.models.beats.info.classes
        ventricular, of_lead = classes.index("V"), seconds.of_lead
        turn = np.arange(len(of_lead)) - np.searchsorted(of_lead, of_lead)
        for number in range(int(turn.max(initial=-1)) + 1):
            rows = np.flatnonzero(turn == number)
            left, samples = [leads[place] for place in of_lead[rows].tolist()], seconds.beats[rows]
            where = np.array([(lead.tokens_at, lead.cache_at, lead.num_beats) for lead in left]).T.copy()
            rates_hz = np.array([lead.kernel.rate_hz for lead in left])
            codes, values = self.models.live_tokenizer.push(where[0], samples, rates_hz, seconds.waves[rows])
            answer = self.models.judge_beats(codes, where[2], where[1])
            best = answer.argmax(axis=1)
            of_answers = best, answer.max(axis=1), answer[:, ventricular]
            columns = (each.tolist() for each in (samples, *of_answers, values.usual_mv, values.faint))
            for lead, sample, which, probability, of_v, usual_mv, faint in zip(left, *columns, strict=True):
                lead.num_beats += 1
                lead.usual_mv = usual_mv
                lead.positions.append(sample)
                known = lead.num_beats > UNKNOWN_BEATS
                symbol, share, share_of_v = (classes[which], probability, of_v) if known else ("Q", 0.0, 0.0)
                lead.beats.append(JudgedBeat(sample, symbol, share, share_of_v, faint))

    def _rhythms(self, streams: Iterable[LiveStream]) -> dict[str, tuple[float, int]]:
        """Probability of AF by the lead in use, and its onset if it is AF, of those streams for which it is time."""
        found, codes = dict[str, tuple[float, int]](), list[NDArray[np.uint16]]()
        asked = list[tuple[LiveStream, WatchedLead, bool, int]]()
        for stream in streams:
            lead, lasts = stream.leads[stream.rules.lead_in_use], "AF" in stream.rules.active
            is_due = lead.num_beats >= lead.asked + (AF_STILL_EVERY if lasts else AF_EVERY)
            seeks_onset = not lasts and lead.num_beats >= lead.asked_of_onset + _ONSET_EVERY
            if len(lead.positions) < AF_BEATS[0] or not (is_due or seeks_onset):
                continue
            positions = np.array(lead.positions, np.int64)
            recent = positions[-AF_BEATS[-1] :]
            irregular = np.abs(np.diff(np.log(np.diff(recent)))) > IRREGULAR
            lengths = list[int]()
            if is_due:
                lead.asked = lead.num_beats
                # While AF lasts, a window does not begin before it.
                own = int((recent >= stream.rules.af_onset).sum()) if lasts else len(recent)
                length = max(each for each in AF_BEATS if each <= max(own, AF_BEATS[0]))
                if irregular[2 - length :].mean() < REGULAR:
                    found[stream.name] = 0.0, int(positions[-1])
                else:
                    lengths.append(length)
            if seeks_onset:
                lead.asked_of_onset = lead.num_beats
                if irregular[-_ONSET_BEATS:].mean() < _ONSET_IRREGULAR:
                    lead.onset_answers = 0
                else:
                    lengths.append(_ONSET_BEATS)
            if lengths:
                # It began where irregular changes from there on exceed regular ones by most.
                excess = np.cumsum(np.where(irregular, 1, -1)[::-1])[::-1]
                onset = int(recent[np.argmax(excess) + 1])
                symbols = np.full(len(positions), "Q", "<U1")
                known = Annotations(stream.rate_hz, positions, symbols, beats_labelled=False)
                tokens = self.models.rhythm_tokenizer.encode(Lead(known)).codes
                codes += [tokens[-length:] for length in lengths]
                asked += [(stream, lead, length == _ONSET_BEATS, onset) for length in lengths]
        answers = self.models.judge_rhythms(codes).tolist() if codes else []
        for (stream, lead, of_onset, onset), af in zip(asked, answers, strict=True):
            if not of_onset:
                found[stream.name] = af, onset
                continue
            lead.onset_answers = lead.onset_answers + 1 if af >= _ONSET_AF else 0
            if lead.onset_answers == _ONSET_ANSWERS:
                found[stream.name] = af, onset
                lead.asked, lead.onset_answers = lead.num_beats, 0
        return found


def ecg_leads(recording: Recording, most: int = NUM_LEADS) -> tuple[int, ...]:
    """The leads measured in millivolts that are watched: the usual one first, then in the order of the recording."""
    if not recording.has_signal or recording.num_samples == 0:
        return ()
    first = chosen_leads(recording, "test", "first")
    others = (lead for lead in chosen_leads(recording, "train", "all") if lead not in first)
    return (*first, *others)[:most]


def alarms_of(
    recording: Recording, models: LiveModels, rules: AlarmRules | None = None, most_leads: int = NUM_LEADS
) -> list[Alarm]:
    """The alarms of a whole recording, those that a monitor raises of its stream.

    Args:
        recording: with an ECG lead; those that `ecg_leads` chooses are watched.
        models: for live streams.
        rules: when alarms are raised.
        most_leads: leads that are watched, at most.

    Returns:
        Each alarm once, in the order in which they were raised, with its end if it ended.

    Raises:
        HeartlmError: no ECG lead, a rate too low for the detector, or an unreadable file.
    """
    leads = ecg_leads(recording, most_leads)
    if not leads:
        raise HeartlmError(f"{recording.path}: {NO_ECG_LEAD}, so there is nothing to watch")
    ward = Ward(models, rules)
    stream = ward.add(recording.record_id, recording.rate_hz, num_leads=len(leads))
    found, block = dict[str, Alarm](), round(_BLOCK_S * recording.rate_hz)
    for start in range(0, recording.num_samples, block):
        stop = min(start + block, recording.num_samples)
        ward.push(stream.name, recording.signal(start, stop, leads))
        found |= {alarm.key: alarm for alarm in ward.run()}
    return list(found.values())
