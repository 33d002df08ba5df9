"""Real beats on other rhythms: recordings that teach a model arrhythmias of which databases hold few patients.

    recording ─► its normal beats, cut in P wave and QRST ─┐
              └► its sinus intervals ─► drawn rhythm ──────┴─► beats at new times ─► WFDB record

A patient with a supraventricular tachycardia that lasts is rare, and a model that never met one calls it normal. So the
beats of a patient are laid out again: isolated and repeated premature atrial beats, atrial runs that end in pauses,
sustained supraventricular tachycardia (all annotated A); and what must not be taken for them: sinus tachycardia that
comes and goes slowly, arousal, respiratory arrhythmia, blocked beats, atrial fibrillation at any rate (all N). The P
wave of an ectopic atrial beat is inverted, late or missing; the T wave is shortened with the interval. Ventricular
premature beats are the patient's own.

Which beats are normal is known from labels. Without them it is judged from the signal: a beat is normal if its QRS
complex is the usual one and it comes in time, and ventricular if its QRS complex is another one and it comes early.
Beats on a drawn rhythm have labels by construction, so recordings without labels can teach supraventricular beats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from heartlm.ecg.database import Database, open_database
from heartlm.ecg.recording import Annotations, Recording
from heartlm.ecg.simulator.randomness import stream
from heartlm.ecg.simulator.write import write_checksums, write_record
from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, write_json
from heartlm.progress import track

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

P_S, QRS_S, T_END_S = -0.25, -0.06, 0.45
"""Where a beat is cut, from its R peak: the P wave reaches from the first to the second, QRST to the third."""
QRS_END_S = 0.10
"""From here on a beat is stretched or shortened with its interval."""

FEWEST_INTERVALS, MOST_IRREGULAR = 300, 0.08
"""A recording is used if it has this number of intervals between normal beats, and the median change of their
logarithms is at most the second number."""
FEWEST_VENTRICULAR = 10
"""Ventricular beats are laid out where the patient has at least this number."""

USUAL, OTHER = 0.9, 0.8
"""Without labels: from the first correlation with the median QRS complex on a beat is a usual one, below the second it
may be ventricular."""
IN_TIME, FEWEST_IN_TIME = 0.15, 0.7
"""Without labels: a beat is in time if its interval differs from the median around by at most the first share; a
recording with fewer such beats than the second share is irregular."""

NORMAL, ATRIAL, VENTRICULAR = "N", "A", "V"
OWN, INVERTED, LATE, NONE = range(4)
"""Kinds of P wave."""


class Beat(NamedTuple):
    """A beat to lay out: when (s), its WFDB code, and its kind of P wave."""

    at_s: float
    symbol: str
    p_wave: int


class Rhythms:
    """Draws a patient's beats one after the other; each method adds a stretch of a rhythm.

    Args:
        intervals_s: sinus intervals of the patient, in order, `[num_intervals]`.
        ventricular: whether ventricular premature beats are drawn.
        rng: what everything random follows from.
    """

    def __init__(self, intervals_s: Doubles, ventricular: bool, rng: Generator) -> None:
        self.rng, self.beats, self.at_s = rng, list[Beat](), 0.0
        median = float(np.median(intervals_s))
        self.base_s = float(np.clip(median * rng.uniform(0.85, 1.2), 0.55, 1.3))
        self._deviation = (intervals_s / median - 1) * rng.uniform(0.6, 1.6)
        self._place = int(rng.integers(len(intervals_s)))
        self.slowing = 1.0
        self.premature = np.exp(rng.uniform(np.log(0.01), np.log(0.2))) * (rng.random() < 0.6)
        self.ventricular = np.exp(rng.uniform(np.log(0.005), np.log(0.1))) * (ventricular and rng.random() < 0.6)
        self.blocked = 0.015 * (rng.random() < 0.35)
        self.coupling = rng.uniform(0.5, 0.85)
        self.premature_p, self.run_p = rng.integers(1, 4, 2).tolist()
        self.tachycardia_s = min(rng.uniform(0.32, 0.55), 0.72 * self.base_s)
        self.tachycardia_beats = np.exp(rng.normal(3.3, 1.4))
        self.incessant = rng.uniform(0.05, 0.8)
        self.run_s = min(rng.uniform(0.55, 0.85), 0.85 * self.base_s)
        stretches: list[tuple[Callable[[], None], float]] = [
            (self.tachycardia, 0.6),
            (self.runs_and_pauses, 0.35),
            (self.fibrillation, 0.35),
            (self.sinus_tachycardia, 0.5),
            (self.arousal, 0.4),
            (self.breathing, 0.35),
        ]
        self.stretches = [stretch for stretch, share in stretches if rng.random() < share]

    def live(self, num_beats: int) -> list[Beat]:
        """Draw at least `num_beats` beats."""
        while len(self.beats) < num_beats:
            self.sinus(int(self.rng.integers(20, 150)))
            if self.stretches:
                self.stretches[self.rng.integers(len(self.stretches))]()
        return self.beats

    def _beat(self, interval_s: float, symbol: str = NORMAL, p_wave: int = OWN) -> None:
        self.at_s += interval_s
        self.beats.append(Beat(self.at_s, symbol, p_wave))

    def _interval_s(self, variability: float = 1.0) -> float:
        self._place = (self._place + 1) % len(self._deviation)
        return max(self.base_s * self.slowing * (1 + variability * float(self._deviation[self._place])), 0.33)

    def sinus(self, num_beats: int) -> None:
        """Sinus rhythm with this patient's premature and blocked beats."""
        for _ in range(num_beats):
            chance = self.rng.random()
            if chance < self.premature:
                self.premature_atrial()
            elif (chance := chance - self.premature) < self.ventricular:
                interval_s, early = self._interval_s(), self.rng.uniform(0.45, 0.8)
                self._beat(interval_s * early, VENTRICULAR, NONE)
                self._beat(max(interval_s * (2 - early) + self.rng.normal(0, 0.02), 0.4))
            elif chance - self.ventricular < self.blocked:
                pause = self.rng.choice([2, 2, 2, 3]) if self.rng.random() < 0.6 else self.rng.uniform(1.3, 2.5)
                self._beat(self._interval_s() * pause)
            else:
                self._beat(self._interval_s())

    def premature_atrial(self) -> None:
        """One premature atrial beat, a few in a row, or bigeminy or trigeminy."""
        kind = self.rng.random()
        if kind < 0.15:
            between, times, row = int(self.rng.integers(1, 3)), int(self.rng.integers(3, 15)), 1
        else:
            between, times, row = 0, 1, 1 if kind < 0.85 else int(self.rng.integers(2, 6))
        for _ in range(times):
            for _ in range(between):
                self._beat(self._interval_s())
            for _ in range(row):
                early = np.clip(self.coupling + self.rng.normal(0, 0.05), 0.42, 0.93)
                self._beat(self._interval_s() * early, ATRIAL, self.premature_p)
            self._beat(self._interval_s() * self.rng.uniform(1.0, 1.25))

    def tachycardia(self) -> None:
        """Supraventricular tachycardia: sudden, steady, for a few beats or minutes, once or again and again."""
        while True:
            num_beats = int(np.clip(self.tachycardia_beats * np.exp(self.rng.normal(0, 0.8)), 2, 600))
            interval_s, drift = self.tachycardia_s * self.rng.normal(1, 0.02), self.rng.normal(0, 0.01)
            self._beat(interval_s * self.rng.uniform(0.9, 1.05), ATRIAL, self.run_p)
            for place in range(num_beats):
                factor = (1 + drift * place / num_beats) * (1 + self.rng.normal(0, 0.008))
                self._beat(interval_s * factor, ATRIAL, self.run_p)
            self._beat(max(self.base_s * self.rng.uniform(0.9, 1.5), 1.2 * interval_s))
            if self.rng.random() > self.incessant:
                return
            self.sinus(int(self.rng.integers(1, 40)))

    def runs_and_pauses(self) -> None:
        """Atrial runs hardly faster than sinus rhythm, with pauses between them, as in sick sinus syndrome."""
        for _ in range(self.rng.integers(3, 40)):
            for _ in range(self.rng.integers(1, 25)):
                self._beat(self.run_s * (1 + self.rng.normal(0, 0.03)), ATRIAL, self.run_p)
            for _ in range(self.rng.integers(1, 3)):
                self._beat(self.base_s * self.rng.uniform(1.2, 3.0))

    def fibrillation(self) -> None:
        """Atrial fibrillation: no P wave, irregular, less so the faster it is; its early beats are not premature."""
        mean_s = self.rng.uniform(0.38, 0.9)
        spread = self.rng.uniform(0.05, 0.15) if mean_s < 0.5 else self.rng.uniform(0.1, 0.28)
        for _ in range(self.rng.integers(20, 400)):
            self._beat(float(np.clip(mean_s * np.exp(self.rng.normal(0, spread)), 0.3, 2.0)), NORMAL, NONE)

    def arousal(self) -> None:
        """Sinus rhythm that becomes faster within a few beats and slower again over minutes, as on standing up."""
        faster = self.rng.uniform(0.62, 0.9)
        onset, hold, back = (int(self.rng.integers(low, high)) for low, high in ((2, 6), (5, 150), (15, 150)))
        for self.slowing in (*np.linspace(1, faster, onset), *np.full(hold, faster), *np.linspace(faster, 1, back)):
            self._beat(self._interval_s(0.5))

    def sinus_tachycardia(self) -> None:
        """Sinus tachycardia, which comes and goes over half a minute or more."""
        fastest = max(self.rng.uniform(0.45, 0.85), 0.38 / self.base_s)
        change, hold = int(self.rng.integers(30, 120)), int(self.rng.integers(10, 200))
        there = np.linspace(1, fastest, change)
        for self.slowing in (*there, *np.full(hold, fastest), *there[::-1]):
            self._beat(self._interval_s(0.5))

    def breathing(self) -> None:
        """Respiratory arrhythmia."""
        depth, period_s = self.rng.uniform(0.08, 0.25), self.rng.uniform(3, 6)
        for _ in range(self.rng.integers(30, 150)):
            self._beat(self._interval_s() * (1 + depth * np.sin(2 * np.pi * self.at_s / period_s)))


