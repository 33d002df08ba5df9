"""`Recording` and `Annotations`, the types that every reader returns.

A `Recording` has leads, a sampling rate and a patient. It reads samples lazily and only the requested ones, so a slice
of a day-long recording costs only the slice. A recording without a signal (annotation-only databases) has a rate and,
if known, a length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.cart import Cart
from heartlm.errors import HeartlmError
from heartlm.storage.foreign import one_line
from heartlm.storage.limits import MEMORY_BYTES
from heartlm.storage.reading import read_json
from heartlm.system.attached import attached
from heartlm.system.frames import pandas
from heartlm.system.progress import say

ARTEFACT = "|"
"""WFDB code of an artefact that looks like a QRS complex, and the class of detections that are no heartbeat."""

BEAT_CLASSES: tuple[str, ...] = ("N", "S", "V", "F", "Q", ARTEFACT)
"""AAMI classes (ANSI/AAMI EC57): N (normal and bundle branch block), S (supraventricular ectopic), V (ventricular
ectopic), F (fusion of the two) and Q (paced, or not classifiable); then, outside of the standard, `ARTEFACT`. The
position of a class is its index in corpora and scores."""

UNLABELLED = -1
"""Index of an unlabelled beat or rhythm."""

AAMI_SYMBOLS: dict[str, str] = {"N": "NLRej", "S": "AaJS", "V": "VE", "F": "F", "Q": "/fQ"}
"""WFDB beat codes by AAMI class (ANSI/AAMI EC57:2012, as used by de Chazal 2004)."""

CLASS_OF_SYMBOL: dict[str, int] = {
    symbol: BEAT_CLASSES.index(name) for name, symbols in AAMI_SYMBOLS.items() for symbol in symbols
}

_TABLES = read_json(Path(__file__).with_name("rhythms.json"), dict[str, dict[str, str]])

RHYTHMS: tuple[str, ...] = tuple(_TABLES["names"])
"""Rhythm names: the WFDB AUX strings without the opening bracket. The position of a rhythm is its index in corpora and
scores. `rhythms.json` holds the names with their meaning, and other names for them; new names are only appended."""

RHYTHM_INDEX: dict[str, int] = {name: index for index, name in enumerate(RHYTHMS)}

# Rhythm by the usual names, in lower case.
_RHYTHM_OF_NAME: dict[str, str] = {text: name for name, text in _TABLES["names"].items()} | _TABLES["texts"]

Damaged = Literal["refuse", "warn"]
"""Treatment of a recording that is readable but shows damage."""

Repaired = Literal["refuse", "warn", "accept"]
"""Treatment of a recording whose file must be repaired to be read; warn writes the repairs to standard error, once."""

ReadSamples = Callable[[int, int, Sequence[int]], NDArray[np.float32]]
"""`read(start, stop, leads)` → float32 `[len(leads), stop - start]` in the leads' units, NaN where invalid."""


@dataclass(frozen=True)
class Patient:
    """Patient data in the header of a recording; a field that is not stated is empty or None.

    Attributes:
        name: name of the patient.
        identifier: code of the patient in the hospital, or the free text that identifies the patient.
        sex: `"female"` or `"male"`.
        birth_date: date of birth.
        age: age in years at the time of the recording.
    """

    name: str = ""
    identifier: str = ""
    sex: str = ""
    birth_date: date | None = None
    age: int | None = None


