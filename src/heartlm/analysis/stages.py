"""The stages between the answers of the models and the findings: each has a type, and hands it to the next.

    block ─► Seconds (VF, unreadable) ─► Heartbeats (clear intervals) ─► Rhythms (AF, flutter) ─► Classes ─► events

Where two events contradict each other, `PRECEDENCE` tells which stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.av_block import BLOCKS
from heartlm.analysis.events import beat_events, in_order, mean_rate_bpm, second_events, seconds_of
from heartlm.analysis.findings import QUALITY_S, Event, covered, crossed
from heartlm.analysis.limits import Limits
from heartlm.analysis.lost_signal import joined_events, lost_events
from heartlm.analysis.unexamined import SHORTEST_S
from heartlm.analysis.usual_shape import excluded_classes
from heartlm.inference.waveform import predicted_classes
from heartlm.labels.waveform import ASYSTOLE, NOISE, VF, VT

VF_CONFIDENCE = 0.5
"""Minimum mean probability of VF. Of 109 predicted stretches in cudb it keeps 62, with 48 of the 49 confirmed ones."""
UNREADABLE, DOUBTFUL = 0.65, 0.85
"""Limits of the best lead's quality: a piece is unreadable below the first, or below the second if predicted noise."""
LONG_INTERVAL = 1.5
"""An interval with an artefact in it that is longer than this number of usual intervals counts as lost signal."""
FEWEST_USUAL = 0.25
"""Smallest fraction of intervals without an artefact whose median is the usual interval; with fewer, it is that between
all detections, as most of the artefacts may be beats."""

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


class AnalysedBlock(NamedTuple):
    """Results of one block of a recording.

    Attributes:
        sample: position of each beat, int64 `[num_beats]`.
        no_beat: whether each is no heartbeat but an artefact that the detector marked, bool `[num_beats]`.
        disputed: whether the leads disagree on the interval from each beat to the next, see `fill_gaps`, bool
            `[num_beats]`.
        lost: whether the signal of all leads is lost between each beat and the next, bool `[num_beats]`.
        probability: class probabilities of each beat, float32 `[num_beats, 4]`.
        paced: whether each follows a pacing spike, see `paced_beats`, bool `[num_beats]`.
        likeness: see `likeness_to_usual`, float32 `[num_beats]`.
        several: whether several leads can be read at each beat, bool `[num_beats]`.
        shape: see `run_shape`, float32 `[num_beats, 2, num_leads]`.
        seconds: probability of each waveform class in each second, float64 `[num_seconds, 5]`.
        waves: fraction of the windows over each second that show regular waves at a rate of VT where they may be VF,
            float64 `[num_seconds]`.
        regular: whether a lead shows regular beats in each second, see `regular_seconds`, bool `[num_seconds]`.
        flutter: probability of flutter in each second, float64 `[num_seconds]`.
        atrial: fraction of the signal that a wave of flutter explains in each second, see `flutter`, float64
            `[num_seconds]`.
        quality: signal quality of each piece of each lead, relative to what is not lost in all leads, float32
            `[num_pieces, num_leads]`.
        readable: readable fraction of each piece of each lead, float32 `[num_pieces, num_leads]`.
        stretches: start and stop of each stretch of lost signal, int64 `[num_stretches, 2]`.
        all_off: start and stop of each stretch in which an electrode is off and no other lead can be read, int64
            `[num_stretches, 2]`.
        measures: measures of some beats, see `measures_of_beats`.
    """

    sample: Places
    no_beat: NDArray[np.bool_]
    disputed: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    probability: NDArray[np.float32]
    paced: NDArray[np.bool_]
    likeness: NDArray[np.float32]
    several: NDArray[np.bool_]
    shape: NDArray[np.float32]
    seconds: NDArray[np.float64]
    waves: NDArray[np.float64]
    regular: NDArray[np.bool_]
    flutter: NDArray[np.float64]
    atrial: NDArray[np.float64]
    quality: NDArray[np.float32]
    readable: NDArray[np.float32]
    stretches: NDArray[np.int64]
    all_off: NDArray[np.int64]
    measures: NDArray[np.float64]


class Yields(NamedTuple):
    """An event that is left out where another one is.

    Attributes:
        kind: kind of the event, found by `source`.
        source: what finds it.
        to: kind of the event that stays, found by `to_source`.
        to_source: what finds that.
        share: fraction of its beats in the other event from which on it yields; 0 for any overlap.
    """

    kind: str
    source: str
    to: str
    to_source: str
    share: float = 0.0


