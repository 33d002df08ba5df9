"""Annotation files in MIT format: bytes in, positions, codes and notes out.

A file is a row of little-endian 16-bit words: six bits of code, ten bits of time since the annotation before. Two codes
carry words that are not annotations (SKIP: a 32-bit time step, AUX: text); those are few, so they alone are walked in
Python, and all else is decoded by NumPy at once.

Format: annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/annot-5.htm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

_SKIP, _AUX = 59, 63
_FIRST_MODIFIER = 60
_NOTE = 22

SYMBOL_OF_CODE: NDArray[np.str_] = np.full(64, "", "<U1")
"""WFDB symbol of each annotation code; empty where the code is unused (ecgcodes.h of the WFDB library)."""
for _code, _symbol in enumerate(' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'):
    SYMBOL_OF_CODE[_code] = _symbol.strip()

_TIME_RESOLUTION = re.compile(r"## time resolution: ([0-9.]+)")


@dataclass(frozen=True)
class AnnotationFile:
    """What an annotation file holds, in file order.

    Attributes:
        path: the file.
        sample: position of each annotation in ticks, int64 `[num_annotations]`.
        symbol: its WFDB symbol, `<U1` `[num_annotations]`; empty for unused codes.
        aux: text by index of the annotation it belongs to, without trailing NULs.
        ticks_hz: the file's own ticks a second; None where it uses the recording's rate.
    """

    path: Path
    sample: NDArray[np.int64]
    symbol: NDArray[np.str_]
    aux: dict[int, str]
    ticks_hz: float | None


def read_annotation_file(path: Path) -> AnnotationFile:
    """Decode the annotation file at `path`.

    Raises:
        HeartlmError: the file is missing, unreadable or ends before its end mark.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HeartlmError(f"cannot read {path}: {error.strerror}") from error
    words = np.frombuffer(content, "<u2", count=len(content) // 2)
    code = (words >> 10).astype(np.uint8)
    is_payload, specials = _payload(words, code)
    ends = np.flatnonzero((words == 0) & ~is_payload)
    if len(ends) == 0:
        raise HeartlmError(
            f"{path}: no end mark in {len(content)} bytes; the annotation file is truncated or of another format, "
            "fetch it again"
        )
    end = int(ends[0])
    place = np.flatnonzero((code[:end] < _SKIP) & ~is_payload[:end])
    step = np.zeros(end, np.int64)
    step[place] = words[place] & 1023
    aux: dict[int, str] = {}
    for position in specials:
        if position >= end:
            break
        if code[position] == _SKIP:
            step[position] = _long_step(words, position)
        else:
            first = 2 * (position + 1)
            text = content[first : first + int(words[position] & 1023)]
            aux[int(np.searchsorted(place, position)) - 1] = text.decode("latin-1").rstrip("\x00")
    return _without_notes_about_the_file(path, np.cumsum(step)[place], code[place], aux)


def _payload(words: NDArray[np.uint16], code: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], list[int]]:
    """Mark the words that are data of a SKIP or an AUX, and list where those two stand."""
    is_payload = np.zeros(len(words), np.bool_)
    specials: list[int] = []
    after = 0
    for position in np.flatnonzero((code == _SKIP) | (code == _AUX)).tolist():
        if position < after:
            continue
        specials.append(position)
        num_words = 2 if code[position] == _SKIP else (int(words[position] & 1023) + 1) // 2
        after = position + 1 + num_words
        is_payload[position + 1 : after] = True
    return is_payload, specials


def _long_step(words: NDArray[np.uint16], position: int) -> int:
    step = int(words[position + 1]) << 16 | int(words[position + 2])
    return step - (1 << 32) if step >= 1 << 31 else step


def _without_notes_about_the_file(
    path: Path, sample: NDArray[np.int64], code: NDArray[np.uint8], aux: dict[int, str]
) -> AnnotationFile:
    """Leave out empty annotations (code 0) and notes at time 0, which describe the file; read the tick rate there."""
    ticks_hz = None
    about_file = (sample == 0) & (code == _NOTE)
    for index in np.flatnonzero(about_file).tolist():
        if found := _TIME_RESOLUTION.search(aux.get(index, "")):
            ticks_hz = float(found[1])
    if ticks_hz is not None and ticks_hz <= 0:
        raise HeartlmError(f"{path}: time resolution {ticks_hz:g} Hz, expected more than 0; the file is damaged")
    keep = (code != 0) & ~about_file
    new_index = np.cumsum(keep) - 1
    kept_aux = {int(new_index[index]): text for index, text in aux.items() if index >= 0 and keep[index]}
    return AnnotationFile(path, sample[keep], SYMBOL_OF_CODE[code[keep]], kept_aux, ticks_hz)
