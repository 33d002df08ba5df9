"""`Findings`: results of the analysis of one recording, with counts per hour and in total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.limits import Limits
from heartlm.ecg.definitions import KINDS as CLINICAL_KINDS
from heartlm.ecg.definitions import REPORT, definitions
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX, Annotations, Recording
from heartlm.ecg.spans import inside_of, joined_spans, runs
from heartlm.ecg.statements import words_of
from heartlm.errors import HeartlmError
from heartlm.formats.write_annotations import write_annotations
from heartlm.system.attached import attached
from heartlm.system.frames import pandas

if TYPE_CHECKING:
    from heartlm.delineation.intervals import Intervals

KINDS = definitions(REPORT)
"""Kinds of events with definitions by the usual limits, the most dangerous first."""

QUALITY_S = 10.0
"""Length in seconds of the pieces for signal quality."""

NEAR_BEAT_S = 0.05
"""Time before and after a beat that has its class in `Findings.tracks`."""

RATE_INTERVALS = 8
"""Number of consecutive intervals in the mean for the slowest and fastest heart rate."""

_RHYTHMS = {name: kind.rhythm for name, kind in CLINICAL_KINDS.items() if kind.rhythm}
"""WFDB rhythm of each kind that is a rhythm, in order of priority where rhythms overlap."""


@dataclass(frozen=True)
class Event:
    """Event in a recording.

    Attributes:
        kind: one of `KINDS`.
        start: first sample.
        stop: sample after the last one.
        confidence: mean model probability of the beats or seconds of the event, 0 to 1; of runs and couplets that of
            the least sure beat.
        num_beats: number of beats in the event.
        rate_bpm: mean heart rate in beats per minute; NaN with fewer than two beats.
        disputed: whether a lead contradicts the event, or no lead can be read in it; its confidence is halved then.
        interval_ms: median PR, QRS or QTc of the event, of kinds that are about one; NaN for the others.
        rate_hz: sampling rate of the recording in Hz, by which events of `Findings` tell their times in seconds.
    """

    kind: str
    start: int
    stop: int
    confidence: float
    num_beats: int = 0
    rate_bpm: float = float("nan")
    disputed: bool = False
    interval_ms: float = float("nan")
    rate_hz: float = field(default=float("nan"), repr=False, compare=False)

    @property
    def start_s(self) -> float:
        """Begin in seconds since the start of the recording; `stop_s` is the end."""
        return self.start / self.rate_hz

    @property
    def stop_s(self) -> float:
        """End in seconds since the start of the recording."""
        return self.stop / self.rate_hz


EVENT_FIELDS = (
    *("start_s", "clock", "duration_s", "kind", "confidence", "num_beats", "rate_bpm", "disputed", "interval_ms"),
)
"""Fields of an event in tables and files."""


def covered(events: Iterable[Event], places: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each of the ascending positions `places` is in one of `events`."""
    inside = np.zeros(len(places), np.bool_)
    for event in events:
        first, last = np.searchsorted(places, [event.start, event.stop])
        inside[first:last] = True
    return inside


