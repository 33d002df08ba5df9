"""Ways to damage a file. Every choice comes from the `random.Random` that is passed in."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable
from typing import Any

Bytes = Callable[[bytes, random.Random], bytes]

WORDS = (b"\x00\x00", b"\xff\xff", b"\xff\x7f", b"\x00\x80", b"\x00\xec", b"\x01\x04")
NUMBERS = ("0", "-1", "1e300", "1e-310", "-200", "1" + "0" * 400, "nan", "inf", "99999999999999", "0.5", "65536")
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1e300, 10**30, 0.5, "", "text", "../../x", "\x00", [], [1], {}, {"a": 1})


def _span(content: bytes, draw: random.Random, longest: int = 64) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(start + draw.randint(1, longest), len(content))


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwrite_word(content: bytes, draw: random.Random) -> bytes:
    """Put an extreme 16-bit word at an even offset."""
    place = draw.randrange(len(content) // 2 + 1) * 2
    return content[:place] + draw.choice(WORDS) + content[place + 2 :]


SIZES = (0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000000, 1 << 24, 1 << 26, 65535, 255)


def overwrite_size(content: bytes, draw: random.Random) -> bytes:
    """Put an extreme whole number of 32 or 64 bits at a multiple of four, as sizes and offsets stand."""
    place, size = draw.randrange(len(content) // 4 + 1) * 4, draw.choice((4, 8))
    number = draw.choice(SIZES) << (draw.choice((0, 0, 8)) if size == 8 else 0)
    return content[:place] + number.to_bytes(size, draw.choice(("little", "little", "big"))) + content[place + size :]


def change_unpacked(content: bytes, draw: random.Random) -> bytes:
    """Damage what a compressed variable of a MATLAB file unpacks to, or enlarge it; the file itself stays valid."""
    starts = [start.start() for start in re.finditer(rb"\x0f\0\0\0....\x78", content, re.DOTALL)]
    if not starts:
        return overwrite_size(content, draw)
    begin = draw.choice(starts)
    stop = begin + 8 + int.from_bytes(content[begin + 4 : begin + 8], "little")
    try:
        unpacked = zlib.decompress(content[begin + 8 : stop])
    except zlib.error:
        return flip_bits(content, draw)
    if draw.random() < 0.2:
        unpacked += bytes(draw.choice((1 << 16, 1 << 26)))
    packed = zlib.compress(draw.choice((*BINARY, overwrite_size, overwrite_size))(unpacked, draw), 1)
    return content[: begin + 4] + len(packed).to_bytes(4, "little") + packed + content[stop:]


def delete_span(content: bytes, draw: random.Random) -> bytes:
    start, stop = _span(content, draw)
    return content[:start] + content[stop:]


def double_span(content: bytes, draw: random.Random) -> bytes:
    start, stop = _span(content, draw)
    return content[:stop] + content[start:stop] * draw.randint(1, 40) + content[stop:]


def insert_noise(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.randbytes(draw.randint(1, 64)) + content[place:]


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def empty(content: bytes, draw: random.Random) -> bytes:
    return b""


def change_number(content: bytes, draw: random.Random) -> bytes:
    """Replace one number of a text by an extreme one."""
    found = list(re.finditer(rb"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", content[:100_000]))
    if not found:
        return flip_bits(content, draw)
    number = draw.choice(found)
    return content[: number.start()] + draw.choice(NUMBERS).encode() + content[number.end() :]


def change_line(content: bytes, draw: random.Random) -> bytes:
    """Delete, double or move a line of a text, or cut a word out of one."""
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            lines.insert(draw.randrange(len(lines)), lines.pop(place))
        case _:
            words = lines[place].split(b" ")
            del words[draw.randrange(len(words))]
            lines[place] = b" ".join(words)
    return b"\n".join(lines)


def insert_control(content: bytes, draw: random.Random) -> bytes:
    """Insert a control character, a NUL or bytes that are not UTF-8."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice((b"\x00", b"\xff\xfe", b"\x1b[2J", b"\r", b"\xc3")) + content[place:]


def nest_deeply(content: bytes, draw: random.Random) -> bytes:
    """Put a hundred thousand brackets in place of one value."""
    deep = draw.choice((b"[", b'{"a":')) * 100_000
    place = max(content.find(b":", draw.randrange(len(content) + 1)), 0) + 1
    return content[:place] + b" " + deep + content[place:]


def alias_bomb(content: bytes, draw: random.Random) -> bytes:
    """Add a few hundred bytes of YAML that stand for 10^9 values."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return content + ("\n" + "\n".join(lines) + "\n").encode()


def change_value(content: bytes, draw: random.Random) -> bytes:
    """Give one value of a JSON document, or of one of its lines, another type."""
    whole = True
    lines: list[bytes] = [content]
    try:
        document = json.loads(content)
    except ValueError:
        whole, lines = False, content.splitlines()
        place = draw.randrange(len(lines)) if lines else 0
        try:
            document = json.loads(lines[place])
        except (ValueError, IndexError):
            return change_line(content, draw)
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            visit(value[key])

    visit(document)
    if not places:
        document = draw.choice(VALUES)
    else:
        holder, key = draw.choice(places)
        if draw.random() < 0.2:
            del holder[key]
        else:
            holder[key] = draw.choice(VALUES)
    changed = json.dumps(document).encode()
    if whole:
        return changed
    lines[place] = changed
    return b"\n".join(lines) + b"\n"


def change_table(content: bytes, draw: random.Random) -> bytes:
    """Repeat, remove or move rows, exchange separators or decimal marks of a row, or change one of its fields."""
    lines = content.split(b"\n")
    place, number = draw.randrange(len(lines)), draw.randint(1, 60)
    part = lines[place : place + number]
    match draw.randrange(7):
        case 0:
            lines[place:place] = part
        case 1:
            del lines[place : place + number]
        case 2:
            del lines[place : place + number]
            lines[draw.randrange(len(lines) + 1) : 0] = part
        case 3:
            lines[place] = lines[place].replace(
                draw.choice((b",", b";", b"\t", b".")), draw.choice((b",", b";", b".", b""))
            )
        case 4:
            lines[place] += draw.choice((b",", b";", b"\t", b" ", b",1", b"#"))
        case 5:
            fields = re.split(rb"([,;\t])", lines[place])
            field = draw.choice(
                (b"", b"NaN", b"x", b"-", b"inf", b"1,5", b"1.5", b"00:00", b"2024-02-30", b"'", b'"', b"1e999")
            )
            fields[draw.randrange(len(fields))] = field
            lines[place] = b"".join(fields)
        case _:
            content = b"\n".join(lines)
            return draw.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"sep=;\n", b"\n\n", b'"')) + content
    return b"\n".join(lines)


EDF_FIXED = ((0, 8), (8, 80), (88, 80), (168, 8), (176, 8), (184, 8), (192, 44), (236, 8), (244, 8), (252, 4))
EDF_OF_CHANNELS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)
EDF_VALUES = (
    b"", b"-1", b"0", b"1", b"2", b"7", b"1000", b"99999999", b"-8388608", b"1e308", b"1e-300", b"nan", b"inf", b"0,5",
    b"-3,2", b"0.25", b"1_0", b"0x10", b"\0\0", b"\xff\xff\xff", b"mV", b"uV", b"\xb5V", b"EDF+C", b"EDF+D",
    b"EDF Annotations", b"ECG", b"EEG Fpz-Cz", b"X F 01-JAN-1950 A_B", b"Startdate 31-FEB-2024",
    b"29.02.24", b"23.59.59",
)  # fmt: skip


def change_edf_field(content: bytes, draw: random.Random) -> bytes:
    """Replace one field of the header of an EDF file."""
    fields, first = list(EDF_FIXED), 256
    num_channels = int(content[252:256]) if content[252:256].strip().isdigit() else 0
    for size in EDF_OF_CHANNELS:
        fields += [(first + size * channel, size) for channel in range(num_channels)]
        first += size * num_channels
    start, size = draw.choice(fields)
    return content[:start] + draw.choice(EDF_VALUES).ljust(size)[:size] + content[start + size :]


def change_edf_time(content: bytes, draw: random.Random) -> bytes:
    """Replace the time of a record or of an annotation of EDF+ by another of the same length."""
    times = list(re.finditer(rb"[+-]\d[\d.]*(?=[\x14\x15])", content))
    if not times:
        return change_edf_field(content, draw)
    time = draw.choice(times)
    value = b"".join(draw.choice((b"0", b"1", b"5", b"9", b".", b"x")) for _ in range(len(time[0]) - 1))
    return content[: time.start()] + draw.choice((b"+", b"-")) + value + content[time.end() :]


BINARY: tuple[Bytes, ...] = (
    flip_bits,
    overwrite_word,
    overwrite_size,
    delete_span,
    double_span,
    insert_noise,
    truncate,
    empty,
)
TEXT: tuple[Bytes, ...] = (
    flip_bits, delete_span, truncate, empty, change_number, change_number, change_line, insert_control
)  # fmt: skip
JSON: tuple[Bytes, ...] = (*(change_value,) * 8, *TEXT, nest_deeply)
EDF: tuple[Bytes, ...] = (*BINARY, *(change_edf_field,) * 8, *(change_edf_time,) * 2)
TABLE: tuple[Bytes, ...] = (*TEXT, *(change_table,) * 4, double_span, insert_noise)
MATLAB: tuple[Bytes, ...] = (*BINARY, *(overwrite_size,) * 3, *(change_unpacked,) * 3)
YAML: tuple[Bytes, ...] = (*TEXT, change_number, change_line, nest_deeply, alias_bomb)

_BY_ENDING = {".json": JSON, ".jsonl": JSON, ".yaml": YAML, ".hea": TEXT, ".csv": TABLE, ".xml": TEXT, "": TEXT}
_BY_ENDING |= {".mat": MATLAB, ".h5": MATLAB, ".hdf5": MATLAB, ".edf": EDF, ".bdf": EDF, ".txt": TABLE, ".tsv": TABLE}


def mutate(name: str, content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Damage the content of the file `name`; returns what it became and the mutation's name."""
    ending = "." + name.rpartition(".")[2] if "." in name else ""
    mutation = draw.choice(_BY_ENDING.get(ending, BINARY))
    return mutation(content, draw), mutation.__name__
