"""Atrial fibrillation from RR intervals, in unseen patients, at every width from 16 to 512 beats.

    python -m studies.af_rhythm --data ../shared/data --ltafdb DIR --vitaldb DIR --work FOLDER

Everything is chosen in patient-wise folds over afdb, ltafdb, nsrdb and the VitalDB Arrhythmia Database, all by their
annotated beats. For each fold a foundation model, and for each seed one model of mixed widths and the same from random
initialisation, learn from the other patients and from simulated ones. Rivals: gradient boosting at each width on
hand-made features and on the measures of a window that the model reads, Zhou 2015 at its published threshold and at one
fitted at each width, and the majority class. Of selection data each recording gives at most `--windows` windows of each
width, evenly spread.

A threshold, one of all widths for the models and one of each width for the trees, is the one with the best F1 on the
folds that are not scored, with windows weighed as if one in five were in fibrillation. Models of all patients with the
threshold of all folds are then scored on all of mitdb, which has no part in any choice: each new run is a look.

Windows are labelled by the majority of beats. Intervals are by bootstrap over patients, all seeds together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.evaluation import zhou
from heartlm.evaluation.bootstrap import Counts, Floats, ratio, sum_by
from heartlm.evaluation.features import boosting
from heartlm.evaluation.rhythm import RhythmWindows, window_labels
from heartlm.inference.leads import ScoredLead, lead_of_row
from heartlm.inference.predictions import window_probabilities
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.rhythm import entropy_of, features_of
from lab.intervals import interval
from lab.measure import Table
from lab.output import write_results
from lab.places import numbers_of, options
from lab.steps import Steps, kept
from recipes.af import linked, prepared

WIDTHS = (16, 32, 64, 128, 256, 512)
MODEL, RANDOM, TREES = "heartlm", "random initialisation", "gradient boosting"
ZHOU, FITTED, MAJORITY = "Zhou 2015", "Zhou 2015, fitted", "majority class"
METHODS = (MODEL, RANDOM, TREES, ZHOU, FITTED, MAJORITY)

AF_RECORDS = ("201", "202", "203", "210", "217", "219", "221", "222")
"""The mitdb records whose annotations hold the rhythm AFIB."""
CHOOSING = ("afdb", "ltafdb", "nsrdb", "vitaldb-arrhythmia")
SHARE = 0.2
"""Of windows in fibrillation, as which thresholds are chosen."""
WEIGHTS = "{afdb: 2, ltafdb: 3, nsrdb: 1, vitaldb-arrhythmia: 2, simdb: 1}"

Scores = dict[str, NDArray[Any]]
"""Of the windows of one width: what `some_windows` knows of them, decisions of a `METHOD`, scores of `METHOD/SEED`."""


def main() -> None:
    values = {"folds": 3, "seeds": 5, "depth": 2, "pretrain_steps": 80, "steps": 300, "windows": 20}
    settings = options(__doc__, "ltafdb", "vitaldb", "work", data="afdb, nsrdb and mitdb", **values).parse_args()
    steps, folds = Steps(settings.work), list[dict[int, Scores]]()
    simulated = settings.work / "simdb"
    patients = ("--patients", 200, "--minutes", 30, "--leads", "[MLII]", "--seed", 7)
    steps.run("simulate", simulated, "data", "simulate", simulated, *patients)
    for fold in range(settings.folds):
        folder = settings.work / f"fold-{fold}"
        trained(steps, settings, folder, fold, 0.5)
        folds.append({width: scored(folder, folder / "corpus", width, settings) for width in WIDTHS})
    thresholds = {name: chosen(folds, name) for name in names(settings.seeds)}
    own = float(np.median([thresholds[f"{MODEL}/{seed}"][128] for seed in range(settings.seeds)]))
    final = settings.work / "final"
    trained(steps, settings, final, None, round(own, 3))
    mitdb, tested = settings.data / "mitdb", settings.work / "mitdb"
    tokenize = ("tokenize", mitdb, "--tokenizer-from", final / "foundation", "--beats", "annotated")
    steps.run("tokenize-mitdb", tested, *tokenize, "--out", tested)
    tables = selection_tables(folds, settings.seeds)
    of_widths = {width: scored(final, tested, width, settings) for width in WIDTHS}
    tables += test_tables(of_widths, thresholds, settings.seeds)
    about = numbers_of(settings) | {"threshold": round(own, 3)}
    write_results("af_rhythm", "Atrial fibrillation from RR intervals on patients never seen", tables, about)


def trained(steps: Steps, settings: argparse.Namespace, folder: Path, fold: int | None, threshold: float) -> None:
    """Corpus, foundation model, and for each seed a model and one from random initialisation."""
    sources = {"afdb": settings.data / "afdb", "nsrdb": settings.data / "nsrdb", "ltafdb": settings.ltafdb}
    sources["vitaldb-arrhythmia"] = settings.vitaldb
    databases = [*linked(sources, folder, settings.folds, fold), settings.work / "simdb"]
    size = (settings.depth, settings.pretrain_steps)
    tune = prepared(steps, folder.name, folder, databases, WEIGHTS, *size)
    steps.finetune(folder.name, folder, settings.seeds, *tune, "--steps", settings.steps, "--threshold", threshold)


def names(seeds: int) -> Iterator[str]:
    """Of the methods whose threshold is chosen."""
    return (f"{method}/{seed}" for method in (MODEL, RANDOM, TREES) for seed in range(seeds))


def scored(folder: Path, on: Path, width: int, settings: argparse.Namespace) -> Scores:
    """What every method says of windows of `on`, trained on the training split of the corpus in `folder`."""
    tested = open_corpus(on)
    rows = tested.records.select("test") if on.parent == folder else np.arange(len(tested.records.rows))
    most = settings.windows if on.parent == folder else None

    def rivals() -> Scores:
        windows, about = some_windows(tested, rows, width, most)
        corpus = open_corpus(folder / "corpus")
        training, known = some_windows(corpus, corpus.records.select("train"), width, settings.windows)
        keep = known["scored"]
        positive, features = known["positive"][keep], features_of(training)[keep]
        ours, entropy = features_of(windows), entropy_of(windows)
        found: Scores = about | {
            ZHOU: entropy >= zhou.THRESHOLD,
            FITTED: entropy >= fit_threshold(entropy_of(training)[keep], positive),
            MAJORITY: np.full(len(windows), bool(positive.mean() > 0.5)),
        }
        for seed in range(settings.seeds):
            found[f"{TREES}/{seed}"] = boosting(features, positive.astype(np.int8), seed).predict_proba(ours)[:, 1]
        return found

    def models() -> Scores:
        windows, _ = some_windows(tested, rows, width, most)
        found: Scores = {}
        for seed in range(settings.seeds):
            for name, kind in ((MODEL, "tuned"), (RANDOM, "scratch")):
                model = load_finetuned(folder / f"{kind}-{seed}", "last").model
                judged = windows.judged(windows.codes, partial(window_probabilities, model, window=width))
                found[f"{name}/{seed}"] = judged[:, 1].astype(np.float64)
        return found

    end = f"{on.name}-{width}.npz"
    return kept(folder / f"rivals-{end}", rivals) | kept(folder / f"models-{end}", models)


def fit_threshold(scores: Floats, fibrillates: NDArray[np.bool_]) -> float:
    """Find the threshold with the largest Se + Sp on labelled windows.

    Args:
        scores: scaled entropy, `[num_windows]`.
        fibrillates: the label of each window, with at least one of either kind.

    Raises:
        ValueError: only one kind of window is present.
    """
    num_positive = np.count_nonzero(fibrillates)
    if num_positive in (0, len(fibrillates)):
        raise ValueError("a threshold needs windows with and windows without fibrillation")
    order = np.argsort(scores)
    candidates, first = np.unique(scores[order], return_index=True)
    positives_below = np.concatenate([[0], np.cumsum(fibrillates[order])])[first]
    negatives_below = first - positives_below
    gain = negatives_below / (len(fibrillates) - num_positive) - positives_below / num_positive
    return float(candidates[np.argmax(gain)])


def some_windows(corpus: Corpus, rows: NDArray[np.int64], width: int, most: int | None) -> tuple[RhythmWindows, Scores]:
    """At most `most` windows of each recording, evenly spread, or all; and what is known of them."""
    parts, ectopic, leads = list[RhythmWindows](), list[Floats](), list[ScoredLead]()
    for row in rows.tolist():
        lead = lead_of_row(corpus, row)
        if not lead.tokens.num_tokens:
            continue
        windows = RhythmWindows.of([lead], width)
        these = np.unique(
            np.linspace(0, len(windows) - 1, min(most or len(windows), len(windows))).round().astype(np.int64)
        )
        beats = np.asarray(lead.tokens.beat_class)
        ectopic.append(np.array([np.isin(beats[i * width : (i + 1) * width], (1, 2)).mean() for i in these]))
        parts.append(windows.chosen(these))
        leads += [lead] * len(these)
    arrays = [field.name for field in fields(RhythmWindows) if field.name != "num_left_over"]
    every: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    windows = RhythmWindows(**every, num_left_over=0)
    labels = window_labels(windows.rhythm, length=windows.length)
    about: Scores = {
        "patient": np.array([lead.patient_id for lead in leads]),
        "database": np.array([lead.database for lead in leads]),
        "record": np.array([lead.record_id for lead in leads]),
        "positive": labels == 1,
        "scored": labels >= 0,
        "ectopic": np.concatenate(ectopic),
    }
    for flutter in ("positive", "left out"):
        other = window_labels(windows.rhythm, flutter=flutter, length=windows.length)
        about |= {f"positive, flutter {flutter}": other == 1, f"scored, flutter {flutter}": other >= 0}
    return windows, about


def chosen(folds: list[dict[int, Scores]], name: str) -> dict[int, float]:
    """The threshold of a method at every width, from `folds`: one of each width for trees, else one of all."""
    of_widths: dict[int, Floats] = {}
    grid = np.linspace(0.02, 0.98, 97)
    for width in WIDTHS:
        kept = [np.isin(each[width]["database"], CHOOSING) & each[width]["scored"] for each in folds]
        score = np.concatenate([each[width][name][keep] for each, keep in zip(folds, kept, strict=True)])
        positive = np.concatenate([each[width]["positive"][keep] for each, keep in zip(folds, kept, strict=True)])
        found = (score[positive][:, None] >= grid).mean(axis=0)
        false = (score[~positive][:, None] >= grid).mean(axis=0)
        of_widths[width] = 2 * SHARE * found / (SHARE * (1 + found) + (1 - SHARE) * false)
    if not name.startswith(TREES):
        of_widths = dict.fromkeys(WIDTHS, np.asarray(np.mean(list(of_widths.values()), axis=0)))
    return {width: float(grid[f1.argmax()]) for width, f1 in of_widths.items()}


def decisions(scores: Scores, method: str, thresholds: dict[str, float], seeds: int) -> list[NDArray[np.bool_]]:
    """Of a method, one array a seed."""
    if method in scores:
        return [scores[method]] * seeds
    return [scores[name] >= thresholds[name] for name in (f"{method}/{seed}" for seed in range(seeds))]


def counts_of(
    scores: Scores, thresholds: dict[str, float], keep: NDArray[np.bool_], seeds: int, flutter: str = "negative"
) -> dict[str, Counts]:
    """For each method tp, fp, fn and tn of every patient, `[patients, 4]`, summed over seeds."""
    suffix = "" if flutter == "negative" else f", flutter {flutter}"
    keep = keep & scores[f"scored{suffix}"]
    truth, patients = scores[f"positive{suffix}"][keep], scores["patient"][keep].tolist()
    counted = dict[str, Counts]()
    for method in METHODS:
        total: Any = 0
        for called in decisions(scores, method, thresholds, seeds):
            said = called[keep]
            total = total + sum_by(patients, cells_of(truth, said))[1]
        counted[method] = total
    return counted


def cells_of(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> Counts:
    """Whether each case is a true positive, false positive, false negative or true negative, `[cases, 4]`."""
    return np.stack([truth & said, ~truth & said, truth & ~said, ~truth & ~said], axis=1).astype(np.int64)


def f1(drawn: Counts, counts: Counts) -> Floats:
    tp, fp, fn, _ = np.moveaxis(drawn @ counts, -1, 0)
    return ratio(2 * tp, 2 * tp + fp + fn)


def specificity(drawn: Counts, counts: Counts) -> Floats:
    _, fp, _, tn = np.moveaxis(drawn @ counts, -1, 0)
    return ratio(tn, tn + fp)


def sensitivity(drawn: Counts, counts: Counts) -> Floats:
    tp, _, fn, _ = np.moveaxis(drawn @ counts, -1, 0)
    return ratio(tp, tp + fn)


def together(folds: list[dict[int, Scores]], width: int, seeds: int) -> tuple[Scores, dict[str, float]]:
    """All folds at one width; each method's scores less the threshold that the other folds choose, so from 0 on."""
    parts = []
    for index, fold in enumerate(folds):
        others = folds[:index] + folds[index + 1 :]
        part = dict(fold[width])
        for name in names(seeds):
            part[name] = part[name] - chosen(others, name)[width]
        parts.append(part)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return joined, dict.fromkeys(names(seeds), 0.0)