SEXES = {"f": "female", "female": "female", "m": "male", "male": "male"}
"""Sex as headers write it, in lower case, and as `Patient.sex`."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One ECG recording, read lazily.

    Attributes:
        record_id: name within the database, for example `"100"` or `"I01"` or `"A00001"`.
        patient_id: patient identifier, shared by the records of one patient (for example mitdb 201 and 202).
        database: catalogue name, for example `"mitdb"`; the folder name if the database is not in the catalogue.
        rate_hz: sampling rate in Hz.
        num_samples: number of samples per lead; 0 if unknown (annotation-only records without a header).
        lead_names: names of the leads, in file order; empty if there is no signal.
        units: physical unit of each lead. Voltages are converted to `"mV"` on reading.
        path: file to name in error messages (the header or the only file).
        comments: free text of the header, one entry per line.
        start: date and time of the first sample on the recorder's clock, without a time zone; the time of day if the
            date is unknown, None if both are.
        patient: patient data of the header.
        samples: function that reads samples; None for annotation-only records.
        read_annotations: function that reads `annotations`; None if there are none.
        faults: signs of damage in the data read so far, one line each: leads that were read completely and do not match
            the header's checksum, infinite samples, annotation files with bytes that no annotator writes.
        repairs: what was repaired to read the file, one line each, for example a wrong number of records.
        steps: of a file of integers, gain and zero of each lead: its integers are `value * gain + zero`. None for a
            lead whose samples are computed; empty for other files.
        cart: what the machine wrote next to the signal; None if the file holds nothing of it.
        ticks_hz: rate of the positions in annotation files that state none, of WFDB frames with several samples a lead;
            None if it is `rate_hz`.
    """

    record_id: str = ""
    patient_id: str = ""
    database: str = ""
    rate_hz: float
    num_samples: int
    lead_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    path: Path
    comments: tuple[str, ...] = ()
    start: datetime | time | None = None
    patient: Patient = Patient()
    samples: ReadSamples | None = field(default=None, repr=False, compare=False)
    read_annotations: Callable[[Recording], Annotations | None] | None = field(default=None, repr=False, compare=False)
    faults: list[str] = field(default_factory=list, repr=False, compare=False)
    repairs: tuple[str, ...] = ()
    steps: tuple[tuple[float, float] | None, ...] = field(default=(), repr=False, compare=False)
    cart: Cart | None = field(default=None, repr=False, compare=False)
    ticks_hz: float | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        name = f"{self.database}/{self.record_id}" if self.database else self.record_id
        leads = ", ".join(self.lead_names) or "no signal"
        return f"<Recording {name}: {leads}; {self.rate_hz:g} Hz, {self.duration_s:,.1f} s>"

    def _repr_html_(self) -> str:
        patient = " ".join(filter(None, (self.patient_id, self.patient.sex, str(self.age or ""))))
        rows = [("patient", patient), ("start", self.clock_time(0) or ""), ("repairs", "; ".join(self.repairs))]
        return str(attached("drawings").shown_html(repr(self)[1:-1], [row for row in rows if row[1]], self.plot))

    def plot(
        self,
        start_s: float = 0.0,
        stop_s: float | None = None,
        leads: Sequence[int | str] | None = None,
        *,
        ax: Any = None,
    ) -> Any:
        """Draw a section on ECG paper, with its annotated beats and rhythms.

        Args:
            start_s: begin in seconds.
            stop_s: end in seconds; by default 10 s later.
            leads: indices or names of the leads; by default all.
            ax: axes of matplotlib to draw on.

        Returns:
            A picture that a notebook shows, with `.save("100.svg")`; or `ax`.

        Raises:
            HeartlmError: there is no signal or no such lead, or the section is outside the recording or too long.
        """
        return attached("drawings").plot_recording(self, start_s, stop_s, leads, ax)

    @cached_property
    def annotations(self) -> Annotations | None:
        """Annotated heartbeats and rhythms, read on first access; None if there are none.

        Raises:
            HeartlmError: an annotation file is unreadable.
        """
        return None if self.read_annotations is None else self.read_annotations(self)

    @property
    def leads(self) -> tuple[str, ...]:
        """Names of the leads, in file order."""
        return self.lead_names

    @property
    def num_leads(self) -> int:
        """Number of leads with samples."""
        return len(self.lead_names)

    @property
    def has_signal(self) -> bool:
        """Whether the recording has samples."""
        return self.samples is not None

    @property
    def duration_s(self) -> float:
        """Duration in seconds; 0 if unknown."""
        return self.num_samples / self.rate_hz

    @property
    def age(self) -> int | None:
        """Age of the patient in years at the start: as stated, else from the dates; None if unknown."""
        born = self.patient.birth_date
        if self.patient.age is not None or born is None or not isinstance(self.start, datetime):
            return self.patient.age
        years = self.start.year - born.year - ((self.start.month, self.start.day) < (born.month, born.day))
        return years if years >= 0 else None

    def clock_time(self, elapsed_s: float, decimals: int = 0) -> str | None:
        """Return the recorder's clock `elapsed_s` seconds after the start; None if the start is unknown.

        The text is `2024-03-02 01:13:10`; without a known date `23:13:10`, and `day 2 01:13:10` after midnight.
        """
        if self.start is None:
            return None
        first = self.start if isinstance(self.start, datetime) else datetime.combine(date(2000, 1, 1), self.start)
        # rounded before it is split, otherwise 59.9996 s becomes 60
        try:
            moment = first + timedelta(seconds=elapsed_s, microseconds=round(0.5 * 10 ** (6 - decimals)))
        except OverflowError:  # a length that no recording has
            return None
        text = moment.strftime("%H:%M:%S") + (f".{moment.microsecond:06d}"[: 1 + decimals] if decimals else "")
        if isinstance(self.start, datetime):
            return f"{moment.date().isoformat()} {text}"
        day = (moment.date() - first.date()).days + 1
        return text if day == 1 else f"day {day} {text}"

    @staticmethod
    def from_array(
        x: Any,
        *,
        rate_hz: float | None = None,
        leads: str | Sequence[str] | None = None,
        units: str | Sequence[str] | None = None,
        start: datetime | time | None = None,
        record_id: str = "array",
    ) -> Recording:
        """Return a recording of samples in memory.

        Args:
            x: array `[num_leads, num_samples]` or `[num_samples]`, NaN where invalid; or pandas frame or Arrow table
                with one row a sample and one column a lead. A frame may have its times as index or as a column.
            rate_hz: samples per second; not needed for a frame with times.
            leads: names of the leads; of a frame, the columns to read.
            units: unit of all leads, or of each: `"mV"`, `"uV"`, `"V"` or steps of a converter per mV, as `"200/mV"`.
                Arrays are in mV by default; frames as their columns say, for example `ecg [uV]`.
            start: date and time of the first sample.
            record_id: name of the recording in results.

        Raises:
            HeartlmError: the shape, a unit or the number of names does not fit, or the rate is unknown.
        """
        made: Recording = attached("exchange").recording_of_array(x, rate_hz, leads, units, start, record_id)
        return made

    @staticmethod
    def from_mne(raw: Any, *, record_id: str = "raw") -> Recording:
        """Return the recording of an `mne.io.Raw`, which is read on demand; its annotations become `Annotations.notes`.

        Raises:
            HeartlmError: the rate is implausible.
        """
        made: Recording = attached("exchange").recording_of_mne(raw, record_id)
        return made

    @staticmethod
    def from_frame(frame: Any, *, rate_hz: float | None = None, record_id: str = "frame") -> Recording:
        """Return the recording of a pandas frame or Arrow table, as `from_array`: one row a sample, one column a lead.

        `from_frame(recording.to_frame())` has the same samples, rate, units and start.

        Raises:
            HeartlmError: the rate is neither given nor told by the times, or a column is no signal.
        """
        return Recording.from_array(frame, rate_hz=rate_hz, record_id=record_id)

    @staticmethod
    def from_wfdb(record: Any, annotation: Any = None) -> Recording:
        """Return the recording of a `wfdb.Record`, with the beats, rhythms and notes of a `wfdb.Annotation`.

        Raises:
            HeartlmError: the record has no samples.
        """
        made: Recording = attached("exchange").recording_of_wfdb(record, annotation)
        return made

    def to_frame(self, start: int = 0, stop: int | None = None, leads: Sequence[int | str] | None = None) -> Any:
        """Return samples `start` to `stop` as a pandas frame: one column a lead, the index in seconds since the start.

        `attrs` of the frame has `rate_hz`, `units` by lead, and `start` if known, so that `from_array` restores them.

        Raises:
            HeartlmError: pandas is not installed; or see `signal`.
        """
        return attached("exchange").frame_of(self, start, stop, leads)

    def with_annotations(self, annotations: Annotations | None) -> Recording:
        """Return the recording with other annotations, for example to write both by `to_wfdb`.

        Raises:
            HeartlmError: positions of the annotations are of another rate, or outside the recording.
        """
        if annotations is not None:
            limits = [limit for span in annotations.rhythms for limit in (span.start, span.stop - 1)]
            places = np.append(annotations.sample, np.array(limits, np.int64))
            if annotations.rate_hz != self.rate_hz:
                raise HeartlmError(f"annotations: of {annotations.rate_hz:g} Hz; {self.path} has {self.rate_hz:g} Hz")
            if len(places) and not 0 <= places.min() <= places.max() < self.num_samples:
                raise HeartlmError(
                    f"annotations: samples {places.min()} to {places.max()}; {self.path} has {self.num_samples}"
                )
        return replace(self, read_annotations=lambda _: annotations)

    def to_wfdb(self, folder: Path | str, name: str | None = None) -> Path:
        """Write the recording as a WFDB record with its annotations, and return the path of the header.

        Samples of files of integers are written exactly, in 16 bits if that is possible, as are samples that are
        multiples of one step; others with a step of 1/65,000 of their range.

        Args:
            folder: folder to write to; it is created.
            name: name of the record; by default that of the recording.

        Raises:
            HeartlmError: there is no signal, the name is no WFDB name, the record exists, or it cannot be written.
        """
        return Path(attached("exchange").write_record(self, Path(folder), name or self.record_id or self.path.stem))

    def to_mne(self) -> Any:
        """Return the recording as an `mne.io.RawArray` in volts; leads in mV are of type ecg, other channels misc.

        Raises:
            HeartlmError: mne is not installed, there is no signal, or it does not fit into memory.
        """
        return attached("exchange").mne_of(self)

    def anonymous(self) -> Recording:
        """Return the recording without patient data, date of its start, and texts that may name people.

        These are comments, notes and repairs, the names of patient and database, and names and units of leads that are
        not usual ones, in place of which there are numbers. `record_id` and `path` stay.
        """
        start = self.start.time() if isinstance(self.start, datetime) else self.start
        hidden: Recording = attached("anonymity").without_texts(self)[0]
        return replace(hidden, start=start)

    def lead_index(self, name: str | int) -> int:
        """Return the index of the lead called `name`, ignoring case; an index is returned unchanged.

        Raises:
            HeartlmError: there is no such lead.
        """
        if not isinstance(name, str):
            with suppress(TypeError):  # also integers of NumPy
                if 0 <= index(name) < self.num_leads:
                    return index(name)
            raise HeartlmError(f"{self.path}: no lead {name}; it has {self.num_leads}, counted from 0")
        lowered = [lead.lower() for lead in self.lead_names]
        if name.lower() not in lowered:
            raise HeartlmError(f"{self.path}: no lead {name!r}; it has {', '.join(self.lead_names) or 'no signal'}")
        return lowered.index(name.lower())

    def signal(
        self,
        start: int = 0,
        stop: int | None = None,
        leads: int | str | Sequence[int | str] | None = None,
        *,
        start_s: float | None = None,
        stop_s: float | None = None,
    ) -> NDArray[np.float32]:
        """Read samples `start` to `stop` (exclusive) of `leads`, by index or name (default: all).

        Args:
            start: first sample.
            stop: sample after the last one; by default the end.
            leads: indices or names of the leads, one or several.
            start_s: in place of `start`, seconds since the start of the recording, rounded to the nearest sample.
            stop_s: in place of `stop`, likewise.

        Returns:
            float32 `[num_leads, num_samples]` in millivolts (in `units` for other quantities), NaN where invalid.

        Raises:
            HeartlmError: there is no signal or no such lead, the range is outside the recording or is given in samples
                and in seconds, or a file is unreadable.
        """
        if self.samples is None:
            raise HeartlmError(f"{self.path}: this recording has annotations only, no signal to read")
        if (start and start_s is not None) or (stop is not None and stop_s is not None):
            raise HeartlmError(f"{self.path}: give start and stop in samples, or start_s and stop_s in seconds")
        try:
            first = index(start) if start_s is None else round(start_s * self.rate_hz)
            end = self.num_samples if stop is None else index(stop)
            end = end if stop_s is None else round(stop_s * self.rate_hz)
        except (OverflowError, TypeError, ValueError):  # infinite, or no number
            asked = f"samples {start!r} to {stop!r}, seconds {start_s!r} to {stop_s!r}"
            raise HeartlmError(f"{self.path}: {asked} asked for, numbers expected") from None
        if not 0 <= first <= end <= self.num_samples:
            raise HeartlmError(
                f"{self.path}: samples {first} to {end} asked for, the recording has {self.num_samples} "
                f"({self.duration_s:g} s)"
            )
        if leads is None:
            leads = range(self.num_leads)
        several: Iterable[int | str] = [leads] if isinstance(leads, str) or not isinstance(leads, Iterable) else leads
        indices = list(map(self.lead_index, several))
        # float32: a damaged length must not fill the memory; half of it is left for what is computed from the samples
        if 4 * len(indices) * (end - first) > MEMORY_BYTES // 2:
            raise HeartlmError(
                f"{self.path}: {end - first} samples of {len(indices)} leads do not fit into memory; if that is not "
                "its length, correct the header"
            )
        with one_line(self.path, "samples"):
            return self.samples(first, end, indices)

    def refuse_if_damaged(self) -> None:
        """Raise an error if faults were found so far.

        Raises:
            HeartlmError: there are faults. The message lists them.
        """
        if self.faults:
            raise HeartlmError(
                f"{self.path}: damaged ({'; '.join(self.faults[:3])}); fetch it again, or correct its header if that "
                "is wrong; commands with --damaged warn use it as it is"
            )

    def warn_if_damaged(self) -> None:
        """Print the faults found so far to standard error, one line each."""
        for fault in self.faults:
            say(f"warning: {self.path}: damaged ({fault})")


