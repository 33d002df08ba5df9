"""Analysis of a recording with the models shipped with heartlm.

    recording ─► blocks of an hour ─► up to three leads ─► beats of each ─► beats that most leads have
                      │                                                       │
                      │                       tokens of each lead ─► class probabilities, mean of the leads
                      ├► best lead at 100 Hz ─► VF, VT, asystole, noise in each second
                      └► all leads without QRS complexes ─► flutter in each second
    all beats ─► RR intervals ─► AF without P waves        all of these ─► rules (`events`) ─► `Findings`

Blocks limit the memory use for long recordings. Each is read with a margin on both sides. Beats in the margin
contribute to the tokens, and are classified in the neighbouring block. A block is about as long as the training
recordings, because tokens are relative to the whole recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.analysis.certain_beats import certain_beats
from heartlm.analysis.conduction import conduction
from heartlm.analysis.events import USUAL_LIMITS, beat_events, in_order, mean_rate_bpm, second_events, seconds_of
from heartlm.analysis.findings import QUALITY_S, Event, Findings, covered, crossed
from heartlm.analysis.flutter import WINDOW_S as FLUTTER_S
from heartlm.analysis.flutter import atrial_leads, flutter
from heartlm.analysis.lead_agreement import combined, fill_gaps, regular_seconds
from heartlm.analysis.limits import Limits
from heartlm.analysis.lost_signal import (
    cut_lost,
    joined_events,
    lost_events,
    lost_intervals,
    lost_stretches,
    present_fraction,
)
from heartlm.analysis.p_denial import without_p
from heartlm.analysis.pacing import paced_beats
from heartlm.analysis.run_shape import noise_runs, run_shape
from heartlm.analysis.short_af import AF_BY_RR, LONGEST_S, WEIGHTS, log_odds
from heartlm.analysis.short_af import measures as short_af_measures
from heartlm.analysis.signal_quality import SWINGS, LeadQuality, best_leads, lead_quality
from heartlm.analysis.unexamined import FEWEST_AF_BEATS, SHORTEST_S, too_short
from heartlm.analysis.unlike import USUAL, measures_of_beats, unlike
from heartlm.analysis.usual_shape import excluded_classes, likeness_to_usual
from heartlm.databases.each_recording import Watch, build
from heartlm.delineation.delineate import LOWEST_RATE_HZ, delineate
from heartlm.delineation.intervals import Intervals, measure
from heartlm.ecg.definitions import definitions
from heartlm.ecg.leads import channels_without_ecg, ecg_leads, no_ecg_lead
from heartlm.ecg.mains import HumFree
from heartlm.ecg.matching import MATCH_WINDOW_S, nearest
from heartlm.ecg.recording import ARTEFACT, Annotations, Recording
from heartlm.ecg.spans import runs
from heartlm.errors import HeartlmError
from heartlm.inference.annotate import second_probabilities
from heartlm.inference.finetuned import FineTuned, load_of_tasks
from heartlm.inference.predictions import recording_probabilities, without_artefacts
from heartlm.inference.waveform import predicted_classes, regular_wave_seconds
from heartlm.models.pretrained import FOLDER, model_files
from heartlm.storage.atomic import digest_of_files
from heartlm.storage.reading import read_json
from heartlm.tasks.waveform import ASYSTOLE, NOISE, VF, VT, WINDOW
from heartlm.tokenizers.base import Lead, Tokens

BLOCK_S, MARGIN_S = 3600.0, 300.0
AF_BEATS = 128
"""Beats per window for AF detection."""
SHORT_AF_BEATS, SHORT_AF_THRESHOLD = 48, 0.95
"""Beats per shorter window, and minimum probability of AF in it. Windows of `AF_BEATS` are in part sinus rhythm around
episodes of 30 to 100 s. Chosen on simulated patients, DS1 and svdb (docs/log/af.md)."""
FEW_BEATS_THRESHOLD = 0.6
"""Minimum probability of AF in fewer beats than the windows that the model learnt from. On 1,048 recordings of PTB-XL
(folds 1 to 6) with 9 to 15 beats it finds 50 of 71 with 3 false ones, the model's own threshold 41 with 2
(docs/log/artefacts.md)."""
SHORTEST_AF_S = 30.0
"""Minimum duration in seconds of AF: the clinical definition."""
VF_CONFIDENCE = 0.5
"""Minimum mean probability of VF. Of 109 predicted stretches in cudb it keeps 62, with 48 of the 49 confirmed ones."""
UNREADABLE, DOUBTFUL = 0.65, 0.85
"""Limits of the best lead's quality: a piece is unreadable below the first, or below the second if predicted noise."""
READABLE_ALONE = 0.75
"""Least quality of a lead that decides while the electrode of another one is off: at 0.73, a lead of record 203 of
mitdb shows four false V beats (docs/log/signals.md)."""

