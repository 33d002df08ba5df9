"""Recordings with annotated waves: LUDB, each lead annotated by itself, and qtdb, both leads together."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.databases.database import open_database
from heartlm.ecg.recording import CLASS_OF_SYMBOL, Recording
from heartlm.formats.annotation_file import read_annotation_file

P, QRS, T = range(3)
NAMES = ("P", "QRS", "T")
NUM_FOLDS = 5
MARGIN_S = 20.0
"""Signal that is read before the first and after the last annotated beat of qtdb."""
_KIND = dict.fromkeys(CLASS_OF_SYMBOL, QRS) | {"p": P, "t": T}


@dataclass(frozen=True)
class Annotated:
    """A recording with its annotated waves.

    Attributes:
        database: `"ludb"` or `"qtdb"`.
        record: name of the record.
        recording: the recording.
        start, stop: samples of the recording around the annotated beats.
        waves: for each lead kind, onset, peak and offset of its waves in samples from `start` on, -1 where an edge is
            not annotated, int64 `[num_waves, 4]`, in order of time.
    """

    database: str
    record: str
    recording: Recording
    start: int
    stop: int
    waves: tuple[NDArray[np.int64], ...]

    @property
    def rate_hz(self) -> float:
        """Sampling rate in Hz."""
        return self.recording.rate_hz

    @property
    def fold(self) -> int:
        """Fold of the patient, 0 to 4: a hash of the name. Every record is of another patient."""
        return zlib.crc32((self.database + self.record).encode()) % NUM_FOLDS

    def signals(self) -> NDArray[np.float32]:
        """Read the leads, float32 `[num_leads, stop - start]` in mV."""
        return self.recording.signal(self.start, self.stop)


def read_waves(path: Path) -> NDArray[np.int64]:
    """Return kind, onset, peak and offset of each wave of an annotation file, int64 `[num_waves, 4]`."""
    file = read_annotation_file(path)
    symbols, found = ["", *file.symbol.tolist(), ""], list[tuple[int, int, int, int]]()
    for place, symbol in enumerate(symbols[1:-1]):
        if symbol in _KIND:
            onset = int(file.sample[place - 1]) if symbols[place] == "(" else -1
            offset = int(file.sample[place + 1]) if symbols[place + 2] == ")" else -1
            found.append((_KIND[symbol], onset, int(file.sample[place]), offset))
    return np.array(found, np.int64).reshape(-1, 4)


def annotated_recordings(ludb: Path | None, qtdb: Path | None) -> Iterator[Annotated]:
    """Yield the recordings of LUDB and of qtdb (annotator q1c)."""
    if ludb is not None:
        database, folder = open_database(ludb), ludb / "data"
        for record in sorted((path.stem for path in folder.glob("*.hea")), key=int):
            recording = database.recording(record)
            waves = tuple(read_waves(folder / f"{record}.{lead}") for lead in recording.leads)
            yield Annotated("ludb", record, recording, 0, recording.num_samples, waves)
    if qtdb is not None:
        database = open_database(qtdb)
        for path in sorted(qtdb.glob("*.q1c")):
            recording, common = database.recording(path.stem), read_waves(path)
            margin = round(MARGIN_S * recording.rate_hz)
            start = max(0, int(common[:, 2].min()) - margin)
            stop = min(recording.num_samples, int(common[:, 2].max()) + margin)
            common[:, 1:] = np.where(common[:, 1:] < 0, -1, common[:, 1:] - start)
            yield Annotated("qtdb", path.stem, recording, start, stop, (common,) * recording.num_leads)
