"""`Monitor`: messages in, alarms out, with a journal from which a killed monitor recovers.

    message ─► journal ─► FrameLink (order, gaps) ─► Ward (seconds, models, rules) ─► alarms ─► log, strips, listeners

Alarms depend on the time of the streams only. A clock, of this machine or of a broker, is used for one purpose: to find
streams that have become silent.
"""

from __future__ import annotations

import gc
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import ARTEFACT
from heartlm.errors import HeartlmError
from heartlm.formats.arrays import MOST_MV, typical_range
from heartlm.monitor.alarm_log import AlarmLog
from heartlm.monitor.alarms import Alarm
from heartlm.monitor.connection import Connection, utc_now
from heartlm.monitor.journal import MessageJournal
from heartlm.monitor.link import MAX_GAP_S, Frame, FrameLink, read_frame
from heartlm.monitor.stream import LiveStream, Ward
from heartlm.monitor.strip_file import from_int16, to_int16, write_strip
from heartlm.monitor.trend import Trend
from heartlm.storage.atomic import explained

Floats = NDArray[np.float32]
Listener = Callable[[dict[str, Any]], None]
"""Is called with each alarm, as JSON values, when it is raised, ends, gets its strip or is acknowledged."""

SILENT_S = 5.0
"""A stream is silent after this time without a message."""
MAX_STREAMS, FORGET_H = 5_000, 12.0
"""Streams that are watched at the same time by default, and hours without a message after which one is forgotten."""
STRIP_S = 10
"""Seconds before and after the time of an alarm that its strip shows."""
_HISTORY_S = 2 * STRIP_S + 12
# Ends the key of an alarm of silence.
_SILENT = "/silent"
# Time between snapshots, and between calls of fsync on the messages; a kill of the process loses no message.
_SNAPSHOT_S, _SYNC_S = 300.0, 1.0
# Time after an error of the disk until the next snapshot.
_RETRY_S = 10.0
# Seconds of a stream after which the size of its values is looked at.
_SIZE_S = 5.0
# Rejected messages of one source, changes of the format of one stream and forgotten streams that are logged; the others
# are only counted. Sources beyond the number are counted together: senders choose their names.
_NUM_FAULTS_LOGGED, _MAX_SOURCES = 5, 1_000
# Time between two searches for streams that can make room.
_ROOM_S = 1.0


@dataclass
class WatchedPatient:
    """One stream with what the monitor shows and stores of it.

    Attributes:
        link: puts its frames in order.
        stream: judges it.
        recent: last samples as they arrived, in pieces `[num_leads, num_samples]`, at least `_HISTORY_S`.
        num_recent: number of these samples.
        num_samples: samples so far.
        without_strip: alarms of which the seconds after have not arrived yet.
        received_at: when the last message arrived, in seconds of the monitor's clock.
        silent: no message arrived for `SILENT_S`.
        beats: last nine heartbeats: seconds from the start of the stream, and class.
        trend: trend of the last hours.
    """

    link: FrameLink
    stream: LiveStream
    recent: deque[Floats]
    num_recent: int = 0
    num_samples: int = 0
    without_strip: list[Alarm] = field(default_factory=list)
    received_at: float = 0.0
    silent: bool = False
    beats: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=9))
    trend: Trend = field(default_factory=Trend)

    @property
    def history(self) -> Floats:
        """The last samples `[num_leads, num_samples]`, at most `_HISTORY_S`, which strips and the page show."""
        self.recent = deque([np.concatenate(self.recent, axis=1)[:, -round(_HISTORY_S * self.link.rate_hz) :]])
        self.num_recent = self.recent[0].shape[1]
        return self.recent[0]

    def append(self, samples: Floats) -> None:
        """Add samples to the history. They are joined only when it is read, to avoid a copy every second."""
        num_kept = round(_HISTORY_S * self.link.rate_hz)
        self.recent.append(samples[:, -num_kept:])
        self.num_samples += samples.shape[1]
        self.num_recent += self.recent[-1].shape[1]
        while self.num_recent - (first := self.recent[0].shape[1]) >= num_kept:
            self.recent.popleft()
            self.num_recent -= first

    @property
    def rate_bpm(self) -> float | None:
        """Mean heart rate over the last eight intervals; None with fewer."""
        if len(self.beats) < 9 or self.beats[-1][0] <= self.beats[0][0]:
            return None
        return 60 * 8 / (self.beats[-1][0] - self.beats[0][0])


