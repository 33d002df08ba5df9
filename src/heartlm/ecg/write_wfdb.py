"""Write WFDB records and annotation files, in the bytes that the WFDB Software Package reads.

Formats: header(5), signal(5) and annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, time
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.annotation_file import SYMBOL_OF_CODE
from heartlm.errors import HeartlmError

_CODE_OF_SYMBOL = {symbol: code for code, symbol in enumerate(SYMBOL_OF_CODE.tolist()) if symbol}
_NOTE, _SKIP, _AUX = 22, 59, 63
"""Annotation codes: a comment, a long time difference, and a text that belongs to the annotation before it."""

_LONGEST_DIFFERENCE = 1023
"""Samples between two annotations that fit into the ten bits after a code."""

_LONGEST_AUX = 255

BITS = {"16": 16, "212": 12}
"""Bits of a sample in each signal format that is written."""


def write_signals(
    folder: Path,
    name: str,
    adu: NDArray[np.int64],
    *,
    signal_format: Literal["16", "212"],
    rate_hz: float,
    leads: Sequence[str],
    gain: float | Sequence[float],
    baseline: int | Sequence[int] = 0,
    units: Sequence[str] | None = None,
    start: datetime | time | None = None,
    comments: Sequence[str] = (),
) -> None:
    """Write `name.hea` and `name.dat` to `folder`.

    Args:
        folder: an existing folder.
        name: name of the record.
        adu: samples in analogue-to-digital units, `[num_leads, num_samples]`. The lowest value of the format marks a
            missing sample.
        signal_format: WFDB signal format of all leads.
        rate_hz: sampling rate in Hz.
        leads: name of each lead.
        gain: adu per unit, of all leads or of each.
        baseline: adu of the value 0, likewise.
        units: unit of each lead; by default mV.
        start: date and time of the first sample.
        comments: lines of text at the end of the header.
    """
    num_bits = BITS[signal_format]
    assert adu.size and -(1 << num_bits - 1) <= adu.min() and adu.max() < 1 << num_bits - 1, "adu outside the format"
    samples = adu.T.ravel()  # frame by frame
    if signal_format == "16":
        content = samples.astype("<i2").tobytes()
    else:  # two samples in three bytes: low byte, both high halves (that of the second sample above), low byte
        first, second = (np.resize(samples[place::2], -(-len(samples) // 2)) & 0xFFF for place in (0, 1))
        if len(samples) % 2:
            second[-1] = 0
        triplets = np.stack([first & 0xFF, first >> 8 | second >> 8 << 4, second & 0xFF], axis=1)
        content = triplets.astype(np.uint8).tobytes()[: -(-3 * len(samples) // 2)]
    (folder / f"{name}.dat").write_bytes(content)
    moment = "" if start is None else f" {start:%H:%M:%S.%f}"[:-3]
    moment += f" {start:%d/%m/%Y}" if isinstance(start, datetime) else ""
    lines = [f"{name} {len(leads)} {_number(rate_hz)} {adu.shape[1]}{moment}"]
    gains = [gain] * len(leads) if isinstance(gain, float | int) else gain
    baselines = [baseline] * len(leads) if isinstance(baseline, int) else baseline
    of_leads = zip(leads, adu, gains, baselines, units or ["mV"] * len(leads), strict=True)
    for lead, row, adu_per_unit, zero, unit in of_leads:
        checksum = int(row.sum()) % 65536
        unit = re.sub(r"\s", "_", unit) or "NU"  # an empty unit would be read as mV
        calibration = f"{signal_format} {float(adu_per_unit)}({zero})/{unit} {num_bits} 0"
        lines.append(f"{name}.dat {calibration} {row[0]} {checksum} 0 {lead}")
    lines += [f"# {comment}" for comment in comments]
    (folder / f"{name}.hea").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


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
