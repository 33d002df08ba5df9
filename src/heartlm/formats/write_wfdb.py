"""Write WFDB records and annotation files, in the bytes that the WFDB Software Package reads.

Formats: header(5), signal(5) and annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError, needs
from heartlm.formats.annotation_file import SYMBOL_OF_CODE

_CODE_OF_SYMBOL = {symbol: code for code, symbol in enumerate(SYMBOL_OF_CODE.tolist()) if symbol}
# Annotation codes: a comment, a long time difference, and a text that belongs to the annotation before it.
_NOTE, _SKIP, _AUX = 22, 59, 63

# Samples between two annotations that fit into the ten bits after a code.
_LONGEST_DIFFERENCE = 1023

_LONGEST_AUX = 255

SignalFormat = Literal["16", "24", "32", "212", "516", "524"]

BITS = {"16": 16, "24": 24, "32": 32, "212": 12, "516": 16, "524": 24}
"""Bits of a sample in each signal format that is written; the last two are FLAC."""
FLAC = ("516", "524")
_FLAC_CHANNELS, _FLAC_HZ = 8, 96_000
"""Most signals in a FLAC file, and the rate that its header states: WFDB uses that of the record."""


def write_signals(
    folder: Path,
    name: str,
    adu: NDArray[np.integer[Any]] | Iterable[NDArray[np.integer[Any]]],
    *,
    signal_format: SignalFormat,
    rate_hz: float,
    leads: Sequence[str],
    gain: float | Sequence[float],
    baseline: int | Sequence[int] = 0,
    units: Sequence[str] | None = None,
    start: datetime | time | None = None,
    comments: Sequence[str] = (),
) -> list[Path]:
    """Write the signal files of a record, then `name.hea`, to `folder`; return the paths, the header last.

    Args:
        folder: an existing folder.
        name: name of the record.
        adu: samples in analogue-to-digital units, `[num_leads, num_samples]`, or pieces of them, in format 212 with an
            even number of samples in all leads together. The lowest value of the format marks a missing sample.
        signal_format: WFDB signal format of all leads.
        rate_hz: sampling rate in Hz.
        leads: name of each lead.
        gain: adu per unit, of all leads or of each.
        baseline: adu of the value 0, likewise.
        units: unit of each lead; by default mV.
        start: date and time of the first sample.
        comments: lines of text at the end of the header.

    Raises:
        HeartlmError: FLAC is asked for and the package soundfile is not installed.
        OSError: a file cannot be written.
    """
    pieces = [adu] if isinstance(adu, np.ndarray) else adu
    lowest = -(1 << BITS[signal_format] - 1)
    width = _FLAC_CHANNELS if signal_format in FLAC else max(1, len(leads))
    paths = [folder / f"{name}.dat"]
    if len(leads) > width:
        paths = [folder / f"{name}_{number}.dat" for number in range(1, -(-len(leads) // width) + 1)]
    checksums, first, num_samples = np.zeros(len(leads), np.int64), np.zeros(len(leads), np.int64), 0
    with ExitStack() as stack:
        write = [
            _writer(stack, path, signal_format, min(width, len(leads) - width * number))
            for number, path in enumerate(paths)
        ]
        for piece in pieces:
            assert piece.size and lowest <= piece.min() and piece.max() < -lowest, "adu outside the format"
            if not num_samples:
                first = piece[:, 0].astype(np.int64)
            checksums += piece.sum(axis=1, dtype=np.int64)
            num_samples += piece.shape[1]
            for number, each in enumerate(write):
                each(piece[width * number : width * (number + 1)])
    moment = "" if start is None else f" {start:%H:%M:%S.%f}".removesuffix("000")  # milliseconds are enough for most
    moment += f" {start:%d/%m/%Y}" if isinstance(start, datetime) else ""
    lines = [f"{name} {len(leads)} {_number(rate_hz)} {num_samples}{moment}"]
    gains = [gain] * len(leads) if isinstance(gain, float | int) else gain
    baselines = [baseline] * len(leads) if isinstance(baseline, int) else baseline
    calibrations = zip(leads, gains, baselines, units or ["mV"] * len(leads), strict=True)
    for place, (lead, adu_per_unit, zero, unit) in enumerate(calibrations):
        unit = re.sub(r"\s", "_", unit) or "NU"  # an empty unit would be read as mV
        calibration = f"{signal_format} {float(adu_per_unit)}({zero})/{unit} {BITS[signal_format]} 0"
        lines.append(
            f"{paths[place // width].name} {calibration} {first[place]} {int(checksums[place]) % 65536} 0 {lead}"
        )
    lines += [f"# {comment}" for comment in comments]
    header = folder / f"{name}.hea"
    header.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [*paths, header]


def _writer(
    stack: ExitStack, path: Path, signal_format: str, num_leads: int
) -> Callable[[NDArray[np.integer[Any]]], object]:
    """Open a signal file until the end of `stack`; return the function that appends samples to it."""
    if signal_format in FLAC:
        with needs("wfdb", "soundfile"):
            import soundfile

        bits = BITS[signal_format]
        options = {"samplerate": _FLAC_HZ, "channels": num_leads, "subtype": f"PCM_{bits}", "format": "FLAC"}
        file = stack.enter_context(soundfile.SoundFile(path, "w", **options))
        # samples of 24 bits are the high ones of 32
        return lambda adu: file.write(adu.T.astype(np.int16) if bits == 16 else adu.T.astype(np.int32) << 8)
    stream = stack.enter_context(path.open("wb"))
    return lambda adu: stream.write(_packed(adu.T.ravel(), signal_format))


def _packed(samples: NDArray[np.integer[Any]], signal_format: str) -> bytes:
    """Return the bytes of samples, frame by frame."""
    if signal_format != "212":
        whole = samples.astype("<i2" if signal_format == "16" else "<i4")
        return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes() if signal_format == "24" else whole.tobytes()
    # two samples in three bytes: low byte, both high halves (that of the second sample above), low byte
    first, second = (np.resize(samples[place::2], -(-len(samples) // 2)) & 0xFFF for place in (0, 1))
    if len(samples) % 2:
        second[-1] = 0
    triplets = np.stack([first & 0xFF, first >> 8 | second >> 8 << 4, second & 0xFF], axis=1)
    return triplets.astype(np.uint8).tobytes()[: -(-3 * len(samples) // 2)]


def annotation_bytes(
    sample: NDArray[np.int64], symbol: Sequence[str], aux_note: Sequence[str], rate_hz: float
) -> bytes:
    """Return the content of an annotation file in MIT format that states its time resolution.

    Args:
        sample: ascending positions, at least one, `[num_annotations]`.
        symbol: WFDB code of each annotation.
        aux_note: text of each annotation, at most 255 bytes; empty for none.
        rate_hz: samples per second.

    Raises:
        HeartlmError: a symbol is no WFDB code.
    """
    if unknown := set(symbol) - set(_CODE_OF_SYMBOL):
        raise HeartlmError(f"symbol: {min(unknown)!r} is no WFDB annotation code, such as N, V or +")
    difference = np.diff(sample, prepend=0)
    assert difference.min() >= 0 and difference.max() < 1 << 31, "positions ascend, and a skip has 31 bits"
    code = np.array([_CODE_OF_SYMBOL[each] for each in symbol])
    texts = {place: _aux(note) for place, note in enumerate(aux_note) if note}
    is_far = difference > _LONGEST_DIFFERENCE
    # Each annotation is one word, with three words of a skip before it where the difference does not fit, and with the
    # words of its text behind it. Words are little-endian, but a skip has its high word first.
    behind = np.zeros(len(sample), np.int64)
    behind[list(texts)] = [len(text) // 2 for text in texts.values()]
    place = np.cumsum(1 + 3 * is_far + behind) - 1 - behind  # of the word of each annotation
    words = np.zeros(int(place[-1] + 1 + behind[-1]), "<u2")
    words[place] = code << 10 | np.where(is_far, 0, difference)
    far = place[is_far]
    words[far - 3] = _SKIP << 10
    words[far - 2], words[far - 1] = difference[is_far] >> 16, difference[is_far] & 0xFFFF
    for each, text in texts.items():
        words[place[each] + 1 : place[each] + 1 + len(text) // 2] = np.frombuffer(text, "<u2")
    start = np.array([_NOTE << 10], "<u2").tobytes() + _aux(f"## time resolution: {_number(rate_hz)}")
    # The reference library marks the end of notes about the file by a skip of -1 and an empty annotation 1 later.
    start += np.array([_SKIP << 10, 0xFFFF, 0xFFFF, 1], "<u2").tobytes()
    return start + words.tobytes() + b"\0\0"


def _aux(text: str) -> bytes:
    """Return the words of a text: its length and code, and its bytes, padded to whole words."""
    content = text.encode("latin-1", "replace")[:_LONGEST_AUX]
    return bytes([len(content), _AUX << 2]) + content + b"\0" * (len(content) % 2)


def _number(value: float) -> str:
    """Return `value` without a fraction of zero."""
    return str(int(value)) if float(value).is_integer() else str(float(value))
