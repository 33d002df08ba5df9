"""Annotation files in MIT format: bytes in, positions, codes and notes out.

Format: annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/annot-5.htm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.foreign import LIST_BYTES, read_bytes
from heartlm.ecg.readers.plausible import check_rate
from heartlm.errors import HeartlmError
from heartlm.kernels.wfdb import decode_annotations

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
        code: its WFDB code, uint8 `[num_annotations]`.
        aux: text by index of the annotation it belongs to, without trailing NULs.
        ticks_hz: the file's own ticks a second; None where it uses the recording's rate.
    """

    path: Path
    sample: NDArray[np.int64]
    code: NDArray[np.uint8]
    aux: dict[int, str]
    ticks_hz: float | None

    @property
    def symbol(self) -> NDArray[np.str_]:
        """The WFDB symbol of each annotation, `<U1` `[num_annotations]`; empty for unused codes."""
        return SYMBOL_OF_CODE[self.code]


def read_annotation_file(path: Path) -> AnnotationFile:
    """Decode the annotation file at `path`.

    Raises:
        HeartlmError: the file is missing, unreadable or ends before its end mark.
    """
    content = read_bytes(path, LIST_BYTES)
    found = decode_annotations(content)
    if found is None:
        raise HeartlmError(
            f"{path}: no end mark in {len(content)} bytes; the annotation file is truncated or of another format, "
            "fetch it again"
        )
    aux = {
        index: content[first : first + length].decode("latin-1").rstrip("\x00")
        for index, first, length in found.texts.tolist()
        if index >= 0
    }
    return _without_notes_about_the_file(path, found.sample, found.code, aux)


def _without_notes_about_the_file(
    path: Path, sample: NDArray[np.int64], code: NDArray[np.uint8], aux: dict[int, str]
) -> AnnotationFile:
    """Leave out empty annotations (code 0) and notes at time 0, which describe the file; read the tick rate there."""
    ticks_hz = None
    about_file = (sample == 0) & (code == _NOTE)
    for index in np.flatnonzero(about_file).tolist():
        if found := _TIME_RESOLUTION.search(aux.get(index, "")):
            ticks_hz = _ticks_hz(path, found[1])
    left_out = about_file | (code == 0)
    if not left_out.any():
        return AnnotationFile(path, sample, code, aux, ticks_hz)
    keep = ~left_out
    new_index = np.cumsum(keep) - 1
    kept_aux = {int(new_index[index]): text for index, text in aux.items() if keep[index]}
    return AnnotationFile(path, sample[keep], code[keep], kept_aux, ticks_hz)


def _ticks_hz(path: Path, text: str) -> float:
    try:
        return check_rate(path, float(text), "time resolution")
    except ValueError as error:
        raise HeartlmError(f"{path}: time resolution is {text}, expected a number; the file is damaged") from error
