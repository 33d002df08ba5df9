"""Finding heartbeats in a signal that nobody annotated.

`sleepecg`'s detector (after Pan and Tompkins, IEEE Trans. Biomed. Eng. 32:230-236, 1985) says where the beats are; each
is then moved to its R peak, because a beat cut out 25 ms off its peak is another shape to the tokenizer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import needs

_SHORTEST_STRETCH_S = 2.0
"""The detector learns its thresholds on the first two seconds; a stretch shorter than that gives no beats."""
_LONGEST_FILLED_GAP_S = 0.1
_LOWEST_RATE_HZ = 62.0
"""The detector's band ends at 30 Hz, which needs a little more than twice as many samples a second."""
_SEARCH_S = 0.07
_BASELINE_S = 0.2


def detect_beats(signal_mv: NDArray[np.float32], rate_hz: float) -> NDArray[np.int64]:
    """Find the R peaks of a lead.

    Gaps (NaN) of up to 100 ms are bridged by a straight line; longer ones part the signal into stretches, each searched
    by itself. A flat stretch, or one shorter than 2 s, has no beats.

    Args:
        signal_mv: float32 `[num_samples]`; its scale does not matter.
        rate_hz: samples a second.

    Returns:
        Positions of the R peaks, int64 `[num_beats]`, strictly ascending.

    Raises:
        HeartlmError: the detector is not installed.
        ValueError: the rate is too low for the detector's pass band of 5 to 30 Hz.
    """
    try:
        from sleepecg.heartbeats import detect_heartbeats
    except ImportError:
        raise needs("detect", "sleepecg") from None
    if rate_hz < _LOWEST_RATE_HZ:
        raise ValueError(f"rate_hz is {rate_hz:g}, beats can be detected from {_LOWEST_RATE_HZ:g} Hz on")
    found = [np.zeros(0, np.int64)]
    for start, stop in _stretches(np.isfinite(signal_mv), rate_hz):
        stretch = _bridged(signal_mv[start:stop])
        if np.ptp(stretch) > 0:
            beats = np.asarray(detect_heartbeats(stretch, rate_hz), np.int64)
            found.append(start + to_r_peaks(stretch, beats, rate_hz))
    beats = np.concatenate(found)
    return beats[np.isfinite(signal_mv[beats])]


def to_r_peaks(signal: NDArray[np.float64], beats: NDArray[np.int64], rate_hz: float) -> NDArray[np.int64]:
    """Move each beat to the sample within 70 ms that is farthest from the baseline around it.

    The baseline is the median of the 200 ms on either side. Beats that meet on one peak become one.

    Returns:
        int64 `[num_peaks]`, strictly ascending.
    """
    if len(beats) == 0:
        return beats
    reach, wide = round(_SEARCH_S * rate_hz), round(_BASELINE_S * rate_hz)
    last = len(signal) - 1
    around = np.clip(beats[:, np.newaxis] + np.arange(-wide, wide + 1), 0, last)
    deviation = np.abs(signal[around] - np.median(signal[around], axis=1, keepdims=True))
    near = deviation[:, wide - reach : wide + reach + 1]
    peaks = np.clip(beats + np.argmax(near, axis=1) - reach, 0, last)
    return np.unique(peaks)


def _stretches(valid: NDArray[np.bool_], rate_hz: float) -> list[tuple[int, int]]:
    """Long enough runs of valid samples, start and stop, gaps that can be bridged included."""
    edges = np.flatnonzero(np.diff(valid, prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    apart = starts[1:] - stops[:-1] > _LONGEST_FILLED_GAP_S * rate_hz
    starts = starts[np.concatenate([[True], apart])] if len(starts) else starts
    stops = stops[np.concatenate([apart, [True]])] if len(stops) else stops
    long_enough = stops - starts >= _SHORTEST_STRETCH_S * rate_hz
    return list(zip(starts[long_enough].tolist(), stops[long_enough].tolist(), strict=True))


def _bridged(signal: NDArray[np.float32]) -> NDArray[np.float64]:
    """The stretch with its gaps filled by straight lines; float64, as the detector wants it."""
    filled = signal.astype(np.float64)
    gap = ~np.isfinite(filled)
    if gap.any():
        place = np.arange(len(filled))
        filled[gap] = np.interp(place[gap], place[~gap], filled[~gap])
    return filled
