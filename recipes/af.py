"""How the AF models are trained: databases, splits of patients, corpus and foundation model.

`models.py` trains what is shipped in this way; `studies/af_rhythm.py` scores the same recipe on patients left out.
"""

from __future__ import annotations

from pathlib import Path

from heartlm.databases.database import open_database
from lab.places import database_of, splits_of
from lab.steps import Steps

SHORTEST, WIDEST = 16, 512
"""Beats of the windows that a model learns from."""


def linked(sources: dict[str, Path], folder: Path, num_folds: int, fold: int | None) -> list[Path]:
    """Databases as links, the patients of `fold` in the test split, all others in training."""
    databases = []
    for name, source in sources.items():
        database = open_database(source)
        patients = sorted({database.patient_of(record).split("/")[1] for record in database.record_ids})
        files = (path for path in source.iterdir() if path.is_file())
        databases.append(database_of(files, folder / name, name=name, splits=splits_of(patients, num_folds, fold)))
    return databases


def prepared(
    steps: Steps, name: str, folder: Path, databases: list[Path], weights: str, depth: int, pretrain_steps: int
) -> tuple[object, ...]:
    """Make corpus and foundation model in `folder`; returns the command that fine-tunes it."""
    corpus, foundation = folder / "corpus", folder / "foundation"
    tokenize = ("tokenize", *databases, "--tokenizer", "rhythm", "--damaged", "warn", "--processes", 1)
    steps.run(f"tokenize-{name}", corpus, *tokenize, "--out", corpus)
    size = ("--window", WIDEST, "--batch-size", 8, "--threads", 1, "--validate-every", 100_000)
    common = ("--corpus", corpus, "--weights", weights, *size)
    pretrain = ("pretrain", *common, "--depth", depth, "--steps", pretrain_steps, "--out", foundation)
    steps.run(f"pretrain-{name}", foundation / "models/last", *pretrain)
    tune = ("finetune", foundation, "--task", "rhythm", *common, "--head", "window", "--shortest-window", SHORTEST)
    return *tune, "--learning-rate", 2e-3
