"""Analysis of a recording with the models shipped with heartlm.

    recording ─► blocks of an hour ─► up to three leads ─► beats of each ─► beats that most leads have
                      │                                                       │
                      │                       tokens of each lead ─► class probabilities, mean of the leads
                      ├► best lead at 100 Hz ─► VF, VT, asystole, noise in each second
                      └► all leads without QRS complexes ─► flutter in each second
    all blocks ─► seconds ─► beats ─► rhythms ─► classes ─► events ─► intervals ─► `Findings`   (`stages`)

Blocks limit the memory use for long recordings. Each is read with a margin on both sides. Beats in the margin
contribute to the tokens, and are classified in the neighbouring block. A block is about as long as the training
recordings, because tokens are relative to the whole recording.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.av_block import atrial_events
from heartlm.analysis.certain_beats import certain_beats
from heartlm.analysis.conduction import conduction
from heartlm.analysis.events import USUAL_LIMITS, in_order, second_events
from heartlm.analysis.exchanged import EXCHANGED, exchanged_arms
from heartlm.analysis.findings import QUALITY_S, Event, Findings
from heartlm.analysis.flutter import WINDOW_S as FLUTTER_S
from heartlm.analysis.flutter import atrial_leads, flutter
from heartlm.analysis.lead_agreement import combined, fill_gaps, regular_seconds
from heartlm.analysis.limits import Limits
from heartlm.analysis.lost_signal import cut_lost, lost_intervals, lost_stretches, present_fraction
from heartlm.analysis.made_by import made_by_models
from heartlm.analysis.p_denial import without_p
from heartlm.analysis.pacing import pacing_spikes
from heartlm.analysis.run_shape import noise_runs, run_shape
from heartlm.analysis.short_af import AF_BY_RR, LONGEST_S, WEIGHTS, log_odds
from heartlm.analysis.short_af import measures as short_af_measures
from heartlm.analysis.signal_quality import SWINGS, LeadQuality, best_leads, lead_quality
from heartlm.analysis.stages import (
    UNREADABLE,
    AnalysedBlock,
    Heartbeats,
    Rhythms,
    Seconds,
    events_of,
    judged_seconds,
    kept_beats,
    named_beats,
    settled,
)
from heartlm.analysis.statements import beats_by, blocks_by, rhythms_by, stated
from heartlm.analysis.unexamined import FEWEST_AF_BEATS, too_short
from heartlm.analysis.unlike import USUAL, measures_of_beats, unlike
from heartlm.analysis.usual_shape import excluded_classes, likeness_to_usual
from heartlm.databases.each_recording import Watch
from heartlm.delineation.delineate import LOWEST_RATE_HZ, delineate
from heartlm.delineation.intervals import Intervals, measure
from heartlm.ecg.definitions import definitions
from heartlm.ecg.leads import channels_without_ecg, ecg_leads, no_ecg_lead
from heartlm.ecg.mains import HumFree
from heartlm.ecg.matching import MATCH_WINDOW_S, nearest
from heartlm.ecg.recording import ARTEFACT, Annotations, Recording
from heartlm.ecg.spans import runs
from heartlm.errors import HeartlmError
from heartlm.inference.finetuned import FineTuned
from heartlm.inference.network import Device
from heartlm.inference.predictions import recording_probabilities, without_artefacts
from heartlm.inference.waveform import regular_wave_seconds, second_probabilities
from heartlm.labels.waveform import VF, WINDOW
from heartlm.models.pretrained import FOLDER
from heartlm.storage.reading import read_json
from heartlm.tasks.load import load_of_tasks
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
READABLE_ALONE = 0.75
"""Least quality of a lead that decides while the electrode of another one is off: at 0.73, a lead of record 203 of
mitdb shows four false V beats (docs/log/signals.md)."""

FAR = 1 << 60
SAME_BEAT = 0.4
"""Detections of two leads are of one beat up to this fraction of the shorter interval to the next detection."""

ALL_LEADS_S = 600.0
"""Longest recording of which all ECG leads are delineated."""

Places = NDArray[np.int64]
Stretch = tuple[int, int]


@dataclass(frozen=True)
class Analyst:
    """Models for the analysis of recordings.

    Attributes:
        beats: classifier of beats.
        af: detector of atrial fibrillation from RR intervals.
        waveform: classifier of ventricular fibrillation, tachycardia, asystole and noise in windows of samples.
        statements: names what a report would state about a short recording of many leads.
    """

    beats: FineTuned
    af: FineTuned
    waveform: FineTuned
    statements: FineTuned

    @classmethod
    def load(
        cls,
        beats: Path,
        af: Path,
        waveform: Path,
        statements: Path = Path("statements"),
        device: Device = "cpu",
    ) -> Analyst:
        """Load four models on `device`, each by the name of a shipped model or by a run folder.

        Raises:
            HeartlmError: a model cannot be read, is of another task, or is the shipped foundation model, whose classes
                of beats were only used for its training.
        """
        runs = {"beats": beats, "rhythm": af, "waveform": waveform, "statements": statements}
        analyst = cls(*load_of_tasks(runs, device))
        foundation = read_json(FOLDER / "foundation/run.json", dict[str, object])  # also in a saved copy
        if analyst.beats.about["manifest_hash"] == foundation["manifest_hash"]:
            raise HeartlmError("foundation names no beats (see its card): fine-tune it, or use the model beats")
        return analyst

    @cached_property
    def made_by(self) -> dict[str, str]:
        """What findings depend on in addition to recording and limits: `build`, and a digest of each model."""
        models = {"beats": self.beats, "af": self.af, "waveform": self.waveform, "statements": self.statements}
        return made_by_models({name: model.folder for name, model in models.items()})

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
            spiked = candidates if recording.duration_s <= ALL_LEADS_S else leads
            blocks = [self._block(recording, start, stop, leads, spiked) for start, stop in watch(_blocks(recording))]
        except ValueError as error:
            raise HeartlmError(f"{recording.path}: {error}") from error
        block = AnalysedBlock(*map(np.concatenate, zip(*blocks, strict=True)))
        rate_hz, notes = recording.rate_hz, notes_of(recording)
        seconds = judged_seconds(block, recording.num_samples, rate_hz, self.waveform.info.threshold)
        beats = kept_beats(block, seconds, self._noise_runs(block, rate_hz, limits.run_beats))
        waves = _waves(recording, beats.sample, leads)
        rhythms = self._rhythms(recording, block, seconds, beats, waves, is_single_lead=len(candidates) == 1)
        facts = stated(recording, candidates, beats.sample, self.statements)
        by_leads, contradicted = rhythms_by(facts, beats.sample, rhythms.events)
        rhythms = replace(rhythms, events=by_leads, notes=rhythms.notes + contradicted)
        classes = named_beats(block, beats, rhythms.events, self._heartbeats, limits.run_beats)
        of_kept = block.probability[beats.kept], block.paced[beats.kept]
        classes = beats_by(facts, classes, *of_kept, self._heartbeats, limits.run_beats)
        events, by_waveform, disputed = events_of(block, seconds, beats, rhythms.events, classes, rate_hz, limits)
        of_intervals, not_measured = conduction(recording, waves, classes.symbol, events, beats.lost)
        conducted = (classes.symbol == "N") & ~block.paced[beats.kept]
        pr_ms = waves.intervals["pr_ms"][conducted] if waves else None
        events += blocks_by(facts, of_intervals, beats.sample, events, pr_ms)
        # The last second may be a part, or lack its last sample.
        edges = seconds.edges
        in_seconds = int((edges[-1] + 1) // rate_hz), int((np.diff(edges)[seconds.readable].sum() + 1) // rate_hz)
        unexamined = too_short(beats.sample, beats.clear, rate_hz, *in_seconds, limits) | not_measured
        found = {event.kind for event in events}
        for stage in (seconds, beats, rhythms, classes):
            notes += stage.notes
        return Findings(
            source,
            leads,
            beats.sample,
            classes.symbol,
            classes.certainty,
            in_order(events),
            block.readable.T,
            tuple(notes + [f"damaged: {fault}" for fault in recording.faults]),
            self.made_by,
            unlike(block.measures),
            definitions(vars(limits)),
            lost=beats.lost,
            left_out=beats.left_out,
            paced=block.paced[beats.kept],
            hum_hz={recording.lead_names[lead]: tuple(sorted(hz)) for lead, hz in sorted(hum_free.removed.items())},
            waves=waves,
            short_af=rhythms.short_af,
            stated=facts.present,
            warnings=(EXCHANGED,)
            if waves is not None and exchanged_arms(waves.of_beats(classes.symbol == "N"))
            else (),
            unexamined={kind: reason for kind, reason in unexamined.items() if kind not in found},
            limits=limits,
            disputed=disputed,
            by_waveform=tuple(by_waveform),
        )

    def _rhythms(
        self,
        recording: Recording,
        block: AnalysedBlock,
        seconds: Seconds,
        beats: Heartbeats,
        waves: Intervals | None,
        is_single_lead: bool,
    ) -> Rhythms:
        """Find flutter by its wave, AF by RR intervals and P waves, AV blocks and junctional rhythm by P waves."""
        sample, edges, rate_hz, notes = beats.sample, seconds.edges, recording.rate_hz, list[str]()
        in_flutter = second_events(
            "flutter", block.flutter, block.flutter > 0, FLUTTER_S, edges, rate_hz, seconds.readable
        )
        af, af_probability = self._af_events(sample, beats.clear, rate_hz)
        measured, by_p_waves = dict[str, float](), list[Event]()
        likeliest = self._heartbeats[block.probability[beats.kept].argmax(axis=1)]
        if waves is not None:
            paced, clear = block.paced[beats.kept], beats.clear & ~beats.hiding
            by_p_waves = atrial_events(waves, likeliest == "N", likeliest == "V", paced, clear)
        if waves is not None and is_single_lead and recording.duration_s <= LONGEST_S and len(af_probability):
            measured = short_af_measures(waves.delineation, af_probability, block.quality[:, 0])
            odds = log_odds(measured)
            measured[AF_BY_RR] = float(bool(af))
            whole = Event("AF", int(sample[0]), int(sample[-1]) + 1, float(1 / (1 + np.exp(-odds))))
            af = (af or [whole]) if odds >= WEIGHTS["threshold"] else []
        elif waves is not None:
            atrial = block.atrial[np.searchsorted(edges[1:-1], sample, side="right")]
            af, denied = without_p(af, waves, likeliest == "N", atrial, SHORTEST_AF_S * rate_hz)
            if denied:
                notes.append(f"{denied / rate_hz:.0f} s would be AF by RR intervals; P waves at a steady PR deny it")
        found = {"atrial wave": in_flutter, "intervals": af, "P waves": by_p_waves}
        return Rhythms(settled(found, sample), measured, notes)

    def _noise_runs(self, block: AnalysedBlock, rate_hz: float, run_beats: int) -> NDArray[np.bool_]:
        """Return which beats are in runs that the model of beats calls ventricular and that are noise."""
        beats = np.flatnonzero(~block.no_beat)
        symbol = self._heartbeats[block.probability[beats].argmax(axis=1)]
        no_v, no_s = excluded_classes(symbol, block.likeness[beats], block.several[beats], run_beats)
        second = np.minimum((block.sample[beats] // rate_hz).astype(np.int64), len(block.seconds) - 1)
        is_v = ((symbol == "V") & ~no_v | no_s) & ~block.paced[beats]
        in_noise = np.zeros(len(block.sample), np.bool_)
        in_noise[beats] = noise_runs(is_v, block.shape[beats], block.seconds[second], run_beats)
        return in_noise

    def _block(
        self, recording: Recording, start: int, stop: int, leads: tuple[int, ...], spiked: tuple[int, ...]
    ) -> AnalysedBlock:
        """Analyse the samples `start` to `stop` of `leads`; pacing spikes are looked for in the leads `spiked`."""
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
        readable = np.stack([lead.readable(rate_hz) for lead in lead_qualities])
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
        shown = signals if spiked == leads else recording.signal(first, last, spiked)
        paced = (pacing_spikes(sample, shown, rate_hz) >= 0) & ~no_beat
        is_normal = ((self._heartbeats[probability.argmax(axis=1)] == "N") | paced) & ~no_beat
        can_be_read = beat_quality >= UNREADABLE
        likeness = likeness_to_usual(sample, is_normal, signals, can_be_read, rate_hz)
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
            can_be_read.sum(axis=0)[in_block] > 1,
            shape[in_block],
            seconds[begin_s : begin_s + num_seconds],
            waves[begin_s : begin_s + num_seconds],
            regular_seconds(lead_qualities, len(seconds), rate_hz)[begin_s : begin_s + num_seconds],
            in_flutter[begin_s : begin_s + num_seconds],
            atrial_wave[begin_s : begin_s + num_seconds],
            quality[:, pieces][:, :num_pieces].T,
            readable[:, pieces][:, :num_pieces].T,
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
