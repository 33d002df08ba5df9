"""Number of labelled patients saved by pretraining: beat scores in unseen patients, with labels of k patients.

    python -m studies.labels --quality FOLDER --work FOLDER

Needs the folds of `studies/quality.py`: corpora of DS1 of mitdb and svdb, split by patients. Each fold is one draw
of labelled patients: its training patients in random order, seeded by the fold, of mitdb and svdb in turns (the first
of svdb in even folds, of mitdb in odd ones, those that are left over at the end). k patients are the first k, so 2 k
hold k. A labelled patient's beats on drawn rhythms (`recipes/retime.py`) count as his, for every method.

A foundation model learns from the recordings of all training patients without labels, in two stages: hidden tokens
(`heartlm pretrain`), then beats on rhythms drawn without labels (`recipes/retime.py --no-labels`), whose classes
follow from the drawing. Compared, each trained on the labels of k patients and scored on the fold's held-out patients:

- random initialisation, fine-tuned; the foundation model of the first stage alone, fine-tuned; of both, fine-tuned;
- logistic regression on the hidden states of the frozen foundation model, classes weighted by the inverse root of their
  frequency, from at most 20,000 beats;
- gradient boosting on hand-made features, from at most 20,000 beats; and from as many of the beats on rhythms drawn
  without labels in addition: this separates what the drawn rhythms gain from what the model gains.

Random initialisation and the whole foundation model are fine-tuned from several seeds, the others have one.
Every patient is held out in one fold, so scores are of all patients. Intervals and paired differences are by bootstrap
over patients, as in `quality.py`. A gain is claimed where pretrained(k) − random(2 k) has an interval above 0. The
scores of every fit are kept in the work folder, and a second run continues from them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.windows import covering_windows
from heartlm.evaluation.bootstrap import Counts
from heartlm.evaluation.features import boosting
from heartlm.inference.leads import lead_of_row
from heartlm.inference.predictions import token_probabilities
from heartlm.labels.tokens import beat_labels
from heartlm.models.heart import HeartModel
from heartlm.models.store import load_model
from heartlm.report.charts import Series, line_chart
from heartlm.report.figures import save_drawings
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import atomic_file
from heartlm.tasks.beats import features_of
from heartlm.tasks.finetune import finetune
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.task import FinetuneConfig
from heartlm.tokenizers.beat import BeatTokenizer
from lab.intervals import Score, interval
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps
from recipes.beats import REAL, weights_of
from studies.quality import FEWEST_S, LABELS, S, V, f1_of, macro_s

PATIENTS = (1, 2, 4, 8, 16, 32)
STEPS = {1: 100, 2: 100, 4: 100, 8: 100, 16: 150, 32: 150}
"""Of fine-tuning, 8 windows of 128 beats each; from random initialisation twice as many gained nothing
(docs/log/beats.md)."""
WEIGHTS = {"mitdb": 3, "mitdb-retimed": 1, "svdb": 6, "svdb-retimed": 2}
"""Of the databases in fine-tuning. Those of the models that ship change with their recipe; this is not their study."""
DEPTH, BATCH, MASKED_STEPS, DRAWN_STEPS = 2, 8, 500, 400
LINEAR_BEATS = TREE_BEATS = 20_000
RANDOM, MASKED, TUNED = "random initialisation, fine-tuned", "hidden tokens alone, fine-tuned", "pretrained, fine-tuned"
FROZEN, TREES, TREES_DRAWN = "pretrained, frozen + linear", "gradient boosting", "gradient boosting, with drawn rhythms"
METHODS = (RANDOM, TUNED, FROZEN, TREES, MASKED, TREES_DRAWN)
SEEDED = (RANDOM, TUNED)
"""Methods of which every seed is trained; of the others only the first."""
LAST = {MASKED: 1, TREES_DRAWN: 2}
"""What decides least is measured last."""
DRAWN = {
    RANDOM: ("random", "grey-3"),
    TREES: ("trees", "class-V"),
    FROZEN: ("frozen", "class-S"),
    TUNED: ("pretrained", "accent"),
}
"""Methods in the figures, with their names and colours there."""

Predict = Callable[[int], NDArray[np.int64]]
"""Classes of the tokens of a row."""


class Fold:
    """One fold, its draw of labelled patients, and what every method makes of them."""

    def __init__(self, fold: int, quality: Path, work: Path, steps: Steps) -> None:
        self.name, self.number, self.steps = f"fold-{fold}", fold, steps
        self.source, self.work = quality / self.name, work / self.name
        self.work.mkdir(parents=True, exist_ok=True)
        self.corpus = open_corpus(self.source / "corpus")
        self.labels = beat_labels(self.corpus.beat_class)
        records = self.corpus.records
        self.patient = np.array([patient.replace("-retimed/", "/") for patient in records.patient_id])
        self.train, self.test = records.select("train"), records.select("test")
        self.order = self._order()
        self._hidden: dict[int, NDArray[np.float32]]
        self._features: dict[int, NDArray[np.float32]]
        self._drawn: tuple[NDArray[np.float32], NDArray[np.int8]] | None
        self._model: HeartModel | None = None
        self.forget()

    def _order(self) -> list[str]:
        rng, found = np.random.default_rng(self.number), []
        for database in ("svdb/", "mitdb/"):
            patients = sorted({each for each in self.patient[self.train].tolist() if each.startswith(database)})
            found.append([patients[place] for place in rng.permutation(len(patients))])
        pairs = itertools.zip_longest(*(found if self.number % 2 == 0 else found[::-1]))
        return [patient for pair in pairs for patient in pair if patient is not None]

    def rows(self, k: int) -> NDArray[np.int64]:
        """Rows of the corpus of the first `k` patients, all leads and drawn rhythms."""
        return self.train[np.isin(self.patient[self.train], self.order[:k])]

    def forget(self) -> None:
        """Free the features."""
        self._hidden, self._features, self._drawn = {}, {}, None

    def pretrain(self) -> None:
        """Make the foundation models `masked` and `foundation`."""
        databases = []
        for name in REAL:
            databases.append(self.work / f"{name}-retimed")
            words = (self.source / name, databases[-1], "--no-labels", "--seed", 1)
            self.steps.run(f"retime-{self.number}-{name}", databases[-1], *words, module="recipes.retime")
        masked, drawn, foundation = (self.work / name for name in ("masked", "drawn", "foundation"))
        encode = ("--training-leads", "all", "--tokenizer-from", self.source / "corpus", "--processes", 1)
        self.steps.run(f"tokenize-{self.number}", drawn, "tokenize", *databases, *encode, "--out", drawn)
        size = ("--batch-size", BATCH, "--threads", 1)
        weights = ("--weights", weights_of(set(REAL), REAL))
        pretrain = ("pretrain", "--corpus", self.source / "corpus", "--depth", DEPTH, "--steps", MASKED_STEPS, *size)
        self.steps.run(f"masked-{self.number}", masked / "models/last", *pretrain, *weights, "--out", masked)
        weights = ("--weights", "{mitdb-retimed: 1, svdb-retimed: 2}")
        tune = ("finetune", masked, "--task", "beats", "--corpus", drawn, "--steps", DRAWN_STEPS, *size)
        done = foundation / "models/last"
        self.steps.run(f"foundation-{self.number}", done, *tune, *weights, "--out", foundation)

    def predictor(self, method: str, k: int, seed: int) -> Predict:
        """Train `method` on the labels of `k` patients."""
        if method in (FROZEN, TREES, TREES_DRAWN):
            return self._linear(k, seed) if method == FROZEN else self._trees(k, seed, method == TREES_DRAWN)
        out = self.work / f"run-{k}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        config = FinetuneConfig(
            run=self.work / ("foundation" if method == TUNED else "masked"),
            from_scratch=method == RANDOM,
            patients=",".join(self.order[:k]),
            corpus=self.source / "corpus",
            out=out,
            steps=STEPS[k],
            batch_size=BATCH,
            weights={name: WEIGHTS[name] for name in np.unique(self.corpus.records.database[self.rows(k)]).tolist()},
            seed=seed,
            threads=1,
            checkpoint_every=STEPS[k],
        )
        tuned = load_finetuned(finetune(config), "last")
        shutil.rmtree(out)

        def predict(row: int) -> NDArray[np.int64]:
            codes = np.asarray(self.corpus.codes[self.corpus.tokens_of(row)])
            return np.asarray(token_probabilities(tuned.model, codes, tuned.info.window).argmax(axis=1))

        return predict

    def _labelled(
        self, k: int, of_row: Callable[[int], NDArray[np.float32]], most: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """What `of_row` says of at most `most` labelled beats of `k` patients, and their classes."""
        rows = self.rows(k).tolist()
        label = np.concatenate([self.labels[self.corpus.tokens_of(row)] for row in rows]).astype(np.int8)
        chosen = drawn_from(np.flatnonzero(label >= 0), most, seed)
        return np.concatenate([of_row(row) for row in rows])[chosen], label[chosen]

    def _linear(self, k: int, seed: int) -> Predict:
        from sklearn.linear_model import LogisticRegression

        hidden, label = self._labelled(k, self.hidden, LINEAR_BEATS, seed)
        mean, spread = hidden.mean(axis=0), hidden.std(axis=0) + 1e-6
        weight = 1 / np.sqrt(np.bincount(label))[label]
        model = LogisticRegression(C=0.1, max_iter=200).fit((hidden - mean) / spread, label, weight / weight.mean())
        return lambda row: np.asarray(model.predict((self.hidden(row) - mean) / spread), np.int64)

    def _trees(self, k: int, seed: int, with_drawn: bool) -> Predict:
        features, label = self._labelled(k, self.features, TREE_BEATS, seed)
        if with_drawn:
            more, of_more = self._features_of_drawn(seed)
            features, label = np.concatenate([features, more]), np.concatenate([label, of_more])
        trees = boosting(features.astype(np.float64), label, seed)
        return lambda row: trees.predict(self.features(row)).astype(np.int64)

    def hidden(self, row: int) -> NDArray[np.float32]:
        """Hidden states of the foundation model, `[num_tokens, width]`."""
        if row not in self._hidden:
            self._model = self._model or load_model(RunFolder(self.work / "foundation").model("last"))[0]
            codes = np.asarray(self.corpus.codes[self.corpus.tokens_of(row)])
            self._hidden[row] = hidden_states(self._model, codes, FinetuneConfig.window)
        return self._hidden[row]

    def features(self, row: int) -> NDArray[np.float32]:
        """Hand-made features, `[num_tokens, num_features]`."""
        if row not in self._features:
            self._features[row] = hand_made(self.corpus, row)
        return self._features[row]

    def _features_of_drawn(self, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        if self._drawn is None:
            drawn = open_corpus(self.work / "drawn")
            label = beat_labels(drawn.beat_class).astype(np.int8)
            features = np.concatenate([hand_made(drawn, row) for row in range(len(drawn.records))])
            self._drawn = features, label
        features, label = self._drawn
        chosen = drawn_from(np.flatnonzero(label >= 0), TREE_BEATS, seed)
        return features[chosen], label[chosen]

    def confusions(self, predict: Predict) -> dict[str, list[list[int]]]:
        """Confusion matrices `[6, 6]` of the held-out patients, see `quality.LABELS`."""
        found = {}
        for row in self.test.tolist():
            label, confusion = self.labels[self.corpus.tokens_of(row)], np.zeros((len(LABELS), len(LABELS)), np.int64)
            scored = label >= 0
            np.add.at(confusion, (label[scored], predict(row)[scored]), 1)
            found[self.patient[row]] = confusion.tolist()
        return found


def drawn_from(places: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """At most `most` of `places`, in order."""
    if len(places) <= most:
        return places
    return np.sort(np.random.default_rng(seed).choice(places, most, replace=False))


def hand_made(corpus: Corpus, row: int) -> NDArray[np.float32]:
    tokenizer = corpus.tokenizer()
    assert isinstance(tokenizer, BeatTokenizer)
    return features_of(lead_of_row(corpus, row), tokenizer).astype(np.float32)


@torch.inference_mode()
def hidden_states(model: HeartModel, codes: NDArray[np.uint16], window: int) -> NDArray[np.float32]:
    """Hidden states of all tokens of a recording, read in windows side by side; `[num_tokens, width]`."""
    assert model.config.width
    found = np.zeros((len(codes), model.config.width), np.float32)
    windows = covering_windows(0, len(codes), window, window)
    for index in np.array_split(windows.index[:, : int(windows.length[0])], -(-len(windows) // 32)):
        found[index] = model.hidden(torch.from_numpy(codes[index].astype(np.int64)))[0].numpy()
    return found


def measured(settings: argparse.Namespace) -> dict[tuple[str, int], dict[str, Counts]]:
    """Confusion matrices of every patient, summed over seeds, by method and number of labelled patients."""
    steps = Steps(settings.work)
    (settings.work / "scores").mkdir(exist_ok=True)
    folds = [Fold(fold, settings.quality, settings.work, steps) for fold in range(settings.folds)]
    if not settings.so_far:
        for fold in folds:
            fold.pretrain()
    found: dict[tuple[str, int], dict[str, Counts]] = {}
    done: Counter[tuple[str, int]] = Counter()
    fits = [(method, seed) for seed in range(settings.seeds) for method in METHODS if method in SEEDED or seed == 0]
    for method, seed in sorted(fits, key=lambda fit: (LAST.get(fit[0], 0), fit[1])):
        for fold in folds:
            for k in PATIENTS:
                path = settings.work / "scores" / f"{fold.name}-{METHODS.index(method)}-{k}-{seed}.json"
                if not path.exists():
                    if settings.so_far:
                        continue
                    confusions = fold.confusions(fold.predictor(method, k, seed))
                    with atomic_file(path) as stream:
                        json.dump(confusions, stream)
                    print(path.name, method, flush=True)
                done[method, k] += 1
                of_patient = found.setdefault((method, k), {})
                for patient, confusion in json.loads(path.read_text()).items():
                    of_patient[patient] = of_patient.get(patient, 0) + np.array(confusion, np.int64)
            fold.forget()
    complete = {key for key, number in done.items() if number == len(folds) * sum(key[0] == each for each, _ in fits)}
    return {key: of_patient for key, of_patient in found.items() if key in complete}


def tables_of(found: dict[tuple[str, int], dict[str, Counts]], seeds: int) -> list[Table]:
    """Scores, and the differences that decide whether labels are saved."""
    patients = sorted(next(iter(found.values())))
    confusions = {key: np.stack([of[patient] for patient in patients]) for key, of in found.items()}
    fewest = FEWEST_S * max(seeds if method in SEEDED else 1 for method, _ in found)
    enough = np.max([each[:, S].sum(axis=1) for each in confusions.values()], axis=0) >= fewest
    measures = {"V F1": f1_of(V), "S F1, mean over patients": macro_s(enough), "S F1, pooled": f1_of(S)}
    files = dict(zip(measures, ("V", "S", "S-pooled"), strict=True))

    def cell(score: Score, of: tuple[str, int], less: tuple[str, int] | None = None) -> str:
        if of not in found or (less is not None and less not in found):
            return "–"
        return interval(score, confusions[of], None if less is None else confusions[less], num_bootstrap=2000)

    once = np.ones((1, len(patients)), np.int64)
    tables, measured_ones = [], {method for method, _ in found}
    for name, score in measures.items():
        table = Table(f"{name}, by labelled patients", ("method", *(f"k = {k}" for k in PATIENTS)))
        for method in (each for each in METHODS if each in measured_ones):
            table.add(method, *(cell(score, (method, k)) for k in PATIENTS))
        tables.append(table)
        curves = [
            Series(short, counts, [float(score(once, confusions[method, k])[0]) for k in counts], colour, dots=True)
            for method, (short, colour) in DRAWN.items()
            if (counts := [k for k in PATIENTS if (method, k) in found])
        ]
        chart = line_chart(curves, title=name, along="labelled patients", ticks=PATIENTS)
        if chart:
            save_drawings([("", chart)], Path(__file__).parent / f"results/labels-{files[name]}.svg")
    for title, pairs, factor in (
        ("Pretrained with k patients less random initialisation with 2 k", ((TUNED, RANDOM), (FROZEN, RANDOM)), 2),
        ("Pretrained with k patients less gradient boosting with k", ((TUNED, TREES), (TUNED, TREES_DRAWN)), 1),
        ("Hidden tokens alone with k patients less random initialisation with k", ((MASKED, RANDOM),), 1),
    ):
        counts = [k for k in PATIENTS if factor * k in PATIENTS]
        table = Table(title, ("difference", "F1", *(f"k = {k}" for k in counts)))
        for one, other in (pair for pair in pairs if measured_ones.issuperset(pair)):
            for name, score in measures.items():
                cells = [cell(score, (one, k), (other, factor * k)) for k in counts]
                table.add(f"{one} − {other}", name, *cells)
        if table.rows:
            tables.append(table)
    return tables


def main() -> None:
    parser = options(__doc__, "quality", "work", folds=5, seeds=3)
    parser.add_argument("--so-far", action="store_true", help="tables of the fits done so far, without further ones")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    tables = tables_of(measured(settings), settings.seeds)
    sizes = {"depth": DEPTH, "folds": settings.folds, "seeds": settings.seeds}
    write_results("labels", "Labelled patients that pretraining saves: beats, annotated, first lead", tables, sizes)


if __name__ == "__main__":
    main()