def rhythm_named(text: str) -> str | None:
    """Return the rhythm that a free text names as a whole, by its code or its usual name; None if it names none.

    A code of one letter needs the opening bracket of WFDB, because single letters stand for other things too.
    """
    bare = text.strip("\x00 \t\n(")
    if bare in RHYTHM_INDEX or bare in _TABLES["aliases"]:
        return RHYTHMS[rhythm_index(bare)] if len(bare) > 1 or text.startswith("(") else None
    return _RHYTHM_OF_NAME.get(bare.casefold())


def is_beat(symbols: Iterable[str]) -> NDArray[np.bool_]:
    """Return for each WFDB code whether it marks a heartbeat; shape `[num_symbols]`."""
    return np.fromiter((symbol in CLASS_OF_SYMBOL for symbol in symbols), dtype=np.bool_)


def rhythm_index(name: str) -> int:
    """Return the index of a rhythm name, ignoring a bracket or NUL around it; an unknown name is `OTHER`."""
    bare = name.strip("\x00 \t\n(")
    return RHYTHM_INDEX.get(_TABLES["aliases"].get(bare, bare), RHYTHM_INDEX["OTHER"])


@dataclass(frozen=True)
class RhythmSpan:
    """A span `[start, stop)` of samples with one rhythm, named as in `RHYTHMS`."""

    start: int
    stop: int
    name: str


