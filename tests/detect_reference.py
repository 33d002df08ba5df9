"""What the compiled detector finds, in NumPy and Python: the same beats, slower."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heartlm.ecg.detect import DetectorPlan, Doubles, Floats, Positions


@dataclass
class Candidate:
    """A place of highest height.

    Attributes:
        place: in decimated samples.
        positions: of its mark, in samples, above and below zero.
        side: by how much the even filter's output is farther above than below, from 1 to −1.
        shape: that output around the place.
        height: at the place.
        low: whether the height is higher within the refractory time: a beat in a fast rhythm only.
        fast: whether it belongs to a fast rhythm.
        run: candidates before it that follow each other as the beats of a fast rhythm do.
        level: around it, once it is decided.
    """

    place: int
    positions: tuple[int, int]
    side: float
    shape: Doubles
    height: float
    low: bool
    fast: bool = False
    run: int = 0
    level: float = 0.0


class ReferenceDetector:
    """What c/detect.c does, with arrays that begin at decimated sample `_base`."""

    def __init__(self, plan: DetectorPlan, taps: Floats) -> None:
        self._plan = plan
        ends = np.cumsum([plan.even_taps, plan.odd_taps, plan.smooth_taps]) + np.arange(1, 4)
        self._even_filter, self._odd_filter, self._smooth_filter, self._fine_filter = np.split(taps, ends)
        self._decisions = Decisions(plan)
        fine = plan.reach + 2 + (plan.fine_taps + plan.factor) // plan.factor
        self._longest = max(plan.even_taps, plan.odd_taps)
        self._history = max(fine, plan.refractory) + plan.refractory + plan.smooth_taps + self._longest + 2
        self._base = -self._history
        self._origin: np.float32 | None = None
        self._samples = np.zeros(self._history * plan.factor, np.float32)
        self._decimated, self._even, self._power, self._smooth = (np.zeros(self._history, np.float32) for _ in range(4))
        self._num_tested = 0

    def push(self, samples: Floats, ends: bool = False) -> Positions:
        """As `Detector.push`."""
        plan = self._plan
        if len(samples) and self._origin is None:
            self._origin = samples[0]
        self._take_in(samples - self._origin if self._origin is not None else samples)
        found = list(self._decisions.ready(self._num_tested))
        if ends:
            num_real = len(self._samples) + self._base * plan.factor
            self._take_in(np.repeat(self._samples[-1:], (self._history + 1) * plan.factor))
            found += self._decisions.ready(self._num_tested, num_real // plan.factor)
            found = [position for position in found if position < num_real]
        self._forget()
        return np.array([position for position in found if position >= 0], np.int64)

    def _take_in(self, samples: Floats) -> None:
        plan = self._plan
        self._samples = np.concatenate([self._samples, samples])
        whole = len(self._samples) // plan.factor
        new = self._samples[len(self._decimated) * plan.factor : whole * plan.factor].reshape(-1, plan.factor)
        total = new[:, 0].copy()
        for column in new.T[1:]:
            total += column
        self._decimated = np.concatenate([self._decimated, total * (np.float32(1) / np.float32(plan.factor))])
        stop = whole - self._longest
        even = _filtered(self._decimated, self._even_filter, len(self._even), stop, 1)
        odd = _filtered(self._decimated, self._odd_filter, len(self._even), stop, -1)
        self._even = np.concatenate([self._even, even])
        with np.errstate(over="ignore"):
            self._power = np.concatenate([self._power, odd * odd + even * even])
        smooth = _filtered(self._power, self._smooth_filter, len(self._smooth), stop - plan.smooth_taps, 1)
        self._smooth = np.concatenate([self._smooth, smooth])
        self._find_candidates()

    def _find_candidates(self) -> None:
        plan, x = self._plan, self._smooth
        first, last = self._num_tested - self._base, len(x) - plan.refractory
        if last <= first:
            return
        peaks = 1 + np.flatnonzero((x[1:-1] > x[:-2]) & (x[1:-1] >= x[2:]))
        for place in peaks[(peaks >= first) & (peaks < last)].tolist():
            near = peaks[np.abs(peaks - place) <= plan.closest]
            if (x[near[near > place]] > x[place]).any() or (x[near[near < place]] >= x[place]).any():
                continue
            before, after = x[place - plan.refractory : place], x[place + 1 : place + plan.refractory + 1]
            low = bool((after > x[place]).any() or (before >= x[place]).any())
            self._decisions.add(self._candidate(place + self._base, low))
        self._num_tested = last + self._base

    def _candidate(self, place: int, low: bool) -> Candidate:
        plan, at = self._plan, place - self._base
        values = self._even[at - plan.reach - 1 : at + plan.reach + 2]
        (above, peak_above), (below, peak_below) = _highest_peak(values, 1), _highest_peak(values, -1)
        side = (above - below) / (above + below) if above + below > 0 else 0.0
        near = place - plan.reach
        positions = self._mark(near + peak_above, 1), self._mark(near + peak_below, -1)
        shape = self._even[at - plan.shape : at + plan.shape + 1].astype(np.float64)
        return Candidate(place, positions, side, shape, math.sqrt(self._smooth[at]), low)

    def _mark(self, peak: int, sign: int) -> int:
        """The sample around the place `peak` where the even filter's output is farthest from zero on one side."""
        plan = self._plan
        first = peak * plan.factor + (plan.factor - 1) // 2 - plan.factor
        start = first - self._base * plan.factor
        fine = _filtered(self._samples, self._fine_filter, start, start + 2 * plan.factor + 1, 1)
        return first + int(np.argmax(sign * fine))

    def _forget(self) -> None:
        """Keep only what later samples need."""
        shift = max(0, len(self._decimated) - self._history)
        self._base += shift
        self._samples = self._samples[shift * self._plan.factor :]
        self._decimated, self._even = self._decimated[shift:], self._even[shift:]
        self._power, self._smooth = self._power[shift:], self._smooth[shift:]


