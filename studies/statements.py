"""Statements about recordings of twelve leads: the network, its trees and others, on folds 7 and 8 of PTB-XL.

    python -m studies.statements --data ../shared/data --work FOLDER

All learn from folds 1 to 6 (of what is there). heartlm's is the selection model of `recipes/statements.py`, taken from
the same work folder if it is there. `residual` is a residual CNN in one dimension with a weight for each lead, on the
same windows and augmentation, alone and as two members. Trees and logistic regression read a summary of the beats.
Differences are of the same patients. Folds 7 and 8 chose the form of the model and its thresholds, so F1, and what
`heartlm analyze` finds by this model, are a little too high; AUROC is free of thresholds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.ecg.statements import SUPERCLASSES
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.rhythm import auroc
from heartlm.evaluation.statements import logistic_probabilities
from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.statements import statement_probabilities
from heartlm.labels.statements import stated_labels, stated_of
from heartlm.models.answering import answering
from heartlm.models.leads import LeadsNetwork
from heartlm.models.store import load_model
from heartlm.runs.run_folder import RunFolder
from heartlm.system.cores import limit_threads
from lab.intervals import shown
from lab.measure import Table
from lab.output import write_results
from lab.places import options, unpacked
from lab.steps import Steps, kept
from recipes.statements import HELD_OUT, SELECTION, TABLES, folds_of, prepared
from studies.findings import PtbXl

Floats = NDArray[np.float64]

SHOWN = ("AFIB", "AFLT", "PVC", "PAC", "CLBBB", "CRBBB", "IRBBB", "LAFB", "1AVB", "SARRH", "LVH", "IMI", "ASMI")
OF_PTB_XL = {
    "AF or flutter": ("AFIB", "AFLT"),
    "V beat": ("PVC",),
    "V beat (code or words)": ("PVC", "VES"),
    "S beat": ("PAC",),
    "LBBB": ("CLBBB",),
    "RBBB": ("CRBBB",),
    "AV block I": ("1AVB",),
    "VT": (),
}
"""Findings of `heartlm analyze`, and the SCP codes that say the same."""


def network_probabilities(run: RunFolder, codes: list[NDArray[np.uint16]], with_trees: bool) -> Floats:
    """What the last model of a run says, with or without its trees."""
    model, info = load_model(run.model("last"))
    assert isinstance(model, LeadsNetwork)
    if not with_trees:
        model.trees = None
    return np.array(list(statement_probabilities(answering(model), codes, info.window)))


def by_method(steps: Steps, corpus: Corpus, runs: dict[str, RunFolder]) -> tuple[dict[str, Floats], Floats]:
    """Probabilities of each method, and the labels, of the validation split."""
    _, info = load_model(runs["heartlm"].model("last"))
    rows = {split: corpus.records.select(split).tolist() for split in ("train", "validation")}
    labels = stated_labels(stated_of(corpus), info.classes)
    codes = [corpus.codes[corpus.tokens_of(row)] for row in rows["validation"]]

    def measure() -> dict[str, Floats]:
        summaries = {
            split: np.stack([np.asarray(beat_summary(corpus.codes[corpus.tokens_of(row)])) for row in own])
            for split, own in rows.items()
        }
        model, _ = load_model(runs["heartlm"].model("last"))
        assert isinstance(model, LeadsNetwork)
        assert model.trees is not None
        of_trees = model.trees(torch.from_numpy(summaries["validation"])).numpy()
        known = labels[rows["train"]]
        return {
            "logistic regression": logistic_probabilities(summaries["train"], known, summaries["validation"]),
            "residual CNN": network_probabilities(runs["residual"], codes, False),
            "two residual CNNs": network_probabilities(runs["residuals"], codes, False),
            "trees": 1 / (1 + np.exp(-of_trees)),
            "network of leads": network_probabilities(runs["heartlm"], codes, False),
            "heartlm": network_probabilities(runs["heartlm"], codes, True),
        }

    return kept(steps.work / "probabilities.npz", measure), labels[rows["validation"]]


def selection_corpus(work: Path, data: Path) -> tuple[Steps, Path, Path, tuple[object, ...]]:
    """Build the corpus of folds 1 to 8 as the recipe does.

    Returns:
        The steps, the unpacked database, the folder in `work` with the corpus, and the command that trains on it.
    """
    limit_threads(1)
    steps, work = Steps(work), work.resolve()
    packed = unpacked(data / "ptb-xl.tar.xz", work / "ptb-xl", flat=False)
    source, folder = next(packed.rglob(TABLES[0])).parent, work / "selection"
    folds = folds_of(source, folder / "ptb-xl", SELECTION, HELD_OUT)
    return steps, source, folder, prepared(steps, "selection", folds, folder / "corpus")


def main() -> None:
    """Train the rivals, score all and write the results."""
    settings = options(__doc__, "work", data="the archive of PTB-XL").parse_args()
    steps, source, folder, words = selection_corpus(settings.work, settings.data)
    work = folder.parent
    runs = {"heartlm": folder / "run"}
    steps.run("selection", runs["heartlm"] / "models/last", *words, "--out", runs["heartlm"])
    for name, members in (("residual", 1), ("residuals", 2)):
        runs[name] = work / name
        more = ("--network", "residual", "--members", members, "--no-trees", "--out", runs[name])
        steps.run(name, runs[name] / "models/last", *words, *more)
    corpus = open_corpus(folder / "corpus")
    found, labels = by_method(steps, corpus, {name: RunFolder(run) for name, run in runs.items()})
    names = load_model(RunFolder(runs["heartlm"]).model("last"))[1].classes
    whose = corpus.records.patient_id[corpus.records.select("validation")]
    patients, patient = np.unique(whose, return_inverse=True)
    weights = np.concatenate([np.ones((1, len(patients)), np.int64), Resampling(1000).weights(len(patients))])

    def areas(probabilities: Floats, name: str) -> Floats:
        place = names.index(name)
        known = labels[:, place] >= 0
        return auroc(labels[known, place] == 1, probabilities[known, place], patient[known], weights)

    groups = {
        "superclasses": SUPERCLASSES,
        "all statements": names,
        **{name: (name,) for name in SHOWN if name in names},
    }
    table = Table("AUROC on folds 7 and 8 of PTB-XL", ("statement", "recordings", *found, "heartlm - residual CNN"))
    for title, group in groups.items():
        own = {method: np.nanmean([areas(each, name) for name in group], axis=0) for method, each in found.items()}
        cells = [shown(float(each[0]), each[1:], len(patients)) for each in own.values()]
        less = own["heartlm"] - own["residual CNN"]
        support = int((labels[:, names.index(title)] == 1).sum()) if title in names else len(labels)
        table.add(title, support, *cells, shown(float(less[0]), less[1:], len(patients), "+"))
    columns = ("data", "finding", "method", "in reports", "called", "sensitivity", "positive predictivity")
    analysed, ptb_xl = Table("Through `heartlm analyze`", columns), PtbXl(source)
    held_out = ptb_xl.in_folds(HELD_OUT)
    for row in ptb_xl.rows(steps, "held-out", held_out, OF_PTB_XL, ("--statements", str(runs["heartlm"]))):
        analysed.add("folds 7 and 8", *row[1:])
    # A normal ECG may have AF or premature beats by the same report: what is found there is not false.
    stated = {"AFIB", "AFLT", "PVC", "VES", "PAC"}
    normal = [name for name in held_out if "NORM" in (codes_of := ptb_xl.codes_of(name)) and not codes_of & stated]
    codes = dict.fromkeys(("V beat", "S beat", "AF or flutter", "VT"), ())
    for row in ptb_xl.rows(steps, "normal", normal, codes, ("--statements", str(runs["heartlm"]))):
        analysed.add(f"{len(normal)} normal of them", *row[1:])
    write_results("statements", "Statements about recordings of twelve leads", [table, analysed])


if __name__ == "__main__":
    main()
