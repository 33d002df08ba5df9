"""Comparison of every finding of `heartlm analyze` with the reference annotations.

    python -m studies.findings --data ../shared/data --cinc2017 DIR --ptb-xl DIR --work FOLDER

Recordings are analysed as a user would: `heartlm analyze FOLDER`, shipped models, beats detected, leads chosen by
heartlm. On DS2 of mitdb, svdb and cudb, events of the annotators follow from their beats by the same rules as
heartlm's, AF, flutter and VF from their rhythms; AF and flutter are also compared with either of them. An event is
found where any part of it overlaps one of its kind, and confirmed likewise. 200 recordings each of cinc2017 and PTB-XL,
drawn with seed 0, and flutter in all of PTB-XL and ludb, have one label for all of a recording: a finding is right
where the recording has the label. svdb and cudb are training data of the shipped models; their rows say how heartlm
describes data that it knows. DS2 taught it nothing. Of cinc2017 and PTB-XL the beats model knows recordings that are
labelled normal or AF (1,258, and folds 1 to 6) as detections with weak labels, and the limits of the rule for flutter
were chosen on PTB-XL, ludb and DS1. The model statements, which decides on AF, flutter, single ectopic beats and blocks
in twelve leads, learnt from all of PTB-XL that is there: its rows say how heartlm describes data that it knows. Scores
of it on recordings that were kept back are in `studies/statements.py`.

NeuroKit2 detects beats too (`ecg_clean`, `ecg_peaks`, defaults, the first lead that heartlm chose); pauses, slow and
fast rates follow from its beats by the same rules. It has no classes of beats, AF or VF.
Intervals are by bootstrap over patients.
"""

from __future__ import annotations

import csv
import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heartlm.analysis.events import beat_events
from heartlm.analysis.findings import KINDS
from heartlm.databases.database import Database, open_database
from heartlm.databases.splits import DS1, DS2
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Annotations
from heartlm.evaluation.bootstrap import Resampling, ratio, sum_by
from heartlm.evaluation.episodes import compare_spans
from heartlm.formats.annotation_file import read_annotation_file
from lab.intervals import shown
from lab.measure import Table
from lab.output import write_results
from lab.places import labels_of, link, options
from lab.steps import Steps

NUM_DRAWN = 200
OURS, OTHER = "heartlm", "NeuroKit2"
RHYTHMS = {"AF": ("AFIB",), "flutter": ("AFL",), "VF": ("VFIB", "VFL")}
OF_PTB_XL = {
    "AF or flutter": ("AFIB", "AFLT"),
    "flutter": ("AFLT",),
    "bradycardia": ("SBRAD",),
    "tachycardia": ("STACH", "SVTAC", "PSVT"),
    "V beat": ("PVC",),
    "S beat": ("PAC",),
    "bigeminy": ("BIGU",),
    "trigeminy": ("TRIGU",),
}
"""Findings and the SCP codes that say the same of a recording."""

VENTRICULAR_BEATS = re.compile(r"(?<!supra)ventrikul\S* extrasyst|premature ventricular|\bves\d*\b", re.IGNORECASE)
"""Words of reports of PTB-XL and of its field `extra_beats` for premature ventricular beats, which codes leave out at
times."""

Spans = list[tuple[int, int]]
Counts = NDArray[np.int64]


@dataclass
class Tally:
    """Of each patient: reference, found of it, called, right of these; one row a recording."""

    patients: list[str] = field(default_factory=list)
    counts: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, patient: str, *counts: int) -> None:
        self.patients.append(patient)
        self.counts.append(counts)  # type: ignore[arg-type]

    def cells(self) -> list[str]:
        """Numbers in the reference and called; sensitivity and positive predictivity with intervals."""
        patients, sums = sum_by(self.patients, np.array(self.counts, np.int64))
        resampling, total = Resampling(2000), sums.sum(axis=0)
        drawn = resampling.resample(sums)
        cells = []
        for part, whole in ((1, 0), (3, 2)):
            value = float(ratio(total[part], total[whole]))
            cells.append(shown(value, ratio(drawn[:, part], drawn[:, whole]), len(patients)))
        return [f"{total[0]:,}", f"{total[2]:,}", *cells]


