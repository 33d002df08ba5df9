"""Other beat detectors and comparators for `detect.py`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sleepecg
import wfdb
from numpy.typing import NDArray
from wfdb.processing import XQRS

from heartlm.ecg.database import Database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.readers.annotation_file import read_annotation_file
from heartlm.ecg.recording import Annotations, Recording, is_beat
from heartlm.ecg.write_annotations import write_annotations

Positions = NDArray[np.int64]
Detect = Callable[[NDArray[np.float32], float], Positions]


def by_xqrs(signal: NDArray[np.float32], rate_hz: float) -> Positions:
    detector = XQRS(signal.astype(np.float64), rate_hz)
    detector.detect(verbose=False)
    return np.asarray(detector.qrs_inds, np.int64)


def by_sleepecg(signal: NDArray[np.float32], rate_hz: float) -> Positions:
    return np.asarray(sleepecg.detect_heartbeats(signal.astype(np.float64), rate_hz), np.int64)


DETECTORS: dict[str, Detect] = {
    "heartlm, offline": partial(detect_beats, mode="offline"),
    "heartlm, causal": partial(detect_beats, mode="causal"),
    "wfdb XQRS": by_xqrs,
    "sleepecg": by_sleepecg,
}


@dataclass
class Referees:
    """Programs of the WFDB package, run in a folder of links to mitdb.

    Attributes:
        folder: where they work.
        gqrs: the detector, if at hand.
        bxb: the comparator, if at hand.
    """

    folder: Path
    gqrs: Path | None
    bxb: Path | None

    def run(self, program: Path, *words: str) -> str:
        done = subprocess.run(
            [program.resolve(), *words], cwd=self.folder, env={"WFDB": "."}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def find(self, record: str) -> Positions:
        """The beats that gqrs finds."""
        assert self.gqrs
        self.run(self.gqrs, "-r", record)
        file = read_annotation_file(self.folder / f"{record}.qrs")
        return file.sample[is_beat(file.symbol.tolist())]

    def count(self, record: str, found: Positions, rate_hz: float) -> tuple[int, int, int]:
        """Beats found and missed and detections without a beat, as bxb counts them."""
        assert self.bxb
        (self.folder / f"{record}.det").unlink(missing_ok=True)
        beats = Annotations(rate_hz, found, np.full(len(found), "N"))
        write_annotations(self.folder, record, beats, "det")
        report = self.run(self.bxb, "-r", record, "-a", "atr", "det", "-f", "0")
        se, ppv = (
            re.search(rf"QRS {name}: .*\((\d+)/(\d+)\)", report) for name in ("sensitivity", "positive predictivity")
        )
        assert se and ppv, report
        return int(se[1]), int(se[2]) - int(se[1]), int(ppv[2]) - int(ppv[1])


def annotated(database: Database, record: str) -> tuple[Recording, Annotations]:
    annotations = database.annotations(record)
    assert annotations is not None
    return database.recording(record), annotations


def ludb_leads(folder: Path) -> Iterator[tuple[int, str, NDArray[np.float32], Positions, float]]:
    """Number of the recording, name, signal, annotated QRS complexes and rate of every lead."""
    for header in sorted((folder / "data").glob("*.hea"), key=lambda path: int(path.stem)):
        record = wfdb.rdrecord(str(header.with_suffix("")))
        for name, signal in zip(record.sig_name, record.p_signal.T, strict=True):
            file = read_annotation_file(header.with_suffix(f".{name}"))
            yield int(header.stem), name, signal.astype(np.float32), file.sample[file.symbol == "N"], float(record.fs)
