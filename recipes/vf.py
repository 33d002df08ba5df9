"""What the network of the task waveform learns from: databases and the splits of their patients."""

from __future__ import annotations

from pathlib import Path

from heartlm.databases.splits import DS1
from lab.places import database_of, files_of, labels_of, splits_of
from lab.steps import Steps

OF_CINC2017 = {"~": 1000, "A": 150, "N": 200, "O": 200}
"""Recordings of each class at most: all noisy ones."""


def patients_of(data: Path, cinc2017: Path) -> dict[str, list[str]]:
    """The recordings of each database, each of a patient of its own."""
    taken, chosen = dict.fromkeys(OF_CINC2017, 0), []
    for record, label in labels_of(cinc2017).items():
        if (cinc2017 / f"{record}.hea").is_file() and taken[label] < OF_CINC2017[label]:
            taken[label] += 1
            chosen.append(record)
    records = {name: sorted(path.stem for path in (data / name).glob("*.hea")) for name in ("cudb", "svdb")}
    return records | {"mitdb": list(DS1), "nstdb": ["bw", "ma"], "cinc2017": chosen}


def linked(
    folders: dict[str, Path], folder: Path, records: dict[str, list[str]], num_folds: int, fold: int | None
) -> list[Path]:
    """The databases as links, the patients of `fold` in the test split and all others in training."""
    return [
        database_of(
            files_of(folders[name], [*own, "REFERENCE*"]), folder / name, splits=splits_of(own, num_folds, fold)
        )
        for name, own in records.items()
    ]


def prepared(steps: Steps, name: str, folder: Path, databases: list[Path]) -> tuple[object, ...]:
    """Make the corpus in `folder`; returns the command that trains a network on it."""
    corpus = folder / "corpus"
    leads = ("--tokenizer", "millivolts", "--training-leads", "all")
    steps.run(f"tokenize-{name}", corpus, "tokenize", *databases, *leads, "--processes", 1, "--out", corpus)
    return "finetune", "--task", "waveform", "--corpus", corpus, "--threads", 1
