"""Text tables of samples (CSV, TSV and others): find out how they are written, then let Arrow parse the numbers.

    preamble      Sample Rate,512 hertz          lines before the names: facts such as rate, start, unit
    names         Phone timestamp;ecg [uV]       optional, also in several rows with units
    rows          2024-05-01T10:00:00.000;-145   separator and decimal mark are those that make the rows numbers
    footer                                       lines after the last row, left out

The first 64 KiB decide; the rest is read by `pyarrow.csv` in blocks.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.formats.moments import MOMENT
from heartlm.formats.preamble import acqknowledge
from heartlm.formats.text_bytes import arrow_buffer, content_of, first_text
from heartlm.formats.units import is_unit_text
from heartlm.formats.words import NULLS
from heartlm.storage.limits import check_samples

_TESTED_ROWS = 60
"""Rows by which separator and decimal mark are chosen."""
# Lines of which fewer have the same columns of numbers are a text, not a table.
_LEAST_SCORE = 0.5
# Blanks also separate the dates and times of other tables, so another separator that does as well is preferred.
_BLANK_SCORE = -0.02
# Fraction of the fields of a column that must be of its kind; others are parts of a header among the tested rows.
_LEAST_OF_KIND = 0.8
_MOST_FOOTER_LINES, _FOOTER_BYTES = 30, 1 << 14
# Bytes whose fields are counted at once, and bytes of memory for each field: float64 and float32.
_COUNTED_BYTES, _HELD_BYTES = 1 << 24, 16
# Most columns of a line that is looked at.
_WIDEST = 10_000

_NEW_LINE = re.compile(r"\r\n|\n|\r")
_BARE_NULLS = frozenset(text.casefold() for text in NULLS)
_DATE = re.compile(r"\[?\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\]?")
_BEGINS_ROW = re.compile(r"\s*[\"'\[]?[+-]?[\d.,;\t|]|\s*nan\b", re.IGNORECASE)


class Punctuation(NamedTuple):
    """How fields and numbers are written.

    Attributes:
        separator: character between columns; `" "` for any number of blanks and tabs, empty for one column.
        decimal: decimal mark.
        quote: quotation mark.
    """

    separator: str
    decimal: str
    quote: str

    def split(self, line: str) -> list[str]:
        """Return the fields of a line."""
        if not self.separator:
            return [line.strip().strip(self.quote)]
        if self.separator == " ":
            return line.split()
        fields = line.split(self.separator)
        if self.quote in line:
            with suppress(csv.Error):
                fields = next(csv.reader([line], delimiter=self.separator, quotechar=self.quote), [])
        return [field.strip() for field in fields]

    def number(self, field: str) -> float | None:
        """Return the number in a field, which may be NaN; None if there is none."""
        try:
            # Python reads 1_000 as a number, Arrow does not
            return None if "_" in field else float(field.replace(",", ".") if self.decimal == "," else field)
        except ValueError:
            return None

    def kind(self, field: str) -> str:
        """Return what a field holds: number, time, text, or nothing."""
        number = None if self.decimal == "," and "." in field else self.number(field)
        if number is not None:
            return "empty" if math.isnan(number) else "number"
        if field.casefold() in _BARE_NULLS:
            return "empty"
        return "time" if MOMENT.match(field) or _DATE.fullmatch(field) else "text"

    def kinds(self, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return what each column of rows of equal width holds."""
        return tuple(map(self._kind_of_column, zip(*rows, strict=True)))

    def _kind_of_column(self, fields: Sequence[str]) -> str:
        counts = Counter(map(self.kind, fields))
        num_filled = len(fields) - counts["empty"]
        kind = max(("number", "time", "text"), key=lambda each: counts[each])
        return "empty" if not num_filled else kind if counts[kind] > _LEAST_OF_KIND * num_filled else "text"

    def score(self, lines: Iterable[str]) -> float:
        """Return how well lines are rows of numbers: the fraction of rows of equal width times that of such columns."""
        rows = [_trimmed(self.split(line)) for line in lines]
        width, num_equal = Counter(map(len, rows)).most_common(1)[0]
        if not width or width > _WIDEST or (self.separator and width == 1):
            return 0.0
        kinds = self.kinds([row for row in rows if len(row) == width])
        score = num_equal / len(rows) * (1 - kinds.count("text") / width) + _BLANK_SCORE * (self.separator == " ")
        return score if "number" in kinds else 0.0


