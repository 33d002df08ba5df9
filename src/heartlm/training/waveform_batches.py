"""Batches of the waveform task: augmented windows, and simulated windows of rare classes.

    VT from real V beats, VF, noise floors, artefacts ─► replace some windows ─┐
    pauses, movements of the electrodes ───────────────► applied to some ──────┼─► codes
    gain, inversion, wander, mains, real noise ────────► applied to all ───────┘

Each window has its own row of random numbers, derived from the seed and the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.windows import Windows
from heartlm.ecg.recording import BEAT_CLASSES, UNLABELLED
from heartlm.ecg.spans import runs
from heartlm.kernels.draws import Use, draws, uniform
from heartlm.kernels.gather import gather_windows
from heartlm.labels.tokens import IGNORE
from heartlm.labels.waveform import ASYSTOLE, NOISE, OTHER, STRIDE, VF, VT, WINDOW, WINDOW_S
from heartlm.tokenizers.millivolts import dequantize, quantize
from heartlm.tokenizers.sample import GRID_HZ
from heartlm.training.batches import BatchPosition, CodesForm, HostBatch, LabelledWindows, majority

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Fraction of windows replaced by simulated windows of each class.
_MADE = {ASYSTOLE: 0.07, NOISE: 0.04, VT: 0.08, OTHER: 0.05, VF: 0.08}
# Fraction of windows of `OTHER` in which the electrodes move, so that their label becomes `NOISE`; rates of the
# movements, and their standard deviation over that of the window.
_MOVED, _MOVE_HZ, _MOVE_SIZE = 0.45, (2.5, 7), (0.6, 2.8)
# Fractions of the movements that are pure sines, and that are irregular; the others have harmonics.
_SWAYS, _IRREGULAR = 0.25, 0.4
# Fraction of windows of `OTHER` with a pause, and its seconds: a silent lead is no noise.
_PAUSED, _PAUSE_S = 0.12, (1.5, 3.4)
# Number of uniform random numbers per window before its noise, and index of the first one used for simulation.
#
# Number 0 selects whether the window is simulated. Each kind of change starts at a number of its own, so that what one
# kind draws does not shift the numbers of another.
_NUM_CHOICES, _FIRST_OF_MADE, _FIRST_OF_MOVE, _FIRST_OF_PAUSE = 80, 24, 46, 62
# Tokens of a V beat before and after its R peak.
_BEFORE, _AFTER = 25, 45


@dataclass(frozen=True)
class WaveformBatches(LabelledWindows):
    """Batches of windows with their class; in training some windows are simulated and all are augmented.

    Attributes:
        classes: class of every token of the corpus, int64 `[num_tokens]`.
        rows: rows of the training split, which provide V beats and noise for simulation.
        seed: seed of the random numbers.
    """

    corpus: Corpus
    classes: NDArray[np.int64]
    rows: NDArray[np.int64]
    seed: int

    def draft(self, windows: Windows, position: BatchPosition, form: CodesForm = "int64") -> HostBatch:
        """Label each window by the majority of its tokens; in training compute the codes of the augmented windows."""
        token_labels = gather_windows(self.classes, windows.first, windows.length, windows.width)
        token_labels[~windows.valid] = IGNORE
        labels = majority(token_labels)
        codes, valid = self.inputs(windows, form)
        if position.step is not None:
            num = _NUM_CHOICES + 2 * WINDOW  # Box and Muller's formula makes one normal number of two uniform ones
            stream = position.stream(self.seed, Use.WAVEFORM_WINDOWS)
            drawn = draws(stream, position.first_window * num, len(windows) * num)
            numbers = uniform(drawn).reshape(len(windows), num)
            mv, labels = self._made(self._mv(windows.first), labels, numbers)
            mv = _paused(mv, labels, numbers)
            mv, labels = _moved(mv, labels, _Choices(numbers, _FIRST_OF_MOVE))
            mv = self._disturbed(mv, labels, _Choices(numbers, 1))
            codes = torch.from_numpy(quantize(mv).astype(np.int64)[..., None])
        num_counting = (labels != IGNORE).astype(np.int64)
        return HostBatch(codes, valid, windows.length, num_counting, labels=torch.from_numpy(labels))

    def _mv(self, first: NDArray[np.int64]) -> Floats:
        length = np.full(len(first), WINDOW)
        return dequantize(gather_windows(self.corpus.codes, first, length, WINDOW)[..., 0])

    @cached_property
    def _beats(self) -> list[Floats]:
        """Waveforms of isolated V beats of each patient, tapered to zero; float32 `[num_beats, 70]` each."""
        by_patient: dict[str, list[Floats]] = {}
        # 100 and 200 ms of its 700 ms; like the 80 beats of a lead, which bound the memory, not tuned
        ramp = np.concatenate([np.linspace(0, 1, 10), np.ones(_BEFORE + _AFTER - 30), np.linspace(1, 0, 20)])
        for row in self.rows.tolist():
            tokens = self.corpus.tokens_of(row)
            classes = self.corpus.beat_class[tokens]
            labelled_at = np.flatnonzero(classes != UNLABELLED)
            gaps = np.diff(labelled_at, prepend=0, append=len(classes))
            alone = (classes[labelled_at] == BEAT_CLASSES.index("V")) & (gaps[:-1] > _BEFORE) & (gaps[1:] > _AFTER)
            if not alone.any():
                continue
            first = tokens.start + labelled_at[alone][:80] - _BEFORE
            waves = dequantize(np.stack([self.corpus.codes[at : at + _BEFORE + _AFTER, 0] for at in first]))
            ends = np.linspace(waves[:, 0], waves[:, -1], waves.shape[1], axis=1)
            by_patient.setdefault(str(self.corpus.records.patient_id[row]), []).append(
                ((waves - ends) * ramp).astype(np.float32)
            )
        return [np.concatenate(waves) for waves in by_patient.values()]

    @cached_property
    def _starts(self) -> dict[int, NDArray[np.int64]]:
        """Start indices of windows of noise and of VF, 1 s apart; int64, empty if the corpus has none."""
        starts = {NOISE: [np.empty(0, np.int64)], VF: [np.empty(0, np.int64)]}
        for row in self.rows.tolist():
            tokens = self.corpus.tokens_of(row)
            for label, of_label in starts.items():
                for first, stop in runs(self.classes[tokens] == label).tolist():
                    of_label.append(np.arange(tokens.start + first, tokens.start + stop - WINDOW + 1, STRIDE))
        return {label: np.concatenate(of_label) for label, of_label in starts.items()}

    def _another(self, label: int, choice: _Choices) -> Floats:
        """Draw a window of `label` for each row, of standard deviation 1; zeros if the corpus has none."""
        starts, which = self._starts[label], choice.next()
        if not len(starts):
            return np.zeros((len(which), WINDOW), np.float32)
        mv = self._mv(starts[(which * len(starts)).astype(np.int64)])
        return np.asarray(mv / (mv.std(axis=1, keepdims=True) + 1e-3))

    def _made(self, mv: Floats, labels: NDArray[np.int64], drawn: Doubles) -> tuple[Floats, NDArray[np.int64]]:
        """Replace some windows by simulated ones."""
        kind, below = drawn[:, 0], 0.0
        mv, labels = mv.copy(), labels.copy()
        for label, share in _MADE.items():
            chosen = (kind >= below) & (kind < below + share)
            below += share
            choice = _Choices(drawn[chosen], _FIRST_OF_MADE)
            if not chosen.any() or (label in (VT, OTHER) and not self._beats):
                continue
            labels[chosen] = label
            if label == ASYSTOLE:
                mv[chosen] = _asystole(choice)
            elif label == NOISE:
                mv[chosen] = _artefacts(choice)
            elif label == VF:
                mv[chosen] = _fibrillation(choice)
            else:
                mv[chosen] = self._ventricular_rhythm(choice, *((105, 260) if label == VT else (45, 92)))
        return mv, labels

    def _ventricular_rhythm(self, choice: _Choices, slowest: float, fastest: float) -> Floats:
        """Repeat a patient's V beat at a rate of `slowest` to `fastest` per minute; beats shorten with the rate.

        Rates above 100/min simulate VT. Slower ones simulate an escape or paced rhythm, so that a wide QRS alone does
        not indicate VT.
        """
        patient, which = choice.next(), choice.next()
        patient_beats = [self._beats[int(p * len(self._beats))] for p in patient]
        wave = np.stack([waves[int(w * len(waves))] for waves, w in zip(patient_beats, which, strict=True)])
        cycle = 60 * GRID_HZ / choice.between(slowest, fastest)
        faster = np.minimum(1, (cycle / 60) ** 0.6)  # a cycle of 60 tokens is 100/min: slower beats keep their width
        jitter = choice.between(0, 0.03) * cycle
        unequal = choice.between(0, 0.12)
        phase = choice.next() * cycle - _BEFORE
        time, mv = np.arange(WINDOW), np.zeros((len(wave), WINDOW))
        # 23 tokens are the shortest cycle; earlier beats reach into the window.
        for beat in range(-3, WINDOW // 23 + 1):
            at = (time - (phase + beat * cycle + jitter * choice.normal(beat + 3))[:, None]) / faster[:, None]
            below = np.clip(np.floor(at).astype(np.int64), 0, wave.shape[1] - 2)
            left = np.take_along_axis(wave, below, 1)
            right = np.take_along_axis(wave, below + 1, 1)
            inside = (at >= 0) & (at <= wave.shape[1] - 1)
            value = np.where(inside, left + (right - left) * (at - below), 0)
            mv += value * (1 + unequal * choice.normal(beat + 30))[:, None]
        return np.asarray(mv - mv.mean(axis=1, keepdims=True), np.float32)

    def _disturbed(self, waveform: Floats, labels: NDArray[np.int64], choice: _Choices) -> Floats:
        """Apply gain, inversion, baseline wander, mains, muscle and recorded noise, monitor filters and saturation."""
        asystole = labels == ASYSTOLE
        gain = np.exp(1.2 * (choice.next() + choice.next() - 1))
        gain = np.where(asystole, np.minimum(gain, 1.5), gain) * np.where(choice.next() < 0.5, -1, 1)
        mv = waveform * gain[:, None].astype(np.float64)
        size = np.where(asystole, 0, mv.std(axis=1))
        # The sum of two VF signals resembles VF; this adds variety, since few patients have VF.
        both = (labels == VF) & (choice.next() < 0.3)
        ratio = size * choice.log_between(0.2, 1)
        mv += np.where(both, ratio, 0)[:, None] * self._another(VF, choice)
        mv += choice.sine(0.1, 0.5, np.where(choice.next() < 0.3, size * choice.log_between(0.05, 1), 0))
        mv += choice.sine(45, 50, np.where(choice.next() < 0.2, size * choice.log_between(0.02, 0.3), 0))
        muscle = np.where(choice.next() < 0.4, size * choice.log_between(0.01, 0.3), 0)
        mv += muscle[:, None] * choice.noise
        mixed = choice.next() < 0.4
        ratio = size * choice.log_between(0.1, 0.7)
        mv += np.where(mixed & (labels != NOISE), ratio, 0)[:, None] * self._another(NOISE, choice)
        smoothed = (mv + np.roll(mv, 1, axis=1) + np.roll(mv, -1, axis=1)) / 3
        mv = np.where(choice.next()[:, None] < 0.2, smoothed, mv)
        # The sum of the 101 tokens around each is a difference of cumulative sums, the earlier of which is one before.
        total = np.cumsum(np.pad(mv, ((0, 0), (51, 50)), mode="edge"), axis=1)
        mv = np.where(choice.next()[:, None] < 0.2, mv - (total[:, 101:] - total[:, :-101]) / 101, mv)
        limit = np.where(choice.next() < 0.1, 0.6, 1) * np.abs(mv).max(axis=1)
        return np.clip(mv, -limit[:, None], limit[:, None]).astype(np.float32)


class _Choices:
    """Random numbers of the windows, read column by column.

    Args:
        drawn: uniform numbers in [0, 1), float64 `[B, num]`: `_NUM_CHOICES` columns, then two for each token.
        first: first column to read.
    """

    def __init__(self, drawn: Doubles, first: int) -> None:
        self._drawn, self._next = drawn, first
        size = np.sqrt(-2 * np.log1p(-drawn[:, _NUM_CHOICES::2]))  # of 1 − drawn, since drawn may be 0 and is never 1
        angle = 2 * np.pi * drawn[:, _NUM_CHOICES + 1 :: 2]
        self.noise: Doubles = size * np.cos(angle)

    def next(self) -> Doubles:
        """Return uniform numbers in [0, 1), `[B]`."""
        assert self._next < _NUM_CHOICES
        self._next += 1  # the order of calls is part of a result: one more in the middle changes every window after it
        return self._drawn[:, self._next - 1]

    def between(self, low: float, high: float) -> Doubles:
        """Return uniform numbers from `low` to `high`, `[B]`."""
        return low + (high - low) * self.next()

    def log_between(self, low: float, high: float) -> Doubles:
        """Return log-uniform numbers from `low` to `high`, `[B]`."""
        return np.asarray(np.exp(self.between(np.log(low), np.log(high))))

    def normal(self, index: int) -> Doubles:
        """Return standard normal numbers, `[B]`, from column `index` of `noise`."""
        return self.noise[:, index]

    def sine(self, low_hz: float, high_hz: float, amplitude: Doubles) -> Doubles:
        """Return sine waves `[B, WINDOW]` of random frequency and phase."""
        frequency, phase = self.between(low_hz, high_hz), self.next()
        turns = frequency[:, None] * np.arange(WINDOW) / GRID_HZ + phase[:, None]
        return np.asarray(amplitude[:, None] * np.sin(2 * np.pi * turns))

    def filtered(self, gain: Doubles) -> Doubles:
        """Return `noise` `[B, WINDOW]` filtered by the gain at each frequency of a window."""
        return np.asarray(np.fft.irfft(np.fft.rfft(self.noise) * gain, WINDOW))

    def coloured(self) -> Doubles:
        """Return noise `[B, WINDOW]` of standard deviation 1, between white and nearly red."""
        frequency = np.maximum(np.fft.rfftfreq(WINDOW), 1 / WINDOW)
        noise = self.filtered(frequency ** -self.between(0, 1.2)[:, None])
        return np.asarray(noise / noise.std(axis=1, keepdims=True))


def _paused(mv: Floats, labels: NDArray[np.int64], drawn: Doubles) -> Floats:
    """Silence a part of some windows of `OTHER`, as between beats that are far apart."""
    chosen = (labels == OTHER) & (drawn[:, _FIRST_OF_PAUSE] < _PAUSED)
    choice, before = _Choices(drawn[chosen], _FIRST_OF_PAUSE + 1), mv[chosen]
    length = choice.between(*_PAUSE_S)
    start = choice.next() * (WINDOW_S + 1) - 1
    ends = (np.clip(np.stack([start, start + length]), 0, WINDOW_S - 0.01) * GRID_HZ).astype(np.int64)
    level = np.take_along_axis(before, ends.T, axis=1)
    time = np.arange(WINDOW) / GRID_HZ - start[:, None]
    share = np.clip(time / length[:, None], 0, 1)
    silence = level[:, :1] * (1 - share) + level[:, 1:] * share + _asystole(choice)
    inside = np.clip(time / 0.1, 0, 1) * np.clip((length[:, None] - time) / 0.1, 0, 1)
    paused = mv.copy()
    paused[chosen] = before * (1 - inside) + silence * inside
    return paused


def _moved(mv: Floats, labels: NDArray[np.int64], choice: _Choices) -> tuple[Floats, NDArray[np.int64]]:
    """Move the electrodes of some windows of `OTHER` at the rates of VF: noise, because there are still beats.

    They sway, swing with harmonics, or move irregularly; their movement grows and wanes.
    """
    chosen = (labels == OTHER) & (choice.next() < _MOVED)
    kind = choice.next()
    hz, phase = choice.between(*_MOVE_HZ), choice.next()
    wobble, slow = choice.between(0, 1.5), choice.between(0.2, 0.8)
    size = choice.log_between(*_MOVE_SIZE) * mv.std(axis=1)
    time = np.arange(WINDOW) / GRID_HZ
    frequency = np.maximum(np.fft.rfftfreq(WINDOW, 1 / GRID_HZ), 0.01)
    turns = 2 * np.pi * (hz[:, None] * time + phase[:, None])
    turns += wobble[:, None] * np.sin(2 * np.pi * slow[:, None] * time + 7 * phase[:, None])
    regular = np.sin(turns)
    for times, most in ((2, 0.6), (3, 0.4)):
        size_of = np.where(kind < _SWAYS, 0, choice.between(-most, most))
        regular += size_of[:, None] * np.sin(times * turns + 2 * np.pi * choice.next()[:, None])
    low, high = choice.between(0.3, 2)[:, None], choice.between(3, 9)[:, None]
    passed = 1 / (1 + (low / frequency) ** 8) / (1 + (frequency / high) ** 8)
    moved = np.where((kind < 1 - _IRREGULAR)[:, None], regular, choice.filtered(passed))
    moved *= 1 + choice.sine(0.1, 0.8, choice.between(0, 0.8))
    moved *= size[:, None] / moved.std(axis=1, keepdims=True)
    return np.where(chosen[:, None], mv + moved, mv).astype(np.float32), np.where(chosen, NOISE, labels)


def _asystole(choice: _Choices) -> Floats:
    """Simulate asystole: an amplifier's noise floor, slow wander, sometimes P waves or mains."""
    mv = choice.log_between(0.001, 0.02)[:, None] * choice.coloured()
    mv += choice.sine(0.05, 0.5, choice.log_between(0.001, 0.08))
    every, amplitude = choice.between(0.6, 1.2), choice.between(-0.08, 0.08)
    since = (np.arange(WINDOW) / GRID_HZ + choice.next()[:, None]) % every[:, None] - every[:, None] / 2
    mv += np.where(choice.next() < 0.3, amplitude, 0)[:, None] * np.exp(-0.5 * (since / 0.03) ** 2)
    return (mv + choice.sine(45, 50, np.where(choice.next() < 0.3, 0.02, 0))).astype(np.float32)