Keep = Callable[[Scores], NDArray[np.bool_]]


def add_rows(
    scores: Table, differences: Table, width: int, title: str, measure: Any, counts: dict[str, Counts]
) -> None:
    scores.add(title, width, *(interval(measure, counts[method]) for method in METHODS))
    rivals = (TREES, ZHOU, FITTED, RANDOM)
    differences.add(title, width, *(interval(measure, counts[MODEL], counts[rival]) for rival in rivals))


def selection_tables(folds: list[dict[int, Scores]], seeds: int) -> list[Table]:
    """Scores in patient-wise folds, and paired differences."""
    chosen_sets: dict[str, tuple[Any, Keep]] = {
        "afdb, F1": (f1, lambda s: s["database"] == "afdb"),
        "ltafdb, F1": (f1, lambda s: s["database"] == "ltafdb"),
        "VitalDB, F1": (f1, lambda s: s["database"] == "vitaldb-arrhythmia"),
        "nsrdb, specificity": (specificity, lambda s: s["database"] == "nsrdb"),
        "one beat in ten ectopic, specificity": (
            specificity,
            lambda s: np.isin(s["database"], CHOOSING) & (s["ectopic"] >= 0.1),
        ),
    }
    scores = Table("Patient-wise folds, with 95 % interval by patients", ("windows", "beats", *METHODS))
    differences = Table(
        "Paired differences in patient-wise folds: heartlm less each rival",
        ("windows", "beats", TREES, ZHOU, FITTED, RANDOM),
    )
    joined = {width: together(folds, width, seeds) for width in WIDTHS}
    for title, (measure, keep) in chosen_sets.items():
        for width, (every, thresholds) in joined.items():
            add_rows(scores, differences, width, title, measure, counts_of(every, thresholds, keep(every), seeds))
    return [scores, differences]


def test_tables(found: dict[int, Scores], thresholds: dict[str, dict[int, float]], seeds: int) -> list[Table]:
    """mitdb, with flutter counted three ways."""
    scores = Table("mitdb, which no choice has seen", ("windows", "beats", *METHODS))
    differences = Table(
        "Paired differences on mitdb: heartlm less each rival", ("windows", "beats", TREES, ZHOU, FITTED, RANDOM)
    )
    sets: dict[str, tuple[Any, str, Keep]] = {
        f"all 48 records, {name}, flutter {flutter}": (measure, flutter, lambda s: s["database"] == "mitdb")
        for flutter in ("negative", "left out", "positive")
        for name, measure in (("F1", f1), ("sensitivity", sensitivity), ("specificity", specificity))
    }
    sets["8 records with AF, F1, flutter negative"] = f1, "negative", lambda s: np.isin(s["record"], AF_RECORDS)
    for title, (measure, flutter, keep) in sets.items():
        for width, of in found.items():
            at = {name: each[width] for name, each in thresholds.items()}
            add_rows(scores, differences, width, title, measure, counts_of(of, at, keep(of), seeds, flutter))
    return [scores, differences]


if __name__ == "__main__":
    main()
