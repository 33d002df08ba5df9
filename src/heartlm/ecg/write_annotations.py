"""From heartbeats and rhythms to a WFDB annotation file, the counterpart of the readers."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np

from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file

OWN_ANNOTATOR = "hlm"
"""The ending of the files that heartlm writes."""


def write_annotations(folder: Path, record_name: str, annotations: Annotations, annotator: str = OWN_ANNOTATOR) -> Path:
    """Write `folder/record_name.annotator` in MIT format and return its path.

    Rhythm spans become `+` annotations with the text `(NAME` at their first sample.

    Raises:
        HeartlmError: there is nothing to write, `annotator` is no annotator name, the file exists and is not one of
            heartlm's own, or it cannot be written.
    """
    import wfdb

    if not re.fullmatch("[A-Za-z]+", annotator):
        raise HeartlmError(f"annotator: {annotator!r} found, letters only expected, for example {OWN_ANNOTATOR}")
    path = Path(folder) / f"{record_name}.{annotator}"
    if path.exists() and annotator != OWN_ANNOTATOR:
        raise HeartlmError(f"{path} exists already and is not replaced: choose another annotator or another folder")
    sample, symbol, aux_note = wfdb_annotations(annotations)
    if not sample:
        raise HeartlmError(f"{path}: no beats and no rhythms, so there is nothing to write")
    with tempfile.TemporaryDirectory() as temporary:
        wfdb.wrann(
            "record",
            annotator,
            np.array(sample),
            symbol=symbol,
            aux_note=aux_note,
            fs=annotations.rate_hz,
            write_dir=temporary,
        )
        content = (Path(temporary) / f"record.{annotator}").read_bytes()
    with atomic_file(path, "wb") as stream:
        stream.write(content)
    return path


def wfdb_annotations(annotations: Annotations) -> tuple[list[int], list[str], list[str]]:
    """Merge beats and rhythm changes as a WFDB file holds them: samples (ascending), codes and AUX strings."""
    entries = [
        (sample, 2, code, "")
        for sample, code in zip(annotations.sample.tolist(), annotations.symbol.tolist(), strict=True)
    ]
    for span in annotations.rhythms:
        entries.append((span.start, 1, "+", f"({span.name}"))
        if span.name == "VFIB":
            entries += [(span.start, 0, "[", ""), (span.stop - 1, 3, "]", "")]
    entries.sort()
    return [int(entry[0]) for entry in entries], [entry[2] for entry in entries], [entry[3] for entry in entries]
