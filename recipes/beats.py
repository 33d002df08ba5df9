"""How the beats models are trained: databases, splits, noise, corpora and foundation model.

    recordings ─► drawn rhythms, pieces with noise ─► corpus ─► foundation model ─► corpus with noise ─► fine-tuning

`models.py` trains what is shipped in this way, on all patients that may be learnt from; `studies/quality.py` scores the
same recipe on patients left out. Every step is a `heartlm` command and is not repeated when it is done.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np

from heartlm.databases.database import open_database
from heartlm.databases.splits import DS1, DS2
from lab.places import database_of, files_of, link, unpacked
from lab.steps import Steps

WEIGHTS = {"mitdb": 4, "mitdb-retimed": 1, "svdb": 7, "svdb-retimed": 2}
WEIGHTS |= {"mitdb-noisy": 2, "svdb-noisy": 3, "challenge-2017-noisy": 7, "ptb-xl-noisy": 3}
"""Of the databases in fine-tuning: real beats about by their number, and as often recordings without ectopic beats."""
STEPS = 900
HELD_OUT, NUM_WEAK = {"N": 1000, "AFIB": 200}, 1000
"""Recordings of cinc2017 that are normal or in AF, by the SHA-256 of their names: the first ones are for selection
alone, the next ones, at most `NUM_WEAK`, for training."""
SELECTION_FOLDS = {7, 8}
"""Of ptb-xl, not trained on."""
REAL = {"mitdb": 1, "svdb": 2}
"""Of the databases in pretraining."""
UNLABELLED = {"mitdb": 2, "svdb": 4, "cudb": 2, "ludb": 4, "qtdb": 2, "challenge-2017": 8, "ptb-xl": 12}
UNLABELLED |= {"mitdb-retimed": 1, "svdb-retimed": 2, "challenge-2017-noisy": 3, "ptb-xl-noisy": 4}
"""Of the databases that the foundation model learns from: most of what has many patients or twelve leads."""


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


def folds_of_ptb_xl(folder: Path) -> dict[str, int]:
    """The fold of every recording of PTB-XL, as its authors drew them."""
    with (folder / "ptbxl_database.csv").open(newline="") as table:
        return {Path(row["filename_hr"]).name: int(row["strat_fold"]) for row in csv.DictReader(table)}


def for_training(source: Path, folder: Path, records: Iterable[str]) -> Path:
    """A database of links to some of the recordings of another, all of them in the training split."""
    chosen = set(records)
    files = (path for path in source.iterdir() if path.suffix == ".csv" or path.name.split(".")[0] in chosen)
    database = open_database(database_of(files, folder))
    patients = sorted({database.patient_of(record).split("/")[1] for record in database.record_ids})
    return database_of((), folder, splits=dict.fromkeys(patients, "train"))


def unlabelled(data: Path, unpacked_into: Path, folder: Path) -> list[Path]:
    """Every recording under an open licence here that may be learnt from without labels, as links, all for training.

    What is for selection or a test is left out: DS2 of mitdb, `HELD_OUT` of cinc2017, `SELECTION_FOLDS` of PTB-XL.
    """
    archives = {"cinc2017": "cinc2017-train"} | {name: name for name in ("ludb", "qtdb", "ptb-xl")}
    sources = {name: data / name for name in ("mitdb", "svdb", "cudb")}
    sources |= {name: unpacked(data / f"{of}.tar.xz", unpacked_into / name) for name, of in archives.items()}
    of_rhythm = of_rhythms(sources["cinc2017"], HELD_OUT)
    held_out = {each for rhythm, num in HELD_OUT.items() for each in of_rhythm[rhythm][:num]}
    held_out |= {name for name, fold in folds_of_ptb_xl(sources["ptb-xl"]).items() if fold in SELECTION_FOLDS}
    databases = []
    for name, source in sources.items():
        records = map(str, DS1) if name == "mitdb" else (path.stem for path in source.glob("*.hea"))
        databases.append(for_training(source, folder / name, set(records) - held_out))
    return databases


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
                fold_of = folds_of_ptb_xl(source)
                chosen = [each for names in of.values() for each in names if fold_of[each] not in SELECTION_FOLDS]
            for_training(source, folder, chosen)
        words = (folder, noisy, "--noise", noise, "--pieces", pieces)
        steps.run(f"noisy-{name}", noisy, *words, module="recipes.noisy_pieces")
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
) -> tuple[object, ...]:
    """Make the foundation model of a part; returns the command that fine-tunes it, on `corpus-tuned`.

    The tokenizer and the foundation model learn from recordings as they are: of noise the levels would be those of it.
    """
    corpus, tuned, foundation = folder / "corpus", folder / "corpus-tuned", folder / "foundation"
    clean, noisy = list(databases), list(weak)
    for database in databases:
        if "train" in {of for patient, of in splits.items() if patient.startswith(f"{database.name}/")}:
            clean.append(folder / f"{database.name}-retimed")
            steps.run(f"retime-{name}-{database.name}", clean[-1], database, clean[-1], module="recipes.retime")
            noisy.append(folder / f"{database.name}-noisy")
            given = (database, noisy[-1], "--noise", noise)
            steps.run(f"noisy-{name}-{database.name}", noisy[-1], *given, module="recipes.noisy_pieces")
    common, way = ("--training-leads", "all", "--processes", 1), ("--causal",) if causal else ()
    steps.run(f"tokenize-{name}", corpus, "tokenize", *clean, *common, *way, "--out", corpus)
    encode = (*common, "--tokenizer-from", corpus, "--out", tuned)
    steps.run(f"tokenize-tuned-{name}", tuned, "tokenize", *clean, *noisy, *encode)
    learnt = {path.name.removesuffix("-retimed") for path in clean if path.name.endswith("-retimed")}
    size = ("--depth", depth, "--steps", pretrain_steps, "--threads", 1, "--weights", weights_of(learnt, REAL))
    words = ("pretrain", "--corpus", corpus, *size, "--objective", "causal" if causal else "masked")
    steps.run(f"pretrain-{name}", foundation / "models/last", *words, "--out", foundation)
    present = {f"{each}{kind}" for each in learnt for kind in ("", "-retimed", "-noisy")}
    present |= {open_database(path).name for path in weak}
    tune = ("finetune", foundation, "--task", "beats", "--corpus", tuned, "--threads", 1)
    return *tune, "--weights", weights_of(present, WEIGHTS)


def weights_of(present: set[str], weights: dict[str, int]) -> str:
    """The option for those of the databases that are there."""
    return "{" + ", ".join(f"{name}: {weight}" for name, weight in weights.items() if name in present) + "}"
