"""Windows of beats, side by side, from tokens: what every method of the rhythm task reads.

Windows do not overlap. The beats after the last whole window of a recording, and recordings shorter than a window, are
left out and counted, because thresholds and features hold for one width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.evaluation.scored import ScoredLead
from heartlm.tokenizers.rr import rr_intervals_s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RhythmWindows:
    """Windows of one width over several recordings.

    Attributes:
        codes: uint16 `[num_windows, width, num_facets]`.
        rr_s: interval before each beat, float64 `[num_windows, width]`; a recording's first beat, which has none,
            repeats the next.
        rhythm: rhythm index of each beat, int8 `[num_windows, width]`.
        sample: position of the first beat, int64 `[num_windows]`.
        lead: index of the recording, int64 `[num_windows]`.
        num_left_over: beats of no window.
    """

    codes: NDArray[np.uint16]
    rr_s: Floats
    rhythm: NDArray[np.int8]
    sample: NDArray[np.int64]
    lead: NDArray[np.int64]
    num_left_over: int

    @classmethod
    def of(cls, leads: Sequence[ScoredLead], width: int) -> RhythmWindows:
        """Lay windows over `leads`.

        Raises:
            HeartlmError: every recording is shorter than a window.
        """
        num_tokens = np.array([lead.tokens.num_tokens for lead in leads], np.int64)
        num_windows = num_tokens // width
        if not num_windows.any():
            raise HeartlmError(
                f"window: {width} found, but the longest recording has {num_tokens.max(initial=0)} beats: choose fewer"
            )

        def windows(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
            parts = [each[: count * width] for each, count in zip(arrays, num_windows, strict=True)]
            return np.concatenate([part.reshape(-1, width, *part.shape[1:]) for part in parts])

        return cls(
            codes=windows([lead.tokens.codes for lead in leads]),
            rr_s=windows([rr_of(lead) for lead in leads]),
            rhythm=windows([lead.tokens.rhythm for lead in leads]),
            sample=windows([lead.tokens.sample for lead in leads])[:, 0],
            lead=np.repeat(np.arange(len(leads)), num_windows),
            num_left_over=int((num_tokens - num_windows * width).sum()),
        )

    def __len__(self) -> int:
        return len(self.codes)


def rr_of(lead: ScoredLead) -> Floats:
    """Interval before each beat in seconds, the first repeating the second; float64 `[num_tokens]`."""
    rr_s = rr_intervals_s(np.asarray(lead.tokens.sample), lead.rate_hz)
    if len(rr_s) > 1:
        rr_s[0] = rr_s[1]
    return np.nan_to_num(rr_s)