PRECEDENCE = (
    # The wave of flutter is seen; RR intervals alone do not tell it from AF.
    Yields("AF", "intervals", "flutter", "atrial wave", 0.5),
    # In AF there are no P waves on time.
    *(Yields("AF", "intervals", kind, "P waves", 0.5) for kind in BLOCKS),
    *(Yields(kind, "P waves", "flutter", "atrial wave") for kind in BLOCKS),
    *(Yields("junctional", "P waves", *other) for other in (("flutter", "atrial wave"), ("AF", "intervals"))),
    # VT never becomes SVT.
    Yields("SVT", "beats", "VT", "waveform"),
    # Beats tell the begin, the end and the rate.
    Yields("VT", "waveform", "VT", "beats"),
    Yields("asystole", "waveform", "asystole", "beats"),
)
"""Which event stays where two contradict each other; applied from the first to the last. Before it, VF and unreadable
stretches leave out the beats in them, so no other event is there."""


def settled(found: Mapping[str, list[Event]], sample: Places) -> list[Event]:
    """Return the events without those that yield by `PRECEDENCE`; `found` has them by what found them."""
    left = dict(found)

    def yields(event: Event, rule: Yields) -> bool:
        others = [each for each in left.get(rule.to_source, ()) if each.kind == rule.to]
        if rule.share:
            return not covered(others, sample[covered([event], sample)]).mean() < rule.share
        return _overlaps(event, others)

    for rule in PRECEDENCE:
        if rule.source in left:
            left[rule.source] = [each for each in left[rule.source] if each.kind != rule.kind or not yields(each, rule)]
    return [event for events in left.values() for event in events]


@dataclass(frozen=True)
class Seconds:
    """What each second of a recording shows.

    Attributes:
        edges: first sample of each second, and the end, int64 `[num_seconds + 1]`.
        predicted: class of the waveform, int64 `[num_seconds]`.
        readable: whether each can be read, and is no VF, bool `[num_seconds]`.
        vf: VF.
        vt_waves: VT by regular waves that the waveform network takes for VF.
        sure_vt: which of these no lead contradicts by regular beats.
        unreadable: stretches that cannot be read.
        notes: doubtful results, one line each.
    """

    edges: Places
    predicted: Places
    readable: Flags
    vf: list[Event]
    vt_waves: list[Event]
    sure_vt: list[Event]
    unreadable: list[Event]
    notes: list[str]


def judged_seconds(block: AnalysedBlock, num_samples: int, rate_hz: float, threshold: float) -> Seconds:
    """Judge the seconds of a whole recording; `threshold` is the probability of VF from which on it is VF."""
    notes, probability, quality = list[str](), block.seconds, block.quality.T
    # Pieces and blocks have whole samples, so at a rate such as 127.97 Hz ten of their seconds are not quite ten.
    edges = np.minimum(np.round(np.arange(len(probability) + 1) * rate_hz), num_samples).astype(np.int64)
    # Noise that is more probable for a moment does not end VF here: an episode needs a mean of `VF_CONFIDENCE`.
    predicted = predicted_classes(probability, threshold, noise_denies=False)
    lost = lost_events(block.stretches, rate_hz)
    present = ~seconds_of(lost, edges)
    found = second_events("VF", probability[:, VF], (predicted == VF) & present, SHORTEST_S, edges, rate_hz)
    found = [event for event in found if event.confidence >= VF_CONFIDENCE]
    with_waves = [event for event in found if _fraction(block.waves, event, rate_hz) >= 0.5]
    vf, refuted = list[Event](), list[Event]()
    for event in found:
        if event not in with_waves:
            (refuted if _fraction(block.regular, event, rate_hz) >= 0.5 else vf).append(event)
    if refuted:
        lasting_s = sum(each.stop - each.start for each in refuted) / rate_hz
        notes.append(f"{lasting_s:.0f} s would be VF by the waveform of one lead; a lead shows regular beats there")
    pieces = edges[:-1] // round(QUALITY_S * rate_hz)
    best = quality.max(axis=0)[np.minimum(pieces, quality.shape[1] - 1)]
    in_vf = seconds_of([*vf, *with_waves], edges)
    poor = ~in_vf & ((best < UNREADABLE) | ((predicted == NOISE) & (best < DOUBTFUL)))
    noisy = second_events("unreadable", 1 - best, poor, SHORTEST_S, edges, rate_hz)
    # Fibrillation has no QRS complexes either: where the waveform shows it, the electrode may be on.
    off = lost_events(block.all_off, rate_hz)
    lost = joined_events([*lost, *(each for each in off if not _overlaps(each, [*vf, *with_waves]))])
    vt_waves = [replace(event, kind="VT") for event in with_waves]
    return Seconds(
        edges,
        predicted,
        readable=~(poor | in_vf | seconds_of(lost, edges)),
        vf=vf,
        vt_waves=vt_waves,
        sure_vt=[each for each in vt_waves if _fraction(block.regular, each, rate_hz) < 0.5],
        unreadable=joined_events([*noisy, *lost]),
        notes=notes,
    )


