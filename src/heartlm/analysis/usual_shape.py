"""Likeness of beats to the usual beat of a recording, which decides between classes of ectopic beats.

The beats model names each beat from one lead's tokens, and errs in runs: the narrow beat after a couplet is called V,
and fast wide beats that are low in one lead are called S. A beat that has the usual shape in every lead that can be
read is not ventricular; one that is unlike it in a lead is not supraventricular. One lead alone tells so in runs only:
a single ventricular beat may look as usual in it.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heartlm.ecg.spans import runs

Floats = NDArray[np.float32]

REACH_S, SHIFT_S = 0.1, 0.02
"""Half-width in seconds of the compared part of a beat, and how far it is moved to match. A wide wave that may be moved
by 40 ms matches a narrow one of the other sign by its end."""
USUAL_BEATS, FEWEST_BEATS = 32, 8
"""Number of normal beats, the nearest, of which the usual beat is the median; and the fewest."""
TOGETHER = 16
"""Number of beats that are compared with the same usual beat."""
USUAL, UNLIKE = 0.85, 0.5
"""Likeness from which on a ventricular beat is of the usual shape, and below which a supraventricular one is not.
Measured in runs of DS1 and svdb: docs/log/runs.md; single beats: docs/log/statements.md."""


def likeness_to_usual(
    sample: NDArray[np.int64],
    is_normal: NDArray[np.bool_],
    signals_mv: Floats,
    readable: NDArray[np.bool_],
    rate_hz: float,
) -> Floats:
    """Return the likeness of each beat that is not normal to the usual beat, in the readable lead where it is least.

    It is 2ab / (a² + b²) of the two waves a and b with their means removed: their correlation, or less if one is
    higher.

    Args:
        sample: position of each beat, ascending, int64 `[num_beats]`.
        is_normal: whether each is called normal, bool `[num_beats]`.
        signals_mv: signals in millivolts, float32 `[num_leads, num_samples]`, NaN where invalid.
        readable: whether each lead can be read at each beat, bool `[num_leads, num_beats]`; where none can, all count.
        rate_hz: sampling rate in Hz.

    Returns:
        float32 `[num_beats]`, -1 to 1; NaN for normal beats, and for all with fewer than `FEWEST_BEATS` of them.
    """
    reach, shift = round(REACH_S * rate_hz), round(SHIFT_S * rate_hz)
    normal, others = sample[is_normal], np.flatnonzero(~is_normal)
    likeness = np.full((len(signals_mv), len(sample)), np.nan, np.float32)
    if len(normal) < FEWEST_BEATS:
        return np.asarray(likeness[0])
    around = np.arange(2 * (reach + shift) + 1)  # of a beat, in the padded signal
    for lead, signal in enumerate(signals_mv):
        padded = np.pad(np.nan_to_num(signal), reach + shift, mode="edge")
        for first in range(0, len(others), TOGETHER):
            part = others[first : first + TOGETHER]
            middle = int(np.searchsorted(normal, sample[part[len(part) // 2]]))
            begin = max(0, min(middle - USUAL_BEATS // 2, len(normal) - USUAL_BEATS))
            near = padded[normal[begin : begin + USUAL_BEATS, None] + around[shift : len(around) - shift]]
            usual = np.median(_centred(near), axis=0)
            # [num_part, 2 shift + 1, 2 reach + 1]: each beat, moved
            moved = _centred(sliding_window_view(padded[sample[part, None] + around], 2 * reach + 1, axis=1))
            power = (moved**2).sum(axis=2) + (usual**2).sum()
            likeness[lead, part] = (2 * moved @ usual / np.maximum(power, 1e-12)).max(axis=1)
    counted = readable | ~readable.any(axis=0)
    return np.asarray(np.where(counted, likeness, np.inf).min(axis=0))


def _centred(windows: Floats) -> Floats:
    return np.asarray(windows - windows.mean(axis=-1, keepdims=True))


def excluded_classes(
    symbol: NDArray[np.str_], likeness: Floats, several: NDArray[np.bool_], run_beats: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which beats are not ventricular by their shape, and which are not supraventricular.

    Args:
        symbol: class of each beat, `<U1` `[num_beats]`.
        likeness: see `likeness_to_usual`, float32 `[num_beats]`.
        several: whether several leads can be read at each, bool `[num_beats]`; where not, only runs are judged.
        run_beats: number of beats of a run.
    """
    in_pair = _in_run(symbol == "V", 2)
    in_run = _in_run(np.isin(symbol, ["S", "V"]), run_beats)
    not_v = (several | in_pair) & (symbol == "V") & (likeness >= USUAL)
    return not_v, (several | in_run) & (symbol == "S") & (likeness < UNLIKE)


def _in_run(marked: NDArray[np.bool_], shortest: int) -> NDArray[np.bool_]:
    inside = np.zeros(len(marked), np.bool_)
    for first, stop in runs(marked).tolist():
        inside[first:stop] = stop - first >= shortest
    return inside
