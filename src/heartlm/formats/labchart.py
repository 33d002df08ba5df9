"""Texts of LabChart: blocks of samples, each after a header, in any language of the program.

    Interval=       0.0078125 s                     header of a block: what a line states follows from its place and
    ExcelDateTime=  4.5356354E+04  2024-03-05 08…   its values, because programs in other languages have other words
    ChannelTitle=   ECG    Trigger
    Range=          10 mV  10 V
    UnitName=       mV     V
    0.0078125       0.024  0.000  #* moved          row: time and date if they are exported, channels, comment

The program records without gaps in a block, so the interval and the start of a block tell its times, unless the times
of its rows show that some were removed or are there twice.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations, Note, Recording
from heartlm.errors import HeartlmError
from heartlm.formats.clock import LONGEST_GAP_S
from heartlm.formats.moments import clock_of_texts
from heartlm.formats.plausible import check_rate
from heartlm.formats.preamble import moment_in, rate_of_interval
from heartlm.formats.sample_table import Column, Table, check_width
from heartlm.formats.text_bytes import SNIFFED_BYTES, arrow_buffer, codec_of, content_of, first_text
from heartlm.formats.text_table import read_columns, sniff_text
from heartlm.formats.units import is_unit_text
from heartlm.formats.words import SECONDS_PER_UNIT, TITLE_KEY
from heartlm.storage.limits import check_samples

_LINE = re.compile(r"^[^\t=\r\n\d#][^\t=\r\n]{0,40}=\t[^\r\n]*", re.MULTILINE)
_INTERVAL = re.compile(r"[^\t=\r\n]{1,40}=\t\s*(\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?)\s*(\S{1,4})\s*")
_WITH_UNIT = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s*([^\d\s]\S*)")
_COMMENT = re.compile(r"\t(#(?:\*|\d+) ?[^\r\n]*)")
# Day 0 of a spreadsheet.
_DAY_0 = datetime(1899, 12, 30)
# Bytes of memory for each character: the text, that of the block, and the numbers.
_HELD_BYTES = 8


@dataclass
class _Block:
    """A block without a gap.

    Attributes:
        rate_hz: rate of the samples.
        names, units: of each channel.
        start: date and time of the begin of the block; None if not stated.
        first_s: time of the first row as its column of times states it; 0 without one.
        values: `[num_channels, num_rows]`.
        offsets_s: time of each row since the first, `[num_rows]`; NaN where it cannot be read.
        notes: row and text of each comment.
    """

    rate_hz: float
    names: list[str]
    units: list[str]
    start: datetime | None
    first_s: float
    values: NDArray[np.float64]
    offsets_s: NDArray[np.float64]
    notes: list[tuple[int, str]] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        even_s = np.arange(len(self.offsets_s)) / self.rate_hz
        # a median: the last time may be damaged
        late_s = (self.offsets_s - even_s)[-9:]
        late_s = late_s[~np.isnan(late_s)]
        return float(len(even_s) / self.rate_hz + (max(np.median(late_s), 0) if late_s.size else 0))


def is_labchart(begin: bytes, path: Path) -> bool:
    """Return whether a file begins with two lines `Key=` and a tab, of which the first states a time."""
    if begin.startswith(b"\x1f\x8b"):
        with suppress(HeartlmError, zlib.error):
            begin = (first_text(path)[0] or "").encode("utf-8", "replace")
    lines = begin.decode(codec_of(begin), "replace").lstrip("\ufeff").splitlines()
    interval = _INTERVAL.fullmatch(lines[0]) if len(lines) > 2 else None
    return interval is not None and interval[2].casefold() in SECONDS_PER_UNIT and _LINE.match(lines[1]) is not None


def read_labchart(path: Path) -> Recording:
    """Read a text of LabChart; what is lost between blocks is NaN, comments are notes.

    Raises:
        HeartlmError: a row is malformed, or there are no samples.
    """
    content = bytes(content_of(path))
    check_samples(path, len(content), held_bytes=_HELD_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    headers = list[list[str]]()
    limits = list[int]()
    for line in _LINE.finditer(text):
        if not headers or text[limits[-1] : line.start()].strip():
            headers.append([])
            limits.append(line.start())
            limits.append(line.end())
        headers[-1].append(line[0])
        limits[-1] = line.end()
    begins, stops = limits[1::2], [*limits[2::2], len(text)]
    found = [
        _block(path, *each)
        for each in zip(headers, (text[a:b] for a, b in zip(begins, stops, strict=True)), strict=True)
    ]
    blocks = [block for block in found if block is not None and block.values.size]
    if not blocks:
        raise HeartlmError(f"{path}: has no rows of samples; export them with LabChart again")
    times, repairs = _placed(blocks)
    return _joined(path, times, repairs)


def _block(path: Path, header: Sequence[str], body: str) -> _Block | None:
    """Return a block of lines `Key=` and the rows after them; None without rows."""
    if not body.strip() or (interval := _INTERVAL.fullmatch(header[0])) is None:
        return None
    fields = [[value.strip() for value in line.split("\t")[1:]] for line in header]
    rate_hz = check_rate(
        path, rate_of_interval(float(interval[1].replace(",", ".")), interval[2]), "rate by its interval"
    )
    body = body.lstrip("\r\n")
    notes = [(body.count("\n", 0, found.start()), found[1]) for found in _COMMENT.finditer(body)]
    body = _COMMENT.sub("", body)
    table = sniff_text(body[:SNIFFED_BYTES], len(body) <= SNIFFED_BYTES)
    if table is None:
        raise HeartlmError(f"{path}: the rows after {header[-1][:40]!r} are no numbers; export them again")
    check_width(path, len(table.kinds))
    # the line of the ranges has a number and a unit for each channel; the titles are on the line before it
    filled_fields = [[value for value in row if value] for row in fields]
    ranges = next(
        (place for place, row in enumerate(filled_fields) if place > 1 and row and all(map(_WITH_UNIT.fullmatch, row))),
        None,
    )
    num_channels = len(table.kinds)
    names, units = [""] * num_channels, [""] * num_channels
    titles = ranges - 1 if ranges is not None else next(
        (place for place, line in enumerate(header) if TITLE_KEY.match(line)), None
    )  # fmt: skip
    if titles is not None:
        filled = [value for value in fields[titles if ranges is None else ranges] if value]
        num_channels = min(len(filled), num_channels)
        names = _first(fields[titles], num_channels)
        units = [match[1] if (match := _WITH_UNIT.fullmatch(value)) else "" for value in filled[:num_channels]]
        for row in fields[titles + 1 :]:
            if all(is_unit_text(value) or value == "*" for value in _first(row, num_channels)):
                units = _first(row, num_channels)
    columns = list(range(len(table.kinds)))
    texts = [column for column in columns if table.kinds[column] != "number"]
    parsed, _ = read_columns(path, table, columns, texts, False, arrow_buffer(body.encode()))
    clocks, channels = columns[: len(columns) - num_channels], columns[len(columns) - num_channels :]
    start, first_s, times_s = _start(fields), 0.0, np.zeros(0)
    for column in clocks:
        values = parsed[str(column)]
        if column not in texts:
            first_s, times_s = float(values[0].as_py() or 0.0), values.to_numpy()
        elif (clock := clock_of_texts("", values)) is not None:
            times_s = clock.values if not times_s.size else times_s
            if isinstance(clock.start, datetime):
                start = clock.start
            elif clock.start is not None and start is not None:
                start = datetime.combine(start.date(), clock.start)
    values = np.stack([np.full(parsed.num_rows, np.nan) if column in texts else parsed[str(column)].to_numpy()
                       for column in channels])  # fmt: skip
    return _Block(rate_hz, names, units, start, first_s, values, _offsets_s(times_s, values.shape[1], rate_hz), notes)


def _offsets_s(times_s: NDArray[np.float64], num_rows: int, rate_hz: float) -> NDArray[np.float64]:
    """Return the times of rows since the first: by the rate, unless their own times, if any, are other ones."""
    even_s = np.arange(num_rows) / rate_hz
    if not times_s.size or not np.isfinite(times_s[0]):
        return even_s
    own_s = np.where(np.isfinite(times_s), times_s - times_s[0], np.nan)
    steps_s = np.diff(own_s[~np.isnan(own_s)])
    # times may be rounded to steps longer than the interval
    coarsest_s = float(steps_s[steps_s > 0].min(initial=np.inf))
    tolerance_s = 0.5 / rate_hz if coarsest_s < 1.5 / rate_hz else coarsest_s
    return own_s if (np.abs(own_s - even_s) > tolerance_s).any() else even_s


def _first(row: Sequence[str], num: int) -> list[str]:
    return [*row[:num], *[""] * (num - len(row))]


def _start(fields: Sequence[Sequence[str]]) -> datetime | None:
    """Return the start of a block: the day number of a spreadsheet, unless the text next to it is another time."""
    row = next((row for row in fields[1:] if re.fullmatch(r"\d[.,]\d+E[+-]?\d+", (row or [""])[0])), None)
    exact = text = None
    if row is not None and 0 < (days := float(row[0].replace(",", "."))) < 100_000:
        exact = _DAY_0 + timedelta(milliseconds=round(days * 86400_000))
    for value in (value for line in fields for value in line):
        text = text or moment_in(value)
    # the text has whole seconds
    return text if exact is None or (text is not None and abs((exact - text).total_seconds()) > 1.5) else exact


def _placed(blocks: Sequence[_Block]) -> tuple[list[tuple[float, _Block]], list[str]]:
    """Return the longest series of blocks of one rate and one kind, each with its begin in seconds since the first."""
    series = list[list[tuple[float, _Block]]]()
    repairs = list[str]()
    for block in blocks:
        if series and (block.rate_hz, block.names) == (series[-1][-1][1].rate_hz, series[-1][-1][1].names):
            begin_s, before = series[-1][-1]
            end_s = begin_s + before.duration_s
            at_s = None
            if block.first_s >= before.first_s + before.duration_s - 0.5 / block.rate_hz:
                at_s = begin_s + block.first_s - before.first_s  # times continue over blocks
            elif block.start is not None and before.start is not None:
                at_s = begin_s + (block.start - before.start).total_seconds() + block.first_s - before.first_s
            if at_s is None or at_s < end_s - 1:  # starts have whole seconds
                repairs.append("a block that states no later start is read as following the one before it")
                at_s = end_s
            if at_s - end_s <= LONGEST_GAP_S:
                series[-1].append((max(at_s, end_s), block))
                continue
        series.append([(0.0, block)])
    longest = max(series, key=lambda each: sum(block.values.shape[1] for _, block in each))
    if others := sum(map(len, series)) - len(longest):
        many = "a block" if others == 1 else f"{others} blocks"
        repairs.append(f"left out: {many} of another rate or other channels, or more than a week away")
    return longest, repairs


def _joined(path: Path, placed: Sequence[tuple[float, _Block]], repairs: Sequence[str]) -> Recording:
    first = placed[0][1]
    values = np.concatenate([block.values for _, block in placed], axis=1)
    columns = [
        Column(name or f"channel {place}", row, unit)
        for place, (name, row, unit) in enumerate(zip(first.names, values, first.units, strict=True), 1)
    ]
    rate_hz = first.rate_hz
    times_s = np.concatenate([begin_s + block.offsets_s for begin_s, block in placed])
    if not np.array_equal(times_s, np.arange(len(times_s)) / rate_hz):
        columns.insert(0, Column("time", times_s, is_clock=True))
    start = first.start and first.start + timedelta(seconds=first.first_s)
    recording = Table(columns, rate_hz, start=start, repairs=(*dict.fromkeys(repairs),)).recording(path)
    places = [
        (round((begin_s + (offset_s if np.isfinite(offset_s) else row / rate_hz)) * rate_hz), text)
        for begin_s, block in placed
        for row, text in block.notes
        for offset_s in block.offsets_s[row : row + 1]
    ]
    notes = tuple(
        Note(place, place, text.lstrip("#*0123456789 ")) for place, text in places if 0 <= place < recording.num_samples
    )

    def annotations(recording: Recording) -> Annotations:
        empty = np.empty(0, np.int64)
        return Annotations(
            recording.rate_hz, empty, np.empty(0, "<U1"), beats_labelled=False, source=path.name, notes=notes
        )

    return replace(recording, read_annotations=annotations if notes else None)
