"""How the beats models are trained: databases, splits, noise, corpora and foundation model.

    recordings ─► drawn rhythms, pieces with noise ─► corpus ─► foundation model ─► corpus with noise ─► fine-tuning

`models.py` trains what is shipped in this way, on all patients that may be learnt from; `studies/quality.py` scores the
same recipe on patients left out. Every step is a `heartlm` command and is not repeated when it is done.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np

from benchmarks.common.places import database_of, files_of, link, unpacked
from benchmarks.common.steps import Steps
from heartlm.ecg.database import open_database
from heartlm.ecg.splits import DS1, DS2

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
        patients = {patient.split("/")[1]: of for patient, of in splits.items() if patient.startswith(f"{name}/")}
        # DS1 and DS2 share a patient, 201 and 202, so what is of both is split by recordings, as published.
        stated = {} if {"201", "202"} <= patients.keys() else {"splits": patients}
        databases.append(database_of(files_of(data / name, patients), folder / name, **stated))
    return databases


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
    link((path for name in ("bw", "ma") for path in source.glob(f"{name}.*")), noise)
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
            link((*source.glob("*.csv"), *files_of(source, chosen)), folder)
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


def weights_of(present: set[str], weights: dict[str, int]) -> str:
    """The option for those of the databases that are there."""
    return "{" + ", ".join(f"{name}: {weight}" for name, weight in weights.items() if name in present) + "}"
