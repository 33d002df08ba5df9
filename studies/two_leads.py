"""Two leads of patients never seen, through `heartlm analyze`: each lead alone, and both together.

    python -m studies.two_leads --quality FOLDER --work FOLDER

Needs the folds of `studies/quality.py` over DS1 of mitdb and svdb: the beats model of each, first seed, analyses the
patients that it did not learn from, with the other models that ship. Beats are detected. F1 of V and S pooled over
beats, and of S as the mean over patients with ten or more, as in that study; paired differences to the first lead. The
last table has the patients in which both leads are more than 0.01 below the better one alone: which one that is, is
known from the annotations only. It is selection data: rules of `analysis/` were chosen by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.analyze import Analyst
from heartlm.databases.database import open_database
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Recording
from heartlm.evaluation.bootstrap import Counts, ratio
from heartlm.system.cores import limit_threads
from lab.intervals import Score, interval
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import kept
from studies.quality import FEWEST_S, LABELS, MEAN_S, S, V, f1_of, macro_s, parts

LEADS = {"the first lead": (0,), "the second lead": (1,), "both leads": (0, 1)}
FIRST, _, BOTH = LEADS
OTHER, NONE = LABELS.index("other"), LABELS.index("none")
BELOW = 0.01


def held_out(quality: Path) -> Iterator[tuple[Analyst, str, Recording]]:
    """Each patient with the models of the fold in which it was not learnt from."""
    for fold in sorted(quality.glob("fold-*")):
        analyst = Analyst.load(fold / "tuned-0", Path("af"), Path("waveform"))
        for name in ("mitdb", "svdb"):
            database = open_database(fold / name)
            for record in database.record_ids:
                if database.split_of(record) == "test":
                    yield analyst, f"{name}/{record}", database.recording(record)


def with_leads(recording: Recording, leads: tuple[int, ...]) -> Recording:
    """The recording as if it had these leads alone."""
    signal = recording.samples
    assert signal is not None, f"{recording.path} has a signal"
    return replace(
        recording,
        lead_names=tuple(recording.lead_names[lead] for lead in leads),
        units=tuple(recording.units[lead] for lead in leads),
        steps=(),
        samples=lambda start, stop, chosen: signal(start, stop, [leads[lead] for lead in chosen]),
    )


def confusion_of(analyst: Analyst, recording: Recording) -> Counts:
    """Annotated classes of beats by those found, int64 `[6, 6]`, see `LABELS`."""
    found, known = analyst.analyze(recording), recording.annotations
    assert known is not None, f"{recording.path} is annotated"
    match = match_beats(known.sample, found.sample, recording.rate_hz)
    named = np.array([LABELS.index(symbol) if symbol in LABELS else OTHER for symbol in found.symbol], np.int64)
    truth = known.beat_classes().astype(np.int64)
    truth[(truth < 0) | (truth >= OTHER)] = OTHER
    counts = np.zeros((len(LABELS), len(LABELS)), np.int64)
    np.add.at(counts, (truth[match.reference], named[match.detected]), 1)
    counts[:, NONE] = np.bincount(truth[match.missed], minlength=len(LABELS))
    counts[NONE] = np.bincount(named[match.extra], minlength=len(LABELS))
    counts[OTHER] = 0  # no beat to be named
    return counts


def main() -> None:
    parser = options(__doc__, "quality", "work")
    settings = parser.parse_args()
    limit_threads(1)

    def measure() -> dict[str, NDArray[np.generic]]:
        found, patients = {name: list[Counts]() for name in LEADS}, list[str]()
        for analyst, patient, recording in held_out(settings.quality):
            patients.append(patient)
            for name, leads in LEADS.items():
                found[name].append(confusion_of(analyst, with_leads(recording, leads)))
        return {"patients": np.array(patients), **{name: np.stack(each) for name, each in found.items()}}

    found = kept(settings.work / "confusions.npz", measure)
    patients = found["patients"].tolist()
    enough = {index: found[BOTH][:, index].sum(axis=1) >= FEWEST_S for index in (S, V)}
    measures: dict[str, Score] = {"V F1": f1_of(V), "S F1": f1_of(S), MEAN_S: macro_s(enough[S])}
    cell = partial(interval, num_bootstrap=2000)
    scores = Table(f"{len(patients)} held-out patients, F1 with 95 % interval by patients", ("leads", *measures))
    differences = Table("Paired differences", ("difference", *measures))
    for name in LEADS:
        scores.add(name, *(cell(score, found[name]) for score in measures.values()))
        if name != FIRST:
            cells = (cell(score, found[name], found[FIRST]) for score in measures.values())
            differences.add(f"{name} − {FIRST}", *cells)
    below = Table(
        f"Patients in which both leads are more than {BELOW} below the better one",
        ("patient", "class", "beats", *LEADS),
    )
    for index, of in enough.items():
        f1 = {name: one_each(found[name], index) for name in LEADS}
        best = np.max([f1[name] for name in LEADS if name != BOTH], axis=0)
        for place in np.flatnonzero(of & (f1[BOTH] < best - BELOW)).tolist():
            number = int(found[BOTH][place, index].sum())
            below.add(patients[place], "NSVF"[index], number, *(f"{each[place]:.3f}" for each in f1.values()))
    write_results("two_leads", "Two leads of patients never seen, detected beats", [scores, differences, below])


def one_each(confusions: Counts, index: int) -> NDArray[np.float64]:
    """F1 of a class in each patient."""
    right, truth, called = parts(confusions, index)
    return ratio(2 * right, truth + called)


if __name__ == "__main__":
    main()
