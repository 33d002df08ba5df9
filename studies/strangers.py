"""Recordings of people and devices that no model was trained on or chosen by: the second selection set.

    python -m studies.strangers --data ../shared/data --work FOLDER
    python -m studies.strangers --data ../shared/data --work FOLDER --before RUN --before-foundation RUN

Recordings are analysed as a user would, `heartlm analyze`, one of a hand-held device at a time (CinC 2017) or twelve
leads of ten seconds (PTB-XL). Of CinC 2017 the first recordings of each label by the SHA-256 of their names are used:
the beats models learn from normal ones and AF, but from none of the first 1,000 and 200. Of PTB-XL folds 7 and 8 are
used, of which nothing was learnt. A finding of a recording is right where the recording has the label; no beat of them
is annotated.

The probe is a logistic regression on one vector of all leads per recording (`embed`, level recording), for the five
diagnostic superclasses, trained on folds 1 to 6 of the recordings here and scored on folds 7 and 8. The same model from
random initialisation, and the mean waveform of each lead in millivolts with the mean and spread of RR intervals, by the
same regression, show what pretraining gives.

Everything is shown for the shipped models, and for those of `--before`. Intervals are by bootstrap over patients. Look
here rarely, and add a line to `results/looks.md`: what is chosen by these recordings is no stranger any more.
"""

from __future__ import annotations

import csv
import json
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from heartlm.api import load_model
from heartlm.corpus.encode import SelectedLeads, Unusable, usable_leads
from heartlm.databases.database import open_database
from heartlm.evaluation.bootstrap import Resampling, ratio
from heartlm.models.answering import answering
from heartlm.models.store import build_model, geometry_of
from heartlm.models.store import load_model as load_torch_model
from heartlm.system.cores import limit_threads
from lab.intervals import shown
from lab.measure import Table
from lab.output import write_results
from lab.places import labels_of, options, unpacked
from lab.steps import Steps
from recipes.beats import SELECTION_FOLDS, by_hash
from studies.findings import OF_PTB_XL, PtbXl, analysed, linked

Floats = NDArray[np.float64]

LABELS = {"N": 300, "~": 100, "A": 200, "O": 200}
"""Number of recordings of each label of CinC 2017: normal, too noisy, AF, other rhythms."""
CLASSES = ("NORM", "MI", "STTC", "CD", "HYP")
OF_LEADS = {kind: OF_PTB_XL[kind] for kind in ("V beat", "S beat", "AF or flutter")}
C = 3e-3
"""Inverse strength of the regularisation of the probe, chosen on folds 1 to 6."""


