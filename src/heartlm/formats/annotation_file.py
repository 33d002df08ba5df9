"""Annotation files: decode positions, codes and notes, and extract heartbeats and rhythm spans.

Files are in MIT format, in that of ISHNE, or are tables of beats in the format of the VitalDB Arrhythmia Database: CSV,
one row per beat, columns `time_second`, `beat_type` (N, S, V, or U for unclassifiable; empty rows mark stretches) and
`rhythm_label`.

Beats are the annotations with a beat code. Rhythms are given as changes: an annotation `+` with the text `(NAME` starts
a span that lasts until the next change or the end of the recording. If a database marks ventricular fibrillation by `[`
and `]` instead, these also start and end spans.

Formats: annot(5) of the WFDB Applications Guide, https://physionet.org/physiotools/wag/annot-5.htm;
https://github.com/vitaldb/arrdb.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import ARTEFACT, CLASS_OF_SYMBOL, RHYTHMS, Note, RhythmSpan, rhythm_index
from heartlm.errors import HeartlmError
from heartlm.formats.ishne import HEADER, HEADER_BYTES
from heartlm.formats.plausible import check_rate
from heartlm.kernels.library import kernel
from heartlm.storage.foreign import LIST_BYTES, first_bytes, one_line, read_bytes

_NOTE = 22

SYMBOL_OF_CODE: NDArray[np.str_] = np.full(64, "", "<U1")
"""WFDB symbol of each annotation code; empty where the code is unused (ecgcodes.h of the WFDB library)."""
for _code, _symbol in enumerate(' NLRaVFJASEj/Q~ | sT*D"=pB^t+u?![]en@xf()r'):
    SYMBOL_OF_CODE[_code] = _symbol.strip()

# Codes that are undefined: neither in the WFDB library nor user-defined (42 to 49); 0 is a note about the file.
_IS_UNUSED = (SYMBOL_OF_CODE == "") & ~np.isin(np.arange(64), [0, *range(42, 50)])

TABLE_SUFFIX = ".csv"
_TABLE_HZ = 500.0
"""Rate in Hz to which times in tables of beats are rounded: the sampling rate of VitalDB's electrocardiograms."""
# WFDB symbol of each beat type.
_BEAT_TYPES = {"N": "N", "S": "S", "V": "V", "U": "Q"}

ISHNE_MARK = b"ANN  1.0"
_CODE_OF_ISHNE = np.zeros(256, np.uint8)
"""WFDB code of each label of ISHNE: normal, ventricular, supraventricular, bundle branch block (of class N), paced,
artefact, unknown."""
for _label, _symbol in {"N": "N", "V": "V", "S": "S", "B": "N", "P": "/", "X": ARTEFACT, "U": "Q"}.items():
    _CODE_OF_ISHNE[ord(_label)] = SYMBOL_OF_CODE.tolist().index(_symbol)
# Labels of ISHNE for a long distance and for a calibration pulse.
_NO_BEATS = b"!C"

OUTSIDE = ("before the start", "past the end")
"""Reasons of `beats_of` for leaving out beats outside the recording."""

# Limit of positions: a larger one comes from a damaged file and is outside any recording.
_FAR = 2.0**62

# Whether each code marks a heartbeat.
_IS_BEAT = np.isin(SYMBOL_OF_CODE, sorted(CLASS_OF_SYMBOL))

_LONGEST_TEXT = 255
_NO_TEXT = re.compile(rb"[\x02-\x09\x0b\x0c\x0e-\x1f\x7f]|\0[^\0]")

_TIME_RESOLUTION = re.compile(r"## time resolution: ([0-9.]+)")