@dataclass(frozen=True)
class Pieces:
    """The beats of one lead of a recording, cut in two, each part fading to zero at its ends.

    Attributes:
        p_waves: in mV, float32 `[num_beats, num_points]`.
        qrst: the rest of each beat, float32 `[num_beats, num_points]`.
    """

    p_waves: Floats
    qrst: Floats

    @classmethod
    def of(cls, signal_mv: Floats, sample: NDArray[np.int64], rate_hz: float) -> Pieces:
        """Cut the beats at `sample` out of a lead."""
        first, middle, last = (round(at * rate_hz) for at in (P_S, QRS_S, T_END_S))
        return cls(
            _faded(signal_mv[sample[:, None] + np.arange(first, middle + 1)], rate_hz),
            _faded(signal_mv[sample[:, None] + np.arange(middle, last)], rate_hz),
        )


def _faded(piece: Floats, rate_hz: float) -> Floats:
    """Take the line between the ends of each of `piece` `[num_beats, num_points]` away, and fade the ends out."""
    mean, fade = max(2, round(0.02 * rate_hz)), max(3, round(0.03 * rate_hz))
    begin, end = piece[:, :mean].mean(axis=1), piece[:, -mean:].mean(axis=1)
    weight = np.ones(piece.shape[1])
    weight[:fade], weight[-fade:] = np.linspace(0, 1, fade), np.linspace(1, 0, fade)
    faded: Floats = ((piece - np.linspace(begin, end, piece.shape[1], axis=1)) * weight).astype(np.float32)
    return faded