def hand_held(steps: Steps, name: str, cinc2017: Path, options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cells of the recordings with a finding by label, and of AF among all, in the proportions of the whole set."""
    calls: dict[str, NDArray[np.int64]] = {}
    label_of = labels_of(cinc2017)
    for label, num in LABELS.items():
        chosen = by_hash(record for record, of in label_of.items() if of == label)[:num]
        kind = {"~": "noisy"}.get(label, label)
        folder = linked(cinc2017, steps.work / "links" / f"cinc2017-{kind}", chosen)
        (folder / "database.json").write_text(json.dumps({"name": "challenge-2017"}))
        rows = []
        for _, _, _, content in analysed(steps, f"{name}-{kind}", folder, options):
            summary = content["summary"]
            found = [summary["beats"][each] for each in "VS"], [summary["events"][each] for each in ("VT", "VF", "AF")]
            rows.append([int(bool(count)) for each in found for count in each])
        calls[label] = np.array(rows, np.int64)
    drawn = {label: Resampling(2000).resample(counts) / len(counts) for label, counts in calls.items()}
    cells = [
        shown(float(calls[label][:, column].mean()), drawn[label][:, column], len(calls[label]))
        for label, columns in (("N", range(4)), ("~", (0, 2, 4)))
        for column in columns
    ]
    share = {label: sum(of == label for of in label_of.values()) for label in LABELS}
    whole = {label: counts.mean(axis=0)[None] for label, counts in calls.items()}

    def af(part: dict[str, Floats]) -> tuple[Floats, Floats, Floats]:
        called = sum(share[label] * part[label][:, 4] for label in LABELS)
        right = share["A"] * part["A"][:, 4]
        return ratio(2 * right, called + share["A"]), part["A"][:, 4], ratio(right, called)

    total = sum(map(len, calls.values()))
    of_af = [shown(float(once[0]), values, total) for values, once in zip(af(drawn), af(whole), strict=True)]
    return cells, of_af


def superclasses(ptb_xl: PtbXl, names: Sequence[str]) -> NDArray[np.int64]:
    """Whether each recording has each of `CLASSES`, `[num_recordings, 5]`."""
    with (ptb_xl.folder / "scp_statements.csv").open(newline="") as table:
        of_code = {row[""]: row["diagnostic_class"] for row in csv.DictReader(table)}
    found = [{of_code.get(code) for code in literal_eval(ptb_xl.row[name]["scp_codes"])} for name in names]
    return np.array([[int(each in classes) for each in CLASSES] for classes in found], np.int64)


def probed(ptb_xl: PtbXl, names: Sequence[str], vectors: Floats) -> list[str]:
    """Cells of the probe: macro AUROC with its interval by patients, and that of each class."""
    fold = np.array([int(ptb_xl.row[name]["strat_fold"]) for name in names])
    labels, tested = superclasses(ptb_xl, names), np.isin(fold, list(SELECTION_FOLDS))
    said = np.empty((int(tested.sum()), len(CLASSES)))
    for column in range(len(CLASSES)):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=500))
        probe.fit(vectors[~tested], labels[~tested, column])
        said[:, column] = probe.predict_proba(vectors[tested])[:, 1]
    truth, patients = labels[tested], np.array([ptb_xl.row[name]["patient_id"] for name in names])[tested]
    whose, patient_of = np.unique(patients, return_inverse=True)

    def areas(weight: NDArray[np.int64]) -> Floats:
        return np.array([roc_auc_score(truth[:, each], said[:, each], sample_weight=weight) for each in range(5)])

    once = areas(np.ones(len(truth), np.int64))
    drawn = [areas(weight[patient_of]).mean() for weight in Resampling(500).weights(len(whose))]
    return [shown(float(once.mean()), np.array(drawn), len(whose)), *(f"{value:.3f}" for value in once)]


def handmade(ptb_xl: PtbXl, names: Sequence[str]) -> Floats:
    """Mean waveform in mV of each lead from 0.25 s before to 0.45 s after its beats at 100 Hz, and RR intervals."""
    tokenizer, database = load_model("foundation").tokenizer, open_database(ptb_xl.folder)
    vectors = []
    for name in names:
        recording, row = database.recording(name), list[Floats]()
        source = SelectedLeads(recording, "train", tuple(range(12)))
        for ready in usable_leads(source, tokenizer, "detected", "warn"):
            waveform, intervals = np.zeros(70), np.zeros(1)
            if not isinstance(ready, Unusable):
                sample, time_s = ready.annotations.sample, np.arange(len(ready.signal_mv)) / recording.rate_hz
                at = sample[:, None] / recording.rate_hz + np.arange(-25, 45) / 100
                waveform = np.interp(at, time_s, np.nan_to_num(ready.signal_mv)).mean(axis=0)
                intervals = np.diff(sample) / recording.rate_hz
            row += [waveform, np.array([intervals.mean(), intervals.std()])]
        vectors.append(np.concatenate(row))
    return np.array(vectors)


def main() -> None:
    parser = options(__doc__, "work", data="the archives")
    parser.add_argument("--before", type=Path, help="another beats model, shown first")
    parser.add_argument("--before-foundation", type=Path, help="another foundation model, shown first")
    parser.add_argument("--beats", default="beats", help="the beats model")
    parser.add_argument("--foundation", default="foundation", help="the foundation model")
    parser.add_argument(
        "--only", nargs="+", choices=("cinc2017", "ptb-xl", "probe"), default=("cinc2017", "ptb-xl", "probe")
    )
    parser.add_argument("--dry", action="store_true", help="print the tables alone")
    settings = parser.parse_args()
    limit_threads(1)
    steps, kept = Steps(settings.work), settings.work / "unpacked"
    cinc2017 = unpacked(settings.data / "cinc2017-train.tar.xz", kept / "cinc2017")
    ptb_xl = PtbXl(unpacked(settings.data / "ptb-xl.tar.xz", kept / "ptb-xl"))
    normal = Table(
        "Hand-held device: share of recordings with a finding",
        ("beats model", "normal: V", "S", "VT", "VF", "too noisy: V", "VT", "AF"),
    )
    af = Table("Hand-held device: AF of recordings", ("beats model", "F1", "sensitivity", "positive predictivity"))
    columns = ("beats model", "finding", "in reference", "called", "sensitivity", "positive predictivity")
    leads = Table("Twelve leads of ten seconds, folds 7 and 8 of PTB-XL", columns)
    models = [("before", settings.before)] if settings.before else []
    for name, beats in (*models, ("shipped", settings.beats)):
        chosen = ("--beats", str(beats))
        if "cinc2017" in settings.only:
            cells, of_af = hand_held(steps, name, cinc2017, chosen)
            normal.add(name, *cells)
            af.add(name, *of_af)
        if "ptb-xl" in settings.only:
            names = ptb_xl.in_folds(SELECTION_FOLDS)
            for _, kind, _, *cells in ptb_xl.rows(steps, f"{name}-ptb-xl", names, OF_LEADS, chosen):
                leads.add(name, kind, *cells)
    probe = Table("Probe of all leads, folds 7 and 8 of PTB-XL: AUROC", ("vectors", "macro", *CLASSES))
    if "probe" in settings.only:
        models = [("before", settings.before_foundation)] if settings.before_foundation else []
        for name, foundation in (*models, ("shipped", settings.foundation)):
            model = load_model(foundation)
            for kind in (name, "random initialisation") if name == "shipped" else (name,):
                if kind != name:
                    torch.manual_seed(0)
                    trained, info = load_torch_model(model.weights)
                    geometry = geometry_of(trained.state_dict(), info.config)
                    model = replace(model, network=answering(build_model(info.config, geometry).eval()))
                found = model.embed(ptb_xl.folder, level="recording")
                probe.add(kind, *probed(ptb_xl, found.record.tolist(), found.vectors.astype(np.float64)))
        names = found.record.tolist()
        probe.add("mean waveforms and intervals", *probed(ptb_xl, names, handmade(ptb_xl, names)))
    for name, heading, tables in (
        ("strangers", "Recordings of strangers: hand-held devices and twelve leads", (normal, af, leads)),
        ("strangers-probe", "A probe of twelve leads of strangers, on vectors of all leads", (probe,)),
    ):
        if (filled := [table for table in tables if table.rows]) and not settings.dry:
            write_results(name, heading, filled)


if __name__ == "__main__":
    main()
