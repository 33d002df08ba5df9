"""Text tables of samples (CSV, TSV and others): find out how they are written, then let Arrow parse the numbers.

    preamble      Sample Rate,512 hertz          lines before the names: facts such as rate, start, unit
    names         Phone timestamp;ecg [uV]       optional, also in several rows with units
    rows          2024-05-01T10:00:00.000;-145   separator and decimal mark are those that make the rows numbers
    footer                                       lines after the last row, left out

The first 64 KiB decide; the rest is read by `pyarrow.csv` in blocks.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.formats.units import is_unit_text
from heartlm.storage.foreign import TEXT_BYTES, first_bytes, open_file, size_of
from heartlm.storage.limits import check_samples, most_samples

SNIFFED_BYTES = 1 << 16
_TESTED_ROWS = 60
"""Rows by which separator and decimal mark are chosen."""
_MOST_FOOTER_LINES = 30
# Bytes whose fields are counted at once, and bytes of memory for each field: float64 and float32.
_COUNTED_BYTES, _HELD_BYTES = 1 << 24, 16
# Most columns of a line that is looked at.
_WIDEST = 10_000

_GZIP = b"\x1f\x8b"
_NULLS = ("", *"nan NaN NAN na NA n/a N/A null NULL None none - -- ? #N/A -nan".split())  # noqa: SIM905
_NEW_LINE = re.compile(r"\r\n|\n|\r")
_BARE_NULLS = frozenset(text.casefold() for text in _NULLS)
# A date, a time of day, both, or minutes and seconds.
_TIME = re.compile(
    r"\[?(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]+|$))?((\d{1,3}:)?\d{1,4}:\d{1,2}([.,:]\d+)?(\s*[ap]m)?)?"
    r"\s*(Z|UTC|[+-]\d\d:?\d\d)?(\s+\d{1,2}/\d{1,2}/\d{4})?\]?",
    re.IGNORECASE,
)
_BEGINS_ROW = re.compile(r"\s*[\"'\[]?[+-]?[\d.,;\t|]|\s*nan\b", re.IGNORECASE)
# Separators with decimal marks, in the order in which they are tried. The empty separator is one column, the blank any
# number of blanks and tabs.
_CANDIDATES = (
    ("\t", "."), ("\t", ","), (";", "."), (";", ","), (",", "."), (",", ","), ("|", "."), ("|", ","),
    ("", "."), ("", ","), (" ", "."), (" ", ","),
)  # fmt: skip


@dataclass(frozen=True)
class TextTable:
    """How a text table is written.

    Attributes:
        separator: character between columns; `" "` for any number of blanks, empty for one column.
        decimal: decimal mark.
        quote: quotation mark.
        offset: byte of the first row, in UTF-8.
        names: name of each column, empty where unknown.
        units: text of the unit of each column, empty where unknown.
        kinds: content of each column: number, time, empty or text.
        rows: fields of the first rows.
        preamble: lines before the names.
    """

    separator: str
    decimal: str
    quote: str
    offset: int
    names: tuple[str, ...]
    units: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    preamble: tuple[str, ...]

    def numbers(self, column: int) -> NDArray[np.float64]:
        """Return the numbers of a column in the first rows, NaN where there is none."""
        values = np.full(len(self.rows), np.nan)
        for index, row in enumerate(self.rows):
            with suppress(ValueError):
                values[index] = float(row[column].replace(",", ".") if self.decimal == "," else row[column])
        return values


def sniff(path: Path) -> TextTable | None:
    """Return how the text table in `path` is written; None if the file is no table of numbers, or cannot be read."""
    try:
        begin, is_whole = first_text(path)
    except (HeartlmError, zlib.error):
        return None
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
    best_score, best_marks = 0.0, ("", ".")
    for separator, decimal in _CANDIDATES:
        score = _score(tested, separator, decimal, quote)
        if score > best_score + 1e-9:
            best_score, best_marks = score, (separator, decimal)
    # half of the lines do not have the same columns of numbers: a text, not a table
    if best_score < 0.5:
        return None
    separator, decimal = best_marks
    if separator == "," and _is_decimal_comma(tested):
        separator, decimal = "", ","
    rows = [_split(line, separator, quote) for line in lines]
    usual = [_split(line, separator, quote) for line in tested]
    width = Counter(map(len, usual)).most_common(1)[0][0]
    usual = [row for row in usual if len(row) == width]
    # Separators at the end of rows make no column, unless it has a name: its first samples may be missing.
    width = max(len(_trimmed(row)) for row in rows if len(row) == width)
    if not width:
        return None
    kinds = tuple(_kind([row[column] for row in usual], decimal) for column in range(width))
    if "number" not in kinds:
        return None

    are_rows = [any(row) and _fits(row, kinds, decimal) for row in rows]
    first = next((place for place, line in enumerate(lines) if line.strip() and are_rows[place]), None)
    if first is None:
        return None
    names, units, preamble = _header(lines[:first], separator, quote, width)
    if (described := _acqknowledge(preamble, rows[first][:width], names)) is not None:
        (names, units), first = described, first + 1
    # lines end with one or two characters, so their offset comes from the text
    position = [0, *(end.end() for end in _NEW_LINE.finditer(begin))][first]
    sample = tuple(tuple(rows[place][:width]) for place in range(first, len(rows)) if are_rows[place])
    offset = len((mark + begin[:position]).encode("utf-8", "surrogateescape"))
    names, units, preamble = (tuple(map(_printable, each)) for each in (names, units, preamble))
    return TextTable(separator, decimal, quote, offset, names, units, kinds, sample, preamble)


def _acqknowledge(
    preamble: Sequence[str], counts: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return names and units of the columns of a text of AcqKnowledge; None for other tables.

    Lines before the table give the number of channels, then the name and the unit of each on two lines. The first row
    has no samples, but their number in each channel.
    """
    lines = [line.strip() for line in preamble]
    first = next((first for first, line in enumerate(lines) if re.fullmatch(r"\d+ channels?", line)), None)
    if first is None or not any("/sample" in line for line in lines[:first]):
        return None
    num_channels = int(lines[first].split()[0])
    described, clocks = lines[first + 1 : first + 1 + 2 * num_channels], len(names) - num_channels
    are_counts = all(each.strip().isdecimal() for each in counts[clocks:])
    if len(described) < 2 * num_channels or not 0 <= clocks <= 1 or not are_counts:
        return None
    clock = names[:clocks]
    return (*("time" for _ in clock), *described[::2]), (*clock, *described[1::2])


