"""Annotation files in MIT format: bytes in, positions, codes and notes out.

Format: annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/annot-5.htm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.readers.calibration import check_rate
from heartlm.ecg.readers.foreign import LIST_BYTES, read_bytes
from heartlm.errors import HeartlmError
from heartlm.kernels.wfdb import DecodedAnnotations, decode_annotations

_NOTE = 22

SYMBOL_OF_CODE: NDArray[np.str_] = np.full(64, "", "<U1")
"""WFDB symbol of each annotation code; empty where the code is unused (ecgcodes.h of the WFDB library)."""
for _code, _symbol in enumerate(' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'):
    SYMBOL_OF_CODE[_code] = _symbol.strip()

_IS_UNUSED = (SYMBOL_OF_CODE == "") & ~np.isin(np.arange(64), [0, *range(42, 50)])
"""Codes that neither the WFDB library nor, from 42 to 49, a user defines; 0 is a note about the file."""

_LONGEST_TEXT = 255
_NO_TEXT = re.compile(rb"[\x02-\x09\x0b\x0c\x0e-\x1f\x7f]|\0[^\0]")

_TIME_RESOLUTION = re.compile(r"## time resolution: ([0-9.]+)")


@dataclass(frozen=True)
class AnnotationFile:
    """What an annotation file holds, in file order.

    Attributes:
        path: the file.
        sample: position of each annotation in ticks, int64 `[num_annotations]`.
        code: its WFDB code, uint8 `[num_annotations]`.
        subtype: its subtype, 0 where none is stated, int8 `[num_annotations]`.
        aux: text by index of the annotation it belongs to, without trailing NULs.
        ticks_hz: the file's own ticks a second; None where it uses the recording's rate.
        faults: signs of damage that did not stop the reader, one line each.
    """

    path: Path
    sample: NDArray[np.int64]
    code: NDArray[np.uint8]
    subtype: NDArray[np.int8]
    aux: dict[int, str]
    ticks_hz: float | None
    faults: tuple[str, ...] = ()

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
    faults = _faults(path, content, found)
    aux = {
        index: content[first : first + length].decode("latin-1").rstrip("\x00")
        for index, first, length in found.texts.tolist()
        if index >= 0
    }
    return _without_notes_about_the_file(
        AnnotationFile(path, found.sample, found.code, found.subtype, aux, None, faults)
    )


def _faults(path: Path, content: bytes, found: DecodedAnnotations) -> tuple[str, ...]:
    """What no annotator writes: bytes behind the end mark, codes that mean nothing, texts that are none."""
    faults = []
    if decode_annotations(content.rstrip(b"\0")) is not None:  # an end mark that is not the last one
        faults.append(f"{path.name}: more bytes follow the end mark, which stands behind {len(found.code)} annotations")
    unused = int(_IS_UNUSED[found.code].sum() + ((found.code == 0) & (found.sample != 0)).sum())
    if unused:
        faults.append(f"{path.name}: {unused} of {len(found.code)} annotations have a code that is not in use")
    texts = (content[first : first + length] for _, first, length in found.texts.tolist())
    if garbled := sum(len(text) > _LONGEST_TEXT or _NO_TEXT.search(text) is not None for text in texts):
        faults.append(f"{path.name}: {garbled} of {len(found.texts)} texts are not readable")
    return tuple(faults)


def _without_notes_about_the_file(file: AnnotationFile) -> AnnotationFile:
    """Leave out empty annotations (code 0) and notes at time 0, which describe the file; read the tick rate there."""
    ticks_hz = None
    about_file = (file.sample == 0) & (file.code == _NOTE)
    for index in np.flatnonzero(about_file).tolist():
        if found := _TIME_RESOLUTION.search(file.aux.get(index, "")):
            ticks_hz = _ticks_hz(file.path, found[1])
    keep = ~(about_file | (file.code == 0))
    new_index = np.cumsum(keep) - 1
    return replace(
        file,
        sample=file.sample[keep],
        code=file.code[keep],
        subtype=file.subtype[keep],
        aux={int(new_index[index]): text for index, text in file.aux.items() if keep[index]},
        ticks_hz=ticks_hz,
    )


def _ticks_hz(path: Path, text: str) -> float:
    try:
        return check_rate(path, float(text), "time resolution")
    except ValueError as error:
        raise HeartlmError(f"{path}: time resolution is {text}, expected a number; the file is damaged") from error
