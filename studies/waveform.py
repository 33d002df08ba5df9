"""Ventricular fibrillation in unseen patients: the waveform task compared with a random forest on published features.

    python -m studies.waveform --data ../shared/data --cinc2017 FOLDER --nstdb FOLDER --work FOLDER

Everything about the network is chosen here, on selection data: patient-wise folds over cudb, DS1 of mitdb, svdb, the
noise of nstdb (118 of nstdb is 118 of mitdb, and is left out) and some recordings of cinc2017. DS2 has no part in it.
For each fold and seed the network learns from the other patients; the forest learns from the same windows, with one
seed. Thresholds are those at which Se − 0.93 and Sp − 0.95 are closest to each other on cudb in the other folds.

Windows of 4 s, one a second, first lead, with one label throughout. In cudb only fibrillation is annotated: the ten
seconds before it are left out, and the rest of it counts as no fibrillation although much of it is tachycardia.
Intervals are by bootstrap over patients, all seeds of a patient together. Steps that are done are not repeated.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import open_corpus
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.rhythm import Verdicts
from heartlm.evaluation.scored import leads_of_corpus
from heartlm.inference.waveform import class_probabilities, vf_scores
from heartlm.labels.waveform import ASYSTOLE, NOISE, NOT_VF, OTHER, VF, VT
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.waveform import WaveformWindows, forest_verdicts, score_vf
from lab.measure import Table
from lab.output import write_results
from lab.places import numbers_of, options
from lab.steps import Steps, kept
from recipes.vf import linked, patients_of, prepared

Windows = dict[str, NDArray[Any]]
NETWORK, FOREST, MAJORITY = "network", "forest on 12 features", "majority class"
WANTED_SE, WANTED_SP = 0.93, 0.95
OTHERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "mitdb 207, flutter": (("mitdb",), (VF,)),
    "DS1, other rhythms": (("mitdb",), (OTHER,)),
    "svdb, other rhythms": (("svdb",), (OTHER,)),
    "VT of DS1 and svdb": (("mitdb", "svdb"), (VT,)),
    "nstdb, noise": (("nstdb",), (NOISE,)),
    "cinc2017, noisy": (("challenge-2017",), (NOISE,)),
    "cinc2017, other": (("challenge-2017",), (OTHER, ASYSTOLE)),
}
"""Columns of the second table: databases and labels of their windows."""


def measured(settings: argparse.Namespace) -> dict[str, list[Windows]]:
    """For each method and seed the windows of all folds; see `judged` and `joined`."""
    steps, work = Steps(settings.work), settings.work
    folders = {name: settings.data / name for name in ("cudb", "mitdb", "svdb")}
    folders |= {"nstdb": settings.nstdb, "cinc2017": settings.cinc2017}
    records = patients_of(settings.data, settings.cinc2017)
    found: dict[str, list[list[Windows]]] = {NETWORK: [], FOREST: []}
    for fold in range(settings.folds):
        folder = work / f"fold-{fold}"
        corpus = folder / "corpus"
        tune = prepared(steps, str(fold), folder, linked(folders, folder, records, settings.folds, fold))
        tune += ("--steps", settings.steps)
        for seed in range(settings.seeds):
            run = folder / f"{settings.name}-{seed}"
            steps.run(f"{settings.name}-{fold}-{seed}", run / "models/last", *tune, "--seed", seed, "--out", run)
            for method in [NETWORK] if seed else found:
                name = settings.name if method == NETWORK else "forest"
                windows = kept(folder / f"{name}-{seed}.npz", partial(judged, run, corpus, method, seed))
                while len(found[method]) <= seed:
                    found[method].append([])
                found[method][seed].append(windows | {"fold": np.full(len(windows["label"]), fold)})
    return {method: [joined(parts) for parts in of_seed] for method, of_seed in found.items()}


def joined(folds: list[Windows]) -> Windows:
    """The windows of all folds, the threshold of each, and whether it is called VF."""
    windows = {key: np.concatenate([fold[key] for fold in folds]) for key in folds[0]}
    threshold = thresholds_of(windows)
    return windows | {"threshold": threshold, "called": windows["score"] >= threshold}


def judged(run: Path, corpus: Path, method: str, seed: int) -> Windows:
    """Label, patient, probability of VF, and `vf_scores` of every window of the fold's patients."""
    tuned = load_finetuned(run, "last")
    leads = leads_of_corpus(open_corpus(corpus), EvaluationConfig()).leads
    windows = WaveformWindows.of(leads)
    shown = {"patient": np.array([lead.patient_id for lead in leads])[windows.lead], "label": windows.labels}
    if method == NETWORK:
        probabilities = class_probabilities(tuned.model, windows.codes, windows.lead)
        return shown | {"score": vf_scores(probabilities), "probability": probabilities[:, VF]}
    score = forest_verdicts(windows, tuned, seed).score
    return shown | {"score": score, "probability": score}


