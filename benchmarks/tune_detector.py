"""Tune the beat detector's settings on DS1 of mitdb, and on nothing else.

    python benchmarks/tune_detector.py DATA [--mode causal] [--minutes 10] [--seed 0]

A random search from the present settings: one to three of them are multiplied by a random factor, and the change is
kept if there are no more errors than before. Errors are beats missed and made up, in DS1 as recorded and, counted half,
in ten minutes of each record that were changed: at other rates, with pauses, with jumps of the gain, with noise. What is
found in fibrillation does not count. The last line is to be copied to `heartlm.ecg.detect.SETTINGS`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from heartlm.ecg.database import open_database
from heartlm.ecg.detect import SETTINGS
from heartlm.ecg.splits import DS1
from heartlm.evaluation.matching import match_beats
from heartlm.kernels.detect import Settings, make_detector

TUNED = tuple(name for name in Settings.__dataclass_fields__ if name != "looks_ahead")
RATES_HZ = (100, 128, 200, 250, 500, 1000)
CHANGED_S = 600


@dataclass(frozen=True)
class Lead:
    """A signal, its annotated beats and where it fibrillates (starts and stops, `[num_spans, 2]`)."""

    signal: NDArray[np.float32]
    beats: NDArray[np.int64]
    fibrillation: NDArray[np.int64]
    rate_hz: float

    def errors(self, settings: Settings) -> int:
        """Beats missed and made up."""
        found = make_detector(self.rate_hz, settings).push(self.signal, ends=True)
        for start, stop in self.fibrillation:
            found = found[(found < start) | (found >= stop)]
        match = match_beats(self.beats, found, self.rate_hz)
        return len(match.missed) + len(match.extra)


def recorded(data: Path) -> list[Lead]:
    """First leads of DS1."""
    mitdb = open_database(data / "mitdb")
    leads = []
    for record in DS1:
        recording, annotations = mitdb.recording(record), mitdb.annotations(record)
        assert annotations is not None
        spans = [(span.start, span.stop) for span in annotations.rhythms if span.name in ("VFL", "VFIB")]
        signal = recording.signal(leads=[0])[0]
        leads.append(Lead(signal, annotations.sample, np.array(spans, np.int64).reshape(-1, 2), recording.rate_hz))
    return leads


def changed(leads: list[Lead], random: np.random.Generator) -> Iterator[Lead]:
    """Ten minutes of each record without fibrillation, changed in five ways."""
    for number, lead in enumerate(leads):
        if len(lead.fibrillation):
            continue
        start = int(random.integers(len(lead.signal) - CHANGED_S * lead.rate_hz))
        stop = start + int(CHANGED_S * lead.rate_hz)
        beats = lead.beats[(lead.beats >= start + 100) & (lead.beats < stop - 100)] - start
        part = replace(lead, signal=lead.signal[start:stop].copy(), beats=beats)
        yield at_rate(part, RATES_HZ[2 * number % 6])
        yield at_rate(part, RATES_HZ[(2 * number + 1) % 6])
        yield with_pauses(part, random)
        gain = random.choice([0.25, 0.5, 1, 2, 4], CHANGED_S // 50).repeat(50 * int(lead.rate_hz))
        yield replace(part, signal=(part.signal * gain).astype(np.float32))
        yield with_noise(part, random)


def at_rate(lead: Lead, rate_hz: int) -> Lead:
    """The lead resampled."""
    ratio = Fraction(rate_hz, int(lead.rate_hz))
    signal = resample_poly(lead.signal - lead.signal[0], ratio.numerator, ratio.denominator).astype(np.float32)
    return replace(lead, signal=signal, beats=np.rint(lead.beats * float(ratio)).astype(np.int64), rate_hz=rate_hz)


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
    return replace(lead, signal=signal, beats=beats[kept])


def with_noise(lead: Lead, random: np.random.Generator) -> Lead:
    """The lead with white noise, and with more at lower frequencies."""
    num, second = len(lead.signal), int(lead.rate_hz)
    walk = np.cumsum(random.normal(size=num))
    walk -= np.convolve(walk, np.ones(second) / second, "same")
    size = np.ptp(lead.signal[: 10 * second])
    noise = size * (0.03 * walk / walk.std() + 0.02 * random.normal(size=num))
    return replace(lead, signal=(lead.signal + noise).astype(np.float32))


def main() -> None:
    """Search, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder that holds mitdb/")
    parser.add_argument("--mode", choices=list(SETTINGS), default="offline")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    plain = recorded(options.data)
    other = list(changed(plain, np.random.default_rng(0)))

    def errors(settings: Settings) -> tuple[int, int]:
        return sum(lead.errors(settings) for lead in plain), sum(lead.errors(settings) for lead in other)

    best, end, tries = SETTINGS[options.mode], time.monotonic() + 60 * options.minutes, 0
    fewest = errors(best)
    print(f"before: {fewest[0]} errors as recorded, {fewest[1]} changed", flush=True)
    while time.monotonic() < end:
        tries += 1
        names = random.choice(TUNED, random.integers(1, 4), replace=False)
        factors = np.exp(random.choice([0.05, 0.2]) * random.normal(size=len(names)))
        trial = replace(best, **{name: float(getattr(best, name) * f) for name, f in zip(names, factors, strict=True)})
        found = errors(trial)
        if found[0] + found[1] / 2 <= fewest[0] + fewest[1] / 2:
            if found != fewest:
                print(f"try {tries}: {found[0]} errors as recorded, {found[1]} changed", flush=True)
            best, fewest = trial, found
    print(best)


if __name__ == "__main__":
    main()
