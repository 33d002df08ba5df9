"""Typical tokenizing scripts, as the comparison: wfdb, a detector, a Python loop over the beats, a pickle.

They make the tokens of heartlm's beat tokenizer from the same codebooks. The beats are from wfdb's XQRS or gqrs, or
from sleepecg if it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import wfdb
from wfdb.processing import XQRS, gqrs_detect

from heartlm.databases.database import Database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.rr import OFFLINE_SCALES
from heartlm.tokenizers.waveform import DOMINANT_BEATS, DOMINANT_EVERY

DIFFERING = 1e-3
"""The most codes that may differ: where two centroids are equally near, rounding decides."""


def by_xqrs(signal: Any, rate_hz: float) -> Any:
    detector = XQRS(signal, rate_hz)
    detector.detect(verbose=False)
    return detector.qrs_inds


def detectors() -> dict[str, Callable[[Any, float], Any]]:
    """What finds beats in usual scripts, by name; those that are installed."""
    found: dict[str, Callable[[Any, float], Any]] = {"wfdb XQRS": by_xqrs, "wfdb gqrs": gqrs_detect}
    if importlib.util.find_spec("sleepecg"):
        found["sleepecg"] = importlib.import_module("sleepecg").detect_heartbeats
    return found


def tokenise_record(
    record: str,
    leads: Sequence[int],
    tokenizer: BeatTokenizer,
    out: Path,
    sampto: int | None = None,
    find: Callable[[Any, float], Any] = by_xqrs,
) -> int:
    """Tokenise leads of a record, or their first `sampto` samples, into a folder; returns how many those were."""
    read = wfdb.rdrecord(record, channels=list(leads), sampto=sampto)
    for lead, signal in zip(leads, read.p_signal.T, strict=True):
        signal = np.nan_to_num(signal)
        beats = find(signal, read.fs)
        tokens = tokens_of(signal, read.fs, beats, tokenizer) if len(beats) else []
        with (out / f"{read.record_name}.{lead}.pickle").open("wb") as stream:
            pickle.dump({"record": record, "beats": beats, "tokens": tokens}, stream)
    return int(read.p_signal.size)


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
    """The signal without what is faster than a beat's waveform keeps."""
    half = round(rate_hz / 125)
    if half < 2:
        return signal
    weights = np.hanning(2 * half + 1)[1:-1]
    return np.convolve(np.pad(signal, half - 1, mode="edge"), weights / weights.sum(), mode="valid")


def shapes_of(signal: Any, rate_hz: float, beats: Any, tokenizer: BeatTokenizer) -> list[Any]:
    """The waveform around every beat, at its level and in units of the running amplitude."""
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
    """Codes of a waveform, each of what the ones before leave."""
    codes, rest = [], shape * quantizer.weight
    for codebook in quantizer.codebooks * quantizer.weight:
        nearest = int(np.argmin(((codebook - rest) ** 2).sum(axis=1)))
        rest = rest - codebook[nearest]
        codes.append(nearest)
    return codes


def rr_codes(rr: list[float], place: int) -> list[int]:
    """Codes of the RR intervals around a beat."""
    following = rr[place + 1] if place + 1 < len(rr) else float("nan")
    recent = np.nanmedian(rr[max(0, place - 32) : place + 1]) if place else float("nan")
    long = np.nanmean(rr[max(0, place - 300) : place + 301])
    values = [rr[place], rr[place] / recent, following / recent, rr[place] / long, following / long]
    scales = OFFLINE_SCALES.values()
    return [int(scale.encode(np.array([value]))[0]) for scale, value in zip(scales, values, strict=True)]


def differing_codes(database: Database, record_id: str, tokenizer: BeatTokenizer) -> tuple[int, int]:
    """How many codes of the first lead of a record differ from heartlm's for the same beats, and of how many.

    Raises:
        HeartlmError: more than one in a thousand: it is not the same work.
    """
    recording = database.recording(record_id)
    signal = recording.signal(leads=[0])[0]
    annotations = database.annotations(record_id, recording) or detected(signal, recording.rate_hz)
    codes = tokenizer.encode(Lead(annotations, signal)).codes
    usual = np.array(tokens_of(signal.astype(np.float64), recording.rate_hz, annotations.sample, tokenizer))
    differing = int((usual != codes).sum())
    if differing > DIFFERING * codes.size:
        raise HeartlmError(f"{record_id}: {differing} of {codes.size} codes differ from those of the usual script")
    return differing, codes.size


def detected(signal: Any, rate_hz: float) -> Annotations:
    """The beats of a lead, as heartlm finds them."""
    beats = detect_beats(signal, rate_hz)
    return Annotations(rate_hz, beats, np.full(len(beats), "N"), beats_labelled=False, source="detected")
