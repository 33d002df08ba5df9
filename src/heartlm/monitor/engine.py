"""`Monitor`: messages in, alarms out, and nothing forgotten when it is killed.

    message ─► journal ─► FrameLink (order, gaps) ─► Ward (seconds, models, rules) ─► alarms ─► log, files, listeners

Time here is the streams' own. A clock, on the wall or of a broker, decides one thing alone: that a stream from which
nothing comes is silent.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.files import read_json_lines
from heartlm.monitor.alarms import LETHAL, Alarm
from heartlm.monitor.journal import MessageJournal
from heartlm.monitor.link import Frame, FrameLink, read_frame
from heartlm.monitor.stream import LiveStream, Ward
from heartlm.monitor.trend import Trend

Floats = NDArray[np.float32]
Listener = Callable[[dict[str, Any]], None]
"""Gets each alarm when it is raised and when it ends, as JSON has it."""

SILENT_S = 5.0
"""A stream from which nothing has come for so long is silent."""
STRIP_S = 10
"""Seconds before and after an alarm that are kept."""
_HISTORY_S = 2 * STRIP_S + 12
_STRIP_GAIN, _INVALID = 2000.0, -32768
"""Numbers for a millivolt in strips, of 16 bits, and the number that stands for no sample."""
_SNAPSHOT_S, _SYNC_S = 300.0, 1.0
"""How often all is written, and how often messages are made safe from a loss of power; a kill loses none."""
_MOST_ALARMS = 10_000
"""Alarms in memory; the oldest that are over go, and stay in the log."""
_FAULTS_LOGGED = 5
"""Faulty messages of one source that are logged one by one."""


@dataclass
class WatchedPatient:
    """One stream as the monitor knows it.

    Attributes:
        link: puts its frames in order.
        stream: judges it.
        pieces: its last samples as they came, each `[num_leads, num_samples]`, at least the last `_HISTORY_S`.
        num_kept: samples in these.
        num_samples: that came.
        strips: alarms whose ten seconds after are not complete.
        heard: when its last message came, in seconds of the monitor's clock.
        silent: whether nothing comes.
        beats: the last nine, with their times in s from the beginning of the stream.
        trend: of the last hours.
    """

    link: FrameLink
    stream: LiveStream
    pieces: deque[Floats]
    num_kept: int = 0
    num_samples: int = 0
    strips: list[Alarm] = field(default_factory=list)
    heard: float = 0.0
    silent: bool = False
    beats: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=9))
    trend: Trend = field(default_factory=Trend)

    @property
    def history(self) -> Floats:
        """Its last samples `[num_leads, num_samples]`, for strips; the last is the last that came."""
        self.pieces = deque([np.concatenate(self.pieces, axis=1)[:, -round(_HISTORY_S * self.link.rate_hz) :]])
        self.num_kept = self.pieces[0].shape[1]
        return self.pieces[0]

    def take(self, samples: Floats) -> None:
        """Note samples that came; joining them every time would copy half a minute of each stream every second."""
        most = round(_HISTORY_S * self.link.rate_hz)
        self.pieces.append(samples[:, -most:])
        self.num_samples += samples.shape[1]
        self.num_kept += self.pieces[-1].shape[1]
        while self.num_kept - (first := self.pieces[0].shape[1]) >= most:
            self.pieces.popleft()
            self.num_kept -= first

    @property
    def rate_bpm(self) -> float | None:
        """Mean heart rate over the last eight intervals; None with fewer."""
        if len(self.beats) < 9 or self.beats[-1][0] <= self.beats[0][0]:
            return None
        return 60 * 8 / (self.beats[-1][0] - self.beats[0][0])


def collect_rarely() -> None:
    """Look for cyclic garbage rarely: with thousands of streams each look goes through a million objects."""
    gc.set_threshold(200_000, 50, 20)


class Monitor:
    """Watches streams.

    Args:
        ward: the models and rules.
        folder: for the journal, the log of alarms and their strips; None keeps nothing.
        log: gets one line for each fault of a link.

    Raises:
        HeartlmError: the folder cannot be written.
    """

    def __init__(self, ward: Ward, folder: Path | None = None, log: Callable[[str], None] = print) -> None:
        self.ward, self.folder, self.log = ward, folder, log
        self.patients = dict[str, WatchedPatient]()
        self.alarms = dict[str, dict[str, Any]]()
        """All alarms by key, as JSON has them, with `acknowledged`: by whom, or None."""
        self.faults = Counter[str]()
        self.listeners = list[Listener]()
        self.clock: Callable[[], float] = time.monotonic
        """When a message came, in seconds."""
        self._alarm_log: IO[str] | None = None
        self.journal: MessageJournal | None = None
        self._snapshot_at = time.monotonic() + _SNAPSHOT_S
        self._sync_at = 0.0
        if folder is not None:
            self.journal = MessageJournal(folder / "journal")
            (folder / "strips").mkdir(exist_ok=True)
            known = folder / "alarms.jsonl"
            if known.exists():
                for entry in read_json_lines(known)[0]:
                    self.alarms[entry["key"]] = self.alarms.get(entry["key"], {}) | entry
            self._alarm_log = known.open("a", encoding="utf-8")
            self._recover()

    def receive(self, message: bytes, source: str = "", stream: str | None = None) -> None:
        """Take in a message; what is wrong with it is counted and logged, and never raised."""
        try:
            frame = read_frame(message, stream)
        except HeartlmError as error:
            self.refuse(source, str(error))
            return
        if self.journal is not None:
            self.journal.append(message, stream)
        self._take(frame)

    def refuse(self, source: str, why: str) -> None:
        """Count a message with an error, and log the first ones of a source."""
        self.faults[source] += 1
        if self.faults[source] <= _FAULTS_LOGGED:
            self.log(f"{source or 'message'}: refused: {why}")

    def _take(self, frame: Frame) -> None:
        patient = self.patients.get(frame.stream)
        if patient is not None and patient.silent:
            patient.silent = False
            self._silence(frame.stream, patient, "end")
        try:
            if patient is None:
                patient = self._admit(frame, 0.0)
            elif (frame.rate_hz, len(frame.mv)) != (patient.link.rate_hz, patient.link.num_leads):
                link, now = patient.link, f"{len(frame.mv)} at {frame.rate_hz:g} Hz"
                self.log(f"{frame.stream}: leads: {link.num_leads} at {link.rate_hz:g} Hz changed to {now}")
                while self.step():  # what came at the old rate is judged at it
                    pass
                for alarm in patient.stream.rules.active.values():
                    self._announce(replace(alarm, stop=patient.num_samples))
                self._save_strips(patient, ends=True)
                begin_s = patient.stream.rules.begin_s + patient.num_samples / patient.link.rate_hz
                patient = self._admit(frame, begin_s)
        except HeartlmError as error:
            self.faults[frame.stream] += 1
            self.log(f"refused: {error}")
            return
        patient.heard = self.clock()
        before = set(patient.link.counts)
        for samples in patient.link.take(frame):
            self.ward.push(frame.stream, samples)
            patient.take(samples)
        for fault in patient.link.counts:
            if fault not in before and fault != "lost samples":
                self.log(f"{frame.stream}: {fault}: counted from now on")

    def _admit(self, frame: Frame, begin_s: float) -> WatchedPatient:
        """Begin a stream, or the next part of one, with its first frame."""
        num_leads = len(frame.mv)
        stream = self.ward.add(frame.stream, frame.rate_hz, begin_s, num_leads)
        history = np.empty((num_leads, 0), np.float32)
        patient = WatchedPatient(FrameLink(frame.rate_hz, num_leads), stream, deque([history]))
        if (before := self.patients.get(frame.stream)) is not None:
            patient.trend = before.trend
        self.patients[frame.stream] = patient
        return patient

    def step(self) -> bool:
        """Judge one second of each stream that has one; whether there was any."""
        streams, changes = self.ward.step()
        moved = [self.patients[stream.name] for stream in streams]
        for patient in moved:
            rules = patient.stream.rules
            for beat in patient.stream.leads[rules.lead_in_use].beats:
                patient.beats.append((rules.begin_s + beat.sample / patient.link.rate_hz, beat.symbol))
                patient.trend.add(*patient.beats[-1])
        for alarm in changes:
            self._announce(alarm)
        for patient in moved:
            self._save_strips(patient)
        return bool(moved)

    def run(self) -> None:
        """Judge all whole seconds that came; then see who is silent, and whether it is time for a snapshot."""
        now = time.monotonic()  # before the work: what comes during it is heard of only afterwards
        while self.step():
            pass
        self.see_silence(now, self.patients)
        if self.journal is not None:
            self.journal.flush(to_disk=now > self._sync_at)
            if now > self._sync_at:
                self._sync_at = now + _SYNC_S
            if now > self._snapshot_at:
                self.save()

    def see_silence(self, now: float, names: Iterable[str]) -> None:
        """Note which of these streams are silent at a time of the clock."""
        for name in names:
            patient = self.patients[name]
            if not patient.silent and now - patient.heard > SILENT_S:
                patient.silent = True
                self._silence(name, patient, "begin")

    def _silence(self, name: str, patient: WatchedPatient, what: str) -> None:
        """An alarm of the clock: nothing comes."""
        rate_hz, begin_s = patient.link.rate_hz, patient.stream.rules.begin_s
        last = patient.num_samples
        alarm = Alarm(name, "signal lost", last, last, None if what == "begin" else last, 1.0, rate_hz, begin_s)
        self._announce(alarm, {"key": f"{alarm.key}/silent"})

    def _announce(self, alarm: Alarm, more: dict[str, Any] | None = None) -> None:
        entry = alarm.to_json() | (more or {})
        known = self.alarms.get(entry["key"])
        if alarm.stop is None and more is None:
            self.patients[alarm.stream].strips.append(alarm)
        if known is not None and (known["stop_s"] is not None or entry["stop_s"] is None):
            return  # said before: a monitor that was killed goes through its last messages a second time
        entry = {"acknowledged": None, "strip": None} | (known or {}) | entry
        if known is None:
            entry["time"] = _now()
        self._note(entry)

    def _note(self, entry: dict[str, Any]) -> None:
        self.alarms[entry["key"]] = entry
        if len(self.alarms) > _MOST_ALARMS:
            over = (key for key, each in self.alarms.items() if not _is_open(each))
            if (oldest := next(over, None)) is not None:
                del self.alarms[oldest]
        if self._alarm_log is not None:
            self._alarm_log.write(json.dumps(entry) + "\n")
            self._alarm_log.flush()
        for listener in self.listeners:
            listener(entry)

    def acknowledge(self, key: str, by: str) -> bool:
        """Note that a person has seen an alarm; whether there is such an alarm."""
        entry = self.alarms.get(key)
        if entry is None:
            return False
        if entry["acknowledged"] is None:
            seen = {"by": by[:64], "time": _now()}
            self._note(entry | {"acknowledged": seen})
        return True

    def open_alarms(self) -> list[dict[str, Any]]:
        """Alarms that last, and lethal ones that are not acknowledged."""
        return [entry for entry in self.alarms.values() if _is_open(entry)]

    def _save_strips(self, patient: WatchedPatient, ends: bool = False) -> None:
        """Write the strips of alarms of which the ten seconds after have come, or of all where nothing more comes."""
        left = list[Alarm]()
        for alarm in patient.strips:
            if not ends and alarm.raised + STRIP_S * alarm.rate_hz > patient.num_samples:
                left.append(alarm)
            elif self.folder is not None:
                self._save_strip(patient, alarm, self.folder / "strips")
        patient.strips = left

    def _save_strip(self, patient: WatchedPatient, alarm: Alarm, folder: Path) -> None:
        """A WFDB record of one alarm, which a note marks."""
        import wfdb

        entry, history = self.alarms.get(alarm.key), patient.history
        start = patient.num_samples - history.shape[1]
        first = max(start, alarm.raised - round(STRIP_S * alarm.rate_hz))
        strip = history[:, first - start :][:, : round(2 * STRIP_S * alarm.rate_hz)]
        if entry is None or entry["strip"] is not None or not np.isfinite(strip).any():
            return
        name = f"strip_{sum(each['strip'] is not None for each in self.alarms.values()) + 1:06d}"
        wfdb.wrsamp(
            name,
            fs=alarm.rate_hz,
            units=["mV"] * len(strip),
            sig_name=[f"ECG{place + 1}" for place in range(len(strip))],
            p_signal=strip.T.astype(np.float64),
            fmt=["16"] * len(strip),
            adc_gain=[_STRIP_GAIN] * len(strip),
            baseline=[0] * len(strip),
            comments=[f"{alarm.key}: {alarm.severity}, raised {entry['time']}"],
            write_dir=str(folder),
        )
        place = np.array([alarm.raised - first])
        wfdb.wrann(name, "alarm", place, symbol=['"'], aux_note=[alarm.kind], fs=alarm.rate_hz, write_dir=str(folder))
        self._note(entry | {"strip": name})

    def state(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """All that it remembers of these streams, by default of all, but the alarms, which have a log of their own."""
        chosen = self.patients if names is None else {name: self.patients[name] for name in names}
        return {
            name: {
                "link": patient.link.state(),
                "stream": patient.stream.state(),
                "history": _digits(patient.history),
                "num_samples": patient.num_samples,
                "trend": patient.trend.state(),
            }
            for name, patient in chosen.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the streams of which `state` was asked."""
        for name, own in state.items():
            link = FrameLink(own["stream"]["rate_hz"], len(own["history"]))
            link.restore(own["link"])
            live = self.ward.add(name, link.rate_hz, own["stream"]["begin_s"], link.num_leads)
            live.restore(own["stream"])
            self.ward.push(name, np.empty((link.num_leads, 0), np.float32))  # a whole second may wait
            strips = list(live.rules.active.values())
            history = np.where(own["history"] == _INVALID, np.nan, own["history"] / _STRIP_GAIN).astype(np.float32)
            patient = WatchedPatient(link, live, deque([history]), history.shape[1])
            patient.num_samples, patient.strips = own["num_samples"], strips
            patient.trend.restore(own["trend"])
            self.patients[name] = patient

    def forget(self, names: Iterable[str]) -> None:
        """Leave these streams, and their alarms, to another monitor."""
        gone = set(names)
        for name in gone:
            del self.patients[name]
            self.ward.remove(name)
        self.alarms = {key: entry for key, entry in self.alarms.items() if entry["stream"] not in gone}

    def save(self) -> None:
        """Write a snapshot."""
        if self.journal is not None:
            self.journal.snapshot(self.state())
            self._snapshot_at = time.monotonic() + _SNAPSHOT_S

    def _recover(self) -> None:
        assert self.journal is not None, "only a journal can be recovered from"
        state, messages = self.journal.recover()
        self.restore(state or {})
        for number, (message, stream) in enumerate(messages, 1):
            self._take(read_frame(message, stream))
            if number % len(self.patients) == 0:  # about a frame of each
                self.step()
        while self.step():
            pass
        for patient in self.patients.values():
            patient.heard = time.monotonic()
        if self.patients:
            self.save()

    def close(self) -> None:
        """Write what is left to disk."""
        if self.journal is not None:
            self.save()
            self.journal.close()
        if self._alarm_log is not None:
            self._alarm_log.close()


def _digits(mv: Floats) -> NDArray[np.int16]:
    """Samples as strips have them, in half the memory."""
    whole = np.clip(np.rint(mv * _STRIP_GAIN), 1 + _INVALID, -1 - _INVALID)
    return np.where(np.isnan(whole), _INVALID, whole).astype(np.int16)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _is_open(entry: dict[str, Any]) -> bool:
    return entry["stop_s"] is None or (entry["severity"] == LETHAL and entry["acknowledged"] is None)