def lay_out(
    plan: list[Beat], signal_mv: Floats, annotations: Annotations, first_beat: int, rng: Generator
) -> tuple[Floats, NDArray[np.int64]]:
    """Lay beats of one lead out at other times.

    Args:
        plan: the beats to lay out.
        signal_mv: the lead, `[num_samples]`, without NaN.
        annotations: its beats.
        first_beat: which of the patient's beats comes first; they follow one another as they did.
        rng: of the noise.

    Returns:
        The new lead in mV, and the position of every beat of `plan`.
    """
    rate_hz, sample, symbol = annotations.rate_hz, annotations.sample, annotations.symbol
    reach, after, start = (round(at * rate_hz) for at in (-P_S, T_END_S, QRS_S))
    inside = (sample > reach + 2) & (sample < len(signal_mv) - after - 2)
    interval_s = np.maximum(np.diff(sample, prepend=sample[0] - round(0.8 * rate_hz)) / rate_hz, 0.2)
    pools = {code: np.flatnonzero(inside & (symbol == code)) for code in (NORMAL, VENTRICULAR)}
    pieces = {code: Pieces.of(signal_mv, sample[pool], rate_hz) for code, pool in pools.items()}
    usual_p = np.median(pieces[NORMAL].p_waves, axis=0)
    late = round(0.05 * rate_hz)
    ectopic_p = {OWN: 0 * usual_p, INVERTED: -1.8 * usual_p, LATE: np.roll(usual_p, late) - usual_p, NONE: -usual_p}
    position = np.array([round(beat.at_s * rate_hz) for beat in plan], np.int64)
    new = np.zeros(position[-1] + 2 * round(rate_hz), np.float32)
    for place, (beat, at) in enumerate(zip(plan, position.tolist(), strict=True)):
        code = VENTRICULAR if beat.symbol == VENTRICULAR else NORMAL
        source = (first_beat + place) % len(pools[code])
        qrst = pieces[code].qrst[source]
        if code == NORMAL:
            _add(new, at - reach, pieces[code].p_waves[source] + ectopic_p[beat.p_wave])
            before_s = beat.at_s - (plan[place - 1].at_s if place else 0.0)
            stretch = np.clip(np.sqrt(before_s / interval_s[pools[code][source]]), 0.62, 1.2)
            head, tail = np.split(qrst, [round((QRS_END_S - QRS_S) * rate_hz)])
            longer = np.linspace(0, len(tail) - 1, max(4, int(len(tail) * stretch)))
            qrst = np.concatenate([head, np.interp(longer, np.arange(len(tail)), tail).astype(np.float32)])
        _add(new, at + start, qrst)
    wander = np.convolve(np.resize(signal_mv, len(new)), np.ones(round(0.6 * rate_hz)) / round(0.6 * rate_hz), "same")
    noise = rng.normal(0, np.median(np.abs(np.diff(signal_mv))) / 1.5, len(new))
    return (new + 0.5 * (wander - np.median(wander)) + noise).astype(np.float32), position