def _fibrillation(choice: _Choices) -> Floats:
    """Simulate VF as noise of a narrow band: waves like those of `_moved`, but without beats under them."""
    centre, width = choice.between(3, 7)[:, None], choice.log_between(0.2, 1.5)[:, None]
    passed = np.exp(-0.5 * ((np.fft.rfftfreq(WINDOW, 1 / GRID_HZ) - centre) / width) ** 2)
    mv = choice.filtered(passed)
    mv *= choice.log_between(0.08, 0.8)[:, None] / mv.std(axis=1, keepdims=True)
    return (mv * (1 + choice.sine(0.1, 0.8, choice.between(0, 0.5)))).astype(np.float32)


def _artefacts(choice: _Choices) -> Floats:
    """Simulate electrode artefacts without ECG: coloured noise, voltage steps, mains."""
    size = choice.log_between(0.1, 2)
    mv = size[:, None] * choice.coloured() * np.where(choice.next() < 0.5, 1, 0.2)[:, None]
    step = size * 4 * (choice.next() - 0.5)
    when = choice.between(-WINDOW, WINDOW)
    since = np.arange(WINDOW) - when[:, None]
    mv += np.where(since >= 0, step[:, None] * np.exp(-np.maximum(since, 0) / GRID_HZ), 0)
    return (mv + choice.sine(45, 50, np.where(choice.next() < 0.3, size, 0))).astype(np.float32)
