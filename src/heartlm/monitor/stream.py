"""`Ward`: the streams that are watched, judged together second by second.

samples of each stream ─► seconds ─► LiveLead (beats, tokens, windows)
                                          │ of all streams at once
                                    LiveModels ─► Rules of each stream ─► alarms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.sources import chosen_leads
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.monitor.alarms import Alarm, AlarmRules, JudgedBeat, Rules
from heartlm.monitor.models import AF_BEATS, LiveModels
from heartlm.monitor.signal import Beat, LiveLead, Second
from heartlm.tokenizers.base import Lead

Floats = NDArray[np.float32]

_BLOCK_S = 60
"""So much of a recording is read at once."""
AF_EVERY_S = 10
"""AF is judged so often."""


@dataclass
class LiveStream:
    """One patient's stream: what has come of it and is not judged yet, and what is remembered.

    Attributes:
        name: of the stream.
        rate_hz: samples a second.
        lead: what the signal says.
        rules: what is alarmed of.
        cache: what the model of beats keeps.
        pending: samples that are not a whole second yet, or wait to be judged, in pieces.
        num_seconds: seconds that are judged.
        positions: of the last beats, for AF.
        beats: that were judged in the last step.
    """

    name: str
    rate_hz: float
    lead: LiveLead
    rules: Rules
    cache: Tensor
    pending: list[Floats] = field(default_factory=list)
    num_seconds: int = 0
    num_beats: int = 0
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    beats: list[JudgedBeat] = field(default_factory=list)

    def edge(self, second: int) -> int:
        """The first sample of a second of the stream."""
        return round(second * self.rate_hz)

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs: numbers, texts, arrays, and dictionaries of them."""
        return {
            "rate_hz": self.rate_hz,
            "begin_s": self.rules.begin_s,
            "lead": self.lead.state(),
            "rules": self.rules.state(),
            "cache": self.cache.numpy(),
            "pending": np.concatenate([np.empty(0, np.float32), *self.pending]),
            **{name: getattr(self, name) for name in ("num_seconds", "num_beats", "positions")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        self.lead.restore(state["lead"])
        self.rules.restore(state["rules"])
        self.cache = torch.from_numpy(state["cache"])
        self.pending = [state["pending"]]
        for name in ("num_seconds", "num_beats", "positions"):
            setattr(self, name, state[name])

    @property
    def ready(self) -> bool:
        """Whether a whole second waits."""
        return sum(map(len, self.pending)) >= self.edge(self.num_seconds + 1) - self.edge(self.num_seconds)

    def next_second(self) -> Floats | None:
        """The samples of the next second, if they are all there."""
        if not self.ready:
            return None
        length = self.edge(self.num_seconds + 1) - self.edge(self.num_seconds)
        # An hour of a lost signal may wait in one piece, which is not to be copied every second.
        whole = self.pending[0] if len(self.pending) == 1 else np.concatenate(self.pending)
        self.pending = [whole[length:]] if len(whole) > length else []
        return whole[:length]


class Ward:
    """Streams and the models that watch them.

    Args:
        models: of beats, AF and waveform.
        rules: when alarms are raised.
        of_patients: rules of single streams, by name.
    """

    def __init__(
        self, models: LiveModels, rules: AlarmRules | None = None, of_patients: Mapping[str, AlarmRules] | None = None
    ) -> None:
        self.models, self.rules, self.of_patients = models, rules or AlarmRules(), of_patients or {}
        self.streams = dict[str, LiveStream]()

    def add(self, name: str, rate_hz: float, begin_s: float = 0.0) -> LiveStream:
        """Begin a stream, or the next part of one whose rate has changed.

        Args:
            name: of the stream.
            rate_hz: samples a second.
            begin_s: where in the stream its first sample lies.

        Raises:
            HeartlmError: the rate is too low for the detector.
        """
        try:
            lead = LiveLead(self.models.beat_tokenizer, rate_hz)
        except ValueError as error:
            raise HeartlmError(f"{name}: {error}") from None
        rules = Rules(name, self.of_patients.get(name, self.rules), rate_hz, begin_s)
        stream = LiveStream(name, rate_hz, lead, rules, self.models.trunk.empty(1)[0])
        self.streams[name] = stream
        return stream

    def push(self, name: str, samples_mv: Floats) -> None:
        """Take in samples of a stream that was added, float32, NaN where invalid; `step` judges them."""
        self.streams[name].pending.append(np.asarray(samples_mv, np.float32))

    def step(self) -> list[Alarm]:
        """Judge one second of each stream that has one; empty where nothing changed.

        Returns:
            Alarms raised and ended, in the order of the streams.
        """
        seconds = list[tuple[LiveStream, Second]]()
        for stream in self.streams.values():
            samples = stream.next_second()
            if samples is not None:
                seconds.append((stream, stream.lead.second(samples)))
                stream.num_seconds += 1
        if not seconds:
            return []
        self._judge_beats(seconds)
        known = [(stream, second.window) for stream, second in seconds if second.window is not None]
        answer = self.models.judge_windows([window for _, window in known]) if known else np.empty((0, 5), np.float32)
        waves = {stream.name: own for (stream, _), own in zip(known, answer, strict=True)}
        rhythms = self._rhythms(stream for stream, _ in seconds)
        changes = list[Alarm]()
        for stream, second in seconds:
            now = stream.edge(stream.num_seconds)
            name = stream.name
            changes += stream.rules.second(now, stream.beats, waves.get(name), second.valid, rhythms.get(name))
        return changes

    def run(self) -> list[Alarm]:
        """Judge all whole seconds that wait."""
        changes = list[Alarm]()
        while any(stream.ready for stream in self.streams.values()):
            changes += self.step()
        return changes

    def _judge_beats(self, seconds: list[tuple[LiveStream, Second]]) -> None:
        """Judge the beats of a second: the first of each stream together, then the second of each, and so on."""
        for stream, _ in seconds:
            stream.beats = []
        classes = self.models.beats.info.classes
        left: list[tuple[LiveStream, tuple[Beat, ...]]] = [(stream, second.beats) for stream, second in seconds]
        while left := [(stream, beats) for stream, beats in left if beats]:
            answer, caches = self.models.judge_beats(
                [beats[0].codes for _, beats in left],
                [stream.cache for stream, _ in left],
                [stream.num_beats for stream, _ in left],
            )
            for (stream, beats), own, cache in zip(left, answer, caches, strict=True):
                best = int(own.argmax())
                stream.cache = cache
                stream.num_beats += 1
                stream.positions = np.append(stream.positions, beats[0].sample)[-AF_BEATS[-1] - 64 :]
                stream.beats.append(JudgedBeat(beats[0].sample, classes[best], float(own[best])))
            left = [(stream, beats[1:]) for stream, beats in left]

    def _rhythms(self, streams: Iterable[LiveStream]) -> dict[str, float]:
        """Probability of AF of those streams for which it is time."""
        names, codes = list[str](), list[NDArray[np.uint16]]()
        for stream in streams:
            enough = [length for length in AF_BEATS if len(stream.positions) >= length]
            if stream.num_seconds % AF_EVERY_S or not enough:
                continue
            known = Annotations(
                stream.rate_hz,
                stream.positions,
                np.full(len(stream.positions), "Q", "<U1"),
                beats_labelled=False,
            )
            names.append(stream.name)
            codes.append(self.models.rhythm_tokenizer.encode(Lead(known)).codes[-enough[-1] :])
        if not names:
            return {}
        return dict(zip(names, self.models.judge_rhythms(codes).tolist(), strict=True))


def ecg_lead(recording: Recording) -> int | None:
    """The lead measured in millivolts that is watched: the first of the usual ones, else the first; None without."""
    if not recording.has_signal or recording.num_samples == 0:
        return None
    return next(iter(chosen_leads(recording, "test", "first")), None)


def alarms_of(recording: Recording, models: LiveModels, rules: AlarmRules | None = None) -> list[Alarm]:
    """The alarms of a whole recording, those that a monitor raises of its stream.

    Args:
        recording: with an ECG lead; the one that `ecg_lead` chooses is watched.
        models: for live streams.
        rules: when alarms are raised.

    Returns:
        Each alarm once, in the order in which they were raised, with its end if it ended.

    Raises:
        HeartlmError: no ECG lead, a rate too low for the detector, or an unreadable file.
    """
    lead = ecg_lead(recording)
    if lead is None:
        raise HeartlmError(f"{recording.path}: no ECG lead (none measured in mV), so there is nothing to watch")
    ward = Ward(models, rules)
    stream = ward.add(recording.record_id, recording.rate_hz)
    found, block = dict[str, Alarm](), round(_BLOCK_S * recording.rate_hz)
    for start in range(0, recording.num_samples, block):
        stop = min(start + block, recording.num_samples)
        ward.push(stream.name, recording.signal(start, stop, (lead,))[0])
        found |= {alarm.key: alarm for alarm in ward.run()}
    return list(found.values())
