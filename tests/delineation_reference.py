"""What the kernels of delineation compute, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def _averaged(x: Doubles, radius: int) -> Doubles:
    """Moving average; before the first and after the last value, these values."""
    return np.convolve(np.pad(x, radius, mode="edge"), np.ones(2 * radius + 1) / (2 * radius + 1), "valid")


def prepared(signal_mv: Floats, rate_hz: float) -> Doubles:
    """A lead at 250 Hz without wander and divided by its usual range, float64 `[num_samples]`."""
    place, valid = np.arange(len(signal_mv)), np.abs(signal_mv) < 1e6  # not of NaN
    x = np.interp(place, place[valid], signal_mv[valid]).astype(float) if valid.any() else np.zeros(len(place))
    if rate_hz != 250:
        num, pass_hz = int((len(x) - 1) * 250 / rate_hz) + 1, 0.45 * min(rate_hz, 250)
        reach_s = 2 / pass_hz
        out = np.empty(num)
        for j in range(num):
            at = np.floor(j * rate_hz / 250 * 256 + 0.5) / 256  # fractions of a sample are rounded to 1/256
            near = np.arange(np.ceil(at - reach_s * rate_hz), np.floor(at + reach_s * rate_hz) + 1).astype(int)
            time_s = (near - at) / rate_hz
            weights = np.sinc(2 * pass_hz * time_s) * np.cos(np.pi * time_s / (2 * reach_s)) ** 2
            out[j] = weights @ x[near.clip(0, len(x) - 1)] / weights.sum()
        x = out
    x = x - _averaged(_averaged(x, 75), 75)
    starts = np.arange(max(1, len(x) // 512)) * 512
    ranges = [np.ptp(x[start : None if start == starts[-1] else start + 512]) for start in starts]
    usual = [np.median(ranges[max(0, i - 4) : i + 5]) for i in range(len(starts))]
    return x / np.maximum(np.interp(np.arange(len(x)), starts + 256, usual), 0.05)


def _convolved(x: Doubles, weight: Floats, bias: Floats, dilation: int = 1, stride: int = 1) -> Doubles:
    """Convolution of x `[inner, length]` padded with zeros."""
    half = weight.shape[2] // 2 * dilation
    padded = np.pad(x, ((0, 0), (half, half)))
    taps = [padded[:, k * dilation :][:, : x.shape[1]] for k in range(weight.shape[2])]
    total = sum(weight[:, :, k].astype(float) @ tap for k, tap in enumerate(taps)) + bias[:, None]
    return np.asarray(total[:, ::stride])


def network_answer(layers: list[tuple[Floats, Floats, int]], x: Floats) -> Doubles:
    """Logarithms of the classes relative to the likeliest, at least -13.8; float64 `[4, num_samples / 2]`."""
    h, down = x[None].astype(float), []
    for weight, bias, dilation in layers[:4]:
        h = np.maximum(_convolved(h, weight, bias, dilation, stride=2), 0)
        down.append(h)
    for weight, bias, dilation in layers[4:-7]:
        h = h + np.maximum(_convolved(h, weight, bias, dilation), 0)
    for depth, place in zip((2, 1, 0), (-7, -5, -3), strict=True):
        h = np.maximum(_convolved(h, *layers[place]).repeat(2, axis=1) + down[depth], 0)
        h = np.maximum(_convolved(h, *layers[place + 1]), 0)
    logits = _convolved(h, *layers[-1])
    return np.maximum(logits - logits.max(axis=0), -13.8)


def weights_of(answer: Doubles, usable: NDArray[np.bool_], radius: int) -> Doubles:
    """Weight of each cell of a lead, float64 `[cells]`."""
    top = np.where(usable, 1 / np.exp(answer).sum(axis=0), 0)
    near = [top[max(0, cell - radius) : cell + radius + 1].mean() for cell in range(len(top))]
    return np.where(usable, 1 / (1.02 - np.array(near)) ** 2, 0)


def agreed(answers: Doubles, weights: Doubles, share: float) -> tuple[Doubles, Doubles]:
    """Probabilities of each lead `[num_leads, 4, cells]` and of all together, from answers and weights."""
    usable = weights > 0
    mean = (weights[:, None] * answers).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-9)
    own = (1 - share / 2) * answers + share * mean if len(answers) > 1 else answers
    none = np.array([1.0, 0, 0, 0])[:, None]
    of_leads, common = (np.exp(each) / np.exp(each).sum(axis=-2, keepdims=True) for each in (own, mean))
    return np.where(usable[:, None], of_leads, none), np.where(usable.any(axis=0), common, none)


def waves_of(
    probability: Floats,
    plain: Floats,
    signal_mv: Floats,
    step: float,
    bridge: int,
    least_sum: Floats,
    least_top: Floats,
) -> list[tuple[int, int, int, int, float]]:
    """Class, onset, peak, offset and confidence of each wave of a lead; its edges are those of `plain`."""
    best, found = probability.argmax(axis=0), []
    first = 0
    while first < len(best):
        kind = int(best[first])
        if not kind:
            first += 1
            continue
        last = first
        for cell in range(first, len(best)):
            if best[cell] == kind:
                last = cell
            elif best[cell] or cell - last >= bridge + 1 or cell - last > bridge:
                break
        run, own = probability[kind, first : last + 1].astype(float), plain[kind].astype(float)
        clear = 0.45 if kind == 1 else 0.5
        level = clear * min(1.0, own[first : last + 1].max() / 0.8)
        above = np.flatnonzero(own[first : last + 1] >= level)
        inner_first, inner_last = first + int(above[0]), first + int(above[-1])
        while inner_first <= first and inner_first > 0 and own[inner_first - 1] > clear:
            inner_first -= 1
        while inner_last >= last and inner_last + 1 < len(own) and own[inner_last + 1] > clear:
            inner_last += 1
        edges = []
        for inner, sign in ((inner_first, -1), (inner_last, 1)):
            low = own[inner + sign] if 0 <= inner + sign < len(own) else 0.0
            high = own[inner]
            edge = inner + 0.5 + sign * ((high - level) / (high - low) if high > level > low else 0.5)
            edges.append(int(np.clip(np.floor((2 * edge - 0.5) * step + 0.5), 0, len(signal_mv) - 1)))
        onset, offset = edges
        part = signal_mv[onset : offset + 1].astype(float)
        away = np.abs(part - np.linspace(part[0], part[-1], len(part)))
        if run.sum() >= least_sum[kind] and run.max() >= least_top[kind] and away.max() > 0:
            found.append((kind, onset, onset + int(np.nanargmax(away)), offset, float(run.mean())))
        first = last + 1
    return found


def expected_p(
    probability: Floats, waves: NDArray[np.int64], step: float, reach: int, beats: int, strength: float
) -> Doubles:
    """Probabilities with the odds of P multiplied by how many beats nearby have a P wave; `waves` `[num_waves, 4]`."""
    complexes, p_ends = waves[waves[:, 0] == 2], waves[waves[:, 0] == 1, 3]
    if len(complexes) < 3:
        return probability.astype(float)
    has = []
    for onset, peak in complexes[:, 1:3]:
        earlier = p_ends[p_ends_before(waves, peak)]
        has.append(len(earlier) > 0 and onset - earlier[-1] < reach)
    near = [has[max(0, i - beats) : i] + has[i + 1 : i + beats + 1] for i in range(len(has))]
    level = [strength * (2 * (sum(each) + 1) / (len(each) + 2) - 1) for each in near]
    intervals = np.diff(complexes[:, 2] / step / 2)
    for i in range(len(level)):
        rr = intervals[max(0, i - beats) : i + beats]
        if rr.mean() >= 125 and rr.std() <= 0.08 * rr.mean():  # slow and regular: P waves may be independent of it
            level[i] = max(level[i], 0)
    odds = np.exp(np.interp(np.arange(probability.shape[1]), complexes[:, 2] / step / 2, level))
    scaled = probability.astype(float)
    scaled[1] *= odds
    return scaled / scaled.sum(axis=0)


def p_ends_before(waves: NDArray[np.int64], peak: int) -> NDArray[np.bool_]:
    """Which P waves come before a QRS complex in the order of the waves."""
    place = int(np.flatnonzero((waves[:, 0] == 2) & (waves[:, 2] == peak))[0])
    return np.flatnonzero(waves[:, 0] == 1) < place
