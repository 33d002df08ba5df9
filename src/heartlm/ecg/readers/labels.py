"""From an annotation file to heartbeats and rhythm spans.

Beats are the annotations whose code marks a heartbeat. Rhythms are given by changes: an annotation `+` with the text
`(NAME` opens a span that lasts until the next one, or to the end of the recording. Where a database brackets
ventricular fibrillation by `[` and `]` instead, these open and close spans too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.beats import CLASS_OF_SYMBOL
from heartlm.ecg.readers.annotation_file import SYMBOL_OF_CODE, AnnotationFile
from heartlm.ecg.recording import RhythmSpan
from heartlm.ecg.rhythms import RHYTHMS, rhythm_index

OUTSIDE = ("before the start", "past the end")
"""Reasons for which `beats_of` leaves out beats that are not in the recording."""

_FAR = 2.0**62
"""Positions beyond are of a damaged file; they are outside of every recording either way."""

_IS_BEAT = np.isin(SYMBOL_OF_CODE, sorted(CLASS_OF_SYMBOL))
"""Whether a heartbeat is what a code annotates."""


def positions_at_rate(file: AnnotationFile, rate_hz: float) -> NDArray[np.int64]:
    """Positions of all annotations in samples at `rate_hz`, whatever the file's ticks; int64 `[num_annotations]`."""
    if file.ticks_hz is None or file.ticks_hz == rate_hz:
        return file.sample
    at_rate: NDArray[np.int64] = np.rint((file.sample * (rate_hz / file.ticks_hz)).clip(-_FAR, _FAR)).astype(np.int64)
    return at_rate


def beats_of(
    file: AnnotationFile, rate_hz: float, num_samples: int
) -> tuple[NDArray[np.int64], NDArray[np.str_], dict[str, int]]:
    """Pick the heartbeats of `file` in time order.

    Beats outside of the recording, and a second beat at the very sample of another, are left out and counted by reason.

    Returns:
        positions int64 `[num_beats]`, symbols `<U1` `[num_beats]`, counts of what was left out.
    """
    is_beat = _IS_BEAT[file.code]
    sample, symbol = positions_at_rate(file, rate_hz)[is_beat], SYMBOL_OF_CODE[file.code[is_beat]]
    order = np.argsort(sample, kind="stable")
    sample, symbol = sample[order], symbol[order]
    before = sample < 0
    past = (sample >= num_samples) if num_samples else np.zeros(len(sample), np.bool_)
    repeated = np.diff(sample, prepend=-1) == 0
    repeated &= ~before
    reasons = {OUTSIDE[0]: before, OUTSIDE[1]: past, "at the sample of another beat": repeated & ~past}
    keep = ~(before | past | repeated)
    return sample[keep], symbol[keep], {reason: int(left.sum()) for reason, left in reasons.items() if left.any()}


def rhythms_of(
    file: AnnotationFile, rate_hz: float, num_samples: int, bracketed: str | None = None
) -> tuple[tuple[RhythmSpan, ...], dict[str, int]]:
    """Turn the rhythm changes of `file` into spans that end at `num_samples`.

    Args:
        file: the annotations.
        rate_hz: samples a second of the recording.
        num_samples: its length; where the last span ends.
        bracketed: the rhythm that `[` opens and `]` ends; None where brackets repeat what `+` says already.

    Returns:
        the spans in time order, and counts by reason of the changes that were left out.
    """
    sample, symbol = positions_at_rate(file, rate_hz), file.symbol
    changes: list[tuple[int, str | None]] = [
        (int(sample[index]), canonical_rhythm(text))
        for index, text in file.aux.items()
        if symbol[index] == "+" and text.startswith("(")
    ]
    if bracketed is not None:
        changes += [(start, bracketed) for start in sample[symbol == "["].tolist()]
        changes += [(stop, None) for stop in sample[symbol == "]"].tolist()]
    changes.sort(key=lambda change: change[0])
    stops = [start for start, _ in changes[1:]] + [num_samples]
    spans = (
        RhythmSpan(max(start, 0), min(stop, num_samples), name)
        for (start, name), stop in zip(changes, stops, strict=False)
        if name is not None
    )
    num_outside = sum(start >= num_samples for start, _ in changes)
    ignored = {"rhythm change past the end": num_outside} if num_outside else {}
    return tuple(span for span in spans if span.start < span.stop), ignored


def canonical_rhythm(name: str) -> str:
    """The entry of `RHYTHMS` that an annotation's text, or a database's own code, stands for."""
    return RHYTHMS[rhythm_index(name)]
