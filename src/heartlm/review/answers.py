"""What the page asks of a review, as values of JSON and arrays, and their bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.delineation.delineate import delineate
from heartlm.ecg.recording import Recording
from heartlm.review.review import Review

_ALIGNED = 8

Answer = tuple[dict[str, Any], dict[str, Any]]
"""Header of an answer, and its arrays."""


def beats(review: Review) -> Answer:
    """Return position, class, probability, source and family of each beat."""
    codes = np.asarray(review.symbol, "<U1").view(np.uint32).astype(np.uint8) if len(review.symbol) else np.empty(0)
    arrays = {
        "sample": review.sample.astype(np.float64),  # JavaScript has no fast integers of 64 bits
        "symbol": codes.astype(np.uint8),
        "probability": np.rint(255 * np.clip(review.probability, 0, 1)).astype(np.uint8),
        "source": review.source.astype(np.uint8),
        "family": review.family.astype(np.int32),
    }
    return {"revision": review.revision}, arrays


def _number(value: float) -> float | None:
    return round(float(value), 4) if math.isfinite(value) else None


def events(review: Review) -> Answer:
    """Return the events as they are after the corrections, refused ones too."""
    rows = [
        {
            "id": each.id,
            "state": each.state,
            "kind": each.event.kind,
            "start": int(each.event.start),
            "stop": int(each.event.stop),
            "confidence": _number(each.event.confidence),
            "num_beats": int(each.event.num_beats),
            "rate_bpm": _number(each.event.rate_bpm),
            "disputed": bool(each.event.disputed),
        }
        for each in review.events()
    ]
    return {"revision": review.revision, "events": rows}, {}


def families(review: Review) -> Answer:
    """Return the families, with their means and spreads, float32 `[num_families, num_leads, num_samples]`."""
    families = review.families()
    rows = [
        {
            "id": int(each.id),
            "name": str(each.name),
            "count": int(each.count),
            "doubt": _number(each.doubt),
            "reviewed": bool(each.reviewed),
            "examples": [int(sample) for sample in each.examples],
        }
        for each in families
    ]
    if not families:
        return {"revision": review.revision, "families": []}, {}
    arrays = {name: np.stack([getattr(each, name) for each in families]) for name in ("mean", "spread")}
    return {"revision": review.revision, "families": rows}, {n: a.astype(np.float32) for n, a in arrays.items()}


def question(review: Review) -> Answer:
    """Return the next question; None if none is left."""
    question = review.question()
    fields = {} if question is None else vars(question)
    plain = {
        name: value.tolist() if isinstance(value, np.generic | np.ndarray) else value for name, value in fields.items()
    }
    return {"question": plain or None}, {}


def waves(review: Review, start: int, stop: int) -> Answer:
    """Delineate the beats between two samples; P, QRS and T of all leads together, `[num_beats, 3, 3]`."""
    recording, margin = review.recording, round(2 * review.recording.rate_hz)
    first, last = max(0, start - margin), min(recording.num_samples, stop + margin)
    piece = Recording.from_array(recording.signal(first, last), rate_hz=recording.rate_hz, leads=recording.lead_names)
    found = delineate(piece, review.sample[(review.sample >= first) & (review.sample < last)] - first)
    waves = np.where(found.all_leads >= 0, found.all_leads + first, -1)
    inside = (found.beats + first >= start) & (found.beats + first < stop)
    return {}, {"waves": waves[inside].astype(np.float64)}


def pack(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return `header` and `arrays` in one message; `header["arrays"]` gets their types, shapes and offsets.

    4 bytes: length of the header │ header, JSON padded to 8 bytes │ array, little endian │ array ...
    """
    parts, described, offset = list[bytes](), dict[str, Any](), 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        described[name] = [array.dtype.name, list(array.shape), offset]
        parts.append(content + bytes(-len(content) % _ALIGNED))
        offset += len(parts[-1])
    text = json.dumps(header | {"arrays": described}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % _ALIGNED)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])
