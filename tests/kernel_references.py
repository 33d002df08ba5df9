"""What the compiled kernels compute, in NumPy and Python: slower, and plain enough to be compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from heartlm.corpus.windows import RandomSampler
from heartlm.formats.annotation_file import DecodedAnnotations
from heartlm.formats.wfdb_header import _NUM_BITS, DECODED, num_bytes
from heartlm.kernels.draws import Stream, mix, uniform
from heartlm.kernels.library import using, variants
from heartlm.tokenizers.quantize import Codebooks
from heartlm.tokenizers.rr import LONG_BEATS, RECENT_BEATS, LogScale, mean_around
from heartlm.tokenizers.sample import FIRST_SCALE_MV, GRID_HZ, KEEP, LIMIT, NUM_LEVELS, SCALE_SECONDS, STEP
from heartlm.tokenizers.waveform import LEAST_SCALE_MV, interpolate, smooth

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_SUMS, _CHUNK = 16, 8192
_SKIP, _SUB, _AUX = 59, 61, 63
"""Codes of words that are no annotations: a 32-bit time step, a subtype, and text."""


def each_variant() -> Iterator[str]:
    """The variants this machine can run, each in use until the next one is asked for."""
    for variant in variants():
        with using(variant):
            yield variant


# --- amplitude ---


def quantize(amplitude: Floats) -> NDArray[np.uint16]:
    """Level of each amplitude; what lies beyond ± `limit` falls into the outermost levels."""
    level = np.clip(np.floor((amplitude + LIMIT) / STEP), 0, NUM_LEVELS - 1)
    code: NDArray[np.uint16] = level.astype(np.uint16)
    return code


def normalise(grid: Floats) -> tuple[Floats, Floats]:
    """Take the running average of `grid` `[num_points]` away and divide by the running amplitude, given too."""
    if len(grid) == 0:
        return grid, grid
    average, _ = lfilter([1 - KEEP], [1, -KEEP], grid, zi=[KEEP * float(grid[0])])
    centred = (grid - average).astype(np.float32)
    scale = _running_amplitude(centred)
    return centred / scale, scale


def _running_amplitude(centred: Floats) -> Floats:
    """Median range of the last whole seconds; each second uses those before it."""
    second = round(GRID_HZ)
    num_seconds = len(centred) // second
    ranges = np.ptp(centred[: num_seconds * second].reshape(num_seconds, second), axis=1).astype(np.float64)
    median = trailing_median_reference(ranges, SCALE_SECONDS).astype(np.float32)
    known = np.concatenate([[FIRST_SCALE_MV], np.maximum(median, LEAST_SCALE_MV)])
    return np.repeat(known, second)[: len(centred)].astype(np.float32)


def amplitude_levels_reference(
    signal: Floats, rate_hz: float, weights: Doubles
) -> tuple[NDArray[np.uint16], NDArray[np.int64], Floats]:
    """The same in NumPy."""
    num_points = math.ceil(len(signal) * GRID_HZ / rate_hz)
    position = np.arange(num_points, dtype=np.float64) * (rate_hz / GRID_HZ)
    sample = np.minimum(np.round(position).astype(np.int64), len(signal) - 1)
    normalised, scale = normalise(interpolate(smooth(signal, weights), position))
    return quantize(normalised), sample, scale


# --- draws ---


def draws_reference(stream: Stream, first: int, num: int) -> NDArray[np.uint64]:
    """The same in NumPy."""
    blocks, skipped = divmod(first, 4)
    philox = np.random.Philox(key=[stream.seed, stream.use], counter=[blocks, 0, 0, stream.step])
    later: NDArray[np.uint64] = philox.random_raw(skipped + num)[skipped:]
    return later


def hide_spans_reference(
    share: float,
    longest: int,
    stream: Stream,
    length: NDArray[np.int64],
    width: int,
    first_window: int,
    batch_size: int,
) -> NDArray[np.bool_]:
    """Which are hidden, in NumPy."""
    shape = len(length), width
    first, num = first_window * width, len(length) * width
    begins = (uniform(draws_reference(stream, first, num)) < share / ((longest + 1) / 2)).reshape(shape)
    sure = uniform(draws_reference(stream, batch_size * width + first_window, len(length)))
    begins[np.arange(len(length)), np.floor(sure * length).astype(int)] = True
    pairs = draws_reference(stream, batch_size * (width + 1) + first // 2, num // 2 + 1)
    halves = pairs.astype("<u8").view("<u4")[first % 2 :][:num].astype(np.uint64)
    run = (1 + (halves * np.uint64(longest) >> np.uint64(32)).astype(np.int64)).reshape(shape)
    hidden = np.zeros(shape, np.bool_)
    for back in range(min(longest, width)):
        reaches = begins & (run > back)
        hidden[:, back:] |= reaches[:, : width - back]
    return hidden & (np.arange(width) < length[:, None])


def draw_windows_reference(
    sampler: RandomSampler, step: int, first_window: int, num_windows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same in NumPy."""
    stream, width, batch_size = Stream(sampler.seed, step), sampler.width, sampler.batch_size
    reach = np.cumsum(sampler.probability)
    chosen = uniform(draws_reference(stream, first_window, num_windows))
    placed = uniform(draws_reference(stream, batch_size + first_window, num_windows))
    row = np.minimum(np.searchsorted(reach, chosen, side="right"), len(sampler.first) - 1)
    num_tokens = sampler.num_tokens[row]
    start = np.floor(placed * (np.maximum(num_tokens - width, 0) + 1)).astype(np.int64)
    return sampler.first[row] + start, np.minimum(num_tokens, width)


