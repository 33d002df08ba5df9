"""The shipped model `statements`: what reports state about resting ECGs of twelve leads, from folds 1 to 8 of PTB-XL.

    python -m recipes.statements --data ../shared/data --work FOLDER

A model of folds 1 to 6 is scored on folds 7 and 8 (`studies/statements.py`) and gives the thresholds there. The shipped
one learns the same statements from all eight. Folds 9 and 10 are the published test set, never read here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from heartlm.ecg.statements import words_of
from heartlm.evaluation.config import EvaluationConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.leads import LeadsNetwork
from heartlm.models.pretrained import FOLDER
from heartlm.models.store import load_model, save_model
from heartlm.models.trees import Trees
from heartlm.runs.run_folder import RunFolder
from heartlm.tasks.evaluate import evaluate
from heartlm.tasks.task import FinetuneConfig, task_of
from lab.measure import header, row
from lab.places import database_of, options, unpacked
from lab.steps import Steps

SELECTION, HELD_OUT = range(1, 7), range(7, 9)
"""Folds that choices are made on."""
TABLES = ("ptbxl_database.csv", "scp_statements.csv")
STEPS = 1300
LEAST_F1, FEWEST = 0.5, 10
"""F1 on the held-out folds, and recordings there, below which a statement is not offered."""
MEMBERS = 2
"""Members that are shipped, of the three that are trained: all weights together stay below 14 MB."""


def folds_of(ptb_xl: Path, folder: Path, training: Iterable[int], held_out: Iterable[int]) -> Path:
    """PTB-XL as links, without all other folds: `held_out` is the validation split."""
    with (ptb_xl / TABLES[0]).open() as stream:
        rows = list(csv.DictReader(stream))
    of_fold = dict.fromkeys(training, "train") | dict.fromkeys(held_out, "validation")
    chosen = [each for each in rows if int(each["strat_fold"]) in of_fold]
    splits = {each["patient_id"].removesuffix(".0"): of_fold[int(each["strat_fold"])] for each in chosen}
    names = {Path(each["filename_hr"]).name for each in chosen}
    files = [path for path in ptb_xl.rglob("*_hr.*") if path.stem in names]
    return database_of([*files, *(ptb_xl / name for name in TABLES)], folder, name="ptb-xl", splits=splits)


def prepared(steps: Steps, name: str, database: Path, corpus: Path) -> tuple[object, ...]:
    """Tokenise all leads; returns the command that trains on them."""
    leads = ("--tokenizer", "leads", "--processes", 1)
    steps.run(f"tokenize-{name}", corpus, "tokenize", database, *leads, "--out", corpus)
    words = ("finetune", "--task", "statements", "--corpus", corpus, "--class-balance", 0, "--threads", 1)
    return *words, "--steps", STEPS, "--seed", 0


def main() -> None:
    """Train both models and ship the second."""
    parser = options(__doc__, "work", data="the archive of PTB-XL")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the shipped models go")
    settings = parser.parse_args()
    work = settings.work.resolve()
    steps, ptb_xl = Steps(work), unpacked(settings.data / "ptb-xl.tar.xz", work / "ptb-xl", flat=False)
    ptb_xl = next(ptb_xl.rglob(TABLES[0])).parent
    parts = {"selection": (SELECTION, HELD_OUT), "final": (range(1, 9), ())}
    chosen: tuple[object, ...] = ()
    for name, folds in parts.items():
        database, corpus, run = work / name / "ptb-xl", work / name / "corpus", work / name / "run"
        words = prepared(steps, name, folds_of(ptb_xl, database, *folds), corpus)
        steps.run(name, run / "models/last", *words, *chosen, "--out", run)
        _, info = load_model(RunFolder(run).model("last"))
        chosen = ("--statements", ",".join(info.classes))
    from recipes.models import CARDS, ship

    selection, final = (RunFolder(work / name / "run") for name in parts)
    model, info = load_model(selection.model("last"))
    save_model(selection.model("last"), *restricted(model, info, info.classes))
    task_of("statements").finish(
        selection.path, FinetuneConfig(task="statements", trees=False)
    )  # the thresholds of fewer members
    config = EvaluationConfig(split="validation", checkpoint="last", name="validation")
    _, scores = evaluate(selection.path, work / "selection/corpus", config)
    per_class, (_, of_selection) = scores["scores"]["per_class"], load_model(selection.model("last"))
    thresholds = dict(zip(of_selection.classes, of_selection.thresholds, strict=True))
    names = tuple(name for name in thresholds if name in per_class and _is_offered(per_class[name]))
    model, info = restricted(*load_model(final.model("last")), names)
    info = replace(info, thresholds=tuple(thresholds[name] for name in names))
    save_model(final.model("last"), model, info)
    lines = header("statement", "", "recordings", "AUROC", "F1")
    for name, said in zip(info.classes, words_of(info.classes), strict=True):
        of_class = per_class[name]
        lines.append(row(name, said, of_class["support"], *(_shown(of_class[key]) for key in ("auroc", "f1"))))
    lines.append(row("superclasses", "", "", _shown(scores["scores"]["superclass_auroc"]), ""))
    values = {"name": "statements", "patients": f"{len(model_patients(final))} of ptb-xl", "scores": ""}
    card = CARDS.get_template("statements.md").render(values | {"table": "\n".join(lines)})
    ship("statements", final.path, settings.out, None, card)


def _is_offered(scores: Mapping[str, Any]) -> bool:
    return bool(scores["f1"]["value"] >= LEAST_F1 and scores["support"] >= FEWEST)


def restricted(model: HeartModel, info: ModelInfo, names: tuple[str, ...]) -> tuple[LeadsNetwork, ModelInfo]:
    """The first members of a model, for some of its statements."""
    assert isinstance(model, LeadsNetwork)
    chosen = torch.tensor([info.classes.index(name) for name in names])
    smaller_info = replace(info, classes=names, config=replace(info.config, members=MEMBERS), thresholds=())
    geometry = [model.embedding.get_buffer(f"places_{facet}") for facet in range(len(info.config.facet_sizes))]
    smaller, tensors = LeadsNetwork(smaller_info.config, geometry, len(names)), model.state_dict()
    for name in ("class_head.weight", "class_head.bias"):
        of_members = tensors[name].view(model.members, len(info.classes), -1)
        tensors[name] = of_members[:, chosen].reshape(-1, *tensors[name].shape[1:])
    if model.trees is not None:
        smaller.trees = Trees(len(names))
        tensors |= {name: value[chosen] for name, value in tensors.items() if name.startswith("trees.")}
    # Channels of the first member come first in every tensor.
    own = {
        name: tensors[name][tuple(slice(size) for size in value.shape)] for name, value in smaller.state_dict().items()
    }
    smaller.load_state_dict(own)
    return smaller.eval(), smaller_info


def model_patients(run: RunFolder) -> set[str]:
    """The patients that a run learnt from."""
    records = run.corpus().records
    return set(records.patient_id[records.select("train")].tolist())


def _shown(score: Mapping[str, Any]) -> str:
    value, (low, high) = score["value"], score["ci"]
    return f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
