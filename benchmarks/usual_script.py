"""The usual script: wfdb, XQRS, a Python loop over the beats, a pickle. What heartlm is compared with, plainly written.

    python benchmarks/usual_script.py RECORD LEAD TOKENIZER OUT.pickle

It makes the tokens of heartlm's beat tokenizer, from the same codebooks, but for its beats, which are those of XQRS.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import wfdb
from wfdb.processing import XQRS

from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rr import OFFLINE_FACETS
from heartlm.tokenizers.waveform import DOMINANT_BEATS, DOMINANT_EVERY


def tokenise_record(record: str, lead: int, tokenizer: BeatTokenizer, out: Path, sampto: int | None = None) -> int:
    """Tokenise one lead of a record, or its first `sampto` samples; returns how many samples that were."""
    read = wfdb.rdrecord(record, channels=[lead], sampto=sampto)
    signal, rate_hz = read.p_signal[:, 0], read.fs
    detector = XQRS(signal, rate_hz)
    detector.detect(verbose=False)
    tokens = tokens_of(signal, rate_hz, detector.qrs_inds, tokenizer)
    with out.open("wb") as stream:
        pickle.dump({"record": record, "beats": detector.qrs_inds, "tokens": tokens}, stream)
    return len(signal)


def tokens_of(signal: Any, rate_hz: float, beats: Any, tokenizer: BeatTokenizer) -> list[list[int]]:
    """Tokens of the beats of a lead: codes of the waveform, of its deviation, and of the RR intervals."""
    shapes = shapes_of(smoothed(signal, rate_hz), rate_hz, beats, tokenizer)
    rr = [float("nan")] + [(b - a) / rate_hz for a, b in itertools.pairwise(beats)]
    tokens = []
    for place, shape in enumerate(shapes):
        if place % DOMINANT_EVERY == 0:
            near = shapes[max(0, place - DOMINANT_BEATS) : place + DOMINANT_EVERY + DOMINANT_BEATS]
            dominant = np.median(near, axis=0)
        codes = residual_codes(shape, tokenizer.quantizer)
        codes += residual_codes(shape - dominant, tokenizer.deviation_quantizer)
        tokens.append(codes + rr_codes(rr, place))
    return tokens


def smoothed(signal: Any, rate_hz: float) -> Any:
    half = round(rate_hz / 125)
    if half < 2:
        return signal
    weights = np.hanning(2 * half + 1)[1:-1]
    return np.convolve(np.pad(signal, half - 1, mode="edge"), weights / weights.sum(), mode="valid")


def shapes_of(signal: Any, rate_hz: float, beats: Any, tokenizer: BeatTokenizer) -> list[Any]:
    window, shapes, ranges = tokenizer.window, [], []
    for beat in beats:
        times = beat + window.times_s * rate_hz
        first = max(int(times[0]), 0)
        stretch = signal[first : int(times[-1]) + 2]
        wave = np.interp(times, np.arange(first, first + len(stretch)), stretch)
        ranges.append(np.ptp(wave))
        scale = max(np.median(ranges[-window.scale_beats :]), 1e-3)
        shapes.append(np.clip((wave - np.median(wave)) / scale, -window.clip, window.clip))
    return shapes


def residual_codes(shape: Any, quantizer: Any) -> list[int]:
    codes, rest = [], shape * quantizer.weight
    for codebook in quantizer.codebooks * quantizer.weight:
        nearest = int(np.argmin(((codebook - rest) ** 2).sum(axis=1)))
        rest = rest - codebook[nearest]
        codes.append(nearest)
    return codes


def rr_codes(rr: list[float], place: int) -> list[int]:
    following = rr[place + 1] if place + 1 < len(rr) else float("nan")
    recent = np.nanmedian(rr[max(0, place - 32) : place + 1]) if place else float("nan")
    long = np.nanmean(rr[max(0, place - 300) : place + 301])
    values = [rr[place], rr[place] / recent, following / recent, rr[place] / long, following / long]
    return [int(facet.scale.encode(np.array([value]))[0]) for facet, value in zip(OFFLINE_FACETS, values, strict=True)]


if __name__ == "__main__":
    from heartlm.tokenizers.base import load_tokenizer

    loaded = load_tokenizer(Path(sys.argv[3]))
    assert isinstance(loaded, BeatTokenizer)
    print(tokenise_record(sys.argv[1], int(sys.argv[2]), loaded, Path(sys.argv[4])), "samples")
