"""Beats of patients never seen: a heart language model compared with hand-made features, on selection data.

    python benchmarks/quality.py --data ../shared/data --work FOLDER

Everything about models is chosen here: patient-wise folds over DS1 of mitdb and svdb. DS2 and other test sets have no
part in it; each look at one of them is a line in `results/looks.md`. For each fold a tokenizer and a foundation model
learn from the other patients; for each seed the foundation model and the same model from random initialisation are
fine-tuned on their labels and on their beats on drawn rhythms (`heartlm data retime`), a quarter of the windows. Both,
gradient boosting and the majority class are scored on the fold's patients. The trees learn from the same tokens:
decoded waveforms and intervals, and the levels of all comparisons.

Scores are of all folds together: F1 of V and S pooled over beats, of S also as the mean over patients with ten or more,
and how many of 1,000 N beats are called S in recordings with atrial fibrillation. Intervals are by bootstrap over
patients, all seeds of a patient together; differences are paired: the same patients are drawn for both. Every step is a
`heartlm` command and is not repeated when it is done.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from steps import Steps
from timing import Table, write

from heartlm.ecg.database import open_database
from heartlm.ecg.splits import DS1
from heartlm.evaluation.bootstrap import Counts, Floats, Resampling, estimate, ratio

FIBRILLATION = ("mitdb/201", "mitdb/203")
"""Patients of DS1 with atrial fibrillation."""

S, V, FEWEST_S = 1, 2, 10
MEAN_S, FALSE_S = "S F1, mean over patients", "false S of 1,000 N in AF"
WEIGHTS = "{mitdb: 3, mitdb-retimed: 1, svdb: 6, svdb-retimed: 2}"
"""Of the databases in fine-tuning: real beats about by their number."""
PRETRAINING_WEIGHTS = "{mitdb: 1, svdb: 2}"
MODEL, RANDOM, TREES, MAJORITY = "pretrained", "random initialisation", "gradient boosting", "majority class"


def folds_of(data: Path, num_folds: int) -> dict[str, int]:
    """The fold of every patient of DS1 and svdb, drawn once and for all."""
    patients = [f"mitdb/{record}" for record in DS1]
    patients += [f"svdb/{record}" for record in sorted(open_database(data / "svdb").record_ids)]
    order = np.random.default_rng(0).permutation(len(patients))
    return {patients[place]: index % num_folds for index, place in enumerate(order)}


def linked(data: Path, folder: Path, fold_of: dict[str, int], fold: int) -> list[Path]:
    """Both databases as links, without DS2, the patients of `fold` in the test split and all others in training."""
    databases = []
    for name in ("mitdb", "svdb"):
        database = folder / name
        database.mkdir(parents=True, exist_ok=True)
        patients = {patient.split("/")[1]: of for patient, of in fold_of.items() if patient.startswith(f"{name}/")}
        for record in patients:
            for path in (data / name).glob(f"{record}.*"):
                link = database / path.name
                if not link.is_symlink():
                    link.symlink_to(path.resolve())
        splits = {patient: "test" if of == fold else "train" for patient, of in patients.items()}
        (database / "database.json").write_text(json.dumps({"splits": splits}))
        databases.append(database)
    return databases


def measured(data: Path, work: Path, settings: argparse.Namespace) -> dict[str, dict[str, Counts]]:
    """Confusion matrices of every patient, summed over seeds, by method; int64 `[num_labels, num_labels]`."""
    steps, fold_of = Steps(work), folds_of(data, settings.folds)
    found: dict[str, dict[str, Counts]] = {}
    for fold in range(settings.folds):
        folder = work / f"fold-{fold}"
        corpus, foundation = folder / "corpus", folder / "foundation"
        databases = linked(data, folder, fold_of, fold)
        for database in tuple(databases):
            retimed = folder / f"{database.name}-retimed"
            steps.run(f"retime-{fold}-{database.name}", retimed, "data", "retime", database, retimed)
            databases.append(retimed)
        causal = ("--causal",) if settings.causal else ()
        steps.run(
            f"tokenize-{fold}", corpus, "tokenize", *databases, "--training-leads", "all", *causal, "--out", corpus
        )
        size = ("--depth", settings.depth, "--steps", settings.pretrain_steps, "--threads", 1)
        steps.run(
            f"pretrain-{fold}",
            foundation / "models/last",
            *("pretrain", "--corpus", corpus, *size, "--weights", PRETRAINING_WEIGHTS, "--out", foundation),
        )
        for seed in range(settings.seeds):
            tuned, scratch = folder / f"tuned-{seed}", folder / f"scratch-{seed}"
            train = ("finetune", foundation, "--task", "beats", "--corpus", corpus, "--steps", settings.steps)
            train = (*train, "--weights", WEIGHTS, "--seed", seed, "--threads", 1)
            steps.run(f"tuned-{fold}-{seed}", tuned / "models/last", *train, "--out", tuned)
            steps.run(f"scratch-{fold}-{seed}", scratch / "models/last", *train, "--from-scratch", "--out", scratch)
            scores = tuned / "scores/fold/scores.json"
            score = ("evaluate", tuned, "--on", corpus, "--random-init", scratch, "--checkpoint", "last")
            steps.run(f"evaluate-{fold}-{seed}", scores, *score, "--seed", seed, "--name", "fold")
            content = json.loads(scores.read_text())
            for name, block in ({MODEL: content["scores"]} | content["baselines"]).items():
                add(found.setdefault(name, {}), block)
    return found


def add(total: dict[str, Counts], block: dict[str, Any]) -> None:
    """Add the matrices of one scored set."""
    for entry in block["per_patient"]:
        confusion = np.array(entry["confusion"], np.int64)
        total[entry["patient"]] = total.get(entry["patient"], np.zeros_like(confusion)) + confusion


def f1_of(index: int) -> Callable[[Counts, Counts], Floats]:
    """Pooled F1 of a class, of patients drawn `[draws, patients]` times; `confusions` `[patients, 4, 4]`."""

    def score(drawn: Counts, confusions: Counts) -> Floats:
        right, truth, called = parts(confusions, index)
        return ratio(2 * (drawn @ right), drawn @ (truth + called))

    return score


def macro_s(counts: NDArray[np.bool_]) -> Callable[[Counts, Counts], Floats]:
    """Mean F1 of S over those of the drawn patients that `counts` says have enough S beats."""

    def score(drawn: Counts, confusions: Counts) -> Floats:
        right, truth, called = parts(confusions, S)
        f1 = np.where(counts, ratio(2 * right, truth + called), 0)
        return ratio(drawn @ f1, drawn @ counts.astype(np.int64))

    return score


def parts(confusions: Counts, index: int) -> tuple[Counts, Counts, Counts]:
    return confusions[:, index, index], confusions[:, index].sum(axis=1), confusions[:, :, index].sum(axis=1)


def false_s(patients: list[str], confusions: Counts) -> float:
    """N beats of recordings with atrial fibrillation that are called S, of 1,000."""
    of = confusions[[patients.index(patient) for patient in FIBRILLATION]]
    return float(1000 * of[:, 0, S].sum() / of[:, 0].sum())


def tables_of(found: dict[str, dict[str, Counts]], seeds: int) -> list[Table]:
    """Scores of every method, and paired differences."""
    patients = sorted(found[MODEL])
    confusions = {name: np.stack([of[patient][:4, :4] for patient in patients]) for name, of in found.items()}
    resampling = Resampling(2000)
    drawn, once = resampling.weights(len(patients)), np.ones((1, len(patients)), np.int64)
    with_s = confusions[MODEL][:, S].sum(axis=1) >= FEWEST_S * seeds
    measures: dict[str, Callable[[Counts, Counts], Floats]] = {
        "V F1": f1_of(V),
        "S F1": f1_of(S),
        MEAN_S: macro_s(with_s),
    }

    def cell(score: Callable[[Counts, Counts], Floats], of: str, less: str | None = None) -> str:
        value, resampled = (
            score(draws, confusions[of]) - (0 if less is None else score(draws, confusions[less]))
            for draws in (once, drawn)
        )
        each, sign = estimate(float(value[0]), resampled, len(patients), resampling), "" if less is None else "+"
        return f"{each.value:{sign}.3f} [{each.low:{sign}.3f}, {each.high:{sign}.3f}]"

    scores = Table(f"{len(patients)} patients, F1 with 95 % interval by patients", ("method", *measures, FALSE_S))
    for name, of_method in confusions.items():
        scores.add(name, *(cell(score, name) for score in measures.values()), f"{false_s(patients, of_method):.0f}")
    differences = Table("Paired differences", ("difference", *measures))
    for one, other in ((MODEL, TREES), (RANDOM, TREES), (MODEL, RANDOM)):
        differences.add(f"{one} − {other}", *(cell(score, one, other) for score in measures.values()))
    for table in (scores, differences):
        table.close()
    return [scores, differences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=default, help="folder that holds mitdb and svdb")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and runs go")
    parser.add_argument("--causal", action="store_true", help="the form for live streams")
    for name, value in (("folds", 5), ("seeds", 5), ("depth", 4), ("pretrain-steps", 1000), ("steps", 600)):
        parser.add_argument(f"--{name}", type=int, default=value)
    settings = parser.parse_args()
    tables = tables_of(measured(settings.data, settings.work, settings), settings.seeds)
    chosen = {key: value for key, value in vars(settings).items() if isinstance(value, int)}
    name = "quality-causal" if settings.causal else "quality"
    write(name, "Beats of patients never seen: folds over DS1 and svdb, annotated beats, first lead", tables, chosen)


if __name__ == "__main__":
    main()