@dataclass(frozen=True)
class Heartbeats:
    """The heartbeats of a recording.

    Attributes:
        kept: which detections are heartbeats outside of VF and unreadable stretches, bool `[num_detections]`.
        noise: which others are beats of runs that are noise, bool `[num_detections]`.
        sample: position of each kept one, int64 `[num_beats]`.
        clear: whether the interval from each to the next can be read, bool `[num_beats - 1]`.
        hiding: whether it has an artefact in it, which may hide a beat, bool `[num_beats - 1]`.
        lost: beats after which signal is lost before the next one, int64 `[num_lost]`.
        left_out: detections that are artefacts, int64 `[num_left_out]`.
        notes: what was left out, one line each.
    """

    kept: Flags
    noise: Flags
    sample: Places
    clear: Flags
    hiding: Flags
    lost: Places
    left_out: Places
    notes: list[str]


def kept_beats(block: AnalysedBlock, seconds: Seconds, in_noise: Flags) -> Heartbeats:
    """Leave out detections in VF, in what cannot be read, artefacts, and those in runs that are noise."""
    notes, events, no_beat = list[str](), [*seconds.vf, *seconds.unreadable], block.no_beat | in_noise
    blank = covered(events, block.sample)
    if blank.any():
        notes.append(f"{blank.sum():,} detected beats in VF or unreadable stretches left out")
    left_out = block.sample[no_beat & ~blank]
    if len(left_out):
        notes.append(f"{len(left_out):,} detections left out that are artefacts, not heartbeats")
    noise = in_noise & ~blank
    if noise.any():
        notes.append(f"{noise.sum():,} of them in runs would be V by the model of beats; by shape and waveform noise")
    kept = ~(blank | no_beat)
    # An interval without the beats in between is lost if one of its parts is.
    num_lost: Places = np.diff(np.cumsum(block.lost)[kept] - block.lost[kept])
    # An artefact may hide a beat: a long interval with one in it is lost, and another one makes no rate certain.
    sample = block.sample[kept]
    hiding, interval = np.diff(np.cumsum(no_beat)[kept]) > 0, np.diff(sample)
    if hiding.any():
        usual = interval[~hiding] if np.mean(~hiding) >= FEWEST_USUAL else np.diff(block.sample[~blank])
        num_lost += hiding & (interval > LONG_INTERVAL * np.median(usual))
    clear = ~crossed(events, sample) & (num_lost == 0)
    return Heartbeats(kept, noise, sample, clear, hiding, np.flatnonzero(num_lost), left_out, notes)


@dataclass(frozen=True)
class Rhythms:
    """AF, flutter, AV blocks of second and third degree and junctional rhythm.

    Attributes:
        events: those that stay where two were found.
        short_af: see `Findings`.
        notes: what P waves deny, one line each.
    """

    events: list[Event]
    short_af: dict[str, float]
    notes: list[str]


@dataclass(frozen=True)
class Classes:
    """The classes of the kept beats.

    Attributes:
        symbol: AAMI class, `<U1` `[num_beats]`.
        certainty: its probability, float32 `[num_beats]`.
        notes: which classes were denied, one line each.
    """

    symbol: NDArray[np.str_]
    certainty: NDArray[np.float32]
    notes: list[str]


def named_beats(
    block: AnalysedBlock, beats: Heartbeats, rhythms: list[Event], classes: NDArray[np.str_], run_beats: int
) -> Classes:
    """Name the beats: the most probable class of those that rhythm, pacing and shape allow.

    Args:
        block: probabilities, pacing and shapes of all detections.
        beats: the heartbeats.
        rhythms: events of `Rhythms`; in AF and flutter no beat is S.
        classes: names of the classes of beats.
        run_beats: fewest beats of a run.
    """
    notes, probability = list[str](), block.probability[beats.kept].copy()

    def allow(beats: Flags, allowed: Flags) -> Places:
        """Leave these beats the allowed classes; return the most probable class of each beat."""
        probability[beats] *= allowed
        probability[:] /= np.maximum(probability.sum(axis=1, keepdims=True), 1e-9)
        most_probable: Places = probability.argmax(axis=1)
        return most_probable

    choice = probability.argmax(axis=1)
    in_af = covered(in_order([each for each in rhythms if each.kind in ("AF", "flutter")]), beats.sample)
    changed = in_af & (classes[choice] == "S")
    if changed.any():
        choice = allow(in_af, classes != "S")
        notes.append(f"{changed.sum():,} beats in AF would be S by their waveform; in AF there are no S beats")
    paced = block.paced[beats.kept]
    if paced.any():
        choice = allow(paced, classes == "N")
        notes.append(
            f"paced: {paced.sum():,} of {len(paced):,} beats follow a pacing spike; they are normal ones by class"
        )
    shape = block.likeness[beats.kept], block.several[beats.kept]
    no_v, no_s = excluded_classes(classes[choice], *shape, run_beats)
    if (excluded := no_v | no_s).any():
        above = np.isin(classes, ["N", "S"])  # activation through the conduction system
        choice = allow(excluded, np.where(no_v[excluded, None], above, ~above))
        for which, was, reason in ((no_v, "V", "they have the usual shape"), (no_s, "S", "they are wide")):
            if which.any():
                notes.append(f"{which.sum():,} beats would be {was} by the model of beats; {reason}")
    return Classes(classes[choice], probability[np.arange(len(choice)), choice].astype(np.float32), notes)