# --- fixed_point ---


def add_reference(
    numbers: NDArray[np.float64], factor: float, limit: float, more: bool, total: NDArray[np.int64]
) -> int:
    """`adding` in NumPy, in place of `total`."""
    scaled = numbers * factor
    good = np.abs(scaled) < limit
    whole = np.rint(np.where(good, scaled, 0.0)).astype(np.int64)
    total[:] = total + whole if more else whole
    return int(np.count_nonzero(~good))


def read_reference(numbers: NDArray[np.int64], unit: float, factor: float) -> NDArray[np.float64]:
    """`reading` in NumPy."""
    return numbers.astype(np.float64) * unit * factor


def move_reference(
    vector: NDArray[np.float32], numbers: NDArray[np.int64], unit: float, factor: float
) -> NDArray[np.float32]:
    """`moving` in NumPy."""
    return (vector + read_reference(numbers, unit, factor)).astype(np.float32)


# --- gather ---


def gather_windows_reference(
    corpus: NDArray[Any], first: NDArray[np.int64], length: NDArray[np.int64], width: int, out: NDArray[Any]
) -> NDArray[Any]:
    """The same in NumPy."""
    index = first[:, None] + np.minimum(np.arange(width), length[:, None] - 1)
    return np.take(corpus, index, axis=0, out=out)


# --- permute ---