# Separators in the order in which they are tried, each with a point and a comma as decimal mark.
_SEPARATORS = ("\t", ";", ",", "|", "", " ")


@dataclass(frozen=True)
class TextTable:
    """How a text table is written.

    Attributes:
        marks: how its fields are written.
        offset: byte of the first row, in UTF-8.
        names: name of each column, empty where unknown.
        units: text of the unit of each column, empty where unknown.
        kinds: content of each column: number, time, empty or text.
        rows: fields of the first rows.
        preamble: lines before the names.
    """

    marks: Punctuation
    offset: int
    names: tuple[str, ...]
    units: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    preamble: tuple[str, ...]

    def has_row(self, line: str) -> bool:
        """Return whether a line is a row of the table."""
        return bool(line.strip()) and _fits(self.marks.split(line), self.kinds, self.marks)


def sniff(path: Path) -> TextTable | None:
    """Return how the text table in `path` is written; None if the file is no table of numbers, or cannot be read."""
    begin, is_whole = first_text(path)
    return None if begin is None else sniff_text(begin, is_whole)


def sniff_text(begin: str, is_whole: bool = True) -> TextTable | None:
    """Return how a table is written that begins with `begin`; None if it is no table of numbers."""
    mark = "\ufeff" if begin.startswith("\ufeff") else ""  # byte-order mark
    begin = begin.removeprefix(mark)
    lines = _NEW_LINE.split(begin)
    if not is_whole:
        lines = lines[:-1]  # it may be incomplete
    filled = [line for line in lines if line.strip()]
    if not filled or "\0" in begin:
        return None
    tested = [line for line in filled if _BEGINS_ROW.match(line)][-_TESTED_ROWS:] or filled[-_TESTED_ROWS:]
    quote = "'" if any(line.lstrip().startswith("'") for line in tested) else '"'
    candidates = [Punctuation(separator, decimal, quote) for separator in _SEPARATORS for decimal in ".,"]
    scores = [round(marks.score(tested), 9) for marks in candidates]
    if max(scores) < _LEAST_SCORE:
        return None
    marks = candidates[scores.index(max(scores))]
    if marks.separator == "," and _is_decimal_comma(tested):
        marks = Punctuation("", ",", quote)
    rows = [marks.split(line) for line in lines]
    usual = [marks.split(line) for line in tested]
    width = Counter(map(len, usual)).most_common(1)[0][0]
    usual = [row for row in usual if len(row) == width]
    # Separators at the end of rows make no column, unless it has a name: its first samples may be missing.
    width = max(len(_trimmed(row)) for row in rows if len(row) == width)
    kinds = marks.kinds([row[:width] for row in usual])
    if "number" not in kinds:
        return None

    are_rows = [any(row) and _fits(row, kinds, marks) for row in rows]
    first = next((place for place, line in enumerate(lines) if line.strip() and are_rows[place]), None)
    if first is None:
        return None
    names, units, preamble = _header(lines[:first], marks, width)
    if (described := acqknowledge(preamble, rows[first][:width], names)) is not None:
        (names, units), first = described, first + 1
    # lines end with one or two characters, so their offset comes from the text
    position = [0, *(end.end() for end in _NEW_LINE.finditer(begin))][first]
    sample = tuple(tuple(rows[place][:width]) for place in range(first, len(rows)) if are_rows[place])
    offset = len((mark + begin[:position]).encode("utf-8", "surrogateescape"))
    names, units, preamble = (tuple(map(_printable, each)) for each in (names, units, preamble))
    return TextTable(marks, offset, names, units, kinds, sample, preamble)


def _printable(text: str) -> str:
    """Return a text whose bytes may be Latin-1 instead of UTF-8, without control characters."""
    if not text.isascii():
        with suppress(UnicodeEncodeError):
            text.encode()
            return text
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return "".join(character if character.isprintable() else " " for character in text)