def analysed(
    steps: Steps, name: str, folder: Path, options: Sequence[str] = ()
) -> Iterator[tuple[Database, str, Path, dict[str, Any]]]:
    """Each recording of a folder that heartlm analysed: database, record, path without ending, summary."""
    out = steps.work / f"{name}-out"
    words = ("analyze", folder, "--out", out, "--no-page", "--processes", 1, *options)
    steps.run(f"analyze-{name}", out / "summary.csv", *words)
    database = open_database(folder)
    for record_id in database.record_ids:
        if (out / f"{record_id}.json").is_file():
            yield database, record_id, out / record_id, json.loads((out / f"{record_id}.json").read_text())


def linked(source: Path, folder: Path, records: Iterable[str]) -> Path:
    """The recordings of `source` named in `records`, as links in the same folders."""
    for record in records:
        link(source.glob(f"{record}.*"), (folder / record).parent)
    return folder


class PtbXl:
    """The recordings of PTB-XL that are there.

    Attributes:
        folder: of the database.
        row: row of its table of each recording.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "ptbxl_database.csv").open(newline="", encoding="utf-8") as table:
            rows = list(csv.DictReader(table))
        # The archive may lie in its own folders, or be unpacked flat.
        paths = [{each["filename_hr"]: each, Path(each["filename_hr"]).name: each} for each in rows]
        self.row = {name: row for of in paths for name, row in of.items() if (folder / f"{name}.hea").is_file()}

    def in_folds(self, folds: Iterable[int]) -> list[str]:
        """Sorted names of the recordings of some folds."""
        return sorted(name for name, each in self.row.items() if int(each["strat_fold"]) in folds)

    def codes_of(self, name: str) -> set[str]:
        """SCP codes of a recording, and `VES` where words of its report say what the code PVC does."""
        row = self.row[name]
        in_words = VENTRICULAR_BEATS.search(f"{row['report']} {row['extra_beats']}")
        return set(literal_eval(row["scp_codes"])) | ({"VES"} if in_words else set())

    def rows(
        self, steps: Steps, title: str, names: list[str], codes: Mapping[str, Iterable[str]], more: Sequence[str] = ()
    ) -> list[list[str]]:
        """Rows of `by_recording`: of each finding, which of the recordings have one of its SCP codes."""
        stated = {Path(name).name: self.codes_of(name) for name in names}
        labels = {name: {kind: bool(own & set(of)) for kind, of in codes.items()} for name, own in stated.items()}
        patients = {Path(name).name: self.row[name]["patient_id"] for name in names}
        folder = linked(self.folder, steps.work / "links" / title, names)
        return by_recording(steps, title, folder, labels, patients.__getitem__, more)


def spans_of(events: list[dict[str, Any]], rate_hz: float) -> dict[str, Spans]:
    """Start and end of the events of each kind, in samples."""
    found: dict[str, Spans] = {kind: [] for kind in KINDS}
    for event in events:
        start = round(event["start_s"] * rate_hz)
        found[event["kind"]].append((start, start + max(1, round(event["duration_s"] * rate_hz))))
    return found


def rules_of(sample: NDArray[np.int64], symbol: NDArray[np.str_], rate_hz: float) -> dict[str, Spans]:
    """Return the events of the rules for beats, all intervals readable."""
    found: dict[str, Spans] = {kind: [] for kind in KINDS}
    sure = np.ones(max(0, len(sample) - 1), np.bool_)
    for event in beat_events(sample, symbol, np.ones(len(sample), np.float32), sure, rate_hz):
        found[event.kind].append((event.start, event.stop))
    return found


def reference_of(annotations: Annotations) -> dict[str, Spans]:
    """Events of the annotators; None of a kind is no key."""
    classes = np.append(np.array(list("NSVFQ")), "Q")[annotations.beat_classes()]
    classes = classes if annotations.beats_labelled else np.full(annotations.num_beats, "N")
    found = rules_of(annotations.sample, classes, annotations.rate_hz)
    for kind, names in RHYTHMS.items():
        found[kind] = [(span.start, span.stop) for span in annotations.rhythms if span.name in names]
    return found


def neurokit_beats(signal: NDArray[np.float32], rate_hz: float) -> NDArray[np.int64]:
    import neurokit2

    clean = neurokit2.ecg_clean(np.nan_to_num(signal), sampling_rate=rate_hz)
    return np.unique(np.array(neurokit2.ecg_peaks(clean, sampling_rate=rate_hz)[1]["ECG_R_Peaks"], np.int64))


def merged(spans: Spans | ArrayLike) -> NDArray[np.float64]:
    """Spans in any order, sorted, and those that overlap or touch as one; float64 `[num_spans, 2]`."""
    joined = list[list[float]]()
    for start, stop in sorted(np.asarray(spans, np.float64).reshape(-1, 2).tolist()):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return np.array(joined, np.float64).reshape(-1, 2)


def by_event(steps: Steps, name: str, folder: Path, kinds: tuple[str, ...]) -> list[list[str]]:
    """Rows of a database with annotated beats or rhythms."""
    tallies: dict[tuple[str, str], Tally] = {}
    for database, record_id, path, content in analysed(steps, name, folder):
        recording, known = database.recording(record_id), database.annotations(record_id)
        assert known is not None, f"{name} is annotated"
        patient, rate_hz = recording.patient_id, recording.rate_hz
        written = read_annotation_file(path.with_name(path.name + ".hlm"))
        beat = np.isin(written.symbol, list("NSVF"))
        lead = recording.lead_index(content["summary"]["leads"][0])
        kept = path.with_name(path.name + ".neurokit.npy")
        if not kept.exists():
            np.save(kept, neurokit_beats(recording.signal(leads=[lead])[0], rate_hz))
        peaks = np.load(kept)
        reference, sure = reference_of(known), np.full(len(peaks), "N")
        methods = {OURS: spans_of(content["events"], rate_hz), OTHER: rules_of(peaks, sure, rate_hz)}
        for method, found in methods.items():
            for kind in (each for each in kinds if method == OURS or each in ("pause", "bradycardia", "tachycardia")):
                each = compare_spans(merged(reference[kind]), merged(found[kind]), recording.num_samples)
                tally = tallies.setdefault((kind, method), Tally())
                tally.add(patient, each.num_reference, each.num_found, each.num_predicted, each.num_confirmed)
        if "AF" in kinds:  # the two are often confused, and episodes alternate
            called = merged([*methods[OURS]["AF"], *methods[OURS]["flutter"]])
            for kind, names in {"AF or flutter": ("AFIB", "AFL"), "flutter, called either": ("AFL",)}.items():
                known_spans = [(span.start, span.stop) for span in known.rhythms if span.name in names]
                each = compare_spans(merged(known_spans), called, recording.num_samples)
                confirmed = (each.num_predicted, each.num_confirmed) if "AFIB" in names else (0, 0)
                tallies.setdefault((kind, OURS), Tally()).add(patient, each.num_reference, each.num_found, *confirmed)
        if "VF" in kinds:
            continue  # cudb's beats are not checked, and none are marked in VF
        truth = np.append(np.array(list("NSVFQ")), "Q")[known.beat_classes()]
        for method, (sample, symbol) in {
            OURS: (written.sample[beat], written.symbol[beat]),
            OTHER: (peaks, sure),
        }.items():
            match = match_beats(known.sample, sample, rate_hz)
            tallies.setdefault(("beat", method), Tally()).add(
                patient, known.num_beats, len(match.reference), len(sample), len(match.reference)
            )
            for name_of, code in (("S beat", "S"), ("V beat", "V")) if method == OURS else ():
                right = int(np.sum((truth[match.reference] == code) & (symbol[match.detected] == code)))
                counts = int((truth == code).sum()), right, int((symbol == code).sum()), right
                tallies.setdefault((name_of, method), Tally()).add(patient, *counts)
    return [[name, kind, method, *tally.cells()] for (kind, method), tally in tallies.items()]


def by_recording(
    steps: Steps,
    name: str,
    folder: Path,
    labels: dict[str, dict[str, bool]],
    patient_of: Callable[[str], str],
    options: Sequence[str] = (),
) -> list[list[str]]:
    """Rows of a database with labels of whole recordings: of each finding, which recordings have it."""
    tallies: dict[str, Tally] = {kind: Tally() for kind in next(iter(labels.values()))}
    for _, record_id, _, content in analysed(steps, name, folder, options):
        summary = content["summary"]
        for kind, tally in tallies.items():
            what = kind.split(" (")[0]
            if what.endswith(" beat"):
                called = summary["beats"][what[0]] > 0
            elif what == "unreadable":
                called = summary["readable_share"] < 0.5
            else:
                called = any(summary["events"][each] for each in what.split(" or "))
            has = labels[record_id][kind]
            tally.add(patient_of(record_id), int(has), int(has and called), int(called), int(has and called))
    return [[name, kind, OURS, *tally.cells()] for kind, tally in tallies.items()]


def main() -> None:
    parser = options(__doc__, "cinc2017", "ptb-xl", "ludb", "work", data="mitdb, svdb and cudb")
    parser.add_argument("--dry", action="store_true", help="DS1 instead of the test sets, no result files")
    settings = parser.parse_args()
    steps, links = Steps(settings.work), settings.work / "links"
    beats: tuple[str, ...] = ("AF", "flutter", "VT", "IVR", "SVT", "couplet", "bigeminy", "trigeminy")
    beats += ("pause", "bradycardia", "tachycardia")
    columns = ("data", "finding", "method", "in reference", "called", "sensitivity", "positive predictivity")
    events = Table("By event, or by beat", columns)
    ds2 = sorted(DS1 if settings.dry else DS2)
    for name, folder, kinds in (
        ("mitdb", linked(settings.data / "mitdb", links / "mitdb", ds2), beats),
        ("svdb", settings.data / "svdb", beats[2:]),
        ("cudb", settings.data / "cudb", ("VF",)),
    ):
        for row in by_event(steps, name, folder, kinds):
            events.add(*row)
    if not settings.dry:
        recordings = Table("By recording", columns)
        rng = np.random.default_rng(0)
        of_cinc = labels_of(settings.cinc2017)
        chosen = sorted(rng.choice(sorted(of_cinc), NUM_DRAWN, replace=False).tolist())
        folder = linked(settings.cinc2017, links / "cinc2017", chosen)
        labels = {record: {"AF": of_cinc[record] == "A", "unreadable": of_cinc[record] == "~"} for record in chosen}
        rows = by_recording(steps, "cinc2017", folder, labels, str)
        ptb_xl = PtbXl(settings.ptb_xl)
        chosen = sorted(rng.choice(sorted(ptb_xl.row), NUM_DRAWN, replace=False).tolist())
        rows += ptb_xl.rows(steps, "ptb-xl", chosen, OF_PTB_XL)
        every = ptb_xl.rows(steps, "ptb-xl-all", sorted(ptb_xl.row), {"flutter": ("AFLT",)})
        rows += [["ptb-xl, all", *row[1:]] for row in every]
        folder = settings.ludb
        headers = {path.stem: path.read_text() for path in folder.glob("**/*.hea")}
        labels = {name: {"flutter": "Atrial flutter" in header} for name, header in headers.items()}
        rows += by_recording(steps, "ludb", folder, labels, str)
        for row in rows:
            recordings.add(*row)
        write_results("findings", "What heartlm analyze finds, and what annotators say", [events, recordings])


if __name__ == "__main__":
    main()