@dataclass(frozen=True)
class Note:
    """A text at the samples `[start, stop)`; `stop` is `start` if it has no duration."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class Annotations:
    """Heartbeats and rhythms of one recording.

    Attributes:
        rate_hz: rate in Hz of all positions; equal to the recording's sampling rate.
        sample: beat positions, int64 `[num_beats]`, ascending.
        symbol: WFDB beat codes, `<U1` `[num_beats]`.
        rhythms: rhythm spans, ascending and not overlapping; samples outside them are unlabelled.
        beats_labelled: whether an annotator assigned `symbol`; false for detected beats and for databases that mark
            all beats N without classification (afdb `.qrs`, cudb).
        source: origin of the annotations, for example `"100.atr"` or `"detected"`.
        ignored: number of omitted entries by reason, for example `{"past the end": 1}`.
        faults: signs of damage in readable files, one line each.
        notes: other texts, ascending, for example of events that the patient marked.
    """

    rate_hz: float
    sample: NDArray[np.int64]
    symbol: NDArray[np.str_]
    rhythms: tuple[RhythmSpan, ...] = ()
    beats_labelled: bool = True
    source: str = ""
    ignored: dict[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        source = f" by {self.source}" if self.source else ""
        return (
            f"<Annotations{source}: {self.num_beats:,} beats, {len(self.rhythms):,} rhythms, {len(self.notes):,} notes>"
        )

    @staticmethod
    def from_frame(beats: Any, rate_hz: float, rhythms: Any = None) -> Annotations:
        """Return annotations of pandas frames.

        Args:
            beats: one row a beat: `sample` or `time_s`, and `symbol`, WFDB codes or AAMI classes. Without `symbol`, the
                beats are not labelled. Other columns are ignored, so `Findings.to_frame()` is such a frame.
            rate_hz: sampling rate of the recording.
            rhythms: one row a rhythm: `start` and `stop` in samples, or `start_s` and `duration_s`, and `name`, of WFDB
                or in words.

        Raises:
            HeartlmError: a column is missing, or has a position, code or name that cannot be.
        """
        made: Annotations = attached("exchange").annotations_of_frames(beats, rate_hz, rhythms)
        return made

    def to_frame(self) -> Any:
        """Return the beats as a pandas frame: `sample`, `time_s`, `symbol`, and `rhythm`, empty outside all spans.

        Without labels of the beats there is no `symbol`.
        """
        rhythm = np.array([*RHYTHMS, ""])[self.rhythm_at(self.sample)]
        columns = {"sample": self.sample, "time_s": self.sample / self.rate_hz, "symbol": self.symbol, "rhythm": rhythm}
        return pandas().DataFrame(columns if self.beats_labelled else {n: columns[n] for n in columns if n != "symbol"})

    def rhythms_frame(self) -> Any:
        """Return the rhythms as a pandas frame: `start` and `stop` in samples, `name`, `start_s` and `duration_s`."""
        frame = pandas().DataFrame([asdict(span) for span in self.rhythms], columns=["start", "stop", "name"])
        return frame.assign(
            start_s=frame["start"] / self.rate_hz, duration_s=(frame["stop"] - frame["start"]) / self.rate_hz
        )

    @property
    def num_beats(self) -> int:
        """Number of heartbeats."""
        return len(self.sample)

    def beat_classes(self) -> NDArray[np.int8]:
        """Return the AAMI class index of each beat, or `UNLABELLED` if beats are not labelled; int8 `[num_beats]`."""
        if not self.beats_labelled:
            return np.full(self.num_beats, UNLABELLED, np.int8)
        classes = CLASS_OF_SYMBOL | {ARTEFACT: BEAT_CLASSES.index(ARTEFACT)}
        return np.array([classes.get(symbol, UNLABELLED) for symbol in self.symbol.tolist()], np.int8)

    def rhythm_at(self, sample: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the rhythm index at each position, `UNLABELLED` outside all spans; int8, same shape as `sample`."""
        labels = np.full(len(sample), UNLABELLED, np.int8)
        for span in self.rhythms:
            first, last = np.searchsorted(sample, [span.start, span.stop])
            labels[first:last] = rhythm_index(span.name)
        return labels