def permute_reference(place: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The same in NumPy."""
    key = np.broadcast_to(key, place.shape)
    bits = max(1, (size - 1).bit_length())
    low = bits - bits // 2
    out, walking = place.astype(np.uint64), np.arange(len(place))
    while len(walking):
        out[walking] = _network(out[walking], key[walking], low, bits - low)
        walking = walking[out[walking] >= size]
    return out.astype(np.int64)


def _network(x: NDArray[np.uint64], key: NDArray[np.uint64], low: int, high: int) -> NDArray[np.uint64]:
    low_mask, high_mask = np.uint64((1 << low) - 1), np.uint64((1 << high) - 1)
    left, right = x >> np.uint64(low), x & low_mask
    for turn in range(0, 10, 2):
        left = left ^ (mix(right + mix(key + np.uint64(turn))) & high_mask)
        right = right ^ (mix(left + mix(key + np.uint64(turn + 1))) & low_mask)
    whole: NDArray[np.uint64] = left << np.uint64(low) | right
    return whole


# --- quantize ---


def residual_codes_reference(vectors: Floats, weight: Floats, codebooks: Codebooks) -> NDArray[np.uint16]:
    """The same in NumPy."""
    codes = np.empty((len(vectors), len(codebooks.centroids)), np.uint16)
    for start in range(0, len(vectors), _CHUNK):
        rest = np.zeros((len(vectors[start : start + _CHUNK]), codebooks.centroids.shape[2]), np.float32)
        rest[:, : vectors.shape[1]] = vectors[start : start + _CHUNK] * weight
        longest = np.linalg.norm(rest, axis=1)[:, None]
        for level, (centroids, half) in enumerate(zip(codebooks.centroids, codebooks.half, strict=True)):
            scores = rest @ centroids.T + codebooks.bias[level]
            length = np.sqrt(2 * half)
            reach = scores + 2e-5 * (longest + length) * length
            vector, code = np.nonzero(~(reach < scores.max(axis=1, keepdims=True)))
            exact = _scores(rest[vector], centroids[code]) - half[code]
            order = np.lexsort((code, -exact, vector))
            first = np.diff(vector[order], prepend=-1) > 0
            nearest = code[order][first]
            codes[start : start + _CHUNK, level] = nearest
            rest -= centroids[nearest]
    return codes


def _scores(vectors: Floats, centroids: Floats) -> Doubles:
    """Products of rows, summed in double precision in the order of the kernel."""
    terms = vectors.astype(np.float64) * centroids
    sums = np.add.reduce(terms.reshape(len(terms), -1, _SUMS), axis=1)
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    scores: Doubles = sums[:, 0]
    return scores


# --- rr ---


def rr_codes_reference(
    sample: NDArray[np.int64], rate_hz: float, scales: Mapping[str, LogScale], causal: bool
) -> NDArray[np.uint16]:
    """The same in NumPy."""
    rr_s = np.diff(sample, prepend=np.nan)[: len(sample)] / rate_hz
    values = rr_values(rr_s, RECENT_BEATS + 1, LONG_BEATS, 0 if causal else LONG_BEATS)
    return np.stack([scale.encode(values[name]) for name, scale in scales.items()], axis=1)


def rr_values(rr_s: Doubles, recent: int, before: int, after: int) -> dict[str, Doubles]:
    """Intervals `[num_beats]`, NaN where unknown, alone and compared, by the names in `KINDS`."""
    following, previous = np.append(rr_s[1:], np.nan)[: len(rr_s)], np.append(np.nan, rr_s[:-1])[: len(rr_s)]
    median, mean = trailing_median_reference(rr_s, recent), mean_around(rr_s, before, after)
    return {
        "rr": rr_s,
        "rr_over_previous": rr_s / previous,
        "rr_over_recent": rr_s / median,
        "next_rr_over_recent": following / median,
        "rr_over_long": rr_s / mean,
        "next_rr_over_long": following / mean,
    }


# --- running ---


def trailing_median_reference(values: Doubles, width: int) -> Doubles:
    """The same in NumPy."""
    if len(values) == 0:
        return values
    padded = np.concatenate([np.full(width - 1, np.nan), values])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    known = ~np.isnan(windows).all(axis=1)
    median = np.full_like(values, np.nan)
    median[known] = np.nanmedian(windows[known], axis=1)
    return median


def stretch_medians_reference(rows: Floats, first: NDArray[np.int64], last: NDArray[np.int64]) -> Floats:
    """The same in NumPy."""
    medians = np.empty((len(first), rows.shape[1]), np.float32)
    for median, begin, end in zip(medians, first, last, strict=True):
        np.median(rows[begin:end], axis=0, out=median)
    return medians


# --- waveform ---


def cut_beats_reference(
    signal: Floats,
    sample: NDArray[np.int64],
    offsets: Doubles,
    weights: Doubles,
    *,
    scale_beats: int,
    clip: float,
) -> tuple[Floats, Floats, Floats]:
    """The same in NumPy."""
    shape = interpolate(smooth(signal, weights), sample[:, None] + offsets)
    baseline = np.median(shape, axis=1)
    scale = trailing_median_reference(np.ptp(shape, axis=1).astype(np.float64), scale_beats).astype(np.float32)
    scale = np.maximum(scale, np.float32(LEAST_SCALE_MV))
    return np.clip((shape - baseline[:, None]) / scale[:, None], -clip, clip), baseline, scale


# --- wfdb ---


def decode_reference(
    content: NDArray[np.uint8],
    fmt: str,
    width: int,
    columns: Sequence[int],
    out: NDArray[Any],
    skip: int = 0,
    calibration: NDArray[np.float64] | None = None,
    sums: NDArray[np.uint16] | None = None,
) -> None:
    """The same in NumPy."""
    num_samples = out.shape[1] * width
    samples = _unpack(content[: num_bytes(DECODED[fmt], skip + num_samples)], fmt)[skip : skip + num_samples]
    adu = samples.reshape(-1, width).T[list(columns)]
    if sums is not None:
        sums += adu.sum(axis=1, dtype=np.int64).astype(np.uint16)
    if calibration is None:
        out[:] = adu
        return
    baseline, gain, factor = calibration.T[:, :, np.newaxis]
    out[:] = (adu - baseline) / gain * factor
    out[adu == -(1 << _NUM_BITS[fmt] - 1)] = np.nan


def _unpack(content: NDArray[np.uint8], fmt: str) -> NDArray[Any]:
    if fmt == "16" or fmt == "32":
        return content.view(f"<i{int(fmt) // 8}")
    if fmt == "61":
        return content.view(">i2")
    if fmt == "80":
        return content.astype(np.int16) - 128
    groups = np.concatenate([content, np.zeros(-len(content) % 3, np.uint8)]).reshape(-1, 3).astype(np.int32)
    low, middle, high = groups.T
    if fmt == "24":
        return (low << 8 | middle << 16 | high << 24) >> 8
    pairs = np.stack([low | (middle & 15) << 8, high | (middle >> 4) << 8], axis=1).ravel()
    return ((pairs << 4).astype(np.int16) >> 4).astype(np.int16)


def decode_annotations_reference(content: bytes) -> DecodedAnnotations | None:
    """The same in NumPy: the few words that are no annotations are walked one by one, all else decoded at once."""
    words = np.frombuffer(content, "<u2", count=len(content) // 2).astype(np.int64)
    code = (words >> 10).astype(np.uint8)
    is_payload = np.zeros(len(words), np.bool_)
    step = np.where(code < _SKIP, words & 1023, 0)
    texts: list[tuple[int, int, int]] = []
    after = 0
    for position in np.flatnonzero((code == _SKIP) | (code == _AUX)).tolist():
        if position < after:
            continue
        length = int(words[position] & 1023)
        after = position + 1 + (2 if code[position] == _SKIP else (length + 1) // 2)
        is_payload[position + 1 : after] = True
        if code[position] == _AUX:
            texts.append((position, 2 * (position + 1), length))
        elif after <= len(words):
            step[position] = int(words[position + 1]) << 16 | int(words[position + 2])
            step[position] -= (step[position] >> 31) << 32
    ends = np.flatnonzero((words == 0) & ~is_payload)
    if len(ends) == 0:
        return None
    end = int(ends[0])
    step[is_payload] = 0
    place = np.flatnonzero((code[:end] < _SKIP) & ~is_payload[:end])
    rows = [(np.searchsorted(place, at) - 1, first, length) for at, first, length in texts if at < end]
    stated = np.flatnonzero((code[:end] == _SUB) & ~is_payload[:end])
    subtype, annotation = np.zeros(len(place), np.int8), np.searchsorted(place, stated) - 1
    subtype[annotation[annotation >= 0]] = words[stated[annotation >= 0]].astype(np.int8)  # the low byte
    return DecodedAnnotations(
        np.cumsum(step[:end])[place], code[place], np.array(rows, np.int64).reshape(-1, 3), subtype
    )