def events_of(
    block: AnalysedBlock,
    seconds: Seconds,
    beats: Heartbeats,
    rhythms: list[Event],
    classes: Classes,
    rate_hz: float,
    limits: Limits,
) -> tuple[list[Event], list[Event], Flags]:
    """Return all events but those of intervals: of beats, of the waveform, AF and flutter, VF, and unreadable ones.

    And those of the waveform before precedence, and which intervals the leads dispute, bool `[num_beats - 1]`, from
    which `corrected` derives the events of other beats.

    Args:
        block: probability of each waveform class, and disputed intervals.
        seconds, beats, classes: the stages before.
        rhythms: events of `Rhythms`.
        rate_hz: sampling rate in Hz.
        limits: limits of the rules.
    """
    sample, symbol, edges = beats.sample, classes.symbol, seconds.edges
    disputed = block.disputed[beats.kept][:-1] | beats.hiding
    by_beats = beat_events(sample, symbol, classes.certainty, beats.clear, rate_hz, disputed, limits)

    def by_waveform(kind: str, number: int, shortest_s: float) -> list[Event]:
        called = seconds.predicted == number
        return second_events(kind, block.seconds[:, number], called, shortest_s, edges, rate_hz, seconds.readable)

    silent = by_waveform("asystole", ASYSTOLE, max(SHORTEST_S, limits.asystole_s))
    silent = [each for each in silent if not np.any((sample >= each.start) & (sample < each.stop))]
    # Regular waves are VT whatever beats are detected in them, unless a lead shows regular beats.
    vt = by_waveform("VT", VT, SHORTEST_S) + [each for each in seconds.vt_waves if each not in seconds.sure_vt]
    # Beats of runs that are noise refute VT as beats of other classes do.
    named, counted = np.full(len(beats.kept), "|"), beats.kept | beats.noise
    named[beats.kept] = symbol
    all_beats = block.sample[counted], named[counted], limits.vt_bpm, rate_hz
    vt = [each for each in vt if vt_is_possible(each, *all_beats)] + seconds.sure_vt
    settled_events = settled({"beats": by_beats, "waveform": silent + vt}, sample)
    events = [*seconds.vf, *seconds.unreadable, *rhythms, *settled_events]
    return [timed(each, sample, limits.vt_bpm, rate_hz) for each in events], silent + vt, disputed


def _fraction(seconds: NDArray[Any], event: Event, rate_hz: float) -> float:
    """Return the mean over the seconds of an event."""
    return float(seconds[round(event.start / rate_hz) : round(event.stop / rate_hz)].mean())


def _overlaps(event: Event, others: list[Event]) -> bool:
    return any(each.start < event.stop and event.start < each.stop for each in others)


def vt_is_possible(event: Event, sample: Places, symbol: NDArray[np.str_], slowest_bpm: float, rate_hz: float) -> bool:
    """Return whether the beats are consistent with VT: there are none, or half of them are V and they are fast."""
    first, last = np.searchsorted(sample, [event.start, event.stop])
    is_slow = mean_rate_bpm(sample[first:last], rate_hz) < slowest_bpm
    return first == last or (not is_slow and float(np.mean(symbol[first:last] == "V")) >= 0.5)


def timed(event: Event, sample: Places, vt_bpm: float, rate_hz: float) -> Event:
    """Return the event with the number of its beats and their mean rate."""
    if event.num_beats:
        return event
    first, last = np.searchsorted(sample, [event.start, event.stop])
    rate_bpm = mean_rate_bpm(sample[first:last], rate_hz)
    # Beats that are slower than VT were not all detected in its wave.
    if last - first < 2 or (event.kind == "VT" and rate_bpm < vt_bpm):
        return event
    return replace(event, num_beats=int(last - first), rate_bpm=rate_bpm)