def _add(signal: Floats, first: int, piece: Floats) -> None:
    if first >= 0:
        signal[first : first + len(piece)] += piece[: len(signal) - first]


def retime_database(
    folder: Path, out: Path, *, copies: int = 2, num_beats: int = 1500, seed: int = 0, labels: bool = True
) -> list[str]:
    """Write a database of recordings with the beats of the training patients of another, on drawn rhythms.

    Args:
        folder: the database; only recordings of its training split are used.
        out: where to write; its database is called as `folder`'s with `-retimed` behind it, and all of it is for
            training.
        copies: recordings made of each.
        num_beats: about how many beats each has.
        seed: the number everything random follows from, beside the name of the recording.
        labels: take normal and ventricular beats by their labels; without, judge them from the signal.

    Returns:
        Names of the training recordings that cannot be used: without signal or beats (or, with `labels`, labelled
        ones), or with an irregular rhythm.

    Raises:
        HeartlmError: a recording is unreadable, none can be used, or `out` cannot be written.
    """
    database = open_database(folder)
    training = [record_id for record_id in database.record_ids if database.split_of(record_id) == "train"]
    patients, skipped = dict[str, str](), list[str]()
    with atomic_folder(out) as temporary:
        for record_id in track(training, len(training), "retime"):
            recording = database.recording(record_id)
            annotations = database.annotations(record_id, recording)
            beats = None if annotations is None else source_beats(recording, annotations, labels)
            if beats is None or (intervals_s := sinus_intervals_s(beats)) is None:
                skipped.append(record_id)
                continue
            for copy in range(copies):
                name = f"{record_id}_{copy + 1}"
                rng = stream(seed, *record_id.encode(), copy)
                _write(temporary, name, recording, beats, intervals_s, num_beats, rng)
                patients[name] = database.patient_of(record_id).split("/")[-1]
        if not patients:
            raise HeartlmError(
                f"{folder}: no training recording can be retimed: each needs a signal, {'labelled ' if labels else ''}"
                f"beats and {FEWEST_INTERVALS} regular intervals between normal ones"
            )
        (temporary / "RECORDS").write_text("".join(f"{name}\n" for name in patients))
        write_json(temporary / "database.json", _about(database, patients))
        write_checksums(temporary)
    return skipped