def read_columns(
    path: Path,
    table: TextTable,
    columns: Iterable[int],
    texts: Sequence[int],
    may_skip: bool,
    content: Any = None,
) -> tuple[Any, list[str]]:
    """Read columns of a text table.

    Args:
        path: path of the file.
        table: how it is written.
        columns: columns to read.
        texts: those of them that are read as texts.
        may_skip: whether rows with another number of columns may be left out, because a clock tells where they are.
        content: the text as an Arrow buffer, if it is a part of the file.

    Returns:
        The Arrow table with columns named by their numbers, and what was repaired.

    Raises:
        HeartlmError: a field is no number, or a row has another number of columns.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    buffer = content_of(path) if content is None else content
    stop, repairs = _end_of_rows(buffer, table)
    rows = buffer.slice(table.offset, stop - table.offset)
    codes = np.frombuffer(rows, np.uint8)
    if codes.size and codes.max() > 127:  # Arrow cannot report a row whose bytes are no text
        rows = arrow_buffer(np.where(codes > 127, np.uint8(ord("?")), codes).tobytes())
    _check_fields(path, table.marks.separator, codes)
    # Arrow needs a separator for one column too; the unit separator of ASCII is in no table.
    separator = table.marks.separator or "\x1f"
    if separator == " ":
        rows = arrow_buffer(_single_blanks(rows.to_pybytes()))
    # the first row decides how many fields there are, with those that separators at its end make
    begin = bytes(rows[: 1 << 16]).decode("utf-8", "replace")
    first = next((line for line in _NEW_LINE.split(begin) if line.strip()), "")
    width = max(len(table.marks.split(first)), 1)
    skipped = list[str]()

    def skip(row: Any) -> str:
        skipped.append(
            f"{row.actual_columns} instead of {row.expected_columns} columns ({' '.join(row.text.split())[:60]})"
        )
        return "skip"

    # a number with quotes or without is the same, so only texts need to know
    types = {str(column): pa.string() if column in texts else pa.float64() for column in columns}

    def parse(skip: Callable[[Any], str] | None = None) -> Any:
        return arrow_csv.read_csv(
            pa.BufferReader(rows),
            # one thread with a function of Python, see `arrow_buffer`
            read_options=arrow_csv.ReadOptions(
                column_names=[str(column) for column in range(width)], block_size=1 << 22, use_threads=skip is None
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=separator,
                quote_char=table.marks.quote,
                ignore_empty_lines=width > 1,  # an empty line of a single column is a missing sample
                invalid_row_handler=skip,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(NULLS),
                strings_can_be_null=True,
                decimal_point=table.marks.decimal,
            ),
        )

    try:
        try:
            parsed = parse()
        except pa.ArrowInvalid as error:
            if "columns, got" not in str(error):
                raise
            parsed = parse(skip)
    except pa.ArrowInvalid as error:
        raise HeartlmError(f"{path}: {_plain(table.names, str(error))}") from error
    if skipped and not may_skip:
        raise HeartlmError(f"{path}: a row has {skipped[0]}; correct it, or give the table a column with times")
    if skipped:
        many = "a row" if len(skipped) == 1 else f"{len(skipped)} rows"
        repairs.append(f"{many} with another number of columns left out")
    return parsed, repairs


def _check_fields(path: Path, separator: str, codes: NDArray[np.uint8]) -> None:
    """Check that the fields of the rows fit into memory: an empty one takes one byte of the file."""
    pieces = (codes[first : first + _COUNTED_BYTES] for first in range(0, len(codes), _COUNTED_BYTES))
    ends = [ord(mark) for mark in {separator or "\n", "\n", "\r"}]
    num_fields = sum(int(np.count_nonzero(piece == end)) for piece in pieces for end in ends)
    check_samples(path, num_fields, held_bytes=_HELD_BYTES)


def _plain(names: Sequence[str], message: str) -> str:
    """Return what an error of Arrow says about the columns `names`."""
    match = re.search(r"CSV column #(\d+):(?: Row #(\d+):)?.*invalid value '(.*)'", message, re.DOTALL)
    if match is None:
        return f"not readable as a table of numbers ({' '.join(message.split())[:150]}); correct it"
    column = dict(enumerate(name or f"{place + 1}" for place, name in enumerate(names))).get(int(match[1]), match[1])
    value = " ".join(match[3].split())[:40]
    return f"column {column}: {value!r} is no number; correct it, or leave the field empty if it is invalid"


def _trimmed(row: Sequence[str]) -> Sequence[str]:
    """Return a row without the empty fields that separators at its end make."""
    width = len(row)
    while width and not row[width - 1]:
        width -= 1
    return row[:width]


def _fits(row: Sequence[str], kinds: Sequence[str], marks: Punctuation) -> bool:
    """Return whether the fields of a row are of the kinds of their columns."""
    return len(row) >= len(kinds) and all(
        kind not in ("number", "time") or marks.kind(field) in (kind, "empty")
        for field, kind in zip(row, kinds, strict=False)
    )


def _is_decimal_comma(lines: Sequence[str]) -> bool:
    """Return whether lines like `-0,145` are one number each, not two: the second part begins with zeros, unsigned."""
    parts = [line.strip().partition(",") for line in lines]
    if not all(re.fullmatch(r"[+-]?\d+", whole) and re.fullmatch(r"\d*", rest) for whole, _, rest in parts):
        return False
    whole = [int(part[0]) for part in parts]
    if len(whole) > 2 and {after - before for before, after in pairwise(whole)} == {1}:
        return False  # a number of each row
    return any((rest.startswith("0") and len(rest) > 1) or before == "-0" for before, _, rest in parts)


def _header(
    lines: Sequence[str], marks: Punctuation, width: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Split the lines before the rows: names, units, and the lines before the names."""

    with_point = marks._replace(decimal=".")
    header = list[list[str]]()
    for line in reversed(lines):
        row = marks.split(re.sub(r"^\s*[#%]+\s*", "", line))
        filled = [field for field in row if field]
        is_fact = width == 1 and re.search(r"[,;:=\t]", line) is not None
        has_number = any(with_point.kind(field) == "number" for field in row[:width])
        # separators may be missing between names, for example in the header of numpy.savetxt
        if is_fact or has_number or len(row) < width or not filled or filled[0].casefold().startswith("sep="):
            break
        header.insert(0, row)
    # of several rows the first that is no title names the columns
    while len(header) > 1 and len({field for field in header[0][:width] if field}) < min(width, 2):
        header.pop(0)
    names, units = [""] * width, [""] * width
    for index, row in enumerate(header):
        texts = [field.strip("'\" ") for field in row[:width]]
        filled = [field for field in texts if field]
        if filled and 2 * sum(map(is_unit_text, filled)) > len(filled) and (index or len(filled) > 1):
            units = texts
        elif not any(names):
            names = texts
        elif {field.casefold() for field in filled} <= {"raw", "cal", "uncal"}:
            names = [f"{name}_{kind}" if kind else name for name, kind in zip(names, texts, strict=True)]
    extra = [",".join(row[width:]) for row in header if len(_trimmed(row)) > width]
    before = [line.strip() for line in lines[: len(lines) - len(header)] if line.strip()]
    return tuple(names), tuple(units), tuple(before + extra)


