"""Tune the beat detector's settings on DS1 of mitdb only.

    python -m recipes.tune_detector DATA [--minutes 20] [--seed 0]

A random search from the present settings of both modes, which share their filters: up to three are multiplied by random
factors, and the change is kept if there are no more errors than before. Errors are beats missed and made up, in DS1 as
recorded and, counted half, in ten minutes of each record that were changed: at another rate, with pauses, with jumps of
the gain, with noise, with tall T waves, in pieces of ten seconds. What is found in fibrillation, or within 0.3 s of
where a piece was cut, does not count. The last lines are to be copied to
`src/heartlm/ecg/detect.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly
from scipy.signal.windows import hann

from heartlm.databases.database import open_database
from heartlm.databases.splits import DS1
from heartlm.ecg.detect import SETTINGS, Detector, DetectorSettings, Mode
from heartlm.ecg.matching import match_beats
from lab.places import annotations_of, options

SHARED = ("slope_s", "smooth_s", "even_weight")
FIXED = ("looks_ahead", "refractory_s")
OWN = tuple(name for name in DetectorSettings.__dataclass_fields__ if name not in (*SHARED, *FIXED))
RATES_HZ = (100, 128, 200, 250, 500, 1000)
CHANGED_S = 600
BORDER_S = 0.3

Errors = tuple[int, int]


@dataclass(frozen=True)
class Lead:
    """A signal, its annotated beats, which of them are ventricular, and spans whose errors do not count, `[n, 2]`."""

    signal: NDArray[np.float32]
    beats: NDArray[np.int64]
    ventricular: NDArray[np.bool_]
    left_out: NDArray[np.int64]
    rate_hz: float

    def errors(self, settings: DetectorSettings) -> int:
        """Beats missed and made up."""
        found = Detector(self.rate_hz, settings).push(self.signal, ends=True)
        match = match_beats(self.beats, found, self.rate_hz)
        wrong = np.concatenate([self.beats[match.missed], found[match.extra]])
        inside = [(wrong >= start) & (wrong < stop) for start, stop in self.left_out]
        return len(wrong) - int(np.any(inside, axis=0).sum())

    def part(self, start: int, stop: int) -> Lead:
        """The samples from `start` to `stop`; errors near the borders do not count."""
        border, length = round(BORDER_S * self.rate_hz), stop - start
        inside = (self.beats >= start) & (self.beats < stop)
        borders = np.array([[0, border], [length - border, length]])
        return Lead(
            self.signal[start:stop].copy(), self.beats[inside] - start, self.ventricular[inside], borders, self.rate_hz
        )


def recorded(data: Path) -> list[Lead]:
    """First leads of DS1."""
    mitdb = open_database(data / "mitdb")
    leads = []
    for record in DS1:
        recording = mitdb.recording(record)
        annotations = annotations_of(recording)
        spans = [(span.start, span.stop) for span in annotations.rhythms if span.name in ("VFL", "VFIB")]
        left_out = np.array(spans, np.int64).reshape(-1, 2)
        signal, ventricular = recording.signal(leads=[0])[0], np.isin(annotations.symbol, list("VEF"))
        leads.append(Lead(signal, annotations.sample, ventricular, left_out, recording.rate_hz))
    return leads


def changed(leads: list[Lead], random: np.random.Generator) -> Iterator[Lead]:
    """Ten minutes of each record without fibrillation, changed in six ways."""
    for number, lead in enumerate(leads):
        if len(lead.left_out):
            continue
        length, second = int(CHANGED_S * lead.rate_hz), int(lead.rate_hz)
        start = int(random.integers(len(lead.signal) - length))
        part = lead.part(start, start + length)
        yield at_rate(part, RATES_HZ[number % len(RATES_HZ)])
        yield with_pauses(part, random)
        gain = random.choice([0.25, 0.5, 1, 2, 4], CHANGED_S // 50).repeat(50 * second)
        yield replace(part, signal=(part.signal * gain).astype(np.float32))
        yield with_noise(part, random)
        yield with_tall_t_waves(part)
        yield from (part.part(begin, begin + 10 * second) for begin in random.integers(length - 10 * second, size=12))


def at_rate(lead: Lead, rate_hz: int) -> Lead:
    """The lead resampled."""
    ratio = Fraction(rate_hz, int(lead.rate_hz))
    signal = resample_poly(lead.signal - lead.signal[0], ratio.numerator, ratio.denominator).astype(np.float32)
    beats, left_out = (np.rint(places * float(ratio)).astype(np.int64) for places in (lead.beats, lead.left_out))
    return replace(lead, signal=signal, beats=beats, left_out=left_out, rate_hz=rate_hz)


def with_pauses(lead: Lead, random: np.random.Generator) -> Lead:
    """The lead without the QRS complexes and T waves of up to twelve runs of beats; their P waves stay."""
    signal, beats = lead.signal.copy(), lead.beats
    kept = np.ones(len(beats), np.bool_)
    usual = int(np.median(np.diff(beats)))
    for _ in range(12):
        first = int(random.integers(5, len(beats) - 15))
        last = first + int(random.integers(2, 7))
        if not kept[first - 4 : last + 4].all():
            continue
        kept[first:last] = False
        for beat, following in zip(beats[first:last], beats[first + 1 : last + 1], strict=True):
            begin, end = beat - 25, max(beat + 30, min(beat + int(0.55 * usual), following - 60))
            level = np.linspace(signal[begin], signal[end], end - begin)
            signal[begin:end] = level + random.normal(0, 0.004, end - begin)
    return replace(lead, signal=signal, beats=beats[kept], ventricular=lead.ventricular[kept])


def with_noise(lead: Lead, random: np.random.Generator) -> Lead:
    """The lead with white noise, and with more at lower frequencies."""
    num, second = len(lead.signal), int(lead.rate_hz)
    walk = np.cumsum(random.normal(size=num))
    walk -= np.convolve(walk, np.ones(second) / second, "same")
    size = np.ptp(lead.signal[: 10 * second])
    noise = size * (0.03 * walk / walk.std() + 0.02 * random.normal(size=num))
    return replace(lead, signal=(lead.signal + noise).astype(np.float32))


def with_tall_t_waves(lead: Lead) -> Lead:
    """The lead with the T waves of all but ventricular beats twice as tall."""
    signal = lead.signal.copy()
    usual = np.median(np.diff(lead.beats))
    for place in np.flatnonzero(~lead.ventricular[:-1]):
        beat, following = lead.beats[place : place + 2]
        begin, end = beat + round(0.15 * lead.rate_hz), beat + round(0.6 * min(usual, following - beat))
        if end > begin + 20:
            line = np.linspace(signal[begin], signal[end - 1], end - begin)
            signal[begin:end] += hann(end - begin) * (signal[begin:end] - line)
    return replace(lead, signal=signal)


def main() -> None:
    """Search, and say what was found."""
    parser = options(__doc__, minutes=20.0, seed=0)
    parser.add_argument("data", type=Path, help="folder that holds mitdb/")
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    plain = recorded(given.data)
    other = list(changed(plain, np.random.default_rng(0)))

    def errors(settings: DetectorSettings) -> Errors:
        return sum(lead.errors(settings) for lead in plain), sum(lead.errors(settings) for lead in other)

    best, end, tries = dict(SETTINGS), time.monotonic() + 60 * given.minutes, 0
    fewest = {mode: errors(settings) for mode, settings in best.items()}
    print(f"errors as recorded and changed: {fewest}", flush=True)
    try:
        while time.monotonic() < end:
            tries += 1
            groups: tuple[list[Mode], ...] = (list(best), ["offline"], ["causal"])
            modes = groups[int(random.integers(3))]
            names = random.choice(SHARED if len(modes) > 1 else OWN, random.integers(1, 4), replace=False).tolist()
            factor = dict(zip(names, np.exp(random.choice([0.05, 0.2]) * random.normal(size=len(names))), strict=True))
            trial = dict[Mode, DetectorSettings]()
            for mode in modes:
                known = asdict(best[mode])
                trial[mode] = DetectorSettings(**known | {name: float(known[name] * factor[name]) for name in names})
            found = {mode: errors(settings) for mode, settings in trial.items()}
            before, now = (sum(counts[mode][0] + counts[mode][1] / 2 for mode in modes) for counts in (fewest, found))
            if now <= before:
                best, fewest = best | trial, fewest | found
                if now < before:
                    values = {name: [round(getattr(best[mode], name), 4) for mode in modes] for name in names}
                    print(f"try {tries}: {fewest}, {' and '.join(modes)} {values}", flush=True)
    finally:
        print(json.dumps({mode: asdict(settings) for mode, settings in best.items()}, indent=2))


if __name__ == "__main__":
    main()