def _printable(text: str) -> str:
    """Return a text whose bytes may be Latin-1 instead of UTF-8, without control characters."""
    if not text.isascii():
        with suppress(UnicodeEncodeError):
            text.encode()
            return text
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return "".join(character if character.isprintable() else " " for character in text)


def content_of(path: Path) -> Any:
    """Return the bytes of a text file as an Arrow buffer: unpacked if it is compressed, in UTF-8.

    Raises:
        HeartlmError: the file cannot be read or is too large.
    """
    import pyarrow as pa

    with open_file(path, TEXT_BYTES) as stream:
        begin = stream.read(4) or b""
    if begin.startswith(_GZIP):
        content = unpacked(path)
    elif begin.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = path.read_bytes()
    else:
        return pa.memory_map(str(path)).read_buffer() if path.stat().st_size else arrow_buffer(b"")
    codec = codec_of(content)
    return arrow_buffer(content if codec == "utf-8" else content.decode(codec, "replace").encode())


def arrow_buffer(content: bytes) -> Any:
    """Return a copy of bytes in memory of Arrow.

    A reader with threads may release its source after it has returned. For an object of Python that thread needs the
    interpreter's lock, and while the process exits, waiting for it ends the process by SIGABRT.
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(len(content))
    np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(content, np.uint8)
    return buffer


def unpacked(path: Path) -> bytes:
    """Return the content of a file that is compressed by gzip, two bytes for each sample that it may unpack to.

    Raises:
        HeartlmError: the file is damaged, or its content is too large.
    """
    most = min(TEXT_BYTES, 2 * most_samples(size_of(path)))
    with gunzip(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise HeartlmError(f"{path}: unpacks to more than {most} bytes; split it, or unpack it if that is right")
    return content


@contextmanager
def gunzip(path: Path) -> Iterator[gzip.GzipFile]:
    """Open a file that is compressed by gzip; errors of its content in the block are a `HeartlmError`."""
    try:
        with gzip.open(path) as stream:
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        raise HeartlmError(f"{path}: damaged, cannot be unpacked ({error}); fetch it again") from error


def is_gzip(path: Path) -> bool:
    """Return whether the content of a file is compressed by gzip."""
    return first_bytes(path, len(_GZIP)) == _GZIP


def read_columns(
    path: Path,
    table: TextTable,
    columns: Sequence[int],
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
    _check_fields(path, table, codes)
    # Arrow needs a separator for one column too; the unit separator of ASCII is in no table.
    separator = table.separator or "\x1f"
    if table.separator == " ":
        rows, separator = arrow_buffer(_single_blanks(rows.to_pybytes())), " "
    # the first row decides how many fields there are, with those that separators at its end make
    begin = bytes(rows[: 1 << 16]).decode("utf-8", "replace")
    first = next((line for line in _NEW_LINE.split(begin) if line.strip()), "")
    width = max(len(_split(first, table.separator, table.quote)), 1)
    skipped = list[str]()

    def skip(row: Any) -> str:
        skipped.append(
            f"{row.actual_columns} instead of {row.expected_columns} columns ({' '.join(row.text.split())[:60]})"
        )
        return "skip"

    names = [str(column) for column in range(width)]
    # a number with quotes or without is the same, so only texts need to know
    types = {str(column): pa.string() if column in texts else pa.float64() for column in columns}

    def parse(skip: Callable[[Any], str] | None = None) -> Any:
        return arrow_csv.read_csv(
            pa.BufferReader(rows),
            # one thread with a function of Python, see `arrow_buffer`
            read_options=arrow_csv.ReadOptions(column_names=names, block_size=1 << 22, use_threads=skip is None),
            parse_options=arrow_csv.ParseOptions(
                delimiter=separator,
                quote_char=table.quote,
                ignore_empty_lines=width > 1,  # an empty line of a single column is a missing sample
                invalid_row_handler=skip,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(_NULLS),
                strings_can_be_null=True,
                decimal_point=table.decimal,
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
        raise HeartlmError(_plain(path, table, str(error))) from error
    if skipped and not may_skip:
        raise HeartlmError(f"{path}: a row has {skipped[0]}; correct it, or give the table a column with times")
    if skipped:
        many = "a row" if len(skipped) == 1 else f"{len(skipped)} rows"
        repairs.append(f"{many} with another number of columns left out")
    return parsed, repairs


def _check_fields(path: Path, table: TextTable, codes: NDArray[np.uint8]) -> None:
    """Check that the fields of the rows fit into memory: an empty one takes one byte of the file."""
    ends = [ord(mark) for mark in {table.separator or "\n", "\n", "\r"}]
    num_fields = 0
    for first in range(0, len(codes), _COUNTED_BYTES):
        piece = codes[first : first + _COUNTED_BYTES]
        num_fields += sum(int(np.count_nonzero(piece == end)) for end in ends)
    check_samples(path, num_fields, held_bytes=_HELD_BYTES)


def _plain(path: Path, table: TextTable, message: str) -> str:
    match = re.search(r"CSV column #(\d+):(?: Row #(\d+):)?.*invalid value '(.*)'", message, re.DOTALL)
    if match is None:
        return f"{path}: not readable as a table of numbers ({' '.join(message.split())[:150]}); correct it"
    names = [name or f"{place + 1}" for place, name in enumerate(table.names)]
    column = names[int(match[1])] if int(match[1]) < len(names) else match[1]
    value = " ".join(match[3].split())[:40]
    return f"{path}: column {column}: {value!r} is no number; correct it, or leave the field empty if it is invalid"


def first_text(path: Path) -> tuple[str | None, bool]:
    """Return the first characters of a file, and whether they are all; None if they are no text."""
    with open_file(path) as stream:
        begin = stream.read(SNIFFED_BYTES) or b""
    is_whole = len(begin) < SNIFFED_BYTES
    if begin.startswith(_GZIP):
        packed, begin = begin, b""
        # A file may have several gzip members (RFC 1952), of programs that append. `gzip.open` would refuse a damaged
        # one; here it is unpacked as far as it goes.
        while packed.startswith(_GZIP) and len(begin) < SNIFFED_BYTES:
            unpacker = zlib.decompressobj(wbits=31)
            begin += unpacker.decompress(packed, SNIFFED_BYTES - len(begin))
            packed = unpacker.unused_data
        is_whole = is_whole and unpacker.eof and not packed
    codec = codec_of(begin)
    if codec == "utf-8" and b"\0" in begin:
        return None, is_whole
    text = begin.decode(codec, "surrogateescape" if codec == "utf-8" else "replace")
    return text, is_whole


def codec_of(begin: bytes) -> str:
    """Return the encoding of a text by its first bytes."""
    return "utf-16" if begin.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"


def _split(line: str, separator: str, quote: str) -> list[str]:
    if not separator:
        return [line.strip().strip(quote)]
    if separator == " ":
        return line.split()
    fields = line.split(separator)
    if quote in line:
        with suppress(csv.Error):
            fields = next(csv.reader([line], delimiter=separator, quotechar=quote), [])
    return [field.strip() for field in fields]


def _trimmed(row: Sequence[str]) -> Sequence[str]:
    """Return a row without the empty fields that separators at its end make."""
    width = len(row)
    while width and not row[width - 1]:
        width -= 1
    return row[:width]


def _field_kind(field: str, decimal: str) -> str:
    """Return what a field holds: number, time, text, or nothing."""
    if decimal == "." or "." not in field:
        with suppress(ValueError):
            value = float(field.replace(",", ".") if decimal == "," else field)
            # Python reads 1_000 as a number, Arrow does not
            return "text" if "_" in field else "number" if value == value else "empty"
    if field.casefold() in _BARE_NULLS:
        return "empty"
    return "time" if _TIME.fullmatch(field) and any(character.isdigit() for character in field) else "text"


def _kind(fields: Sequence[str], decimal: str) -> str:
    """Return what the fields of a column are; a few that are not the same, as in a header, do not count."""
    kinds = Counter(_field_kind(field, decimal) for field in fields)
    filled = sum(kinds.values()) - kinds["empty"]
    if not filled:
        return "empty"
    kind = max(("number", "time", "text"), key=lambda each: kinds[each])
    return kind if kinds[kind] > 0.8 * filled else "text"


def _fits(row: Sequence[str], kinds: Sequence[str], decimal: str) -> bool:
    """Return whether the fields of a row are of the kinds of their columns."""
    return len(row) >= len(kinds) and all(
        kind not in ("number", "time") or _field_kind(field, decimal) in (kind, "empty")
        for field, kind in zip(row, kinds, strict=False)
    )


def _score(lines: Sequence[str], separator: str, decimal: str, quote: str) -> float:
    """Return how well lines are rows of numbers: the fraction of rows of equal width, times that of such columns."""
    rows = [_trimmed(_split(line, separator, quote)) for line in lines]
    width, same = Counter(map(len, rows)).most_common(1)[0]
    if not width or width > _WIDEST or (separator and width == 1):
        return 0.0
    usual = [row for row in rows if len(row) == width]
    kinds = [_kind([row[column] for row in usual], decimal) for column in range(width)]
    if "number" not in kinds:
        return 0.0
    good = sum(kind != "text" for kind in kinds) / width
    # blanks also part the dates and times of other tables
    return same / len(rows) * good - (0.02 if separator == " " else 0.0)


def _is_decimal_comma(lines: Sequence[str]) -> bool:
    """Return whether lines like `-0,145` are one number each, not two: the second part begins with zeros, unsigned."""
    parts = [line.strip().partition(",") for line in lines]
    if not all(re.fullmatch(r"[+-]?\d+", whole) and re.fullmatch(r"\d*", rest) for whole, _, rest in parts):
        return False
    whole = [int(part[0]) for part in parts]
    if len(whole) > 2 and {after - before for before, after in pairwise(whole)} == {1}:
        return False  # a number of each row
    return any(rest.startswith("0") and len(rest) > 1 for _, _, rest in parts) or any(part[0] == "-0" for part in parts)


def _header(
    lines: Sequence[str], separator: str, quote: str, width: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Split the lines before the rows: names, units, and the lines before the names."""
    # separators may be missing between names, for example in the header of numpy.savetxt
    header, first = list[list[str]](), len(lines)
    while first > 0 and lines[first - 1].strip():
        line = lines[first - 1]
        row = _split(re.sub(r"^\s*[#%]+\s*", "", line), separator, quote)
        filled = [field for field in row if field]
        is_fact = width == 1 and re.search(r"[,;:=\t]", line) is not None
        has_number = any(_field_kind(field, ".") == "number" for field in row[:width])
        if is_fact or has_number or len(row) < width or not filled or filled[0].casefold().startswith("sep="):
            break
        header.insert(0, row)
        first -= 1
    # of several rows the first that is no title names the columns
    while len(header) > 1 and len({field for field in header[0][:width] if field}) < min(width, 2):
        header.pop(0)
        first += 1
    names, units = [""] * width, [""] * width
    for index, row in enumerate(header):
        texts = [field.strip("'\" ") for field in row[:width]]
        filled = [field for field in texts if field]
        if filled and sum(map(is_unit_text, filled)) > 0.5 * len(filled) and (index or len(filled) > 1):
            units = texts
        elif not any(names):
            names = texts
        elif {field.casefold() for field in filled} <= {"raw", "cal", "uncal"}:
            names = [f"{name}_{kind}" if kind else name for name, kind in zip(names, texts, strict=True)]
    extra = [",".join(row[width:]) for row in header if len(_trimmed(row)) > width]
    return tuple(names), tuple(units), tuple([line.strip() for line in lines[:first] if line.strip()] + extra)


def _single_blanks(rows: bytes) -> bytes:
    """Return rows whose columns are parted by one blank."""
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
    stop, repairs = buffer.size, list[str]()
    tail = bytes(buffer[max(table.offset, stop - (1 << 14)) : stop])
    ends = b"\r\n\x1a\0"
    rows = tail.rstrip(ends)
    removed = list[bytes]()
    while len(removed) <= _MOST_FOOTER_LINES:
        line = re.split(rb"\r\n|\n|\r", rows)[-1]
        row = _split(line.decode("utf-8", "replace"), table.separator, table.quote)
        if (line.strip() and _fits(row, table.kinds, table.decimal)) or len(line) == len(rows):
            break
        removed += [line] if line.strip() else []
        rows = rows[: len(rows) - len(line)].rstrip(ends)
    else:
        return buffer.size, []  # no footer
    if removed:
        last = " ".join(removed[-1].decode("utf-8", "replace").split())[:40]
        repairs.append(
            f"an incomplete last row left out ({last!r})"
            if len(removed) == 1
            else f"{len(removed)} lines after the last row left out (from {last!r})"
        )
    return stop - len(tail) + len(rows), repairs