def _single_blanks(rows: bytes) -> bytes:
    """Return rows whose columns are separated by one blank."""
    rows = rows.translate(bytes.maketrans(b"\t", b" "))
    for several in (b" " * 16, b" " * 4, b"  ", b"  "):  # replacing is faster than a regular expression
        while several in rows:
            rows = rows.replace(several, b" ")
    rows = rows.removeprefix(b" ")
    for end in (b"\n", b"\r"):
        rows = rows.replace(end + b" ", end).replace(b" " + end, end)
    return rows


def _end_of_rows(buffer: Any, table: TextTable) -> tuple[int, list[str]]:
    """Return the byte after the last row, and what comes after it as a repair."""
    tail = bytes(buffer[max(table.offset, buffer.size - _FOOTER_BYTES) :])
    ends = b"\r\n\x1a\0"
    rows, removed = tail.rstrip(ends), list[bytes]()
    while len(removed) <= _MOST_FOOTER_LINES:
        line = re.split(rb"\r\n|\n|\r", rows)[-1]
        if len(line) == len(rows) or table.has_row(line.decode("utf-8", "replace")):
            break
        removed += [line] if line.strip() else []
        rows = rows[: len(rows) - len(line)].rstrip(ends)
    else:
        return buffer.size, []  # no footer
    stop = buffer.size - len(tail) + len(rows)
    if not removed:
        return stop, []
    last = " ".join(removed[-1].decode("utf-8", "replace").split())[:40]
    if len(removed) == 1:
        return stop, [f"an incomplete last row left out ({last!r})"]
    return stop, [f"{len(removed)} lines after the last row left out (from {last!r})"]
