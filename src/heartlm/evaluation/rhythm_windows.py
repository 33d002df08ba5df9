"""Windows of beats, side by side, from tokens: what every method of the rhythm task reads.

Windows do not overlap. A recording shorter than a window gives one short window of what it has, so that every recording
is answered; the beats after the last whole window of a longer one are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import UNLABELLED
from heartlm.errors import HeartlmError
from heartlm.evaluation.scored import ScoredLead
from heartlm.tokenizers.rr import rr_intervals_s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RhythmWindows:
    """Windows of one width over several recordings, and shorter ones of short recordings.

    Attributes:
        codes: uint16 `[num_windows, width, num_facets]`, 0 behind the end of a short window.
        rr_s: interval before each beat, float64 `[num_windows, width]`, 0 behind the end; a recording's first beat,
            which has none, repeats the next.
        rhythm: rhythm index of each beat, `UNLABELLED` behind the end, int8 `[num_windows, width]`.
        sample: position of the first beat, int64 `[num_windows]`.
        lead: index of the recording, int64 `[num_windows]`.
        length: beats of each window, int64 `[num_windows]`.
        num_left_over: beats of no window.
    """

    codes: NDArray[np.uint16]
    rr_s: Floats
    rhythm: NDArray[np.int8]
    sample: NDArray[np.int64]
    lead: NDArray[np.int64]
    length: NDArray[np.int64]
    num_left_over: int

    @classmethod
    def of(cls, leads: Sequence[ScoredLead], width: int) -> RhythmWindows:
        """Lay windows over `leads`.

        Raises:
            HeartlmError: no recording has a beat.
        """
        num_tokens = np.array([lead.tokens.num_tokens for lead in leads], np.int64)
        num_windows = np.maximum(num_tokens // width, num_tokens > 0)
        if not num_windows.any():
            raise HeartlmError("no recording has a beat: there are no windows to score")

        def windows(arrays: Sequence[NDArray[Any]], padding: int = 0) -> NDArray[Any]:
            parts = []
            for each, count in zip(arrays, num_windows.tolist(), strict=True):
                short = max(0, count * width - len(each))
                part = np.pad(each[: count * width], [(0, short)] + [(0, 0)] * (each.ndim - 1), constant_values=padding)
                parts.append(part.reshape(-1, width, *part.shape[1:]))
            return np.concatenate(parts)

        return cls(
            codes=windows([np.asarray(lead.tokens.codes) for lead in leads]),
            rr_s=windows([rr_of(lead) for lead in leads]),
            rhythm=windows([np.asarray(lead.tokens.rhythm) for lead in leads], UNLABELLED),
            sample=windows([np.asarray(lead.tokens.sample) for lead in leads])[:, 0],
            lead=np.repeat(np.arange(len(leads)), num_windows),
            length=np.repeat(np.minimum(num_tokens, width), num_windows),
            num_left_over=int(np.maximum(num_tokens - num_windows * width, 0).sum()),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def chosen(self, rows: NDArray[np.int64]) -> RhythmWindows:
        """The windows of those numbers."""
        kept = {name: getattr(self, name)[rows] for name in ("codes", "rr_s", "rhythm", "sample", "lead", "length")}
        return replace(self, **kept)

    def judged(self, array: NDArray[Any], judge: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        """What `judge` says of the rows of `array`, `[num_windows, width, ...]`, those of one length at a time."""
        answers: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for length in np.unique(self.length).tolist():
            rows = np.flatnonzero(self.length == length)
            answers.append((rows, judge(array[rows, :length])))
        out = np.empty((len(self), *answers[0][1].shape[1:]), answers[0][1].dtype)
        for rows, answer in answers:
            out[rows] = answer
        return out


def rr_of(lead: ScoredLead) -> Floats:
    """Interval before each beat in seconds, the first repeating the second; float64 `[num_tokens]`."""
    rr_s = rr_intervals_s(np.asarray(lead.tokens.sample), lead.rate_hz)
    if len(rr_s) > 1:
        rr_s[0] = rr_s[1]
    return np.nan_to_num(rr_s)