def source_beats(recording: Recording, annotations: Annotations, labels: bool) -> Annotations | None:
    """Beats of a recording with the codes N, V, or none for what is not laid out; None where it cannot be used.

    Args:
        recording: with its signal.
        annotations: its beats.
        labels: take their labels; without, judge them from the signal.
    """
    if "mV" not in recording.units or not recording.has_signal or (labels and not annotations.beats_labelled):
        return None
    if labels:
        classes = annotations.beat_classes().tolist()
        symbol = np.array([{0: NORMAL, 2: VENTRICULAR}.get(each, "") for each in classes], "<U1")
        return Annotations(annotations.rate_hz, annotations.sample, symbol)
    lead = np.nan_to_num(recording.signal(leads=[recording.units.index("mV")])[0])
    qrs = np.arange(round(QRS_S * recording.rate_hz), round(QRS_END_S * recording.rate_hz))
    sample = annotations.sample
    sample = sample[(sample + qrs[0] >= 0) & (sample + qrs[-1] < len(lead))]
    if len(sample) < FEWEST_INTERVALS:
        return None
    pieces = lead[sample[:, None] + qrs].astype(np.float64)
    pieces -= pieces.mean(axis=1, keepdims=True)
    usual = np.median(pieces, axis=0)
    size = np.linalg.norm(pieces, axis=1) * np.linalg.norm(usual)
    correlation = pieces @ usual / np.maximum(size, 1e-12)
    interval = np.diff(sample, prepend=sample[0]).astype(np.float64)
    interval[0] = interval[1]
    around = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(interval, 5, mode="edge"), 11), axis=1)
    in_time = np.abs(interval / around - 1) <= IN_TIME
    if in_time.mean() < FEWEST_IN_TIME:
        return None
    early = interval < (1 - IN_TIME) * around
    symbol = np.where(
        (correlation >= USUAL) & in_time, NORMAL, np.where((correlation < OTHER) & early, VENTRICULAR, "")
    )
    return Annotations(recording.rate_hz, sample, symbol.astype("<U1"))


def sinus_intervals_s(beats: Annotations) -> Doubles | None:
    """Intervals between normal beats in a row; None where there are few or they are irregular."""
    normal = beats.symbol == NORMAL
    intervals_s = (np.diff(beats.sample) / beats.rate_hz)[normal[1:] & normal[:-1]]
    kept: Doubles = intervals_s[(intervals_s > 0.35) & (intervals_s < 2.0)]
    if len(kept) < FEWEST_INTERVALS or np.median(np.abs(np.diff(np.log(kept)))) > MOST_IRREGULAR:
        return None
    return kept


def _write(
    folder: Path,
    name: str,
    recording: Recording,
    known: Annotations,
    intervals_s: Doubles,
    num_beats: int,
    rng: Generator,
) -> None:
    num_ventricular = int((known.symbol == VENTRICULAR).sum())
    plan = Rhythms(intervals_s, num_ventricular >= FEWEST_VENTRICULAR, rng).live(num_beats)
    first_beat = int(rng.integers(1 << 20))
    leads = [index for index, unit in enumerate(recording.units) if unit == "mV"]
    laid = [lay_out(plan, np.nan_to_num(lead), known, first_beat, rng) for lead in recording.signal(leads=leads)]
    beats = Annotations(recording.rate_hz, laid[0][1], np.array([beat.symbol for beat in plan], "<U1"))
    names = tuple(recording.lead_names[index] for index in leads)
    comments = [f"Beats of {recording.database}/{recording.record_id} on a rhythm drawn by heartlm: nobody's heart"]
    write_record(folder, name, np.stack([signal for signal, _ in laid]), names, recording.rate_hz, beats, comments)


def _about(database: Database, patients: dict[str, str]) -> dict[str, object]:
    return {
        "name": f"{database.name}-retimed",
        "title": f"Beats of {database.title} on drawn rhythms",
        "simulated": True,
        "beat_labels": True,
        "rhythm_labels": False,
        "patients": patients,
        "splits": dict.fromkeys(patients.values(), "train"),
    }
