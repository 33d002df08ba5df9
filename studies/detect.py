"""Accuracy and speed of beat detection, compared with wfdb's XQRS, sleepecg and, if available, the C gqrs.

    python -m studies.detect DATA [--ludb FOLDER]

`DATA` contains mitdb. Lead 0 of every whole record is scored within 150 ms (ANSI/AAMI EC57), with gross statistics.
Detections in ventricular flutter or fibrillation do not count, as in the WFDB tools. The tables also give the fraction
of RR intervals between consecutively found beats with an error of more than 10 ms. `--ludb` adds ludb: the position of
the beat mark was chosen on its odd recordings, nothing on the even ones. If the WFDB program `gqrs` is on the PATH, it
is a further detector. It is built from https://github.com/bemoody/wfdb and is not part of heartlm. One core; about
eight minutes, nearly all of them XQRS.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sleepecg
import wfdb
from numpy.typing import NDArray

from benchmarks.usual_script import detectors
from heartlm.databases.database import open_database
from heartlm.databases.splits import DS1, DS2, PACED
from heartlm.ecg.detect import StreamingDetector, detect_beats
from heartlm.ecg.matching import MATCH_WINDOW_S, match_beats
from heartlm.ecg.recording import RHYTHM_INDEX, is_beat
from heartlm.formats.annotation_file import read_annotation_file
from lab.delineation_data import QRS, annotated_recordings
from lab.measure import Table, interleaved, one_by_one, pin
from lab.output import write_results
from lab.places import annotations_of, link, options

Positions = NDArray[np.int64]
Detect = Callable[[NDArray[np.float32], float], Positions]

OFF_S = 0.010
FIBRILLATION = [RHYTHM_INDEX["VFL"], RHYTHM_INDEX["VFIB"]]
SETS: dict[str, tuple[str, ...]] = {
    "DS1 (tuned on)": DS1,
    "DS2": DS2,
    "DS2 without 202": tuple(record for record in DS2 if record != "202"),
    "all but paced": DS1 + DS2,
    "all 48": DS1 + DS2 + PACED,
}


def of_usual_scripts(name: str) -> Detect:
    find = detectors()[name]
    return lambda signal, rate_hz: np.asarray(find(signal.astype(np.float64), rate_hz), np.int64)


DETECTORS: dict[str, Detect] = {
    "heartlm, offline": partial(detect_beats, mode="offline"),
    "heartlm, causal": partial(detect_beats, mode="causal"),
    "wfdb XQRS": of_usual_scripts("wfdb XQRS"),
    "sleepecg": of_usual_scripts("sleepecg"),
}


@dataclass(frozen=True)
class Scores:
    """Counts of one or more recordings.

    Attributes:
        found: number of beats with a detection.
        missed: number of beats without a detection.
        extra: number of detections without a beat.
        off: number of RR intervals with an error of more than 10 ms.
        num_rr: number of RR intervals between consecutively found beats.
        away_s: distance of each detection from its beat in seconds, `[found]`.
    """

    found: int
    missed: int
    extra: int
    off: int
    num_rr: int
    away_s: NDArray[np.float64]

    def cells(self) -> tuple[str, ...]:
        """Return Se, +P, F1, the percentage of RR intervals that are off, and the median distance in ms."""
        se, ppv = self.found / (self.found + self.missed), self.found / (self.found + self.extra)
        f1 = 2 * self.found / (2 * self.found + self.missed + self.extra)
        ratios = tuple(f"{100 * ratio:.2f}" for ratio in (se, ppv, f1, self.off / max(1, self.num_rr)))
        return *ratios, f"{1000 * np.median(self.away_s):.1f}"


COLUMNS = ("Se %", "+P %", "F1 %", "RR off > 10 ms %", "median distance ms")


def score(reference: Positions, found: Positions, rate_hz: float) -> Scores:
    """Compare detections with beats, both ascending."""
    match = match_beats(reference, found, rate_hz)
    away_s = (found[match.detected] - reference[match.reference]) / rate_hz
    consecutive = (np.diff(match.reference) == 1) & (np.diff(match.detected) == 1)
    off = np.abs(np.diff(away_s))[consecutive] > OFF_S
    counts = len(match.reference), len(match.missed), len(match.extra), int(off.sum()), len(off)
    return Scores(*counts, np.abs(away_s))


def total(scores: Iterable[Scores]) -> Scores:
    """Gross counts."""
    each = list(scores)
    counts = {name: sum(getattr(one, name) for one in each) for name in ("found", "missed", "extra", "off", "num_rr")}
    return Scores(**counts, away_s=np.concatenate([one.away_s for one in each]))


def score_mitdb(folder: Path, gqrs: Callable[[str], Positions] | None) -> dict[str, dict[str, Scores]]:
    """Scores of every record by detector."""
    database = open_database(folder)
    scores: dict[str, dict[str, Scores]] = {name: {} for name in (*DETECTORS, *(["WFDB gqrs"] if gqrs else []))}
    for record in SETS["all 48"]:
        recording = database.recording(record)
        annotations, signal = annotations_of(recording), recording.signal(leads=[0])[0]
        found = {name: find(signal, recording.rate_hz) for name, find in DETECTORS.items()}
        for name, beats in (found | ({"WFDB gqrs": gqrs(record)} if gqrs else {})).items():
            kept = beats[~np.isin(annotations.rhythm_at(beats), FIBRILLATION)]
            scores[name][record] = score(annotations.sample, kept, recording.rate_hz)
    return scores


def totals(scores: Mapping[str, Mapping[str, Scores]]) -> Table:
    table = Table("mitdb, gross", ("records", "detector", *COLUMNS))
    for title, records in SETS.items():
        for name, of_record in scores.items():
            table.add(title, name, *total(of_record[record] for record in records).cells())
    return table


def score_ludb(folder: Path) -> Table:
    """Every lead of 200 recordings of ten seconds, between its first and last annotated beat."""
    scores: dict[tuple[str, str, str], list[Scores]] = {}
    for record in annotated_recordings(folder, None):
        rate_hz, half = record.rate_hz, "odd (mark chosen on)" if int(record.record) % 2 else "even"
        margin = round(MATCH_WINDOW_S * rate_hz)
        for lead, signal, waves in zip(record.recording.leads, record.signals(), record.waves, strict=True):
            beats = waves[waves[:, 0] == QRS, 2]
            for name, find in DETECTORS.items():
                found = find(signal, rate_hz)
                counted = score(beats, found[(found >= beats[0] - margin) & (found <= beats[-1] + margin)], rate_hz)
                for leads in ("all 12", *(["II"] if lead.lower() == "ii" else [])):
                    for group in (half, "all"):
                        scores.setdefault((group, leads, name), []).append(counted)
    table = Table("ludb, recordings of 10 s at 500 Hz", ("recordings", "leads", "detector", *COLUMNS))
    for key, each in sorted(scores.items()):
        table.add(*key, *total(each).cells())
    return table


def in_chunks(signal: NDArray[np.float32], rate_hz: float, chunk_s: float) -> int:
    """Beats of a stream that comes in chunks."""
    detector, length = StreamingDetector(rate_hz), round(chunk_s * rate_hz)
    found = sum(len(detector.push(signal[start : start + length])) for start in range(0, len(signal), length))
    return found + len(detector.finish())


def speeds(folder: Path, gqrs: Callable[[str], Positions] | None, rounds: int) -> Table:
    """Rates on eight recordings on one core; gqrs, a program, reads files, and XQRS, which is slow, has two minutes."""
    database, records, rate_hz = open_database(folder), DS1[:8], 360.0
    signals = [database.recording(record).signal(leads=[0])[0] for record in records]
    num_samples, few = sum(map(len, signals)), signals[0][: round(120 * rate_hz)]

    def turn(find: Detect) -> Callable[[], object]:
        return one_by_one(lambda signal: find(signal, rate_hz), signals)

    rivals = {name: turn(DETECTORS[name]) for name in ("heartlm, offline", "heartlm, causal")}
    rivals["heartlm, causal, chunks of 1 s"] = one_by_one(partial(in_chunks, rate_hz=rate_hz, chunk_s=1.0), signals)
    rivals["sleepecg"] = turn(DETECTORS["sleepecg"])
    rivals["wfdb XQRS"] = partial(DETECTORS["wfdb XQRS"], few, rate_hz)
    if gqrs:
        rivals["WFDB gqrs, files read and written"] = one_by_one(gqrs, records)
    amounts = dict.fromkeys(rivals, num_samples / 1e6) | {"wfdb XQRS": len(few) / 1e6}
    title = f"mitdb, 360 Hz, {num_samples / 1e6:.1f} M samples in memory, one core (median of {rounds})"
    table = Table(title, ("detector", "M samples/s", "times XQRS", "times sleepecg"))
    return table.add_rates(interleaved(rivals, rounds), amounts, "wfdb XQRS", "sleepecg")


def by_gqrs(gqrs: Path, folder: Path, record: str) -> Positions:
    """The beats that the WFDB program finds in `folder`, where it writes them, too."""
    subprocess.run([gqrs.resolve(), "-r", record], cwd=folder, env={"WFDB": "."}, capture_output=True, check=True)
    file = read_annotation_file(folder / f"{record}.qrs")
    return file.sample[is_beat(file.symbol.tolist())]


def main() -> None:
    """Score, time, write."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("data", type=Path, help="folder that holds mitdb/")
    parser.add_argument("--ludb", type=Path, help="folder of ludb")
    program = shutil.which("gqrs")
    parser.add_argument("--gqrs", type=Path, default=program and Path(program), help="by default that on the PATH")
    given = parser.parse_args()
    pin(0)
    mitdb = given.data / "mitdb"
    with tempfile.TemporaryDirectory() as temporary:
        link(mitdb.iterdir(), Path(temporary))
        gqrs = partial(by_gqrs, given.gqrs, Path(temporary)) if given.gqrs else None
        tables = [speeds(mitdb, gqrs, given.rounds), totals(score_mitdb(mitdb, gqrs))]
    if given.ludb:
        tables.append(score_ludb(given.ludb))
    detector = StreamingDetector(360.0)
    delays = {"causal delay_s": round(detector.delay_s, 2), "at most": round(detector.longest_delay_s, 2)}
    versions = {"sleepecg": sleepecg.__version__, "wfdb": wfdb.__version__}
    write_results("detect", "Finding heartbeats", tables, versions | delays)


if __name__ == "__main__":
    main()