@dataclass(frozen=True)
class AnnotationFile:
    """Content of an annotation file, in file order.

    Attributes:
        path: path of the file.
        sample: position of each annotation in ticks, int64 `[num_annotations]`.
        code: WFDB code of each annotation, uint8 `[num_annotations]`.
        subtype: subtype of each annotation, 0 if not stated, int8 `[num_annotations]`.
        aux: text by annotation index, without trailing NULs.
        ticks_hz: tick rate of the file in Hz; None if it is the recording's sampling rate.
        faults: signs of damage in a readable file, one line each.
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


END_OF_RHYTHM = "("
"""Text of the annotation after which no rhythm is stated, as heartlm writes it."""


class DecodedAnnotations(NamedTuple):
    """The annotations of a file, in its order.

    Attributes:
        sample: position in ticks, int64 `[num_annotations]`.
        code: what was annotated, uint8 `[num_annotations]`.
        texts: of each AUX text the annotation it belongs to (-1: none), its first byte and its length, int64
            `[num_texts, 3]`.
        subtype: the annotation's subtype, 0 where none is stated, int8 `[num_annotations]`.
    """

    sample: NDArray[np.int64]
    code: NDArray[np.uint8]
    texts: NDArray[np.int64]
    subtype: NDArray[np.int8]


def decode_annotations(content: bytes) -> DecodedAnnotations | None:
    """Decode an annotation file; None where it ends before its end mark."""
    num_words = len(content) // 2
    sample, code = np.empty(num_words, np.int64), np.empty(num_words, np.uint8)
    texts, num_texts = np.empty((num_words, 3), np.int64), np.zeros(1, np.int64)
    subtype = np.zeros(num_words, np.int8)
    count = kernel("wfdb_annotations")(content, num_words, sample, code, texts, num_texts, subtype)
    if count < 0:
        return None
    return DecodedAnnotations(sample[:count], code[:count], texts[: num_texts[0]], subtype[:count])


def read_annotation_file(path: Path, usual_hz: float | None = None) -> AnnotationFile:
    """Decode the annotation file at `path`, whose ticks have the rate `usual_hz` if it states none.

    Empty annotations (code 0) and notes at time 0 are left out. Notes at time 0 describe the file and may state the
    tick rate.

    Raises:
        HeartlmError: the file is missing or unreadable, or ends before its end mark.
    """
    content = read_bytes(path, LIST_BYTES)
    if path.suffix == TABLE_SUFFIX:
        return _read_table(path, content)
    if content.startswith(ISHNE_MARK):
        return _read_ishne(path, content)
    decoded = decode_annotations(content)
    if decoded is None:
        raise HeartlmError(
            f"{path}: no end mark in {len(content)} bytes; the annotation file is truncated or of another format, "
            "fetch it again"
        )
    ticks_hz, about_file = None, (decoded.sample == 0) & (decoded.code == _NOTE)
    about_file &= ~np.logical_or.accumulate(decoded.code == 0)  # an empty annotation ends the notes about the file
    keep = ~(about_file | (decoded.code == 0))
    kept_before, aux = np.cumsum(keep) - 1, dict[int, str]()
    for index, first, length in decoded.texts.tolist():
        text = content[first : first + length].decode("latin-1").rstrip("\x00")
        if index >= 0 and keep[index]:
            aux[int(kept_before[index])] = text
        elif index >= 0 and about_file[index] and (stated := _TIME_RESOLUTION.search(text)):
            with one_line(path, "a time resolution"):
                ticks_hz = check_rate(path, float(stated[1]), "time resolution")
    faults = _faults(path, content, decoded)
    return AnnotationFile(
        path, decoded.sample[keep], decoded.code[keep], decoded.subtype[keep], aux, ticks_hz or usual_hz, faults
    )


def _faults(path: Path, content: bytes, decoded: DecodedAnnotations) -> tuple[str, ...]:
    """Find content that no annotator writes: bytes after the end mark, undefined codes, unreadable texts."""
    faults, total = [], len(decoded.code)
    if decode_annotations(content.rstrip(b"\0")) is not None:  # there is an end mark before the last one
        faults.append(f"{path.name}: more bytes follow the end mark, which stands behind {total} annotations")
    unused = int(_IS_UNUSED[decoded.code].sum() + ((decoded.code == 0) & (decoded.sample != 0)).sum())
    if unused:
        faults.append(f"{path.name}: {unused} of {total} annotations have a code that is not in use")
    texts = (content[first : first + length] for _, first, length in decoded.texts.tolist())
    if garbled := sum(len(text) > _LONGEST_TEXT or _NO_TEXT.search(text) is not None for text in texts):
        faults.append(f"{path.name}: {garbled} of {len(decoded.texts)} texts are not readable")
    return tuple(faults)


def _read_ishne(path: Path, content: bytes) -> AnnotationFile:
    """Read an ISHNE annotation file: the header of the recording, then a label and the samples since the last beat.

    Format: https://thew-project.org/papers/ishneAnn.pdf.

    Raises:
        HeartlmError: the file ends before its first annotation, or states no plausible rate.
    """
    begin = HEADER_BYTES + int.from_bytes(content[10:14], "little", signed=True)
    if begin < HEADER_BYTES or len(content) < begin + 4:
        raise HeartlmError(f"{path}: ends before its first annotation; fetch it again")
    rate_hz = check_rate(path, HEADER.unpack_from(content)[63])
    num_entries, rest = divmod(len(content) - begin - 4, 4)
    kind = np.dtype([("label", "u1"), ("own", "u1"), ("since", "<u2")])
    entries = np.frombuffer(content, kind, num_entries, begin + 4)
    sample = int.from_bytes(content[begin : begin + 4], "little") + np.cumsum(entries["since"], dtype=np.int64)
    code, kept = _CODE_OF_ISHNE[entries["label"]], _CODE_OF_ISHNE[entries["label"]] > 0
    faults = [f"{path.name}: {rest} bytes after the last annotation"] if rest else []
    if unknown := int((~kept & ~np.isin(entries["label"], list(_NO_BEATS))).sum()):
        faults.append(f"{path.name}: {unknown} of {num_entries} annotations have a label that is not in use")
    return AnnotationFile(
        path, sample[kept], code[kept], np.zeros(int(kept.sum()), np.int8), {}, rate_hz, tuple(faults)
    )


def is_beat_table(path: Path) -> bool:
    """Return whether the first line of a CSV file names the columns of a table of beats."""
    return b"time_second,beat_type,rhythm_label" in (first_bytes(path, 256) or b"")


def _read_table(path: Path, content: bytes) -> AnnotationFile:
    """Read a table of beats: one beat per row with a type, and a rhythm change where the label changes."""
    text = StringIO(content.decode("utf-8-sig", "replace"), newline="")
    with one_line(path, "a table with the columns time_second, beat_type and rhythm_label"):
        rows = [(float(row["time_second"]), row["beat_type"], row["rhythm_label"]) for row in csv.DictReader(text)]
        beats = [row for row in rows if row[1] in _BEAT_TYPES]
        rows = sorted(row for row in beats if math.isfinite(row[0]))  # NaN has no place in an order
        ticks = np.rint((_TABLE_HZ * np.array([time for time, _, _ in rows])).clip(-_FAR, _FAR)).astype(np.int64)
    timeless = len(beats) - len(rows)
    faults = (f"{path.name}: {timeless} of {len(beats)} beats have no time and are left out",) if timeless else ()
    code_of = {symbol: code for code, symbol in enumerate(SYMBOL_OF_CODE.tolist())}
    sample, code, aux, rhythm = list[int](), list[int](), dict[int, str](), ""
    for tick, (_, beat, label) in zip(ticks.tolist(), rows, strict=True):
        if label and label != rhythm:
            aux[len(sample)], rhythm = f"({label}", label
            sample.append(tick)
            code.append(code_of["+"])
        sample.append(tick)
        code.append(code_of[_BEAT_TYPES[beat]])
    codes = np.array(code, np.uint8)
    subtype = np.zeros(len(codes), np.int8)
    return AnnotationFile(path, np.array(sample, np.int64), codes, subtype, aux, _TABLE_HZ, faults)


def positions_at_rate(file: AnnotationFile, rate_hz: float) -> NDArray[np.int64]:
    """Return the positions of all annotations in samples at `rate_hz`, int64 `[num_annotations]`."""
    if file.ticks_hz is None or file.ticks_hz == rate_hz:
        return file.sample
    at_rate: NDArray[np.int64] = np.rint((file.sample * (rate_hz / file.ticks_hz)).clip(-_FAR, _FAR)).astype(np.int64)
    return at_rate


def beats_of(
    file: AnnotationFile, rate_hz: float, num_samples: int, artefacts: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.str_], dict[str, int]]:
    """Return the heartbeats of `file` in time order.

    Beats outside the recording, and further beats at the same sample, are left out and counted by reason. With
    `artefacts`, annotated artefacts (`|`) are returned like beats.

    Returns:
        Positions int64 `[num_beats]`, symbols `<U1` `[num_beats]`, and counts of omitted beats by reason.
    """
    is_beat = _IS_BEAT[file.code] | (artefacts & (SYMBOL_OF_CODE[file.code] == ARTEFACT))
    sample, symbol = positions_at_rate(file, rate_hz)[is_beat], SYMBOL_OF_CODE[file.code[is_beat]]
    order = np.argsort(sample, kind="stable")
    sample, symbol = sample[order], symbol[order]
    before = sample < 0
    past = (sample >= num_samples) if num_samples else np.zeros(len(sample), np.bool_)
    repeated = np.diff(sample, prepend=-1) == 0
    repeated &= ~before
    reasons = {OUTSIDE[0]: before, OUTSIDE[1]: past, "at the sample of another beat": repeated & ~past}
    keep = ~(before | past | repeated)
    return sample[keep], symbol[keep], {reason: int(left.sum()) for reason, left in reasons.items() if left.any()}


def rhythms_of(
    file: AnnotationFile, rate_hz: float, num_samples: int, bracketed: str | None = None
) -> tuple[tuple[RhythmSpan, ...], dict[str, int]]:
    """Convert the rhythm changes of `file` to spans; the last span ends at `num_samples`.

    Args:
        file: content of the annotation file.
        rate_hz: sampling rate of the recording in Hz.
        num_samples: length of the recording in samples.
        bracketed: rhythm between `[` and `]`; None if `+` annotations already state it.

    Returns:
        The spans in time order, and counts of omitted changes by reason.
    """
    sample, symbol = positions_at_rate(file, rate_hz), file.symbol
    changes: list[tuple[int, str | None]] = [
        (int(sample[index]), None if text == END_OF_RHYTHM else canonical_rhythm(text))
        for index, text in file.aux.items()
        if symbol[index] == "+" and text.startswith("(")
    ]
    if bracketed is not None:
        changes += [(start, bracketed) for start in sample[symbol == "["].tolist()]
        changes += [(stop, None) for stop in sample[symbol == "]"].tolist()]
    changes.sort(key=lambda change: change[0])
    stops = [start for start, _ in changes[1:]] + [num_samples]
    spans = (
        RhythmSpan(max(start, 0), min(stop, num_samples), name)
        for (start, name), stop in zip(changes, stops, strict=False)
        if name is not None
    )
    num_outside = sum(start >= num_samples for start, _ in changes)
    ignored = {"rhythm change past the end": num_outside} if num_outside else {}
    return tuple(span for span in spans if span.start < span.stop), ignored


def notes_of(file: AnnotationFile, rate_hz: float, num_samples: int) -> tuple[Note, ...]:
    """Return the texts of the note annotations (`"`) of `file` inside the recording, in time order."""
    sample = positions_at_rate(file, rate_hz)
    texts = ((int(sample[index]), text) for index, text in file.aux.items() if file.code[index] == _NOTE and text)
    inside = (
        Note(start, start, text) for start, text in texts if start >= 0 and (start < num_samples or not num_samples)
    )
    return tuple(sorted(inside, key=lambda note: note.start))


def others_of(
    file: AnnotationFile, rate_hz: float, num_samples: int, artefacts: bool = False
) -> list[tuple[int, str, str]]:
    """Return position, symbol and text of the annotations inside the recording that are no beat, rhythm or note.

    With `artefacts`, annotated artefacts (`|`) are left out, see `beats_of`.
    """
    symbol = file.symbol
    is_used = _IS_BEAT[file.code] | (file.code == _NOTE) | (symbol == "") | (artefacts & (symbol == ARTEFACT))
    is_rhythm = [file.aux.get(place, "").startswith("(") for place in range(len(symbol))]
    is_used |= (symbol == "+") & np.array(is_rhythm, bool)
    sample = positions_at_rate(file, rate_hz)
    places = np.flatnonzero(~is_used & (sample >= 0) & (sample < num_samples)).tolist()
    return [(int(sample[place]), str(symbol[place]), file.aux.get(place, "")) for place in places]


def canonical_rhythm(name: str) -> str:
    """The entry of `RHYTHMS` that an annotation's text, or a database's own code, stands for."""
    return RHYTHMS[rhythm_index(name)]
