"""Dates and times of day as texts ─► seconds since the first row, and the start.

2024-05-01T10:00:00.000Z   13/05/2024 10:00:00,125   [10:00:00.125 01/05/2024]   10:00:00:125   3:07.25 PM   61:02.5
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.formats.clock import without_time_change
from heartlm.formats.sample_table import Column

MOMENT = re.compile(
    r"^\[?(?:(?P<day>\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4})[T ]+)?"
    r"(?:(?P<h>\d{1,3}):)?(?P<m>\d{1,4}):(?P<s>\d{1,2}(?:[.,:]\d+)?)"
    r"\s*(?P<half>[aApP][mM])?\s*(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?(?:\s+\d{1,2}/\d{1,2}/\d{4})?\]?$"
)
"""A time of day, or minutes and seconds, with a date or without."""
# A column with more texts that cannot be read is no clock.
_MOST_UNREADABLE = 0.1
# A time of day that falls by more, half a day in seconds, is one of the next day.
_MIDNIGHT_FALL_S = -43_200
# A recording with more dates is none, and each is parsed by Python.
_MOST_DATES = 10_000


def clock_of_texts(name: str, texts: Any) -> Column | None:
    """Return the column of an Arrow array of texts that are dates and times, or times; None if they are not.

    Texts that cannot be read become NaN. Times of day rise after midnight.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    first = next((text.as_py() for text in texts if text.is_valid), None)
    match = first and MOMENT.match(first.strip())
    if not match:
        return None
    try:
        # Arrow's own parser reads ISO 8601 alone. It refuses other texts, and differences that float64 would round.
        ticks = texts.cast(pa.timestamp("ns", tz="UTC" if match["zone"] else None)).cast(pa.int64())
        seconds = pc.subtract(ticks, ticks[0].as_py() or 0).cast(pa.float64()).to_numpy() * 1e-9
    except pa.ArrowInvalid:
        seconds = _seconds_of(pc.utf8_trim_whitespace(texts))
    if np.isnan(seconds).mean() > _MOST_UNREADABLE:
        return None
    return clock(name, seconds, _start_in(match), is_local=not match["zone"])


def clock(name: str, seconds: NDArray[np.float64], start: datetime | time | None, is_local: bool) -> Column:
    """Return a column of times. Local times have no offset, so summer time may begin or end in them."""
    repairs = tuple[str, ...]()
    if is_local and start is not None:
        clock_s = 3600 * start.hour + 60 * start.minute + start.second + 1e-6 * start.microsecond
        seconds, repairs = without_time_change(seconds, clock_s)
    return Column(name, seconds, is_clock=True, start=start, repairs=repairs)


def _seconds_of(texts: Any) -> NDArray[np.float64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.extract_regex(texts, MOMENT.pattern)

    def numbers(name: str) -> NDArray[np.float64]:
        # the fraction of a second may follow a comma or a colon: 10:00:00:125
        text = pc.replace_substring_regex(pc.struct_field(parts, name), "[,:]", ".")
        return np.asarray(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.float64()), np.float64)

    hours, minutes, seconds = (numbers(name) for name in "hms")
    halves = pc.fill_null(pc.utf8_lower(pc.struct_field(parts, "half")), "")
    if pc.any(pc.not_equal(halves, "")).as_py():
        hours = hours % 12 + np.where(pc.equal(halves, "pm").to_numpy(), 12, 0)
    total = 3600 * hours + 60 * minutes + seconds
    days = pc.dictionary_encode(pc.fill_null(pc.struct_field(parts, "day"), "")).combine_chunks()
    days = days.chunk(0) if isinstance(days, pa.ChunkedArray) else days
    dates = [_date_in(text) for text in days.dictionary.to_pylist()]
    if None not in dates and len(dates) < _MOST_DATES:
        ordinals = np.array([each.toordinal() for each in dates if each is not None], np.float64)
        return np.asarray(total + 86400.0 * (ordinals - ordinals[0])[days.indices.to_numpy()])
    # without a known date a day begins where the time falls
    near = np.maximum.accumulate(np.where(np.isnan(total), 0, np.arange(len(total))))  # the last row with a time
    return total + 86400.0 * np.cumsum(np.diff(total[near], prepend=total[:1]) < _MIDNIGHT_FALL_S)


def _date_in(text: str) -> date | None:
    """Return the date that a text names without doubt; None if day and month may be exchanged, or there is none."""
    numbers = re.split(r"[-/.]", text)
    if len(numbers) != 3:
        return None
    first, second, third = map(int, numbers)
    with suppress(ValueError):
        if first > 31:
            return date(first, second, third)
        if second > 12:
            return date(third, first, second)
        # With slashes, 3/4/2024 is a day in March or in April. Dots are German, so the day is first.
        if first > 12 or "." in text or first == second:
            return date(third, second, first)
    return None


def _start_in(match: re.Match[str]) -> datetime | time | None:
    hour, minute, second = int(match["h"] or 0), int(match["m"]), float(re.sub("[,:]", ".", match["s"]))
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    if match["h"] is None or hour > 23:
        return None  # time since the start
    day = _date_in(match["day"]) if match["day"] else None
    with suppress(ValueError):
        moment = datetime.combine(day or date(2000, 1, 1), time(hour, minute)) + timedelta(seconds=second)
        if day is not None:
            return moment
        return moment.time() if moment.time() != time() else None  # 00:00:00 begins to count at the start
    return None