def tune_garbage_collector() -> None:
    """Search for cyclic garbage rarely: with thousands of streams, each search visits a million objects."""
    gc.set_threshold(200_000, 50, 20)


class Monitor:
    """Watches streams.

    Args:
        ward: models and rules.
        folder: folder of the journal, the log of alarms and their strips; with None, nothing is stored.
        log: is called with one line for each fault.
        max_streams: streams that are watched at the same time; messages of further ones are refused.
        forget_h: hours without a message after which a stream is forgotten.

    Attributes:
        patients: streams by name.
        faults: number of rejected messages by source.
        num_refused: messages of streams for which there was no room; `num_forgotten`: streams that were forgotten.
        listeners: are called with each change of an alarm.
        clock: returns the time at which a message arrives, in seconds.
        disk: whether the folder can be written, as the state of a connection; None without a folder. After an error
            the monitor watches on, and tries to store its state and the alarms again.

    Raises:
        HeartlmError: the folder cannot be written.
    """

    def __init__(
        self,
        ward: Ward,
        folder: Path | None = None,
        log: Callable[[str], None] = print,
        max_streams: int = MAX_STREAMS,
        forget_h: float = FORGET_H,
    ) -> None:
        self.ward, self.folder, self.log = ward, folder, log
        self.max_streams, self.forget_h = max_streams, forget_h
        self.num_refused = self.num_forgotten = 0
        self._is_full_logged, self._room_at = False, -math.inf
        self.patients = dict[str, WatchedPatient]()
        self.alarm_log = AlarmLog()
        self.faults = Counter[str]()
        self.listeners = list[Listener]()
        self.clock: Callable[[], float] = time.monotonic
        self.journal: MessageJournal | None = None
        self.disk: Connection | None = None
        self._num_strips = 0
        self._snapshot_at, self._sync_at = time.monotonic() + _SNAPSHOT_S, 0.0
        if folder is not None:
            self.journal = MessageJournal(folder / "journal")
            self.disk = Connection(f"out {folder}", log, lambda: self.alarm_log.num_waiting)
            try:
                (folder / "strips").mkdir(exist_ok=True)
                numbers = (path.stem.removeprefix("strip_") for path in (folder / "strips").glob("*.hea"))
                self._num_strips = max((int(number) for number in numbers if number.isdecimal()), default=0)
                self.alarm_log.open(folder / "alarms.jsonl", log)
                self._recover(self.journal)
            except OSError as error:
                raise explained(Path(error.filename or folder), error) from error

    @property
    def alarms(self) -> dict[str, dict[str, Any]]:
        """All alarms by key, as JSON values, with `acknowledged`: by whom and when, or None."""
        return self.alarm_log.entries

    def receive(self, message: bytes, source: str = "", stream: str | None = None) -> None:
        """Process a message. An invalid message is counted and logged; no error is raised."""
        try:
            frame = read_frame(message, stream)
        except HeartlmError as error:
            self.reject(source, str(error))
            return
        if frame.stream not in self.patients and len(self.patients) >= self.max_streams and not self._make_room():
            self.num_refused += 1
            return
        if self.journal is not None:
            try:
                self.journal.append(message, stream)
            except HeartlmError as error:
                self._disk_failed(error)
        self._add_frame(frame)

    def reject(self, source: str, reason: str) -> None:
        """Count an invalid message, and log the first ones of each source."""
        source = source if source in self.faults or len(self.faults) < _MAX_SOURCES else "other sources"
        self.faults[source] += 1
        if self.faults[source] <= _NUM_FAULTS_LOGGED:
            self.log(f"{source or 'message'}: rejected: {reason}")

    def _add_frame(self, frame: Frame) -> None:
        patient = self.patients.get(frame.stream)
        if patient is None:
            patient = self._add_patient(frame, 0.0)
        elif (frame.rate_hz, len(frame.mv)) != (patient.link.rate_hz, patient.link.num_leads):
            patient = self._change_format(patient, frame)
        known_faults = set(patient.link.counts)
        pieces = patient.link.push(frame)
        if patient.link.is_replaced:
            patient, pieces = self._change_count(patient, frame)
            known_faults |= set(patient.link.counts)
        samples_before = patient.num_samples
        # Frames that do not fit are held or dropped, so a stream that has only these becomes silent.
        if pieces:
            patient.received_at = self.clock()
            self._set_silent(frame.stream, patient, False)
        for samples in pieces:
            self.ward.push(frame.stream, samples)
            patient.append(samples)
        if samples_before < _SIZE_S * frame.rate_hz <= patient.num_samples:
            sizes = [typical_range(lead, frame.rate_hz) for lead in np.concatenate(list(patient.recent), axis=1)]
            if min(sizes, default=0) > MOST_MV:
                self.log(
                    f"{frame.stream}: values that vary by {min(sizes):.3g} within a second are no millivolts; if they "
                    "are microvolts, divide them by 1000 before sending"
                )
        for fault in patient.link.counts:
            if fault not in known_faults and fault != "lost samples":
                self.log(f"{frame.stream}: {fault}: logged once, further ones are counted")

    def _add_patient(self, frame: Frame, begin_s: float) -> WatchedPatient:
        """Add the stream of a first frame, or start a new part of a stream at `begin_s`."""
        num_leads = len(frame.mv)
        stream = self.ward.add(frame.stream, frame.rate_hz, begin_s, num_leads)
        history = np.empty((num_leads, 0), np.float32)
        patient = WatchedPatient(FrameLink(frame.rate_hz, num_leads), stream, deque([history]))
        self.patients[frame.stream] = patient
        return patient

    def _change_format(self, patient: WatchedPatient, frame: Frame) -> WatchedPatient:
        """Start a new part of a stream whose sampling rate or number of leads changed."""
        link = patient.link
        before, after = f"{link.num_leads} at {link.rate_hz:g} Hz", f"{len(frame.mv)} at {frame.rate_hz:g} Hz"
        num_changes = link.counts["new formats"] + 1
        if num_changes <= _NUM_FAULTS_LOGGED:
            self.log(f"{frame.stream}: leads: changed from {before} to {after}")
        changed = self._start_part(patient, frame)
        changed.link.counts = link.counts + Counter({"new formats": 1})
        return changed

    def _change_count(self, patient: WatchedPatient, frame: Frame) -> tuple[WatchedPatient, list[Floats]]:
        """Start a new part of a stream whose sender numbers its samples by another count, or lost more than is filled.

        Returns:
            The patient with the new part, and its first samples.
        """
        link, other = patient.link, patient.link.other
        assert other is not None, "the link is replaced"
        lost_s = link.lost / link.rate_hz
        what = f"{lost_s:,.0f} s of signal are lost" if link.lost else "its sender counts its samples again"
        self.log(f"{frame.stream}: {what}: a new part of the stream starts")
        kinds = Counter({"gaps": 1, "lost samples": link.lost, "new counts": int(not link.lost)})
        other.counts = link.counts + other.counts + kinds
        changed = self._start_part(patient, frame, link.lost)
        changed.link = other
        return changed, link.held

    def _start_part(self, patient: WatchedPatient, frame: Frame, num_lost: int = 0) -> WatchedPatient:
        """Start a new part of a stream `num_lost` samples after the last one."""
        link, rules = patient.link, patient.stream.rules
        self._set_silent(frame.stream, patient, False)
        if num_lost:  # as many invalid samples as the longest gap has, so that the rules find the signal lost
            length = round(MAX_GAP_S * link.rate_hz)
            self.ward.push(frame.stream, np.full((link.num_leads, length), np.nan, np.float32))
        while self.step():  # judge what arrived before the change
            pass
        stop = patient.num_samples + num_lost
        self._end_alarms(patient, stop)
        changed = self._add_patient(frame, rules.begin_s + stop / link.rate_hz)
        changed.trend = patient.trend
        changed.trend.interrupt()
        return changed

    def _end_alarms(self, patient: WatchedPatient, stop: int) -> None:
        """End the alarms of a stream that does not continue, at a sample."""
        rules = patient.stream.rules
        for alarm in rules.active.values():
            self._update_alarm(replace(alarm, stop=rules.absent_since(alarm.kind) or stop))
        self._save_strips(patient, incomplete=True)

    def step(self) -> bool:
        """Judge one second of each stream that has one, and return whether there was any."""
        streams, changes = self.ward.step()
        patients = [self.patients[stream.name] for stream in streams]
        for patient in patients:
            rules = patient.stream.rules
            if rules.lost:
                patient.beats.clear()  # the interval across the gap is none of a heart
            for sample, symbol in patient.stream.beats:
                if symbol == ARTEFACT:
                    continue
                patient.beats.append((rules.begin_s + sample / patient.link.rate_hz, symbol))
                patient.trend.add(*patient.beats[-1])
        for alarm in changes:
            self._update_alarm(alarm)
        for patient in patients:
            if patient.without_strip:
                self._save_strips(patient)
        return bool(patients)

    def run(self) -> None:
        """Judge all whole seconds that arrived, find silent streams, and write the journal when it is time."""
        now = time.monotonic()  # before judging: messages that arrive meanwhile have not been received yet
        while self.step():
            pass
        self.check_silence(now, self.patients)
        if self.journal is not None:
            try:
                self.journal.flush(to_disk=now > self._sync_at)
                if now > self._sync_at:
                    self._sync_at = now + _SYNC_S
                if now > self._snapshot_at:
                    self.save()
            except HeartlmError as error:
                self._disk_failed(error)

    def check_silence(self, now: float, names: Iterable[str]) -> None:
        """Raise an alarm for each of these streams that has become silent by `now`, in seconds of the clock.

        Those that have been silent for `forget_h` are forgotten.
        """
        forgotten = list[str]()
        for name in names:
            silent_s = now - self.patients[name].received_at
            if silent_s > SILENT_S:
                self._set_silent(name, self.patients[name], True)
            if silent_s > 3600 * self.forget_h:
                forgotten.append(name)
        for name in forgotten[:_NUM_FAULTS_LOGGED]:
            self.log(f"{name}: no message for {self.forget_h:g} h: forgotten")
        if len(forgotten) > _NUM_FAULTS_LOGGED:
            self.log(f"{len(forgotten):,} streams without a message for {self.forget_h:g} h: forgotten")
        self.forget(forgotten)

    def forget(self, names: Iterable[str]) -> None:
        """End the alarms of these streams and remove them. Their alarms stay in the log and on the page."""
        for name in names:
            patient = self.patients[name]
            if self.journal is not None:
                try:
                    self.journal.append(b"", name)
                except HeartlmError as error:
                    self._disk_failed(error)
            self._set_silent(name, patient, False)
            self._end_alarms(patient, patient.num_samples)
            del self.patients[name]
            self.ward.remove(name)
            self.num_forgotten += 1

    def _make_room(self) -> bool:
        """Forget the silent streams of which less than a second arrived, and return whether there were any."""
        now = self.clock()
        if not self._is_full_logged:
            self._is_full_logged = True
            least = "silent ones that sent less than a second make room"
            self.log(f"{self.max_streams:,} streams are watched, the most (--max-streams): {least}, others are refused")
        if now - self._room_at < _ROOM_S:  # otherwise a flood of names costs a search for each
            return False
        self._room_at, patients = now, self.patients.items()
        short = [name for name, each in patients if not each.stream.leads and now - each.received_at > SILENT_S]
        self.forget(short)
        return bool(short)

    def _set_silent(self, name: str, patient: WatchedPatient, is_silent: bool) -> None:
        """Raise or end the alarm of silence, which depends on the clock and has a key of its own.

        No sample arrives in between, so `num_samples`, and with it the key, is the same when the alarm ends.
        """
        if patient.silent == is_silent:
            return
        patient.silent, last = is_silent, patient.num_samples
        rate_hz, begin_s = patient.link.rate_hz, patient.stream.rules.begin_s
        alarm = Alarm(name, "signal lost", last, last, None if is_silent else last, 1.0, rate_hz, begin_s)
        self._publish_once(alarm.to_json() | {"key": f"{alarm.key}{_SILENT}"})

    def _update_alarm(self, alarm: Alarm) -> None:
        """Publish an alarm that the rules raised, repeated or ended."""
        if alarm.stop is None and alarm.count == 1:
            self.patients[alarm.stream].without_strip.append(alarm)
        self._publish_once(alarm.to_json())

    def _publish_once(self, entry: dict[str, Any]) -> None:
        """Publish an alarm unless it is known: a monitor that was killed processes its last messages a second time."""
        published = self.alarms.get(entry["key"])
        if published is None:
            self._publish({"acknowledged": None, "strip": None} | entry | {"time": utc_now()})
        elif published["stop_s"] is None and entry["count"] > published.get("count", 1):
            # Whoever acknowledged it has seen the condition before, and may have left since.
            self._publish(published | entry | {"acknowledged": None})
        elif published["stop_s"] is None and entry["stop_s"] is not None:
            self._publish(published | entry)

    def _publish(self, entry: dict[str, Any]) -> None:
        try:
            self.alarm_log.add(entry)
        except HeartlmError as error:
            self._disk_failed(error)
        for listener in self.listeners:
            listener(entry)

    def _disk_failed(self, error: Exception) -> None:
        """Report an error of the disk, and watch on: alarms on the page and by the network do not need it."""
        assert self.journal is not None and self.disk is not None
        self.journal.turn_off()
        self._snapshot_at = time.monotonic() + _RETRY_S
        self.disk.fail(self.disk.problem or f"{error}: watching continues, but nothing is stored")

    def acknowledge(self, key: str, by: str) -> bool:
        """Record that a person has seen an alarm, and return whether there is such an alarm."""
        entry = self.alarms.get(key)
        if entry is not None and entry.get("acknowledged") is None:
            self._publish(entry | {"acknowledged": {"by": by[:64], "time": utc_now()}})
        return entry is not None

    def open_alarms(self) -> list[dict[str, Any]]:
        """Return the alarms that have not ended, and the lethal ones that are not acknowledged."""
        return self.alarm_log.still_open()

    def _save_strips(self, patient: WatchedPatient, incomplete: bool = False) -> None:
        """Write the strips of alarms of which all samples have arrived; with `incomplete`, those of all alarms."""
        waiting = list[Alarm]()
        for alarm in patient.without_strip:
            if not incomplete and alarm.raised + STRIP_S * alarm.rate_hz > patient.num_samples:
                waiting.append(alarm)
            elif self.folder is not None:
                try:
                    self._save_strip(patient, alarm, self.folder / "strips")
                except OSError as error:
                    self._disk_failed(explained(self.folder / "strips", error))
        patient.without_strip = waiting

    def _save_strip(self, patient: WatchedPatient, alarm: Alarm, folder: Path) -> None:
        """Write the samples around an alarm as a WFDB record, with a note at the time of the alarm."""
        entry, history = self.alarms.get(alarm.key), patient.history
        start = patient.num_samples - history.shape[1]
        first = max(start, alarm.raised - round(STRIP_S * alarm.rate_hz))
        strip = history[:, first - start :][:, : round(2 * STRIP_S * alarm.rate_hz)]
        gone = alarm.raised < first  # more was received at once than is kept
        if entry is None or entry["strip"] is not None or gone or not np.isfinite(strip).any():
            return
        self._num_strips += 1
        name = f"strip_{self._num_strips:06d}"
        write_strip(folder, name, strip, alarm, first, f"raised {entry['time']}")
        self._publish(entry | {"strip": name})

    def state(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the state of these streams for `packed`. Alarms are not part of it: they have their own log."""
        patients = {name: self.patients[name] for name in names}
        return {
            name: {
                "link": patient.link,
                "stream": patient.stream,
                "history": to_int16(patient.history),
                "num_samples": patient.num_samples,
                "without_strip": patient.without_strip,
                "trend": patient.trend,
            }
            for name, patient in patients.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Add the streams of a state that `unpacked` returned."""
        for name, saved in state.items():
            try:
                self._restore_stream(name, saved)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                text = f"state of the stream {name}: other fields ({error}): written by another build of heartlm"
                raise HeartlmError(text) from None

    def _restore_stream(self, name: str, saved: dict[str, Any]) -> None:
        history = from_int16(saved["history"])
        link = FrameLink(saved["stream"]["rate_hz"], len(history))
        link.restore(saved["link"])
        stream = self.ward.add(name, link.rate_hz, num_leads=link.num_leads)
        if saved["stream"]["leads"]:
            self.ward.start(stream)
        stream.restore(saved["stream"])
        self.ward.push(name, np.empty((link.num_leads, 0), np.float32))  # a whole second may wait
        patient = WatchedPatient(link, stream, deque([history]), history.shape[1], saved["num_samples"])
        patient.without_strip = [Alarm(**alarm) for alarm in saved["without_strip"]]
        patient.trend.restore(saved["trend"])
        self.patients[name] = patient

    def remove(self, names: Iterable[str]) -> None:
        """Remove these streams and their alarms."""
        removed = set(names)
        for name in removed:
            del self.patients[name]
            self.ward.remove(name)
        self.alarm_log.remove(removed)

    def save(self) -> None:
        """Write the alarms that wait and a snapshot.

        Raises:
            HeartlmError: the disk is full or cannot be written.
        """
        if self.journal is not None and self.disk is not None:
            self.alarm_log.write()
            self.journal.snapshot(self.state([name]) for name in self.patients)
            self._snapshot_at = time.monotonic() + _SNAPSHOT_S
            self.disk.restore()

    def _recover(self, journal: MessageJournal) -> None:
        state, messages = journal.recover()
        try:
            for part in state:
                self.restore(part)
        except HeartlmError as error:
            raise HeartlmError(f"{self.folder}: {error}: choose another --out") from None
        for number, (message, stream) in enumerate(messages, 1):
            if not message:
                self.forget([stream] if stream in self.patients else [])
                continue
            self._add_frame(read_frame(message, stream))
            if number % len(self.patients) == 0:  # after about one frame of each
                self.step()
        while self.step():
            pass
        silent = {each["stream"] for each in self.open_alarms() if each["key"].endswith(_SILENT)}
        for name, patient in self.patients.items():
            patient.received_at, patient.silent = time.monotonic(), name in silent
        for entry in self.open_alarms():
            if entry["stop_s"] is None and entry["stream"] not in self.patients:  # it was killed when it forgot it
                self._publish(entry | {"stop_s": entry["raised_s"]})
        if self.patients:
            self.save()

    def close(self) -> None:
        """Write a last snapshot and close the files.

        Raises:
            HeartlmError: the disk is full or cannot be written.
        """
        if self.journal is None or self.alarm_log.file is None:
            return
        try:
            self.save()
        finally:
            self.journal.turn_off()
            self.alarm_log.file.close()