FAR = 1 << 60
SAME_BEAT = 0.4
"""Detections of two leads are of one beat up to this fraction of the shorter interval to the next detection."""

LONG_INTERVAL = 1.5
"""An interval with an artefact in it that is longer than this number of usual intervals counts as lost signal."""
FEWEST_USUAL = 0.25
"""Smallest fraction of intervals without an artefact whose median is the usual interval; with fewer, it is that between
all detections, as most of the artefacts may be beats."""

ALL_LEADS_S = 600.0
"""Longest recording of which all ECG leads are delineated."""

Places = NDArray[np.int64]
Stretch = tuple[int, int]


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
        shape: see `run_shape`, float32 `[num_beats, 2, num_leads]`.
        seconds: probability of each waveform class in each second, float64 `[num_seconds, 5]`.
        waves: fraction of the windows over each second that show regular waves at a rate of VT where they may be VF,
            float64 `[num_seconds]`.
        regular: whether a lead shows regular beats in each second, see `regular_seconds`, bool `[num_seconds]`.
        flutter: probability of flutter in each second, float64 `[num_seconds]`.
        atrial: fraction of the signal that a wave of flutter explains in each second, see `flutter`, float64
            `[num_seconds]`.
        quality: signal quality of each piece of each lead, float32 `[num_pieces, num_leads]`.
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
    shape: NDArray[np.float32]
    seconds: NDArray[np.float64]
    waves: NDArray[np.float64]
    regular: NDArray[np.bool_]
    flutter: NDArray[np.float64]
    atrial: NDArray[np.float64]
    quality: NDArray[np.float32]
    stretches: NDArray[np.int64]
    all_off: NDArray[np.int64]
    measures: NDArray[np.float64]