def _filtered(values: Floats, half: Floats, start: int, stop: int, sign: int) -> Floats:
    """Filter `values[start:stop]` with taps that are the same on both sides (`sign` 1) or opposite (-1)."""
    stop = max(start, stop)
    total: Floats = half[0] * values[start:stop]
    for k in range(1, len(half)):
        after, before = values[start + k : stop + k], values[start - k : stop - k]
        total += half[k] * (before + after if sign > 0 else after - before)
    return total


def _highest_peak(values: Floats, sign: int) -> tuple[float, int]:
    """The height over zero and the place in `values[1:-1]` of the highest peak of `sign`, by a parabola around it."""
    before, here, after = (sign * values[k : len(values) - 2 + k].astype(np.float64) for k in range(3))
    bend = before + after - 2 * here
    is_peak = (here >= before) & (here >= after) & (bend < 0)
    height = here - (after - before) * (after - before) / np.where(is_peak, 8 * bend, -np.inf)
    height[here <= 0] = 0
    return float(height.max()), int(np.argmax(height))


def products_of(own: Doubles, other: Doubles) -> tuple[float, float, float]:
    """Sums of the products of two shapes and of their squares, added up from the first to the last, as in C."""
    pairs = (own, other), (own, own), (other, other)
    return tuple(float(np.add.accumulate(one * two)[-1]) for one, two in pairs)


