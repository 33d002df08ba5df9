"""Write heartbeats, rhythms and notes to a WFDB annotation file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import END_OF_RHYTHM
from heartlm.formats.write_wfdb import annotation_bytes
from heartlm.storage.atomic import atomic_file

OWN_ANNOTATOR = "hlm"
"""Extension of the annotation files that heartlm writes."""


def write_annotations(
    folder: Path,
    record_name: str,
    annotations: Annotations,
    annotator: str = OWN_ANNOTATOR,
    num_samples: int | None = None,
    others: Sequence[tuple[int, str, str]] = (),
) -> Path:
    """Write `folder/record_name.annotator` in MIT format and return its path.

    Rhythm spans become `+` annotations with the text `(NAME` at their first sample, notes `"` annotations.

    Args:
        folder: folder to write to.
        record_name: name of the record.
        annotations: beats, rhythms and notes.
        annotator: extension of the file.
        num_samples: length of the recording. If it is given, the end of a rhythm that no other follows is written too,
            as `(`, which heartlm reads.
        others: position, WFDB code and text of other annotations.

    Raises:
        HeartlmError: there is nothing to write, `annotator` is not a valid annotator name, the file exists and was not
            written by heartlm, or the file cannot be written.
    """
    if not re.fullmatch("[A-Za-z]+", annotator):
        raise HeartlmError(f"annotator: {annotator!r} found, letters only expected, for example {OWN_ANNOTATOR}")
    path = Path(folder) / f"{record_name}.{annotator}"
    if path.exists() and annotator != OWN_ANNOTATOR:
        raise HeartlmError(f"{path} exists already and is not replaced: choose another annotator or another folder")
    sample, symbol, aux_note = wfdb_annotations(annotations, num_samples, others)
    if not len(sample):
        raise HeartlmError(f"{path}: no annotations, so there is nothing to write")
    with atomic_file(path, "wb") as stream:
        stream.write(annotation_bytes(sample, symbol, aux_note, annotations.rate_hz))
    return path


def wfdb_annotations(
    annotations: Annotations, num_samples: int | None = None, others: Sequence[tuple[int, str, str]] = ()
) -> tuple[NDArray[np.int64], list[str], list[str]]:
    """Merge beats, rhythm changes and notes in WFDB form: ascending sample positions, codes and AUX strings."""
    # beats stay arrays: a week has 750,000
    singles = list[tuple[int, int, str, str]]()
    nexts = [*(span.start for span in annotations.rhythms[1:]), num_samples]
    for span, after in zip(annotations.rhythms, nexts, strict=False):
        singles.append((span.start, 1, "+", f"({span.name}"))
        if span.name == "VFIB":
            singles += [(span.start, 0, "[", ""), (span.stop - 1, 3, "]", "")]
        if num_samples is not None and after is not None and span.stop < after:
            singles.append((span.stop, 1, "+", END_OF_RHYTHM))
    singles += [(note.start, 4, '"', note.text) for note in annotations.notes]
    has_brackets = any(symbol == "[" for _, _, symbol, _ in singles)
    singles += [(place, 2, symbol, text) for place, symbol, text in others if not (has_brackets and symbol in "[]")]
    sample = np.concatenate([annotations.sample, np.array([place for place, _, _, _ in singles], np.int64)])
    rank = np.concatenate([np.full(annotations.num_beats, 2), [rank for _, rank, _, _ in singles]])
    symbol = np.concatenate([annotations.symbol, np.array([symbol for _, _, symbol, _ in singles], "<U1")])
    texts = [""] * annotations.num_beats + [text for _, _, _, text in singles]
    order = np.lexsort((symbol, rank, sample))
    return sample[order], symbol[order].tolist(), [texts[place] for place in order.tolist()]
