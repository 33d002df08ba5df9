"""Which kinds of events a recording is too short, or too little readable, to be examined for.

A kind that was not examined has no number: 0 is the number of events of a kind that was looked for and is not there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.av_block import BY_P_WAVES, WINDOW
from heartlm.analysis.events import PATTERN_REPEATS
from heartlm.analysis.flutter import FEWEST_BEATS as FEWEST_FLUTTER_BEATS
from heartlm.analysis.flutter import WINDOW_S as FLUTTER_S
from heartlm.analysis.limits import Limits
from heartlm.ecg.definitions import PATTERNS
from heartlm.ecg.spans import runs

FEWEST_AF_BEATS = 9
"""Minimum number of beats of AF. On 440 recordings of PTB-XL, AF was found with sensitivity 0.55 and specificity 0.996
in 9 to 15 beats, and with 0.91 and 1 in 16 beats or more (docs/log/af.md)."""
SHORTEST_S = 4.0
"""Minimum duration in seconds of VF, asystole and noise by the waveform."""


def too_short(
    sample: NDArray[np.int64],
    clear: NDArray[np.bool_],
    rate_hz: float,
    num_seconds: int,
    num_readable: int,
    limits: Limits,
) -> dict[str, str]:
    """Return the kinds that have too few beats or seconds to be found, each with the reason.

    Args:
        sample: position of each beat, int64 `[num_beats]`, ascending.
        clear: whether the interval from each beat to the next is readable, bool `[num_beats - 1]`.
        rate_hz: sampling rate in Hz.
        num_seconds: number of seconds.
        num_readable: how many of them can be read, and are not VF.
        limits: limits of the rules for beats.
    """
    first, stop = max(runs(clear).tolist(), key=lambda stretch: stretch[1] - stretch[0], default=(0, 0))
    in_a_row = stop - first + min(1, len(sample))
    rate_bpm = 60 * rate_hz * (stop - first) / (sample[stop] - sample[first]) if stop > first else float("nan")
    fewest = dict.fromkeys(("VT", "IVR", "SVT"), limits.run_beats) | {"couplet": 2, "pause": 2, "AF": FEWEST_AF_BEATS}
    fewest |= dict.fromkeys(BY_P_WAVES, WINDOW + 1)
    fewest |= {kind: period * (PATTERN_REPEATS - 1) + 1 for kind, period in PATTERNS.items()}
    fewest["flutter"] = FEWEST_FLUTTER_BEATS
    # Also a few beats tell that a rate is not beyond its limit.
    if not rate_bpm >= limits.bradycardia_bpm:
        fewest["bradycardia"] = limits.bradycardia_beats
    if not rate_bpm <= limits.tachycardia_bpm:
        fewest["tachycardia"] = limits.tachycardia_beats
    kinds = {kind: f"{in_a_row} beats in a row, {least} needed" for kind, least in fewest.items() if in_a_row < least}
    for kind, seconds, least in (
        ("VF", num_seconds, SHORTEST_S),
        ("asystole", num_readable, SHORTEST_S),
        ("flutter", num_readable, FLUTTER_S),
    ):
        if seconds < least:
            kinds[kind] = f"{seconds} s readable, {least:g} s needed"
    return kinds