class Decisions:
    """Which candidates are beats; c/detect_decide.h."""

    def __init__(self, plan: DetectorPlan) -> None:
        self._plan = plan
        self._known: deque[Candidate] = deque()
        self._waiting: deque[Candidate] = deque()
        self._rejected: list[Candidate] = []
        self._last_beat: int | None = None
        self._rr = plan.rr_start
        self._mean_height = 0.0
        self._usual_side = 0.0
        self._usual_shape = np.zeros(2 * plan.shape + 1)

    def add(self, candidate: Candidate) -> None:
        """Let a candidate wait for its decision, and find whether the rhythm is fast."""
        plan = self._plan
        if self._known and self._follows(candidate, self._known[-1]):
            candidate.run = self._known[-1].run + 1
            candidate.fast = candidate.run >= plan.fast_beats
            if plan.looks_ahead and candidate.run == plan.fast_beats:
                for other in list(self._known)[-plan.fast_beats :]:
                    other.fast = True
        self._known.append(candidate)
        self._waiting.append(candidate)

    def _follows(self, candidate: Candidate, before: Candidate) -> bool:
        """Return whether two adjacent candidates are as near, as equal in height and as alike as fast beats are."""
        plan = self._plan
        low, high = sorted([candidate.height, before.height])
        product, power, other = products_of(candidate.shape, before.shape)
        is_near = candidate.place - before.place <= plan.fast
        return is_near and low >= plan.fast_height * high and product >= plan.fast_shape * math.sqrt(power * other)

    def ready(self, known: int, num_places: int | None = None) -> Iterator[int]:
        """Decide every candidate that waits for nothing more and give the positions of the beats.

        Args:
            known: all candidates before this place were added.
            num_places: length of the signal, once it has ended.
        """
        plan = self._plan
        ended = num_places is not None
        if not ended and known <= plan.warm_up:
            return
        ahead = plan.window if plan.looks_ahead else 0
        while self._waiting and (ended or self._waiting[0].place + ahead < known):
            candidate = self._waiting.popleft()
            if candidate.fast or not candidate.low:
                yield from self._decide(candidate, num_places)
        yield from self._search_back(self._waiting[0].place if self._waiting else known)
        while self._known and self._known[0].place < known - 3 * plan.window - plan.apart:
            self._known.popleft()

    def _decide(self, candidate: Candidate, num_places: int | None) -> Iterator[int]:
        plan = self._plan
        yield from self._search_back(candidate.place)
        mean_height = self._mean_height_at(candidate.place)
        candidate.level = max(self._level_around(candidate.place, num_places), plan.floor * mean_height)
        if candidate.height > plan.threshold * candidate.level:
            gain = plan.height_weight * (candidate.height - mean_height)
            self._mean_height = candidate.height if self._last_beat is None else mean_height + gain
            self._rejected.clear()
            yield self._accept(candidate)
        elif self._last_beat is not None:
            self._rejected.append(candidate)

    def _level_around(self, place: int, num_places: int | None) -> float:
        plan = self._plan
        start = place - plan.window
        near = self._highest(start, max(place, plan.warm_up) if start < 0 else place)
        if plan.looks_ahead:
            first = place if num_places is None else min(place, num_places - plan.warm_up)
            return min(near, self._highest(first, place + plan.window))
        last = start - plan.apart
        first = last - plan.window
        return min(near, self._highest(first, max(last, plan.warm_up) if first < 0 else last))

    def _highest(self, first: int, last: int) -> float:
        known = (candidate for candidate in self._known if not candidate.low)
        heights = (candidate.height for candidate in known if first <= candidate.place <= last)
        return max(heights, default=0.0)

    def _mean_height_at(self, place: int) -> float:
        if self._last_beat is None:
            return 0.0
        return self._mean_height / (1 + (place - self._last_beat) / self._plan.decay)

    def _search_back(self, place: int) -> Iterator[int]:
        plan = self._plan
        while self._rejected and self._last_beat is not None and place - self._last_beat > plan.search_gap * self._rr:
            shares = [candidate.height / candidate.level for candidate in self._rejected]
            best = shares.index(max(shares))
            chosen = self._rejected[best] if shares[best] > plan.search_threshold else None
            del self._rejected[: best + 1 if chosen else None]
            if chosen:
                yield self._accept(chosen)

    def _accept(self, candidate: Candidate) -> int:
        plan = self._plan
        position = self._marked(candidate)
        gap = math.inf if self._last_beat is None else float(candidate.place - self._last_beat)
        if gap < plan.rr_pause:
            self._rr += plan.rr_weight * (min(max(gap, plan.rr_low), plan.rr_high) - self._rr)
        self._last_beat = candidate.place
        return position

    def _marked(self, candidate: Candidate) -> int:
        """Where a beat has its mark."""
        plan, side = self._plan, candidate.side
        if abs(side) < plan.doubt:
            own, usual = candidate.shape, self._usual_shape
            product, power, usual_power = products_of(own, usual)
            if usual_power == 0 or product > plan.same_shape * math.sqrt(power * usual_power):
                weight = 1.0 if usual_power == 0 else plan.shape_weight
                self._usual_shape = usual + weight * (own - usual)
                self._usual_side += weight * (side - self._usual_side)
                side = self._usual_side
        return candidate.positions[0 if side >= 0 else 1]