def crossed(events: Iterable[Event], sample: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the interval from each beat to the next intersects one of `events`, bool `[num_beats - 1]`."""
    is_crossed = np.zeros(max(0, len(sample) - 1), np.bool_)
    for event in events:
        # Interval i lasts from beat i to beat i + 1: the first one may begin before the event.
        first, last = np.searchsorted(sample, event.start) - 1, np.searchsorted(sample, event.stop)
        is_crossed[max(0, first) : last] = True
    return is_crossed


def readable_intervals(
    events: Iterable[Event], sample: NDArray[np.int64], lost: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether each interval is outside of VF, unreadable stretches and lost signal, bool `[num_beats - 1]`."""
    readable = ~crossed((event for event in events if event.kind in ("unreadable", "VF")), sample)
    readable[lost] = False
    return readable


@dataclass(frozen=True)
class Findings:
    """Results of the analysis of one recording.

    Attributes:
        recording: analysed recording; its signal is read only for strips.
        leads: indices of the analysed leads, the one with the best signal first.
        sample: position of each beat, int64 `[num_beats]`, ascending.
        symbol: AAMI class of each beat (N, S, V or F), `<U1` `[num_beats]`.
        probability: probability of that class, float32 `[num_beats]`.
        events: events by start, then in the order of `KINDS`.
        quality: readable fraction of each piece of `QUALITY_S`, float32 `[num_analysed_leads, num_pieces]`.
        notes: exclusions and doubtful results with reasons, one line each.
        made_by: version of heartlm, and digests of the models and of what else it ships that decides findings.
        unlike: differences from the training recordings of the models, one line each.
        kinds: definition of each kind of event by the limits of the analysis.
        lost: beats after which the signal of all leads is lost before the next one, int64 `[num_lost]`.
        left_out: detections that are left out as artefacts, outside of VF and unreadable stretches, int64
            `[num_left_out]`.
        paced: whether each beat follows a pacing spike, see `heartlm.detect_pacing`, bool `[num_beats]`. Of these
            beats `symbol` is N or V of AAMI, and `annotations` has the WFDB code `/`.
        hum_hz: frequencies in Hz of mains hum that was removed before the analysis, by lead.
        waves: P, QRS and T of the beats and their intervals; None if they were not measured.
        short_af: measures by which AF of a short recording of one lead is judged, and what RR intervals alone tell, see
            `heartlm.analysis.short_af`; empty for other recordings.
        stated: probability of each statement about the recording that all leads together make, the likeliest first;
            empty for recordings that are not judged so, see `heartlm.analysis.statements`.
        warnings: what makes all findings doubtful, such as exchanged electrodes, one line each.
        unexamined: kinds of events that the recording was not examined for, each with the reason.
        limits: limits of the rules for beats.
        disputed: whether the leads disagree on the interval from each beat to the next, bool `[num_beats - 1]`.
        by_waveform: VT and asystole by the waveform, also those that yield to events of beats.
        reviewed: what a reviewer changed, one line; empty without a review.
    """

    recording: Recording
    leads: tuple[int, ...]
    sample: NDArray[np.int64]
    symbol: NDArray[np.str_]
    probability: NDArray[np.float32]
    events: tuple[Event, ...]
    quality: NDArray[np.float32]
    notes: tuple[str, ...] = ()
    made_by: dict[str, str] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()
    kinds: dict[str, str] = field(default_factory=lambda: KINDS)
    lost: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    left_out: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    paced: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    hum_hz: dict[str, tuple[float, ...]] = field(default_factory=dict)
    waves: Intervals | None = None
    short_af: dict[str, float] = field(default_factory=dict)
    stated: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unexamined: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    disputed: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    by_waveform: tuple[Event, ...] = ()
    reviewed: str = ""

    def __post_init__(self) -> None:
        """Findings made without `paced` or `disputed` have none; events get the rate of the recording."""
        rate_hz = self.recording.rate_hz
        timed = tuple(each if each.rate_hz == rate_hz else replace(each, rate_hz=rate_hz) for each in self.events)
        object.__setattr__(self, "events", timed)
        for name, num in (("paced", len(self.sample)), ("disputed", max(0, len(self.sample) - 1))):
            if len(getattr(self, name)) != num:
                object.__setattr__(self, name, np.zeros(num, np.bool_))

    def __repr__(self) -> str:
        recording, of_class = self.recording, Counter(self.symbol.tolist())
        beats = " ".join(f"{name} {of_class[name]:,}" for name in "NSVF" if of_class[name])
        kinds = Counter(event.kind for event in self.events)
        events = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind]) or "no events"
        name = f"{recording.database}/{recording.record_id}" if recording.database else recording.record_id
        return f"<Findings of {name}: {self.num_beats:,} beats ({beats}) in {recording.duration_s:,.0f} s; {events}>"

    def _repr_html_(self) -> str:
        rows = [
            (kind, f"{len(self.of_kind(kind))} in {self.seconds_of(kind):,.1f} s: {meaning}")
            for kind, meaning in self.kinds.items()
            if self.of_kind(kind)
        ]
        worst = next((self.of_kind(kind)[0] for kind in KINDS if self.of_kind(kind)), None)
        return str(attached("drawings").shown_html(repr(self)[1:-1], rows, lambda: self.plot(worst)))

    def plot(self, event: Event | int | None = None, *, ax: Any = None) -> Any:
        """Draw ten seconds around an event, with beats, probabilities and events.

        Args:
            event: one of `events` or its index; by default the first, or the begin of a recording without events.
            ax: axes of matplotlib to draw on.

        Returns:
            A picture that a notebook shows, with `.save("100.svg")`; or `ax`.

        Raises:
            HeartlmError: there is no signal to draw.
        """
        return attached("drawings").plot_findings(self, event, ax)

    def report(self, path: str | Path) -> Path:
        """Write the page about the recording that `heartlm analyze` writes: one HTML file without network requests.

        Raises:
            HeartlmError: the file cannot be written, or the signal of a strip cannot be read.
        """
        return Path(attached("drawings").write_page(self, Path(path)))

    def reading(self) -> str:
        """Return the findings in one line of plain words: `Sinus rhythm, 72/min. Two ventricular beats.`

        Rhythm and rate, ectopic beats, events, conduction and intervals that are not usual, what all leads together
        suggest, and what could not be read; of more than an hour in three sentences. Doubtful events are `possible`.
        """
        return str(attached("words").reading(self))

    def brief(self) -> dict[str, Any]:
        """Return what fits one line, as values: the rhythm, rates, beats, intervals in ms, events that were found.

        Intervals are medians of the normal beats, None where they were not measured; `reading` has it in words.
        """
        return dict(attached("words").brief(self))

    def corrected(
        self,
        sample: NDArray[np.int64] | None = None,
        symbol: NDArray[np.str_] | None = None,
        probability: NDArray[np.float32] | None = None,
        *,
        refused: Iterable[Event] = (),
        added: Iterable[Event] = (),
    ) -> Findings:
        """Return the findings with corrected beats and events, from which the rules derive all other events again.

        Runs, couplets, patterns, pauses and rates follow from the beats; VF, AF, unreadable stretches and intervals
        stay unless they are refused. To change an event, refuse it and add the new one.

        Args:
            sample: position of each beat, ascending; by default the beats of these findings.
            symbol: AAMI class of each, N, S, V or F; by default those of these findings.
            probability: probability of each class; by default as before, and 1 of beats with another class.
            refused: events that are none. Later events of the kind that overlap one are refused, too.
            added: events that were not found; they replace those of the same kind that follow from beats.

        Raises:
            HeartlmError: numbers of beats and classes differ, positions do not ascend, or a class is unknown.
        """
        made: Findings = attached("corrections").corrected(self, sample, symbol, probability, refused, added)
        return made

    def hrv(self) -> dict[str, Any]:
        """Return heart rate variability by the Task Force of 1996, None where there are too few normal intervals.

        `sdnn_ms`, `sdann_ms`, `sdnn_index_ms`, `rmssd_ms`, `pnn50_pct`, `lf_ms2`, `hf_ms2` and `lf_hf`, of NeuroKit2
        `HRV_SDNN`, `HRV_SDANN5`, `HRV_SDNNI5`, `HRV_RMSSD`, `HRV_pNN50`, `HRV_LF`, `HRV_HF` and `HRV_LFHF`; and by
        how many intervals and pieces of five minutes, with `notes` on what is missing and why.
        """
        return dict(self._variability)

    @cached_property
    def _variability(self) -> dict[str, Any]:
        return dict(attached("variability").variability(self))

    @property
    def num_beats(self) -> int:
        """Number of beats, without the detections that are left out."""
        return len(self.sample)

    def normal_waves(self) -> Intervals | None:
        """Return `waves` of the normal beats alone: intervals and ST levels of ectopic beats are others."""
        return None if self.waves is None else self.waves.of_beats(self.symbol == "N")

    def of_kind(self, kind: str) -> list[Event]:
        """Return the events of one kind of `KINDS`, in any case of letters, by start.

        Raises:
            HeartlmError: there is no such kind.
        """
        named = (KINDS.get(kind) and kind) or next((each for each in KINDS if each.lower() == str(kind).lower()), None)
        if named is None:
            raise HeartlmError(f"kind: {kind!r} found; one of {', '.join(KINDS)} expected")
        return [event for event in self.events if event.kind == named]

    def seconds_of(self, kind: str) -> float:
        """Return the total duration of the events of one kind in seconds."""
        return sum(event.stop - event.start for event in self.of_kind(kind)) / self.recording.rate_hz

    def readable(self) -> NDArray[np.bool_]:
        """Return whether each interval is outside of VF, unreadable stretches and lost signal, `[num_beats - 1]`."""
        return readable_intervals(self.events, self.sample, self.lost)

    def marks(self) -> list[dict[str, Any]]:
        """Return the notes that the recording holds, such as presses of a button: `start_s`, `duration_s`, `text`."""
        rate_hz, annotations = self.recording.rate_hz, None
        with suppress(HeartlmError):  # `notes` then names the file
            annotations = self.recording.annotations
        return [
            {
                "start_s": round(note.start / rate_hz, 3),
                "duration_s": round((note.stop - note.start) / rate_hz, 3),
                "text": "".join(character if character.isprintable() else "?" for character in note.text),
            }
            for note in (annotations.notes if annotations is not None else ())
        ]

    def mean_rr_s(self) -> NDArray[np.float64]:
        """Return means of `RATE_INTERVALS` consecutive intervals in seconds; NaN where one of them is not readable.

        Entry i is of the beats i to i + `RATE_INTERVALS`; float64 `[num_beats - RATE_INTERVALS]`.
        """
        if self.num_beats <= RATE_INTERVALS:
            return np.empty(0)
        first, last = self.sample[:-RATE_INTERVALS], self.sample[RATE_INTERVALS:]
        clear = np.convolve(self.readable(), np.ones(RATE_INTERVALS), "valid") == RATE_INTERVALS  # all of them
        return np.where(clear, (last - first) / (RATE_INTERVALS * self.recording.rate_hz), np.nan)

    def rates(self) -> dict[str, float | None]:
        """Return `mean_rate_bpm`, and of `RATE_INTERVALS` `slowest_bpm` and `fastest_bpm`; None with too few beats."""
        rr_s, means = np.diff(self.sample)[self.readable()] / self.recording.rate_hz, self.mean_rr_s()
        means = means[np.isfinite(means)]
        return {
            "mean_rate_bpm": round(60 / float(rr_s.mean()), 1) if len(rr_s) else None,
            "slowest_bpm": round(60 / float(means.max()), 1) if len(means) else None,
            "fastest_bpm": round(60 / float(means.min()), 1) if len(means) else None,
        }

    def summary(self) -> dict[str, Any]:
        """Return counts and extremes of the whole recording; rates in beats per minute, durations in seconds.

        The slowest and fastest rates are means over `RATE_INTERVALS`; None if there are too few beats. Numbers and
        seconds of events are None for kinds that were not examined; `unexamined` has the reasons.
        """
        recording, of_class = self.recording, Counter(self.symbol.tolist())
        rr_s, clear = np.diff(self.sample) / recording.rate_hz, self.readable()
        return {
            "record": recording.record_id,
            "patient": recording.patient_id,
            "start": recording.clock_time(0),
            "duration_s": round(recording.duration_s, 3),
            "leads": [recording.lead_names[lead] for lead in self.leads],
            "warnings": "; ".join(self.warnings),
            "unlike": "; ".join(self.unlike),
            "hum_removed": self.hum_in_words(),
            "readable_share": round(1 - self.seconds_of("unreadable") / max(recording.duration_s, 1e-9), 4),
            "num_beats": self.num_beats,
            "num_left_out": len(self.left_out),
            "beats": {name: of_class.get(name, 0) for name in "NSVF"},
            "num_s_couplets": int((np.diff(runs(self.symbol == "S"), axis=1) == 2).sum()),
            "num_paced": int(self.paced.sum()),
            **self.rates(),
            "longest_rr_s": round(float(rr_s[clear].max()), 3) if clear.any() else None,
            "events": {kind: self._if_examined(kind, len(self.of_kind(kind))) for kind in KINDS},
            "seconds": {kind: self._if_examined(kind, round(self.seconds_of(kind), 1)) for kind in KINDS},
            "stated": self.stated_in_words(),
            "unexamined": self.unexamined_in_words(),
            "hrv": {name: self._variability[name] for name in attached("variability").MEASURES},
            "reading": self.reading(),
        }

    def _if_examined(self, kind: str, value: float) -> float | None:
        return None if kind in self.unexamined else value

    def unexamined_in_words(self) -> str:
        """Return the kinds that were not examined as one line: `AF: 7 beats in a row, 9 needed; LBBB, RBBB: ...`."""
        by_reason = groupby(sorted(self.unexamined, key=self.unexamined.__getitem__), self.unexamined.__getitem__)
        return "; ".join(f"{', '.join(kinds)}: {reason}" for reason, kinds in by_reason)

    def stated_in_words(self) -> str:
        """Return what all leads together state as one line: `atrial fibrillation 0.97; ischaemia 0.4`."""
        words = zip(words_of(self.stated), self.stated.values(), strict=True)
        return "; ".join(f"{each} {probability:.2g}" for each, probability in words)

    def hum_in_words(self) -> str:
        """Return the mains hum that was removed as one line: `60 Hz in I, II`."""
        by_mains = dict[tuple[float, ...], list[str]]()
        for lead, frequencies in self.hum_hz.items():
            by_mains.setdefault(frequencies, []).append(lead)
        return "; ".join(
            f"{' and '.join(f'{each:g}' for each in frequencies)} Hz in {', '.join(leads)}"
            for frequencies, leads in by_mains.items()
        )

    def hours(self) -> list[dict[str, Any]]:
        """Return one row per hour since the start: beats by class, heart rates, events that start in it, seconds of AF.

        `start_s` is the time since the start, `clock` the recorder's, see `Recording.clock_time`.
        """
        rate_hz, rows = self.recording.rate_hz, []
        hour, clear = round(3600 * rate_hz), self.readable()
        rr_s = np.diff(self.sample) / rate_hz
        begin = Counter((event.start // hour, event.kind) for event in self.events)
        lasting = {kind: self.of_kind(kind) for kind in ("AF", "flutter", "unreadable")}
        for start in range(0, max(1, self.recording.num_samples), hour):
            stop = min(start + hour, self.recording.num_samples)
            first, last = np.searchsorted(self.sample, [start, stop])
            # An interval counts in the hour in which it begins, so that a pause over the hour is in a row too.
            clear_rr_s = rr_s[first:last][clear[first:last]]
            of_class = Counter(self.symbol[first:last].tolist())
            lasting_samples = {
                kind: sum(max(0, min(event.stop, stop) - max(event.start, start)) for event in events)
                for kind, events in lasting.items()
            }
            rows.append(
                {"start_s": start / rate_hz, "clock": self.recording.clock_time(start / rate_hz)}
                | {"num_beats": int(last - first)}
                | {name: of_class.get(name, 0) for name in "NSVF"}
                | {"mean_rate_bpm": round(60 / float(clear_rr_s.mean()), 1) if len(clear_rr_s) else None}
                | {"shortest_rr_s": round(float(clear_rr_s.min()), 3) if len(clear_rr_s) else None}
                | {"longest_rr_s": round(float(clear_rr_s.max()), 3) if len(clear_rr_s) else None}
                | {
                    f"{kind.lower()}_s": self._if_examined(kind, round(samples / rate_hz, 1))
                    for kind, samples in lasting_samples.items()
                }
                | {kind: self._if_examined(kind, begin[start // hour, kind]) for kind in KINDS}
            )
        return rows

    def annotations(self) -> Annotations:
        """Return beats and rhythms as annotations; where rhythms overlap, the most dangerous one is used."""
        end = max(self.recording.num_samples, int(self.sample[-1]) + 1 if self.num_beats else 0)
        edges = sorted({0, end, *(edge for event in self.events for edge in (event.start, min(event.stop, end)))})
        starts = np.array(edges[:-1], np.int64)
        rank = np.full(len(starts), len(_RHYTHMS))
        for event in self.events:
            if event.kind in _RHYTHMS:
                first, last = np.searchsorted(starts, [event.start, event.stop])
                rank[first:last] = np.minimum(rank[first:last], list(_RHYTHMS).index(event.kind))
        names = [*_RHYTHMS.values(), "N"]
        spans = joined_spans([names[each] for each in rank.tolist()], starts, end)
        codes = np.where(self.paced, "/", self.symbol)
        return Annotations(self.recording.rate_hz, self.sample, codes, spans, source="heartlm")

    def tracks(self) -> NDArray[np.uint8]:
        """Return wave, class of beat and rhythm at each sample, uint8 `[3, num_samples]`, for training and drawing.

        The wave is that of all leads together: 0 none, 1 P, 2 QRS, 3 T; 0 where waves were not measured. The class is
        1 + the index in `heartlm.ecg.recording.BEAT_CLASSES` within 50 ms of a beat, 0 elsewhere; a paced beat is Q.
        The rhythm is the index in `heartlm.ecg.recording.RHYTHMS`.
        """
        num, near = self.recording.num_samples, round(NEAR_BEAT_S * self.recording.rate_hz)
        tracks = np.zeros((3, num), np.uint8)
        if self.waves is not None:
            together = self.waves.delineation.all_leads
            for wave in (0, 2, 1):  # a QRS complex counts where waves overlap
                tracks[0, inside_of(together[:, wave][:, [0, 2]], num)] = wave + 1
        for label, name in enumerate(BEAT_CLASSES):
            beats = self.sample[np.where(self.paced, "Q", self.symbol) == name]
            around = np.stack([np.maximum(beats - near, 0), np.minimum(beats + near, num - 1)], axis=1)
            tracks[1, inside_of(around, num)] = label + 1
        for span in self.annotations().rhythms:
            tracks[2, span.start : span.stop] = RHYTHM_INDEX[span.name]
        return tracks

    def write(self, path: str | Path) -> Path:
        """Write beats and rhythms as a WFDB annotation file, `FOLDER/RECORD.hlm`; an earlier `.hlm` is replaced.

        Raises:
            HeartlmError: the suffix is not an annotator name, another annotator's file exists, or nothing was found.
        """
        path = Path(path)
        return write_annotations(path.parent, path.stem, self.annotations(), path.suffix.removeprefix("."))

    def event_rows(self) -> list[dict[str, Any]]:
        """Return the events as dictionaries with the fields `EVENT_FIELDS`.

        `start_s` is the time since the start, `clock` the recorder's, see `Recording.clock_time`.
        """
        rate_hz, rows = self.recording.rate_hz, []
        for event in self.events:
            row, start_s = asdict(event), event.start / rate_hz
            row |= {"start_s": start_s, "clock": self.recording.clock_time(start_s, 3)}
            row |= {"duration_s": (event.stop - event.start) / rate_hz, "disputed": bool(event.disputed)}
            rows.append({name: row[name] for name in EVENT_FIELDS})
        return rows

    def events_frame(self) -> Any:
        """Return the events as a pandas DataFrame, see `event_rows`; its types do not depend on what was found."""
        numbers = ("start_s", "duration_s", "confidence", "rate_bpm", "interval_ms")
        types = dict.fromkeys(numbers, "float64") | {"num_beats": "int64", "disputed": "bool"}
        return pandas().DataFrame(self.event_rows(), columns=list(EVENT_FIELDS)).astype(types)

    def to_frame(self) -> Any:
        """Return the beats as a pandas DataFrame: sample, time_s, symbol and probability."""
        columns = {"sample": self.sample, "time_s": self.sample / self.recording.rate_hz}
        return pandas().DataFrame(columns | {"symbol": self.symbol, "probability": self.probability})
