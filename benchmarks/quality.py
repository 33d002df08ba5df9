"""Beats of patients never seen: a heart language model beside hand-made features, on selection data.

    python benchmarks/quality.py --data ../shared/data --work FOLDER

Everything about models is chosen here: patient-wise folds over DS1 of mitdb and svdb. DS2 and other test sets have no
part in it; each look at one of them is a line in `results/looks.md`. For each fold a tokenizer and a foundation model
learn from the other patients; for each seed the foundation model and the same model from random initialisation are
fine-tuned on their labels, and both, gradient boosting and the majority class are scored on the fold's patients. The
trees learn from the same tokens: decoded waveforms and intervals, and the levels of all comparisons.

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
from steps import RESULTS, Steps, header, row
from timing import stamp

from heartlm.ecg.database import open_database
from heartlm.ecg.splits import DS1
from heartlm.evaluation.bootstrap import Counts, Floats, Resampling, estimate, ratio

FIBRILLATION = ("mitdb/201", "mitdb/203")
"""Patients of DS1 with atrial fibrillation."""

S, V, FEWEST_S = 1, 2, 10
SCORES = ("V F1", "S F1", "S F1, mean over patients", "false S of 1,000 N in AF")
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
    """Confusion matrices of every patient, summed over seeds, by method; int64 `[4, labels]`."""
    steps, fold_of = Steps(work), folds_of(data, settings.folds)
    found: dict[str, dict[str, Counts]] = {}
    for fold in range(settings.folds):
        folder = work / f"fold-{fold}"
        corpus, foundation = folder / "corpus", folder / "foundation"
        databases = linked(data, folder, fold_of, fold)
        causal = ("--causal",) if settings.causal else ()
        steps.run(
            f"tokenize-{fold}", corpus, "tokenize", *databases, "--training-leads", "all", *causal, "--out", corpus
        )
        size = ("--depth", settings.depth, "--steps", settings.pretrain_steps, "--threads", 1)
        steps.run(
            f"pretrain-{fold}", foundation / "models/last", "pretrain", "--corpus", corpus, *size, "--out", foundation
        )
        for seed in range(settings.seeds):
            tuned, scratch = folder / f"tuned-{seed}", folder / f"scratch-{seed}"
            train = ("finetune", foundation, "--task", "beats", "--corpus", corpus, "--steps", settings.steps)
            train = (*train, "--seed", seed, "--threads", 1)
            steps.run(f"tuned-{fold}-{seed}", tuned / "models/last", *train, "--out", tuned)
            steps.run(f"scratch-{fold}-{seed}", scratch / "models/last", *train, "--from-scratch", "--out", scratch)
            scores = tuned / "scores/fold/scores.json"
            score = ("evaluate", tuned, "--on", corpus, "--random-init", scratch, "--checkpoint", "last")
            steps.run(f"evaluate-{fold}-{seed}", scores, *score, "--seed", seed, "--name", "fold")
            content = json.loads(scores.read_text())
            blocks = {MODEL: content["scores"]} | {
                name: content["baselines"][name] for name in (RANDOM, TREES, MAJORITY)
            }
            for name, block in blocks.items():
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


def macro_s(drawn: Counts, confusions: Counts) -> Floats:
    """Mean F1 of S over drawn patients with at least ten S beats."""
    right, truth, called = parts(confusions, S)
    counts = truth >= FEWEST_S
    f1 = np.where(counts, ratio(2 * right, truth + called), 0)
    return ratio(drawn @ f1, drawn @ counts.astype(np.int64))


def parts(confusions: Counts, index: int) -> tuple[Counts, Counts, Counts]:
    return confusions[:, index, index], confusions[:, index].sum(axis=1), confusions[:, :, index].sum(axis=1)


def false_s(patients: list[str], confusions: Counts) -> float:
    """N beats of recordings with atrial fibrillation that are called S, of 1,000."""
    of = confusions[[patients.index(patient) for patient in FIBRILLATION]]
    return float(1000 * of[:, 0, S].sum() / of[:, 0].sum())


def table(found: dict[str, dict[str, Counts]], seeds: int) -> tuple[list[str], dict[str, Any]]:
    """Markdown lines, and the same as values."""
    patients = sorted(found[MODEL])
    matrices = {name: np.stack([of[patient][:4, :4] for patient in patients]) for name, of in found.items()}
    resampling = Resampling(2000)
    drawn, once = resampling.weights(len(patients)), np.ones((1, len(patients)), np.int64)
    values: dict[str, Any] = {}
    lines = header("method", *SCORES)
    measures = {"V F1": f1_of(V), "S F1": f1_of(S)}
    for name, confusions in matrices.items():
        scores = {
            label: estimate(float(score(once, confusions)[0]), score(drawn, confusions), len(patients), resampling)
            for label, score in measures.items()
        }
        counted = confusions // seeds if name == MAJORITY else confusions
        enough = np.array([found[name][patient][S].sum() // seeds >= FEWEST_S for patient in patients])
        kept = counted * enough[:, None, None]
        scores["S F1, mean over patients"] = estimate(
            float(macro_s(once, kept)[0]), macro_s(drawn, kept), int(enough.sum()), resampling
        )
        wrong = false_s(patients, confusions)
        values[name] = {label: each.to_json() for label, each in scores.items()} | {SCORES[-1]: wrong}
        lines.append(
            row(name, *(f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in scores.values()), f"{wrong:.0f}")
        )
    lines += ["", *header("difference", "V F1", "S F1")]
    for one, other in ((MODEL, TREES), (RANDOM, TREES), (MODEL, RANDOM)):
        cells, entry = [], {}
        for label, score in measures.items():
            both = [score(draws, matrices[one]) - score(draws, matrices[other]) for draws in (once, drawn)]
            each = estimate(float(both[0][0]), both[1], len(patients), resampling)
            entry[label] = each.to_json()
            cells.append(f"{each.value:+.3f} [{each.low:+.3f}, {each.high:+.3f}]")
        values[f"{one} − {other}"] = entry
        lines.append(row(f"{one} − {other}", *cells))
    return lines, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=default, help="folder that holds mitdb and svdb")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and runs go")
    parser.add_argument("--causal", action="store_true", help="the form for live streams")
    for name, value in (("folds", 5), ("seeds", 5), ("depth", 4), ("pretrain-steps", 1000), ("steps", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    settings = parser.parse_args()
    found = measured(settings.data, settings.work, settings)
    lines, values = table(found, settings.seeds)
    name = "quality-causal" if settings.causal else "quality"
    chosen = {key: value for key, value in vars(settings).items() if isinstance(value, int)}
    content = {**stamp(name), "settings": chosen, "patients": len(found[MODEL]), "scores": values}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    heading = f"# Beats of unseen patients: {len(found[MODEL])} patients of DS1 and svdb in {settings.folds} folds"
    about = f"`benchmarks/quality.py` with {chosen}, {content['date']}. Annotated beats, first lead; 95 % intervals."
    (RESULTS / f"{name}.md").write_text("\n".join([heading, "", about, "", *lines]) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
