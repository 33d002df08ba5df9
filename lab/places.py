"""Where recordings, results and work lie, and the options that scripts have in common."""

from __future__ import annotations

import argparse
import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_folder

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = tuple(ROOT / name for name in ("benchmarks", "recipes", "studies"))
RESULTS = tuple(folder / "results" for folder in FOLDERS)
DATA = Path(os.environ.get("HEARTLM_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Folder of databases, and of archives of databases."""


def result_of(name: str, folders: Iterable[Path] = RESULTS) -> Path | None:
    """The file `NAME.json` in one of the folders of results; None if there is none."""
    return next((path for folder in folders if (path := folder / f"{name}.json").is_file()), None)


def options(about: str | None, *folders: str, data: str = "", **values: float) -> argparse.ArgumentParser:
    """A parser of the options that most scripts have.

    Args:
        about: docstring of the script.
        folders: required options that name a folder.
        data: what lies in the folder of the option `--data`; without it there is no such option.
        values: options with a number, by name and default; `_` is `-` in the option.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        parser.add_argument("--data", type=Path, default=DATA, help=f"folder that holds {data}")
    for name in folders:
        parser.add_argument(f"--{name}", type=Path, required=True, help=HELP.get(name, f"folder of {name}"))
    for name, value in values.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"by default {value}")
    return parser


HELP = {
    "work": "where corpora, runs and whatever else is kept go",
    "cinc2017": "unpacked training recordings of the Challenge 2017",
    "noise": "unpacked nstdb, with `ma` and `bw`",
}


def numbers_of(settings: argparse.Namespace) -> dict[str, int]:
    """The options that are whole numbers, as entries of a result."""
    return {name: value for name, value in vars(settings).items() if isinstance(value, int)}


def link(paths: Iterable[Path], folder: Path) -> None:
    """Link files into a folder, where they are not linked already."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if not (target := folder / path.name).is_symlink() and not target.exists():
            target.symlink_to(path.resolve())


def files_of(source: Path, records: Iterable[str]) -> list[Path]:
    """All files of some records in a folder."""
    return [path for record in records for path in source.glob(f"{record}.*")]


def database_of(paths: Iterable[Path], folder: Path, **about: Any) -> Path:
    """A database of links to files, with what its `database.json` says; returns its folder."""
    link(paths, folder)
    (folder / "database.json").write_text(json.dumps(about))
    return folder


def splits_of(patients: Sequence[str], num_folds: int, fold: int | None) -> dict[str, str]:
    """The split of every patient, in an order that depends on nothing but their number; of no fold all are training."""
    order = np.random.default_rng(0).permutation(len(patients)).tolist()
    return {patients[place]: "test" if index % num_folds == fold else "train" for index, place in enumerate(order)}


def labels_of(cinc2017: Path) -> dict[str, str]:
    """The label of every recording of the Challenge 2017, in the order of its table."""
    paths = (cinc2017 / f"REFERENCE-{version}.csv" for version in ("v3-train", "v3"))
    path = next(path for path in paths if path.exists())
    return dict(line.split(",") for line in path.read_text().split())


def annotations_of(recording: Recording) -> Annotations:
    """The annotations of a recording.

    Raises:
        HeartlmError: it has none.
    """
    if recording.annotations is None:
        raise HeartlmError(
            f"{recording.path}: no annotations found; give a database with those that it is published with"
        )
    return recording.annotations


def unpacked(archive: Path, target: Path, flat: bool = True) -> Path:
    """The folder into which an archive was unpacked, once; flat: its files without their own folders."""
    if not target.is_dir():
        if not archive.is_file():
            raise SystemExit(f"{archive}: not found; set HEARTLM_TEST_DATA to the folder that holds it")
        with atomic_folder(target) as temporary, tarfile.open(archive) as packed:
            for member in packed if flat else ():
                if member.isfile():
                    member.name = Path(member.name).name
                    packed.extract(member, temporary, filter="data")
            if not flat:
                packed.extractall(temporary, filter="data")
    return target
