"""Accuracy and speed of beat detection, compared with wfdb's XQRS, sleepecg and, if available, the C gqrs.

    python -m studies.detect DATA [--ludb FOLDER]

`DATA` contains mitdb. Lead 0 of every whole record is scored within 150 ms (ANSI/AAMI EC57), with gross statistics.
Detections in ventricular flutter or fibrillation do not count, as in the WFDB tools. The tables also give the fraction
of RR intervals between consecutively found beats with an error of more than 10 ms. `--ludb` adds ludb: the position of
the beat mark was chosen on its odd recordings, nothing on the even ones. If the WFDB programs are on the PATH, `bxb`
also counts, from annotation files that heartlm writes, and `gqrs` is a further detector. They are built from
https://github.com/bemoody/wfdb and are not part of heartlm. One core; about eight minutes, nearly all of them XQRS.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sleepecg
import wfdb
from numpy.typing import NDArray

from benchmarks.common.measure import Table, interleaved, one_by_one, pin
from benchmarks.common.output import write_results
from benchmarks.common.places import options
from heartlm.ecg.database import open_database
from heartlm.ecg.detect import StreamingDetector
from heartlm.ecg.matching import MATCH_WINDOW_S, match_beats
from heartlm.ecg.recording import RHYTHM_INDEX
from heartlm.ecg.splits import DS1, DS2, PACED
from studies.detect_peers import DETECTORS, Positions, Referees, annotated, by_sleepecg, by_xqrs, ludb_leads

OFF_S = 0.010
FIBRILLATION = [RHYTHM_INDEX["VFL"], RHYTHM_INDEX["VFIB"]]
SETS: dict[str, tuple[str, ...]] = {
    "DS1 (tuned on)": DS1,
    "DS2": DS2,
    "DS2 without 202": tuple(record for record in DS2 if record != "202"),
    "all but paced": DS1 + DS2,
    "all 48": DS1 + DS2 + PACED,
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
    counts = [sum(getattr(one, name) for one in each) for name in ("found", "missed", "extra", "off", "num_rr")]
    return Scores(*counts, np.concatenate([one.away_s for one in each]))


def score_mitdb(folder: Path, referees: Referees) -> tuple[dict[str, dict[str, Scores]], list[Table]]:
    """Scores of every record by detector, and what bxb says of them."""
    database = open_database(folder)
    names = [*DETECTORS, *(["WFDB gqrs"] if referees.gqrs else [])]
    scores: dict[str, dict[str, Scores]] = {name: {} for name in names}
    counts: dict[str, dict[str, tuple[int, int, int]]] = {name: {} for name in names}
    for record in SETS["all 48"]:
        recording, annotations = annotated(database, record)
        signal = recording.signal(leads=[0])[0]
        for name in names:
            find = DETECTORS.get(name)
            found = find(signal, recording.rate_hz) if find else referees.find(record)
            kept = found[~np.isin(annotations.rhythm_at(found), FIBRILLATION)]
            scores[name][record] = score(annotations.sample, kept, recording.rate_hz)
            if referees.bxb:
                counts[name][record] = referees.count(record, found, recording.rate_hz)
    return scores, [agreement(scores, counts)] if referees.bxb else []


def agreement(
    scores: Mapping[str, Mapping[str, Scores]], counts: Mapping[str, Mapping[str, tuple[int, int, int]]]
) -> Table:
    """Counts of heartlm and of bxb, side by side."""
    table = Table(
        "mitdb: found / missed / made up, by heartlm's EC57 scores and by the WFDB comparator bxb",
        ("detector", "records", "heartlm", "bxb", "records that differ"),
    )
    for name, of_record in scores.items():
        for title, records in SETS.items():
            ours = {record: of_record[record] for record in records}
            own = {record: (one.found, one.missed, one.extra) for record, one in ours.items()}
            sums = [np.sum([source[record] for record in records], axis=0) for source in (own, counts[name])]
            differ = [record for record in records if own[record] != counts[name][record]]
            cells = (" / ".join(f"{value:,}" for value in one) for one in sums)
            table.add(name, title, *cells, ", ".join(differ) or "none")
    return table


def totals(scores: Mapping[str, Mapping[str, Scores]]) -> Table:
    table = Table("mitdb, gross", ("records", "detector", *COLUMNS))
    for title, records in SETS.items():
        for name, of_record in scores.items():
            table.add(title, name, *total(of_record[record] for record in records).cells())
    return table


def score_ludb(folder: Path) -> Table:
    """Every lead of 200 recordings of ten seconds, between its first and last annotated beat."""
    scores: dict[tuple[str, str, str], list[Scores]] = {}
    for record, lead, signal, beats, rate_hz in ludb_leads(folder):
        margin = round(MATCH_WINDOW_S * rate_hz)
        half = "odd (mark chosen on)" if record % 2 else "even"
        for name, find in DETECTORS.items():
            found = find(signal, rate_hz)
            found = found[(found >= beats[0] - margin) & (found <= beats[-1] + margin)]
            counted = score(beats, found, rate_hz)
            for leads in ("all 12", *(["II"] if lead == "ii" else [])):
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


def speeds(folder: Path, referees: Referees, rounds: int) -> Table:
    """Rates on eight recordings on one core; gqrs, a program, reads files, and XQRS, which is slow, has two minutes."""
    database, records, rate_hz = open_database(folder), DS1[:8], 360.0
    signals = [database.recording(record).signal(leads=[0])[0] for record in records]
    num_samples, few = sum(map(len, signals)), signals[0][: round(120 * rate_hz)]

    rivals: dict[str, Callable[[], object]] = {
        "heartlm, offline": one_by_one(partial(DETECTORS["heartlm, offline"], rate_hz=rate_hz), signals),
        "heartlm, causal": one_by_one(partial(DETECTORS["heartlm, causal"], rate_hz=rate_hz), signals),
        "heartlm, causal, chunks of 1 s": one_by_one(partial(in_chunks, rate_hz=rate_hz, chunk_s=1.0), signals),
        "sleepecg": one_by_one(partial(by_sleepecg, rate_hz=rate_hz), signals),
        "wfdb XQRS": lambda: by_xqrs(few, rate_hz),
    }
    if referees.gqrs:
        rivals["WFDB gqrs, files read and written"] = lambda: [referees.find(record) for record in records]
    amounts = dict.fromkeys(rivals, num_samples / 1e6) | {"wfdb XQRS": len(few) / 1e6}
    title = f"mitdb, 360 Hz, {num_samples / 1e6:.1f} M samples in memory, one core (median of {rounds})"
    table = Table(title, ("detector", "M samples/s", "times XQRS", "times sleepecg"))
    return table.add_rates(interleaved(rivals, rounds), amounts, "wfdb XQRS", "sleepecg")


def main() -> None:
    """Score, time, write."""
    parser = options(__doc__, rounds=5)
    parser.add_argument("data", type=Path, help="folder that holds mitdb/")
    parser.add_argument("--ludb", type=Path, help="folder of ludb")
    for name in ("gqrs", "bxb"):
        found = shutil.which(name)
        parser.add_argument(
            f"--{name}", type=Path, default=found and Path(found), help="program of the WFDB package; that on the PATH"
        )
    given = parser.parse_args()
    pin(0)
    mitdb = given.data / "mitdb"
    with tempfile.TemporaryDirectory() as temporary:
        referees = Referees(Path(temporary), given.gqrs, given.bxb)
        for path in mitdb.iterdir():
            (referees.folder / path.name).symlink_to(path.resolve())
        tables = [speeds(mitdb, referees, given.rounds)]
        scores, agreements = score_mitdb(mitdb, referees)
    tables += [totals(scores), *agreements]
    if given.ludb:
        tables.append(score_ludb(given.ludb))
    detector = StreamingDetector(360.0)
    delays = {"causal delay_s": round(detector.delay_s, 2), "at most": round(detector.longest_delay_s, 2)}
    versions = {"sleepecg": sleepecg.__version__, "wfdb": wfdb.__version__}
    write_results("detect", "Finding heartbeats", tables, versions | delays)


if __name__ == "__main__":
    main()
