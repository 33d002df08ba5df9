"""Atrial fibrillation in single short recordings, patients never seen: folds over the 8,528 recordings of cinc2017.

    python -m studies.af_recordings --cinc2017 DIR --work FOLDER

Each recording is a patient of its own, 9 to 61 s of one lead, and gets one answer; one without a beat is answered "no
AF". Positive are recordings of the reference class A; classes N, O and ~ (noise) are negative. Beats are detected. For
each fold a foundation model, and for each seed one model and one from random initialisation, learn from the others.
Rivals: gradient boosting on hand-made features of the intervals and, for each facet of the tokens, the mean, deviation
and three quantiles of its codes; Zhou 2015 at its published threshold; the majority class.

The threshold of a method is the one with the best F1 on the folds that are not scored. Intervals are by bootstrap over
recordings, all seeds together. cinc2017 is selection data: nothing here is a look at a test set.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.evaluation import zhou
from heartlm.evaluation.bootstrap import Counts, Floats
from heartlm.evaluation.config import SMALLEST_WINDOW
from heartlm.evaluation.features import boosting, rr_window_features
from heartlm.evaluation.rhythm import rr_of
from heartlm.inference.leads import lead_of_row
from heartlm.inference.predictions import window_probabilities
from heartlm.tasks.load import load_finetuned
from lab.intervals import Score, interval
from lab.measure import Table
from lab.output import write_results
from lab.places import database_of, labels_of, numbers_of, options, splits_of
from lab.steps import Steps, kept
from studies.af_rhythm import MODEL, RANDOM, TREES, ZHOU, cells_of, f1, sensitivity, specificity

MAJORITY = "majority class"
METHODS = (MODEL, RANDOM, TREES, ZHOU, MAJORITY)
LEARNED = (MODEL, RANDOM, TREES)

Scores = dict[str, NDArray[Any]]
"""Of the recordings of a fold: `record`, and scores of `METHOD/SEED` or `METHOD`; NaN where there is no beat."""


def main() -> None:
    numbers = {"folds": 3, "seeds": 5, "depth": 2, "pretrain_steps": 200, "steps": 600, "window": 64}
    settings = options(__doc__, "cinc2017", "work", data="", **numbers).parse_args()
    steps, folds, reference = Steps(settings.work), list[Scores](), labels_of(settings.cinc2017)
    for fold in range(settings.folds):
        folder = settings.work / f"fold-{fold}"
        trained(steps, settings, folder, fold, sorted(reference))
        folds.append(kept(folder / "scores.npz", partial(scored, folder, reference, settings)))
    title = "Atrial fibrillation in single recordings of cinc2017, patient-wise folds"
    write_results("af_recordings", title, tables(folds, reference, settings.seeds), numbers_of(settings))


def trained(steps: Steps, settings: argparse.Namespace, folder: Path, fold: int, records: list[str]) -> None:
    """Corpus, foundation model, and for each seed a model and one from random initialisation."""
    corpus, foundation = folder / "corpus", folder / "foundation"
    # Two recordings are there twice under other names: the catalogue knows them as one patient each.
    database = open_database(settings.cinc2017)
    patients = sorted({database.patient_of(record).split("/")[1] for record in records})
    splits = splits_of(patients, settings.folds, fold)
    links = database_of(settings.cinc2017.iterdir(), folder / "cinc2017", name=database.name, splits=splits)
    tokenize = ("tokenize", links, "--tokenizer", "rhythm", "--waveforms", "--beats", "detected", "--processes", 1)
    steps.run(f"tokenize-{fold}", corpus, *tokenize, "--out", corpus)
    common = ("--corpus", corpus, "--window", settings.window, "--threads", 1, "--validate-every", 100_000)
    size = ("--depth", settings.depth, "--steps", settings.pretrain_steps)
    steps.run(f"pretrain-{fold}", foundation / "models/last", "pretrain", *common, *size, "--out", foundation)
    tune = ("finetune", foundation, "--task", "rhythm", *common, "--head", "window", "--class-balance", 0)
    tuning = ("--steps", settings.steps, "--learning-rate", 2e-3)
    steps.finetune(str(fold), folder, settings.seeds, *tune, *tuning)


def scored(folder: Path, reference: dict[str, str], settings: argparse.Namespace) -> Scores:
    """What every method says of the test recordings of a fold."""
    corpus = open_corpus(folder / "corpus")
    train, test = (measured(corpus, split) for split in ("train", "test"))
    ours = np.array([len(codes) > 1 for codes in test["codes"]])
    features = np.stack([each for each in test["features"] if each is not None])
    learn = [place for place, each in enumerate(train["features"]) if each is not None]
    labels = np.array([reference[train["record"][place]] == "A" for place in learn]).astype(np.int8)
    known = np.stack([train["features"][place] for place in learn])

    def over_all(score: NDArray[Any]) -> Floats:
        every = np.full(len(ours), np.nan)
        every[ours] = score
        return every

    beats = [codes for codes in test["codes"] if len(codes) > 1]
    entropy = np.array([each for each in test["entropy"] if each is not None])
    found: Scores = {"record": np.array(test["record"]), ZHOU: over_all(entropy >= zhou.THRESHOLD)}
    for seed in range(settings.seeds):
        trees = boosting(known, labels, seed)
        found[f"{TREES}/{seed}"] = over_all(trees.predict_proba(features)[:, 1])
        for name, kind in ((MODEL, "tuned"), (RANDOM, "scratch")):
            model = load_finetuned(folder / f"{kind}-{seed}", "last").model
            answers = [window_probabilities(model, codes[None], settings.window)[0, 1] for codes in beats]
            found[f"{name}/{seed}"] = over_all(np.array(answers))
    return found


def measured(corpus: Corpus, split: str) -> dict[str, list[Any]]:
    """Name, codes, features and entropy of each recording; the latter two None with fewer than two beats."""
    found: dict[str, list[Any]] = {"record": [], "codes": [], "features": [], "entropy": []}
    for row in corpus.records.select(split).tolist():
        lead = lead_of_row(corpus, row)
        codes, features, entropy = np.asarray(lead.tokens.codes), None, None
        if len(codes) > 1:
            rr_s, values = rr_of(lead)[None], codes.astype(np.float64)
            of_codes = [values.mean(axis=0), values.std(axis=0), *np.quantile(values, (0.1, 0.5, 0.9), axis=0)]
            features = np.concatenate([rr_window_features(rr_s)[0], *of_codes])
            entropy = zhou.window_entropy(rr_s)[0] if len(codes) >= SMALLEST_WINDOW else 0.0
        for name, value in zip(found, (lead.record_id, codes, features, entropy), strict=True):
            found[name].append(value)
    return found


def tables(folds: list[Scores], reference: dict[str, str], seeds: int) -> list[Table]:
    """Scores of all folds together, and paired differences. Recordings without a row in a corpus count as "no AF"."""
    grid = np.linspace(0.02, 0.98, 97)
    called: dict[str, list[NDArray[np.bool_]]] = {method: [] for method in METHODS}
    for method in LEARNED:
        for name in (f"{method}/{seed}" for seed in range(seeds)):
            parts = []
            for index, fold in enumerate(folds):
                others = folds[:index] + folds[index + 1 :]
                scores = np.concatenate([other[name] for other in others])
                truth = np.array([reference[each] == "A" for other in others for each in other["record"].tolist()])
                said = scores[:, None] >= grid
                f1s = 2 * (said & truth[:, None]).sum(axis=0) / (said.sum(axis=0) + truth.sum())
                parts.append(fold[name] >= grid[f1s.argmax()])
            called[method].append(np.concatenate(parts))
    records = np.concatenate([fold["record"] for fold in folds])
    called[ZHOU] = [np.concatenate([fold[ZHOU] for fold in folds]) == 1] * seeds
    called[MAJORITY] = [np.zeros(len(records), bool)] * seeds
    missing = sorted(set(reference) - set(records.tolist()))
    classes = np.array([reference[each] for each in (*records.tolist(), *missing)])
    positive = classes == "A"

    def counts(method: str, keep: NDArray[np.bool_]) -> Counts:
        total: Any = 0
        for said in called[method]:
            all_said = np.concatenate([said, np.zeros(len(missing), bool)])
            total = total + cells_of(positive, all_said)[keep]
        return np.asarray(total)

    every = np.ones(len(classes), bool)
    rows: tuple[tuple[str, Score, NDArray[np.bool_]], ...] = (
        ("F1", f1, every),
        ("sensitivity", sensitivity, every),
        ("specificity, all others", specificity, every),
        ("specificity, normal", specificity, classes == "N"),
        ("specificity, other rhythms", specificity, classes == "O"),
        ("specificity, noise", specificity, classes == "~"),
    )
    table = Table(f"{len(classes)} recordings, {int(positive.sum())} with AF", ("measure", *METHODS))
    rivals = (TREES, RANDOM, ZHOU)
    differences = Table("Paired differences: heartlm less each rival", ("measure", *rivals))
    for title, measure, keep in rows:
        of = {method: counts(method, keep) for method in METHODS}
        table.add(title, *(interval(measure, of[method]) for method in METHODS))
        differences.add(title, *(interval(measure, of[MODEL], of[rival]) for rival in rivals))
    return [table, differences]


if __name__ == "__main__":
    main()
