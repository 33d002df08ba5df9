"""AF in short recordings of one lead: fit the weights of `analysis/short_af.py`.

    python -m recipes.short_af --cinc2017 FOLDER --work FOLDER

A logistic regression on the measures of recordings of cinc2017 that `heartlm analyze` finds, weighted to the
proportions of the whole set. None of the recordings that are held out by `recipes/beats.py` or scored by
`studies/strangers.py` is used, and no normal recording that the beats model learnt from. The threshold has the best F1
on recordings left out, five folds by the SHA-256 of the names. Prints F1, sensitivity and positive predictivity in the
folds, with those of RR intervals alone on the same recordings, and writes `src/heartlm/analysis/short_af.json`.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from heartlm.analysis.short_af import AF_BY_RR, MEASURES
from heartlm.api import load_model
from heartlm.databases.database import open_database
from heartlm.evaluation.bootstrap import Resampling
from heartlm.storage.atomic import write_json
from lab.intervals import shown
from lab.places import ROOT, labels_of, options
from recipes.beats import by_hash

Floats = NDArray[np.float64]

LEARNT_FROM = {"A": slice(200, None), "O": slice(200, 1100), "N": slice(2000, 2900), "~": slice(100, None)}
"""Recordings of each label, by hash."""
NUM_FOLDS, C = 5, 0.1
FILE = ROOT / "src/heartlm/analysis/short_af.json"


def measured(cinc2017: Path, names: list[str]) -> Floats:
    """The measures of recordings, NaN where there are too few beats, and 1 where RR intervals alone tell AF."""
    analyst, database, rows = load_model("beats").analyst, open_database(cinc2017), list[list[float]]()
    for number, name in enumerate(names):
        findings = analyst.analyze(database.recording(name))
        by_rr = findings.short_af.get(AF_BY_RR, float(bool(findings.of_kind("AF"))))
        rows.append([*(findings.short_af.get(each, np.nan) for each in MEASURES), by_rr])
        if number % 100 == 0:
            print(number, "of", len(names), flush=True)
    return np.array(rows)


def fitted(measures: Floats, is_af: NDArray[np.bool_], weight: Floats) -> Floats:
    """Weights of the measures, and the offset."""
    scaler = StandardScaler().fit(measures)
    found = LogisticRegression(C=C, max_iter=1000).fit(scaler.transform(measures), is_af, weight / weight.mean())
    weights = found.coef_[0] / scaler.scale_
    return np.append(weights, found.intercept_ - weights @ scaler.mean_)


def best_threshold(odds: Floats, is_af: NDArray[np.bool_], weight: Floats) -> float:
    """The log odds from which on F1 is best."""
    order = np.argsort(-odds)
    called, right = np.cumsum(weight[order]), np.cumsum((weight * is_af)[order])
    return float(odds[order][np.argmax(2 * right / (called + weight[is_af].sum()))])


def main() -> None:
    settings = options(__doc__, "cinc2017", "work").parse_args()
    torch.set_num_threads(1)
    settings.work.mkdir(parents=True, exist_ok=True)
    label_of = labels_of(settings.cinc2017)
    of_label = {label: by_hash(name for name, of in label_of.items() if of == label) for label in LEARNT_FROM}
    names = [name for label, chosen in LEARNT_FROM.items() for name in of_label[label][chosen]]
    if not (path := settings.work / "measures.npy").exists():
        np.save(path, measured(settings.cinc2017, names))
    rows = np.load(path)
    measures, by_rr = np.column_stack([rows[:, :-1], np.ones(len(rows))]), rows[:, -1] > 0
    label = np.array([label_of[name] for name in names])
    weight = np.array([len(of_label[each]) / np.sum(label == each) for each in label])
    fold = np.array([int(sha256(f"{name}f".encode()).hexdigest(), 16) % NUM_FOLDS for name in names])
    is_af, known = label == "A", ~np.isnan(measures).any(axis=1)

    called, found = by_rr.copy(), np.full(len(names), -np.inf)
    for number in range(NUM_FOLDS):
        learnt, tested = known & (fold != number), known & (fold == number)
        weights = fitted(measures[learnt, :-1], is_af[learnt], weight[learnt])
        # Log odds of recordings that these weights were fitted to: the threshold is chosen without those tested.
        limit = best_threshold(measures[learnt] @ weights, is_af[learnt], weight[learnt])
        found[tested] = measures[tested] @ weights
        called[tested] = found[tested] >= limit
    once, drawn = np.ones((1, len(names)), np.int64), Resampling(2000).weights(len(names))

    def scores(answer: NDArray[np.bool_], times: NDArray[np.int64]) -> Floats:
        right, total, true = (times @ (weight * each) for each in (answer & is_af, answer, is_af))
        return np.stack([2 * right / (total + true), right / true, right / total])

    for name, answer in (("RR intervals alone", by_rr), ("all measures, folds", called)):
        cells = (
            shown(float(value), *rest)
            for value, *rest in zip(scores(answer, once)[:, 0], scores(answer, drawn), [len(names)] * 3, strict=True)
        )
        print(name, *cells, {each: round(float(answer[label == each].mean()), 3) for each in LEARNT_FROM})
    gain = scores(called, drawn)[0] - scores(by_rr, drawn)[0]
    print("gain of F1", shown(float((scores(called, once) - scores(by_rr, once))[0, 0]), gain, len(names)))
    weights = fitted(measures[known, :-1], is_af[known], weight[known])
    limit = best_threshold(found[known], is_af[known], weight[known])
    values = dict(zip((*MEASURES, "offset", "threshold"), [*weights.tolist(), limit], strict=True))
    write_json(FILE, {name: round(value, 4) for name, value in values.items()})


if __name__ == "__main__":
    main()
