"""Tables of annotated beats as the VitalDB Arrhythmia Database publishes them: CSV, one row a beat, without signals.

Columns `time_second`, `beat_type` (N, S, V, or U for unclassifiable; empty rows mark stretches) and `rhythm_label`.
Source: https://github.com/vitaldb/arrdb.
"""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import numpy as np

from heartlm.ecg.readers.annotation_file import SYMBOL_OF_CODE, AnnotationFile
from heartlm.ecg.readers.foreign import LIST_BYTES, one_line, open_file, read_bytes
from heartlm.errors import HeartlmError

SUFFIX = ".csv"
TICKS_HZ = 500.0
"""Ticks a second that times are rounded to: the rate of VitalDB's electrocardiograms."""

_SYMBOL = {"N": "N", "S": "S", "V": "V", "U": "Q"}
_CODE = {symbol: code for code, symbol in enumerate(SYMBOL_OF_CODE.tolist()) if symbol}


def is_beat_table(path: Path) -> bool:
    """Whether the first line of a CSV file names the columns of a table of beats."""
    try:
        with open_file(path) as stream:
            return b"time_second,beat_type,rhythm_label" in (stream.read(256) or b"")
    except HeartlmError:
        return False


def read_beat_table(path: Path) -> AnnotationFile:
    """Read a table of beats as annotations: a beat of each row with a type, a rhythm change where its label changes.

    Raises:
        HeartlmError: the file is unreadable or no such table.
    """
    text = StringIO(read_bytes(path, LIST_BYTES).decode("utf-8-sig", "replace"), newline="")
    with one_line(path, "a table with the columns time_second, beat_type and rhythm_label"):
        rows = [(float(row["time_second"]), row["beat_type"], row["rhythm_label"]) for row in csv.DictReader(text)]
        rows = sorted(row for row in rows if row[1] in _SYMBOL)
        ticks = np.rint(TICKS_HZ * np.array([time for time, _, _ in rows])).astype(np.int64)
    sample, code, aux, rhythm = list[int](), list[int](), dict[int, str](), ""
    for tick, (_, beat, label) in zip(ticks.tolist(), rows, strict=True):
        if label and label != rhythm:
            aux[len(sample)], rhythm = f"({label}", label
            sample.append(tick)
            code.append(_CODE["+"])
        sample.append(tick)
        code.append(_CODE[_SYMBOL[beat]])
    codes = np.array(code, np.uint8)
    return AnnotationFile(path, np.array(sample, np.int64), codes, np.zeros(len(codes), np.int8), aux, TICKS_HZ)