def thresholds_of(windows: Windows) -> NDArray[np.float64]:
    """The threshold of each window: the best on cudb in the folds that the window is not in."""
    on_cudb, threshold = of_database(windows, "cudb"), np.empty(len(windows["label"]))
    for fold in np.unique(windows["fold"]):
        other = on_cudb & (windows["fold"] != fold) & np.isin(windows["label"], (OTHER, NOT_VF, VF))
        score, is_vf = windows["score"][other], windows["label"][other] == VF
        tried = np.quantile(score, np.linspace(0.3, 1, 701))
        se, sp = np.array([((score[is_vf] >= at).mean(), (score[~is_vf] < at).mean()) for at in tried]).T
        threshold[windows["fold"] == fold] = tried[np.argmax(np.minimum(se - WANTED_SE, sp - WANTED_SP))]
    return threshold


def of_database(windows: Windows, name: str) -> NDArray[np.bool_]:
    return np.char.startswith(windows["patient"], f"{name}/")


def scored(seeds: list[Windows], database: str) -> dict[str, Any]:
    """Scores over the windows of all seeds."""
    parts = [of_database(each, database) for each in seeds]
    label, patient, probability, called = (
        np.concatenate([each[key][part] for each, part in zip(seeds, parts, strict=True)])
        for key in ("label", "patient", "probability", "called")
    )
    return score_vf(Verdicts(probability, positive=called), label, patient, EvaluationConfig().resampling)


def cell(entry: dict[str, Any] | None) -> str:
    if entry is None or entry["value"] is None:
        return "–"
    low, high = entry["ci"]
    return f"{entry['value']:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None else "")


def tables_of(found: dict[str, list[Windows]]) -> list[Table]:
    """Scores of every method by database, and the hardest patients of cudb."""
    on_cudb = Table(
        "cudb, 35 patients, 95 % intervals by patient",
        ("method", "AUC", "Se", "Sp", "Se by seed", "Sp by seed", "thresholds"),
    )
    others = Table("Other databases, at the same thresholds: share of windows called VF", ("method", *OTHERS))
    for method, seeds in found.items():
        block, each = scored(seeds, "cudb"), [scored([seed], "cudb") for seed in seeds]
        by_seed = [[entry[key]["value"] for entry in each] for key in ("se", "sp")]
        at = np.concatenate([np.unique(seed["threshold"]) for seed in seeds])
        spread = [f"{min(values):.3f}–{max(values):.3f}" for values in (*by_seed, at.tolist())]
        on_cudb.add(method, *(cell(block[key]) for key in ("auroc", "se", "sp")), *spread)
        others.add(method, *(called_share(seeds, *which) for which in OTHERS.values()))
    on_cudb.add(MAJORITY, "0.500", "0.000", "1.000", "–", "–", "–")  # never VF
    others.add(MAJORITY, *["0.000"] * len(OTHERS))
    names = ("patient", "windows of VF", "Se", "other windows", "Sp")
    hardest = Table("The dozen hardest patients of cudb, network, mean over seeds", names)
    for patient, *numbers in sorted(by_patient(found[NETWORK]), key=lambda entry: np.nanmin([entry[2], entry[4]]))[:12]:
        shown = [
            "–" if number != number else f"{number:.3f}" if isinstance(number, float) else number for number in numbers
        ]
        hardest.add(patient, *shown)
    return [on_cudb, others, hardest]


def called_share(seeds: list[Windows], databases: tuple[str, ...], labels: tuple[int, ...]) -> str:
    """Share of the windows of `labels` in `databases` that are called VF, over all seeds."""
    called, total = 0, 0
    for each in seeds:
        part = np.isin(each["label"], labels) & np.logical_or.reduce([of_database(each, name) for name in databases])
        called += int(each["called"][part].sum())
        total += int(part.sum())
    return f"{called / total:.4f}" if total else "–"


def by_patient(seeds: list[Windows]) -> list[tuple[str, int, float, int, float]]:
    """Of each patient of cudb: windows of VF, Se, other windows, Sp."""
    rows = []
    first = seeds[0]
    for patient in np.unique(first["patient"][of_database(first, "cudb")]).tolist():
        own = first["patient"] == patient
        is_vf = first["label"][own] == VF
        other = np.isin(first["label"][own], (OTHER, NOT_VF))
        called = np.mean([each["called"][own] for each in seeds], axis=0)
        se = float(called[is_vf].mean()) if is_vf.any() else np.nan
        rows.append((patient, int(is_vf.sum()), se, int(other.sum()), float(1 - called[other].mean())))
    return rows


def main() -> None:
    parser = options(__doc__, "cinc2017", "nstdb", "work", data="cudb, mitdb and svdb", folds=5, seeds=5, steps=5000)
    parser.add_argument("--name", default="run", help="of the runs; another name trains again on the same corpora")
    parser.add_argument("--dry", action="store_true", help="show the tables, write no result files")
    settings = parser.parse_args()
    tables = tables_of(measured(settings))
    if not settings.dry:
        title = "Ventricular fibrillation: patient-wise folds, windows of 4 s, first lead"
        write_results("waveform", title, tables, numbers_of(settings))


if __name__ == "__main__":
    main()
