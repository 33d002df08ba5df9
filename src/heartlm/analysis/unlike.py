"""Comparison of a recording with the training data of the shipped models, by named measures.

Wrong sampling rates or units in headers, noise, pulse waves and clipped signals give beats that the codebooks of the
beat tokenizer cannot reconstruct, or widths, rates and amplitudes outside of the training data. `studies/unlike.py`
measures the limits on patients that were not used to fit the codebooks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.tokenizers.base import Lead, Tokenizer, Tokens
from heartlm.tokenizers.beat import BeatTokenizer

Floats = NDArray[np.float64]

BEATS_OF_BLOCK, FEWEST_BEATS = 256, 5
"""Maximum number of evenly spaced beats measured in a block, and minimum number of beats of a recording."""


class Usual(NamedTuple):
    """Usual range of the median of a measure over beats."""

    low: float
    high: float
    text: str


USUAL = {
    "waveform error": Usual(0, 0.10, "{:.2f} of the height of beats is lost in their codes"),
    "relative waveform error": Usual(0, 0.60, "{:.2f} of the root mean square of beats is lost in their codes"),
    "QRS width": Usual(0, 0.13, "QRS complexes of {:.3f} s"),
    "amplitude": Usual(0.1, 20, "beats of {:.3g} mV"),
    "heart rate": Usual(45, 150, "{:.0f} beats a minute"),
}


def measures_of_beats(tokenizer: Tokenizer, lead: Lead, tokens: Tokens) -> Floats:
    """Return the measures of `USUAL` of evenly spaced beats of a lead.

    Returns:
        Measures, float64 `[num_measured, len(USUAL)]`, NaN where unknown; no rows if the tokenizer has no waveform
        codebooks.
    """
    if not isinstance(tokenizer, BeatTokenizer) or tokenizer.quantizer is None or tokens.num_tokens < 2:
        return np.empty((0, len(USUAL)))
    chosen = np.arange(0, tokens.num_tokens - 1, -(-tokens.num_tokens // BEATS_OF_BLOCK))
    beats = lead.annotations
    some = replace(beats, sample=beats.sample[chosen], symbol=beats.symbol[chosen])
    shape = tokenizer.waveforms(replace(lead, annotations=some)).shape
    lost = shape - tokenizer.quantizer.decode(tokenizer.quantizer.encode(shape))
    error, size = (np.sqrt(np.mean(each.astype(np.float64) ** 2, axis=1)) for each in (lost, shape))
    width_s = np.full(len(chosen), np.nan)
    if "qrs_width" in tokenizer.comparisons:
        log_width = tokenizer.decode_comparisons(tokens.codes[chosen])[:, tokenizer.comparisons.index("qrs_width")]
        width_s = np.exp(log_width.astype(np.float64))
    rate_bpm = 60 * beats.rate_hz / np.maximum(np.diff(beats.sample)[chosen], 1)
    return np.stack([error, error / np.maximum(size, 1e-6), width_s, tokens.scale_mv[chosen], rate_bpm], axis=1)


def medians(measures: Floats) -> dict[str, float]:
    """Return the median of each measure over beats; empty with fewer than `FEWEST_BEATS` beats."""
    if len(measures) < FEWEST_BEATS - 1:
        return {}
    known = {name: values[~np.isnan(values)] for name, values in zip(USUAL, measures.T, strict=True)}
    return {name: float(np.median(values)) for name, values in known.items() if len(values)}


def unlike(measures: Floats) -> tuple[str, ...]:
    """Return the differences from the training recordings of the models, one line each; empty if there are none."""
    return tuple(
        f"{USUAL[name].text.format(value)} ({USUAL[name].low:g} to {USUAL[name].high:g} is usual)"
        for name, value in medians(measures).items()
        if not USUAL[name].low <= value <= USUAL[name].high
    )