@dataclass(frozen=True)
class Analyst:
    """Models for the analysis of recordings.

    Attributes:
        beats: classifier of beats.
        af: detector of atrial fibrillation from RR intervals.
        waveform: classifier of ventricular fibrillation, tachycardia, asystole and noise in windows of samples.
    """

    beats: FineTuned
    af: FineTuned
    waveform: FineTuned

    @classmethod
    def load(cls, beats: Path, af: Path, waveform: Path, device: torch.device | str = "cpu") -> Analyst:
        """Load three models on `device`, each by the name of a shipped model or by a run folder.

        Raises:
            HeartlmError: a model cannot be read, is of another task, or is the shipped foundation model, whose classes
                of beats were only used for its training.
        """
        of_beats, of_rhythm, of_waveform = load_of_tasks({"beats": beats, "rhythm": af, "waveform": waveform}, device)
        analyst = cls(of_beats, of_rhythm, of_waveform)
        foundation = read_json(FOLDER / "foundation/run.json", dict[str, object])  # also in a saved copy
        if analyst.beats.about["manifest_hash"] == foundation["manifest_hash"]:
            raise HeartlmError("foundation names no beats (see its card): fine-tune it, or use the model beats")
        return analyst

    @cached_property
    def made_by(self) -> dict[str, str]:
        """What findings depend on in addition to recording and limits: `build`, and a digest of each model."""
        models = {"beats": self.beats, "af": self.af, "waveform": self.waveform}
        made_by = build()
        for name, model in models.items():
            made_by |= {f"model {name}": digest_of_files(*model_files(model.folder.model("last")))}
        return made_by

    @cached_property
    def _heartbeats(self) -> NDArray[np.str_]:
        """Names of the classes of beats."""
        return np.array([name for name in self.beats.info.classes if name != ARTEFACT])

    def analyze(self, recording: Recording, watch: Watch = iter, limits: Limits = USUAL_LIMITS) -> Findings:
        """Find beats, rhythms, events and waves in a recording.

        Args:
            recording: recording with a signal.
            watch: function that wraps the sequence of blocks, (start, stop) in samples, for example to show progress.
            limits: limits of the rules for beats.

        Raises:
            HeartlmError: the recording has no signal or no ECG lead, its rate is too low for the detector, or a file
                cannot be read.
        """
        if not recording.has_signal or recording.num_samples == 0:
            raise HeartlmError(f"{recording.path}: no signal, so there is nothing to analyse")
        candidates = ecg_leads(recording)
        if not candidates:
            raise HeartlmError(f"{recording.path}: {no_ecg_lead(recording)}, so there is nothing to analyse")
        source, hum_free = recording, HumFree(recording)
        recording = hum_free.recording()
        try:
            leads = best_leads(recording, candidates)
            blocks = [self._block(recording, start, stop, leads) for start, stop in watch(_blocks(recording))]
        except ValueError as error:
            raise HeartlmError(f"{recording.path}: {error}") from error
        joined = AnalysedBlock(*map(np.concatenate, zip(*blocks, strict=True)))
        seconds, quality = joined.seconds, joined.quality.T
        rate_hz, notes = recording.rate_hz, notes_of(recording)
        # Pieces and blocks have whole samples, so at a rate such as 127.97 Hz ten of their seconds are not quite ten.
        edges = np.minimum(np.round(np.arange(len(seconds) + 1) * rate_hz), recording.num_samples).astype(np.int64)

        # VF, and stretches that cannot be read.
        # Noise that is more probable for a moment does not end VF here: an episode needs a mean of `VF_CONFIDENCE`.
        second_class = predicted_classes(seconds, self.waveform.info.threshold, noise_denies=False)
        lost = lost_events(joined.stretches, rate_hz)
        present = ~seconds_of(lost, edges)
        events = second_events("VF", seconds[:, VF], (second_class == VF) & present, SHORTEST_S, edges, rate_hz)
        events = [event for event in events if event.confidence >= VF_CONFIDENCE]
        with_waves = [event for event in events if _fraction(joined.waves, event, rate_hz) >= 0.5]
        events = [event for event in events if event not in with_waves]
        refuted = [event for event in events if _fraction(joined.regular, event, rate_hz) >= 0.5]
        if refuted:
            lasting_s = sum(each.stop - each.start for each in refuted) / rate_hz
            notes.append(f"{lasting_s:.0f} s would be VF by the waveform of one lead; a lead shows regular beats there")
            events = [each for each in events if each not in refuted]
        pieces = edges[:-1] // round(QUALITY_S * rate_hz)
        best = quality.max(axis=0)[np.minimum(pieces, quality.shape[1] - 1)]
        in_vf = seconds_of([*events, *with_waves], edges)
        poor = ~in_vf & ((best < UNREADABLE) | ((second_class == NOISE) & (best < DOUBTFUL)))
        noisy = second_events("unreadable", 1 - best, poor, SHORTEST_S, edges, rate_hz)
        # Fibrillation has no QRS complexes either: where the waveform shows it, the electrode may be on.
        off = lost_events(joined.all_off, rate_hz)
        lost = joined_events([*lost, *(each for each in off if not _overlaps(each, [*events, *with_waves], "VF"))])
        readable = ~(poor | in_vf | seconds_of(lost, edges))
        events += joined_events([*noisy, *lost])

        # Beats that are kept, and intervals between them in which signal is lost.
        in_noise = self._noise_runs(joined, rate_hz, limits.run_beats)
        no_beat = joined.no_beat | in_noise
        blank = covered(events, joined.sample)
        if blank.any():
            notes.append(f"{blank.sum():,} detected beats in VF or unreadable stretches left out")
        left_out = joined.sample[no_beat & ~blank]
        if len(left_out):
            notes.append(f"{len(left_out):,} detections left out that are artefacts, not heartbeats")
        if num_noise := int((in_noise & ~blank).sum()):
            notes.append(f"{num_noise:,} of them in runs would be V by the model of beats; by shape and waveform noise")
        kept = ~(blank | no_beat)
        # An interval without the beats in between is lost if one of its parts is.
        num_lost: NDArray[np.int64] = np.diff(np.cumsum(joined.lost)[kept] - joined.lost[kept])
        # An artefact may hide a beat: a long interval with one in it is lost, and another one makes no rate certain.
        sample = joined.sample[kept]
        hiding, interval = np.diff(np.cumsum(no_beat)[kept]) > 0, np.diff(sample)
        if hiding.any():
            usual = interval[~hiding] if np.mean(~hiding) >= FEWEST_USUAL else np.diff(joined.sample[~blank])
            num_lost += hiding & (interval > LONG_INTERVAL * np.median(usual))
        clear = ~crossed(events, sample) & (num_lost == 0)

        # Flutter and AF. Of both, flutter counts.
        flutters = second_events("flutter", joined.flutter, joined.flutter > 0, FLUTTER_S, edges, rate_hz, readable)
        af, af_probability = self._af_events(sample, clear, rate_hz)
        is_short = recording.duration_s <= LONGEST_S
        waves, measured = _waves(recording, sample, leads), dict[str, float]()
        if waves is not None and len(candidates) == 1 and is_short and len(af_probability):
            measured = short_af_measures(waves.delineation, af_probability, quality[0])
            odds = log_odds(measured)
            measured[AF_BY_RR] = float(bool(af))
            whole = Event("AF", int(sample[0]), int(sample[-1]) + 1, float(1 / (1 + np.exp(-odds))))
            af = (af or [whole]) if odds >= WEIGHTS["threshold"] else []
        elif waves is not None:
            normal = self._heartbeats[joined.probability[kept].argmax(axis=1)] == "N"
            atrial = joined.atrial[np.searchsorted(edges[1:-1], sample, side="right")]
            af, denied = without_p(af, waves, normal, atrial, SHORTEST_AF_S * rate_hz)
            if denied:
                notes.append(f"{denied / rate_hz:.0f} s would be AF by RR intervals; P waves at a steady PR deny it")
        af = flutters + [each for each in af if covered(flutters, sample[covered([each], sample)]).mean() < 0.5]

        # Classes of beats.
        classes, probability = self._heartbeats, joined.probability[kept].copy()
        in_af = covered(in_order(af), sample)

        def allow(beats: NDArray[np.bool_], allowed: NDArray[np.bool_]) -> Places:
            """Leave these beats the allowed classes; return the most probable class of each beat."""
            probability[beats] *= allowed
            probability[:] /= np.maximum(probability.sum(axis=1, keepdims=True), 1e-9)
            return probability.argmax(axis=1)

        choice = probability.argmax(axis=1)
        changed = in_af & (classes[choice] == "S")
        if changed.any():
            choice = allow(in_af, classes != "S")
            notes.append(f"{changed.sum():,} beats in AF would be S by their waveform; in AF there are no S beats")
        paced = joined.paced[kept]
        if paced.any():
            choice = allow(paced, classes == "N")
            notes.append(f"paced: {paced.sum():,} of {len(paced):,} beats follow a pacing spike; they count as N")
        no_v, no_s = excluded_classes(classes[choice], joined.likeness[kept], limits.run_beats)
        if (excluded := no_v | no_s).any():
            above = np.isin(classes, ["N", "S"])  # activation through the conduction system
            choice = allow(excluded, np.where(no_v[excluded, None], above, ~above))
            for which, was, reason in ((no_v, "V", "they have the usual shape"), (no_s, "S", "they are wide")):
                if which.any():
                    notes.append(f"{which.sum():,} beats in runs would be {was} by the model of beats; {reason}")
        symbol, certainty = classes[choice], probability[np.arange(len(choice)), choice]

        # Events of beats, and those that only the waveform shows.
        rules = beat_events(sample, symbol, certainty, clear, rate_hz, joined.disputed[kept][:-1] | hiding, limits)
        silent_s = max(SHORTEST_S, limits.asystole_s)
        by_waveform = second_events(
            "asystole", seconds[:, ASYSTOLE], second_class == ASYSTOLE, silent_s, edges, rate_hz, readable
        )
        by_waveform = [each for each in by_waveform if not np.any((sample >= each.start) & (sample < each.stop))]
        vt_events = second_events("VT", seconds[:, VT], second_class == VT, SHORTEST_S, edges, rate_hz, readable)
        # Regular waves are VT whatever beats are detected in them, unless a lead shows regular beats.
        vt_waves = [replace(event, kind="VT") for event in with_waves]
        sure = [each for each in vt_waves if _fraction(joined.regular, each, rate_hz) < 0.5]
        vt_events += [each for each in vt_waves if each not in sure]
        # Beats of runs that are noise refute VT as beats of other classes do.
        named, counted = np.full(len(kept), "|"), kept | (in_noise & ~blank)
        named[kept] = symbol
        beats = joined.sample[counted], named[counted], limits.vt_bpm, rate_hz
        by_waveform += [each for each in vt_events if _may_be_vt(each, *beats)] + sure
        in_vt = [rule for rule in rules if rule.kind == "SVT" and _overlaps(rule, by_waveform, "VT")]
        rules = [rule for rule in rules if rule not in in_vt]
        rules += [each for each in by_waveform if not _overlaps(each, rules, each.kind)]
        events = [_timed(each, sample, limits.vt_bpm, rate_hz) for each in (*events, *af, *rules)]
        notes += [f"damaged: {fault}" for fault in recording.faults]
        # The last second may be a part, or lack its last sample.
        in_seconds = int((edges[-1] + 1) // rate_hz), int((np.diff(edges)[readable].sum() + 1) // rate_hz)
        findings = Findings(
            source,
            leads,
            sample,
            symbol,
            certainty.astype(np.float32),
            in_order(events),
            quality,
            tuple(notes),
            self.made_by,
            unlike(joined.measures),
            definitions(vars(limits)),
            lost=np.flatnonzero(num_lost),
            left_out=left_out,
            hum_hz={recording.lead_names[lead]: tuple(sorted(hz)) for lead, hz in sorted(hum_free.removed.items())},
            waves=waves,
            short_af=measured,
            unexamined=too_short(sample, clear, rate_hz, *in_seconds, limits),
        )
        intervals, not_measured = conduction(findings)
        events = [*findings.events, *intervals]
        unexamined = findings.unexamined | not_measured
        for event in events:
            unexamined.pop(event.kind, None)
        return replace(findings, events=in_order(events), unexamined=unexamined)

    def _noise_runs(self, joined: AnalysedBlock, rate_hz: float, run_beats: int) -> NDArray[np.bool_]:
        """Return which beats are in runs that the model of beats calls ventricular and that are noise."""
        beats = np.flatnonzero(~joined.no_beat)
        symbol = self._heartbeats[joined.probability[beats].argmax(axis=1)]
        no_v, no_s = excluded_classes(symbol, joined.likeness[beats], run_beats)
        second = np.minimum((joined.sample[beats] // rate_hz).astype(np.int64), len(joined.seconds) - 1)
        is_v = ((symbol == "V") & ~no_v | no_s) & ~joined.paced[beats]
        in_noise = np.zeros(len(joined.sample), np.bool_)
        in_noise[beats] = noise_runs(is_v, joined.shape[beats], joined.seconds[second], run_beats)
        return in_noise

    def _block(self, recording: Recording, start: int, stop: int, leads: tuple[int, ...]) -> AnalysedBlock:
        """Analyse the samples `start` to `stop`."""
        rate_hz = recording.rate_hz
        # Of whole pieces, so that those of the margin can be cut off.
        margin = round(MARGIN_S / QUALITY_S) * round(QUALITY_S * rate_hz)
        first, last = max(0, start - margin), min(recording.num_samples, stop + margin)
        atrial = tuple(lead for lead in atrial_leads(recording, leads) if lead not in leads)
        signals = recording.signal(first, last, leads + atrial)
        atrial_signals = signals[[(leads + atrial).index(lead) for lead in atrial_leads(recording, leads)]]
        signals = signals[: len(leads)]
        lead_qualities = [lead_quality(signal, rate_hz) for signal in signals]
        off = np.stack([lead.off for lead in lead_qualities])
        swings = (off == SWINGS).any(axis=0)
        stretches = lost_stretches(signals, rate_hz)
        # what is lost in all leads is unreadable by itself, and no reason to leave out what is next to it
        piece, num_pieces = round(QUALITY_S * rate_hz), len(lead_qualities[0].quality)
        present = present_fraction(stretches, signals.shape[1], piece, num_pieces)
        lead_qualities = [replace(lead, quality=lead.quality / present) for lead in lead_qualities]
        quality = np.stack([lead.quality for lead in lead_qualities])
        shows = (off == 0) & np.repeat(quality >= READABLE_ALONE, piece, axis=1)[:, : off.shape[1]]
        all_off = runs(swings & ~shows.any(axis=0))
        voted = _voted(lead_qualities, rate_hz)
        sample, disputed = fill_gaps(voted, lead_qualities, signals, rate_hz)
        lost = lost_intervals(sample, np.concatenate([stretches, all_off]))
        # Nor is an interval a pause whose beats only the lead may show that is off.
        lost |= disputed & lost_intervals(sample, runs(swings))
        beats = Annotations(rate_hz, sample, np.full(len(sample), "Q", "<U1"), beats_labelled=False, source="detected")
        beat_quality = np.stack([lead.quality_at(sample, rate_hz) for lead in lead_qualities])
        measures = np.empty((0, len(USUAL)))

        def classify(kept: NDArray[np.bool_]) -> NDArray[np.float32]:
            nonlocal measures
            chosen = replace(beats, sample=sample[kept], symbol=beats.symbol[kept])
            probability, of_these = self._class_probabilities(chosen, signals, beat_quality[:, kept], stretches)
            # All detections tell how unlike the training data a recording is: noise loses them in the next pass.
            measures = of_these if kept.all() else measures
            return probability

        def part_in_block(stretches: NDArray[np.int64]) -> NDArray[np.int64]:
            inside = (stretches[:, 0] + first < stop) & (stretches[:, 1] + first > start)
            return np.clip(stretches[inside] + first, start, stop)

        certain, wide = certain_beats(sample, lead_qualities, signals, rate_hz)
        probability, no_beat = without_artefacts(classify, len(sample), self.beats.info.classes, certain, wide)
        seconds, waves = self._seconds(beats, signals[0])
        paced = paced_beats(sample, signals, rate_hz) & ~no_beat
        is_normal = ((self._heartbeats[probability.argmax(axis=1)] == "N") | paced) & ~no_beat
        likeness = likeness_to_usual(sample, is_normal, signals, beat_quality >= UNREADABLE, rate_hz)
        shape = np.full((len(sample), 2, len(signals)), np.nan, np.float32)
        shape[~no_beat] = run_shape(sample[~no_beat], is_normal[~no_beat], signals, rate_hz)
        in_block, pieces = (sample >= start - first) & (sample < stop - first), slice((start - first) // piece, None)
        num_pieces = -(-(stop - start) // piece)
        # The seconds that begin in the block: their sum over the blocks is the duration at every rate.
        num_seconds = int(-start // rate_hz) - int(-stop // rate_hz)
        begin_s = round((start - first) / rate_hz)
        in_flutter, atrial_wave = flutter(atrial_signals, sample, rate_hz)
        return AnalysedBlock(
            sample[in_block] + first,
            no_beat[in_block],
            disputed[in_block],
            lost[in_block],
            probability[in_block],
            paced[in_block],
            likeness[in_block],
            shape[in_block],
            seconds[begin_s : begin_s + num_seconds],
            waves[begin_s : begin_s + num_seconds],
            regular_seconds(lead_qualities, len(seconds), rate_hz)[begin_s : begin_s + num_seconds],
            in_flutter[begin_s : begin_s + num_seconds],
            atrial_wave[begin_s : begin_s + num_seconds],
            quality[:, pieces][:, :num_pieces].T,
            part_in_block(stretches),
            part_in_block(all_off),
            measures,
        )

    def _class_probabilities(
        self,
        beats: Annotations,
        signals: NDArray[np.float32],
        quality: NDArray[np.float32],
        stretches: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Classify beats, with lost signal cut out.

        Args:
            beats: beats.
            signals: signals in millivolts, float32 `[num_leads, num_samples]`.
            quality: quality of each lead at each beat, float32 `[num_leads, num_beats]`.
            stretches: see `lost_stretches`.

        Returns:
            Class probabilities of each beat, averaged over leads weighted by quality, float32
            `[num_beats, num_classes]`; and `measures_of_beats` of the best lead.
        """
        model, info = self.beats.model, self.beats.info
        measures = np.empty((0, len(USUAL)))
        total = np.zeros((beats.num_beats, len(info.classes)), np.float32)
        if beats.num_beats < 2:
            total[:, 0] = 1  # a single beat has no interval and is classified as N
            return total, measures
        sample, signals = cut_lost(beats.sample, signals, stretches)
        beats = replace(beats, sample=sample)
        leads, lead_tokens = list[int](), list[Tokens]()
        for lead in range(len(signals)):
            if np.nanmin(signals[lead], initial=np.inf) >= np.nanmax(signals[lead], initial=-np.inf):
                continue  # flat, or no valid sample
            read = Lead(beats, signals[lead])
            tokens = self.beats.tokenizer.encode(read)
            if not len(measures):
                measures = measures_of_beats(self.beats.tokenizer, read, tokens)
            if tokens.num_tokens:
                leads.append(lead)
                lead_tokens.append(tokens)
        # Overlapping windows take twice the time: only those of the best lead do.
        codes, overlaps = (tokens.codes for tokens in lead_tokens), (lead == 0 for lead in leads)
        answers = recording_probabilities(model, codes, info.window, overlaps)
        if not leads:
            total[:, 0] = 1
            return total, measures
        # A token need not be a beat: each beat takes the nearest. A single lead counts even with a quality of 0.
        by_lead = [
            answer[nearest(beats.sample, tokens.sample)] for tokens, answer in zip(lead_tokens, answers, strict=True)
        ]
        return combined(np.stack(by_lead), quality[leads] + 1e-3, info.classes), measures

    def _seconds(
        self, beats: Annotations, signal_mv: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `second_probabilities` and `regular_wave_seconds` of the best lead.

        Returns:
            float64 `[num_seconds, 5]` and `[num_seconds]`.
        """
        num_seconds = -int(-len(signal_mv) // beats.rate_hz)
        seconds, waves = np.zeros((num_seconds, 5)), np.zeros(num_seconds)
        seconds[:, 0] = 1
        tokens = self.waveform.tokenizer.encode(Lead(beats, signal_mv))
        if tokens.num_tokens < WINDOW:
            return seconds, waves
        answered = second_probabilities(self.waveform.model, tokens.codes)[:num_seconds]
        seconds[: len(answered)] = answered
        seconds[len(answered) :] = answered[-1]  # no window begins in the last seconds
        regular = regular_wave_seconds(tokens.codes, seconds[:, VF])[:num_seconds]
        waves[: len(regular)] = regular
        return seconds, waves

    def _af_events(
        self, sample: Places, clear: NDArray[np.bool_], rate_hz: float
    ) -> tuple[list[Event], NDArray[np.float64]]:
        """Return the AF events in runs of beats without an unreadable interval, and the probability of their beats."""
        events, info, scores = list[Event](), self.af.info, [np.empty(0)]
        stretches = [sample[first : last + 1] for first, last in runs(clear).tolist()]
        stretches = [stretch for stretch in stretches if len(stretch) >= FEWEST_AF_BEATS]
        encoded = [
            self.af.tokenizer.encode(Lead(Annotations(rate_hz, each, np.full(len(each), "Q"), beats_labelled=False)))
            for each in stretches
        ]
        answers = (
            recording_probabilities(self.af.model, (tokens.codes for tokens in encoded), min(width, info.window))
            for width in (AF_BEATS, SHORT_AF_BEATS)
        )
        for tokens, answer, in_short in zip(encoded, *answers, strict=True):
            score = answer[:, 1]
            scores.append(score.astype(np.float64))
            is_few = tokens.num_tokens < info.shortest
            threshold = min(info.threshold, FEW_BEATS_THRESHOLD) if is_few else info.threshold
            called = (score >= threshold) | (in_short[:, 1] >= SHORT_AF_THRESHOLD)
            score = np.maximum(score, in_short[:, 1])
            for begin, end in runs(called).tolist():
                start, stop = int(tokens.sample[begin]), int(tokens.sample[end - 1])
                # AF of all beats counts if they last less than the clinical definition of AF.
                if stop - start >= min(SHORTEST_AF_S * rate_hz, sample[-1] - sample[0]):
                    events.append(Event("AF", start, stop + 1, float(score[begin:end].mean())))
        return events, np.concatenate(scores)


def notes_of(recording: Recording) -> list[str]:
    """Return what was repaired to read a recording, and which channels in mV are not analysed, one line each."""
    names, others = recording.lead_names, channels_without_ecg(recording)
    left_out = [f"channel {names[lead]} left out: no ECG ({reason})" for lead, reason in others.items()]
    try:
        recording.annotations  # noqa: B018
    except HeartlmError as error:
        left_out.append(f"annotations not read: {error}")
    return [f"repaired: {repair}" for repair in recording.repairs] + left_out


def _waves(recording: Recording, sample: Places, leads: tuple[int, ...]) -> Intervals | None:
    """Measure the waves of the beats in the analysed leads, or in all ECG leads if it lasts up to `ALL_LEADS_S`.

    Returns:
        The measurements; None without beats or below the least rate of delineation.
    """
    if not len(sample) or recording.rate_hz < LOWEST_RATE_HZ:
        return None
    return measure(delineate(recording, sample, ecg_leads(recording) if recording.duration_s <= ALL_LEADS_S else leads))


def _blocks(recording: Recording) -> list[Stretch]:
    """Return the first and last sample of each block; a short remainder is merged into the previous block."""
    length = round(BLOCK_S / QUALITY_S) * round(QUALITY_S * recording.rate_hz)
    starts = list(range(0, recording.num_samples, length))
    if len(starts) > 1 and recording.num_samples - starts[-1] < length // 4:
        starts.pop()
    return list(pairwise([*starts, recording.num_samples]))


def _voted(leads: list[LeadQuality], rate_hz: float) -> Places:
    """Return beats found by leads with more than half of the total quality there, at the position in the best of them.

    Args:
        leads: beats and quality of each lead.
        rate_hz: sampling rate in Hz.
    """
    of_leads = [lead.sample for lead in leads]
    if len(of_leads) == 1:
        return of_leads[0]
    reach = round(MATCH_WINDOW_S * rate_hz)
    sample: Places = np.concatenate(of_leads)
    lead = np.repeat(np.arange(len(of_leads)), [len(each) for each in of_leads])
    # In a fast rhythm the next beat may be marked within reach in another lead.
    apart = [np.diff(each, prepend=-FAR, append=FAR) for each in of_leads]
    reaches = np.concatenate([np.minimum(reach, SAME_BEAT * np.minimum(each[1:], each[:-1])) for each in apart])
    order = np.argsort(sample, kind="stable")
    sample, lead, reaches = sample[order], lead[order], reaches[order]
    is_next = np.diff(sample, prepend=sample[:1]) > np.minimum(reaches, np.roll(reaches, 1))
    group: Places = np.cumsum(is_next)
    weight = np.stack([each.quality_at(sample, rate_hz) for each in leads]) + 1e-3  # [num_leads, num_detections]
    weight[0] *= 1.1  # decides between two leads
    voted = np.zeros((int(group[-1]) + 1 if len(group) else 0, len(of_leads)), np.float32)
    voted[group, lead] = weight[lead, np.arange(len(sample))]
    start = np.searchsorted(group, np.arange(len(voted)))
    total = weight[:, start].sum(axis=0)
    kept = voted.sum(axis=1) > total / 2
    chosen = voted.argmax(axis=1)
    is_choice = lead == chosen[group]
    positions = sample[is_choice & kept[group]]
    keep = np.diff(positions, prepend=-reach - 1) > reach
    return np.asarray(positions[keep])


def _fraction(seconds: NDArray[Any], event: Event, rate_hz: float) -> float:
    """Return the mean over the seconds of an event."""
    return float(seconds[round(event.start / rate_hz) : round(event.stop / rate_hz)].mean())


def _overlaps(event: Event, others: list[Event], kind: str) -> bool:
    return any(each.kind == kind and each.start < event.stop and event.start < each.stop for each in others)


def _may_be_vt(event: Event, sample: Places, symbol: NDArray[np.str_], slowest_bpm: float, rate_hz: float) -> bool:
    """Return whether the beats are consistent with VT: there are none, or half of them are V and they are fast."""
    first, last = np.searchsorted(sample, [event.start, event.stop])
    is_slow = mean_rate_bpm(sample[first:last], rate_hz) < slowest_bpm
    return first == last or (not is_slow and float(np.mean(symbol[first:last] == "V")) >= 0.5)


def _timed(event: Event, sample: Places, vt_bpm: float, rate_hz: float) -> Event:
    """Return the event with the number of its beats and their mean rate."""
    first, last = np.searchsorted(sample, [event.start, event.stop])
    rate_bpm = mean_rate_bpm(sample[first:last], rate_hz)
    # Beats that are slower than VT were not all detected in its wave.
    if event.num_beats or last - first < 2 or (event.kind == "VT" and rate_bpm < vt_bpm):
        return event
    return replace(event, num_beats=int(last - first), rate_bpm=rate_bpm)
