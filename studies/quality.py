"""Beat classification in unseen patients: a heart language model and hand-crafted features, on selection data.

    python benchmarks/quality.py --data ../shared/data --work FOLDER
    python benchmarks/quality.py --study svdb --data ../shared/data --work FOLDER
    python benchmarks/quality.py --study ds2 --data ../shared/data --work FOLDER

Everything about models is chosen by the first: patient-wise folds over DS1 of mitdb and svdb. The second trains on DS1
alone and scores on svdb. The third trains on both and scores on DS2, a test set: run it once for each model that is to
be released, and add a line to `results/looks.md`. In each part a tokenizer and a foundation model
learn from the other patients; for each seed the foundation model and the same model from random initialisation are
fine-tuned on their labels, on their beats on drawn rhythms (`heartlm data retime`), on pieces of their recordings with
noise, and on recordings of cinc2017 and ptb-xl in sinus rhythm or AF with noise (`heartlm data noisy`): detections of
noise are a class of their own. Both, gradient boosting and the majority class are scored on the patients left out. The
trees learn from the same tokens:
decoded waveforms and intervals, and the levels of all comparisons.

Scores are of all folds together: F1 of V and S pooled over beats, of S also as the mean over patients with ten or more,
and how many of 1,000 N beats are called S in recordings with atrial fibrillation. Intervals are by bootstrap over
patients, all seeds of a patient together; differences are paired: the same patients are drawn for both. Every step is a
`heartlm` command and is not repeated when it is done.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from bench.measure import Table
from bench.output import write_results
from numpy.typing import NDArray
from steps import Steps

from heartlm.ecg.database import open_database
from heartlm.ecg.splits import DS1, DS2
from heartlm.evaluation.bootstrap import Counts, Floats, Resampling, estimate, ratio
from heartlm.storage.atomic import atomic_folder

FIBRILLATION = tuple(f"mitdb/{record}" for record in (201, 203, 210, 219, 221, 222))
"""Patients of mitdb with atrial fibrillation, 202 being 201; of svdb no rhythms are known."""
STUDIES = {
    "folds": ("quality", "Beats of patients never seen: folds over DS1 and svdb"),
    "svdb": ("quality-svdb", "Beats of another database: trained on DS1, scored on svdb"),
    "ds2": ("quality-ds2", "Beats of DS2, trained on DS1 and svdb"),
}
"""File of results and title of each study."""
APART = {"ds2": ("232", "201", "213")}
"""Patients without whom a study is scored again: 232 has most of the S beats of DS2, 201 (there record 202) is in DS1
too, 213 has most of the F beats, which lie between N and V."""

S, V, FEWEST_S = 1, 2, 10
MEAN_S, FALSE_S = "S F1, mean over patients", "false S of 1,000 N in AF"
WEIGHTS = {"mitdb": 4, "mitdb-retimed": 1, "svdb": 7, "svdb-retimed": 2}
WEIGHTS |= {"mitdb-noisy": 2, "svdb-noisy": 3, "challenge-2017-noisy": 3, "ptb-xl-noisy": 1}
CAUSAL_WEIGHTS = {"mitdb": 3, "mitdb-retimed": 1, "svdb": 6, "svdb-retimed": 2}
"""Of the databases in fine-tuning: real beats about by their number. The causal form learns from no noise: the rules of
the alarms, which know faint beats and noise, are fitted to it."""
STEPS, CAUSAL_STEPS = 900, 600
HELD_OUT, NUM_WEAK = {"N": 1000, "AFIB": 200}, 1000
"""Recordings of cinc2017 that are normal or in AF, by the SHA-256 of their names: the first ones are for selection
alone, the next ones, at most `NUM_WEAK`, for training."""
SELECTION_FOLDS = {7, 8}
"""Of ptb-xl, not trained on."""
REAL = {"mitdb": 1, "svdb": 2}
"""Of the databases in pretraining."""
LABELS = ("N", "S", "V", "F", "other", "none")
DETECTED = "pretrained, detected beats"
MODEL, RANDOM, TREES, MAJORITY = "pretrained", "random initialisation", "gradient boosting", "majority class"


def parts_of(data: Path, study: str, num_folds: int) -> dict[str, dict[str, str]]:
    """What is trained and scored apart: by the name of its folder, the split of every patient."""
    first, second, other = (
        [f"{database}/{record}" for record in records]
        for database, records in (
            ("mitdb", DS1),
            ("mitdb", DS2),
            ("svdb", sorted(open_database(data / "svdb").record_ids)),
        )
    )
    if study == "svdb":
        return {"svdb": dict.fromkeys(first, "train") | dict.fromkeys(other, "test")}
    if study == "ds2":
        return {"ds2": dict.fromkeys(first + other, "train") | dict.fromkeys(second, "test")}
    patients = first + other
    order = np.random.default_rng(0).permutation(len(patients))
    fold_of = {patients[place]: index % num_folds for index, place in enumerate(order)}
    return {
        f"fold-{fold}": {patient: "test" if of == fold else "train" for patient, of in fold_of.items()}
        for fold in range(num_folds)
    }


def linked(data: Path, folder: Path, splits: dict[str, str]) -> list[Path]:
    """Both databases as links, with the patients of `splits` alone."""
    databases = []
    for name in ("mitdb", "svdb"):
        database = folder / name
        database.mkdir(parents=True, exist_ok=True)
        patients = {patient.split("/")[1]: of for patient, of in splits.items() if patient.startswith(f"{name}/")}
        for record in patients:
            for path in (data / name).glob(f"{record}.*"):
                link = database / path.name
                if not link.is_symlink():
                    link.symlink_to(path.resolve())
        # DS1 and DS2 share a patient, 201 and 202, so what is of both is split by recordings, as published.
        stated = {} if {"201", "202"} <= patients.keys() else {"splits": patients}
        (database / "database.json").write_text(json.dumps(stated))
        databases.append(database)
    return databases


def unpacked(archive: Path, target: Path) -> Path:
    """A folder of an archive, unpacked once, its files without their own folders."""
    if not target.is_dir():
        with atomic_folder(target) as temporary, tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile():
                    member.name = Path(member.name).name
                    packed.extract(member, temporary, filter="data")
    return target


def by_hash(names: Iterable[str]) -> list[str]:
    """Names in an order that depends on nothing else."""
    return sorted(names, key=lambda name: sha256(name.encode()).hexdigest())


def of_rhythms(folder: Path, rhythms: Iterable[str]) -> dict[str, list[str]]:
    """The recordings of a database that are labelled with one of the rhythms as a whole, by hash."""
    database, found = open_database(folder), dict[str, list[str]]()
    for record in database.record_ids:
        if (known := database.annotations(record)) is not None and len(known.rhythms) == 1:
            found.setdefault(known.rhythms[0].name, []).append(record)
    return {rhythm: by_hash(found.get(rhythm, ())) for rhythm in rhythms}


def noise_and_weak(data: Path, work: Path, steps: Steps) -> tuple[Path, list[Path]]:
    """Recorded noise, and databases of recordings in sinus rhythm or AF, with noise added; each made once."""
    noise = work / "noise/nstdb"
    noise.mkdir(parents=True, exist_ok=True)
    source = unpacked(data / "nstdb.tar.xz", work / "unpacked/nstdb")
    for path in (path for name in ("bw", "ma") for path in source.glob(f"{name}.*")):
        link(path, noise)
    weak = []
    for name, archive, pieces in (("cinc2017", "cinc2017-train.tar.xz", 3), ("ptb-xl", "ptb-xl.tar.xz", 3)):
        source, folder = unpacked(data / archive, work / "unpacked" / name), work / "normal" / name
        noisy = work / "normal" / f"{name}-noisy"
        if not noisy.is_dir():
            of = of_rhythms(source, HELD_OUT)
            if name == "cinc2017":
                chosen = [each for rhythm, num in HELD_OUT.items() for each in of[rhythm][num:][:NUM_WEAK]]
            else:
                with (source / "ptbxl_database.csv").open(newline="") as table:
                    fold_of = {Path(row["filename_hr"]).name: int(row["strat_fold"]) for row in csv.DictReader(table)}
                chosen = [each for names in of.values() for each in names if fold_of[each] not in SELECTION_FOLDS]
            folder.mkdir(parents=True, exist_ok=True)
            for path in source.glob("*.csv"):
                link(path, folder)
            for path in (path for record in chosen for path in source.glob(f"{record}.*")):
                link(path, folder)
            (folder / "database.json").write_text(json.dumps({"name": open_database(source).name}))
            database = open_database(folder)
            patients = {database.patient_of(record).split("/")[1] for record in database.record_ids}
            about = {"name": database.name, "splits": dict.fromkeys(sorted(patients), "train")}
            (folder / "database.json").write_text(json.dumps(about))
        words = ("data", "noisy", folder, noisy, "--noise", noise, "--pieces", pieces)
        steps.run(f"noisy-{name}", noisy, *words)
        weak.append(noisy)
    return noise, weak


def prepared(
    steps: Steps,
    name: str,
    folder: Path,
    databases: list[Path],
    splits: dict[str, str],
    noise: Path,
    weak: list[Path],
    causal: bool,
    depth: int,
    pretrain_steps: int,
) -> tuple[Path, str]:
    """Foundation model of a part; returns the corpus of its fine-tuning, and the weights of its databases.

    The tokenizer and the foundation model learn from recordings as they are: of noise the levels would be those of it.
    """
    corpus, tuned, foundation = folder / "corpus", folder / "corpus", folder / "foundation"
    clean, noisy = list(databases), [] if causal else list(weak)
    for database in databases:
        if "train" in {of for patient, of in splits.items() if patient.startswith(f"{database.name}/")}:
            clean.append(folder / f"{database.name}-retimed")
            steps.run(f"retime-{name}-{database.name}", clean[-1], "data", "retime", database, clean[-1])
            if not causal:
                noisy.append(folder / f"{database.name}-noisy")
                words = ("data", "noisy", database, noisy[-1], "--noise", noise)
                steps.run(f"noisy-{name}-{database.name}", noisy[-1], *words)
    common = ("--training-leads", "all", "--processes", 1)
    steps.run(
        f"tokenize-{name}", corpus, "tokenize", *clean, *common, *(("--causal",) if causal else ()), "--out", corpus
    )
    if noisy:
        tuned = folder / "corpus-tuned"
        words = ("tokenize", *clean, *noisy, *common, "--tokenizer-from", corpus, "--out", tuned)
        steps.run(f"tokenize-tuned-{name}", tuned, *words)
    learnt = {path.name.removesuffix("-retimed") for path in clean if path.name.endswith("-retimed")}
    words = ("pretrain", "--corpus", corpus, "--depth", depth, "--steps", pretrain_steps, "--threads", 1)
    words = (*words, "--objective", "causal" if causal else "masked", "--weights", weights_of(learnt, REAL))
    steps.run(f"pretrain-{name}", foundation / "models/last", *words, "--out", foundation)
    present = {f"{each}{kind}" for each in learnt for kind in ("", "-retimed", "-noisy")}
    present |= {open_database(path).name for path in weak}
    return tuned, weights_of(present, CAUSAL_WEIGHTS if causal else WEIGHTS)


def link(path: Path, folder: Path) -> None:
    if not (target := folder / path.name).is_symlink():
        target.symlink_to(path.resolve())


def measured(data: Path, work: Path, settings: argparse.Namespace) -> dict[str, dict[str, Counts]]:
    """Confusion matrices of every patient, summed over seeds, by method; int64 `[6, 6]`, see `LABELS`."""
    steps = Steps(work)
    noise, weak = noise_and_weak(data, work, steps)
    found: dict[str, dict[str, Counts]] = {}
    for part, splits in parts_of(data, settings.study, settings.folds).items():
        folder, name = work / part, part.removeprefix("fold-")
        databases, foundation = linked(data, folder, splits), folder / "foundation"
        size = (settings.depth, settings.pretrain_steps)
        corpus, weights = prepared(steps, name, folder, databases, splits, noise, weak, settings.causal, *size)
        for seed in range(settings.seeds):
            tuned, scratch = folder / f"tuned-{seed}", folder / f"scratch-{seed}"
            train = ("finetune", foundation, "--task", "beats", "--corpus", corpus, "--steps", settings.steps)
            train = (*train, "--weights", weights, "--seed", seed, "--threads", 1)
            steps.run(f"tuned-{name}-{seed}", tuned / "models/last", *train, "--out", tuned)
            steps.run(f"scratch-{name}-{seed}", scratch / "models/last", *train, "--from-scratch", "--out", scratch)
            scores = tuned / "scores/fold/scores.json"
            score = ("evaluate", tuned, "--on", corpus, "--random-init", scratch, "--checkpoint", "last")
            steps.run(f"evaluate-{name}-{seed}", scores, *score, "--seed", seed, "--name", "fold")
            content = json.loads(scores.read_text())
            for method, block in ({MODEL: content["scores"]} | content["baselines"]).items():
                add(found.setdefault(method, {}), block)
            if settings.detected:
                for database in databases:
                    if "test" in {of for patient, of in splits.items() if patient.startswith(f"{database.name}/")}:
                        add_detected(steps, found, name, seed, tuned, database)
    return found


def add_detected(
    steps: Steps, found: dict[str, dict[str, Counts]], name: str, seed: int, tuned: Path, database: Path
) -> None:
    """Score the model on beats that heartlm finds itself."""
    scores = tuned / f"scores/detected-{database.name}/scores.json"
    score = ("evaluate", tuned, "--on", database, "--beats", "detected", "--checkpoint", "last", "--no-baselines")
    words = (*score, "--seed", seed, "--name", f"detected-{database.name}")
    steps.run(f"detected-{name}-{seed}-{database.name}", scores, *words)
    add(found.setdefault(DETECTED, {}), json.loads(scores.read_text())["scores"])


def weights_of(present: set[str], weights: dict[str, int]) -> str:
    """The option for those of the databases that are there."""
    return "{" + ", ".join(f"{name}: {weight}" for name, weight in weights.items() if name in present) + "}"


def add(total: dict[str, Counts], block: dict[str, Any]) -> None:
    """Add the matrices of one scored set."""
    place = np.array([LABELS.index(label) for label in block["confusion_labels"]])
    for entry in block["per_patient"]:
        confusion = total.setdefault(entry["patient"], np.zeros((len(LABELS), len(LABELS)), np.int64))
        confusion[np.ix_(place, place)] += np.array(entry["confusion"], np.int64)


def f1_of(index: int) -> Callable[[Counts, Counts], Floats]:
    """Pooled F1 of a class, of patients drawn `[draws, patients]` times; `confusions` `[patients, 6, 6]`."""

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


def false_s(patients: list[str], confusions: Counts) -> str:
    """N beats of recordings with atrial fibrillation that are called S, of 1,000."""
    of = confusions[[place for place, patient in enumerate(patients) if patient in FIBRILLATION]]
    return f"{1000 * of[:, 0, S].sum() / of[:, 0].sum():.0f}" if len(of) else "–"


def tables_of(found: dict[str, dict[str, Counts]], seeds: int, without: str = "") -> list[Table]:
    """Scores of every method, and paired differences; one patient may be left out."""
    patients = sorted(patient for patient in found[MODEL] if patient != f"mitdb/{without}")
    confusions = {name: np.stack([of[patient] for patient in patients]) for name, of in found.items()}
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
        (low, high), sign = estimate(float(value[0]), resampled, len(patients))["ci"], "" if less is None else "+"
        return f"{value[0]:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"

    left_out = f" without {without}" if without else ""
    title = f"{len(patients)} patients{left_out}, F1 with 95 % interval by patients"
    scores = Table(title, ("method", *measures, FALSE_S))
    for name, of_method in confusions.items():
        scores.add(name, *(cell(score, name) for score in measures.values()), false_s(patients, of_method))
    differences = Table(f"Paired differences{left_out}", ("difference", *measures))
    pairs = ((MODEL, TREES), (RANDOM, TREES), (MODEL, RANDOM), (DETECTED, MODEL))
    for one, other in (pair for pair in pairs if pair[0] in found):
        differences.add(f"{one} − {other}", *(cell(score, one, other) for score in measures.values()))
    for table in (scores, differences):
        table.close()
    return [scores, differences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=default, help="folder that holds mitdb and svdb")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and runs go")
    parser.add_argument("--study", choices=sorted(STUDIES), default="folds")
    parser.add_argument("--causal", action="store_true", help="the form for live streams")
    parser.add_argument("--detected", action="store_true", help="score on detected beats too")
    for name, value in (("folds", 5), ("seeds", 5), ("depth", 4), ("pretrain-steps", 1000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--steps", type=int, help=f"of fine-tuning; by default {STEPS}, causal {CAUSAL_STEPS}")
    settings = parser.parse_args()
    settings.steps = settings.steps or (CAUSAL_STEPS if settings.causal else STEPS)
    found = measured(settings.data, settings.work, settings)
    tables = [
        table for without in ("", *APART.get(settings.study, ())) for table in tables_of(found, settings.seeds, without)
    ]
    chosen = {key: value for key, value in vars(settings).items() if isinstance(value, int)}
    name, title = STUDIES[settings.study]
    write_results(
        f"{name}-causal" if settings.causal else name, f"{title}, annotated beats, first lead", tables, chosen
    )


if __name__ == "__main__":
    main()
