"""Beats on the MIT-BIH Arrhythmia Database, DS1 → DS2, single lead, annotated beats.

    python benchmarks/mitdb_beats.py --data ../shared/data --cinc2017 FOLDER --ludb FOLDER --work FOLDER

One foundation model is pretrained on the training split of several databases. For each seed it is then fine-tuned and
scored on DS2, and so is the same model from random initialisation at the same labels: once with the labels of DS1
alone, once with those of simulated patients too. Every step is a `heartlm` command, printed before it runs, and none
that is done is done again. The table goes to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from steps import RESULTS, Steps, cell, header, row
from timing import stamp

CLASSES = ("N", "S", "V", "F")
ONE_MODEL = ("tokenize", "pretrain", "tokenize-mitdb", "tuned-0", "evaluate-0")


def main() -> None:
    arguments = options()
    steps, seeds = Steps(arguments.work), range(arguments.seeds)
    work, mitdb = arguments.work, arguments.data / "mitdb"
    many, beats, foundation = work / "many", work / "mitdb", work / "foundation"
    databases = [mitdb, arguments.data / "cudb", arguments.ludb, arguments.cinc2017]
    leads = ("--training-leads", "all")
    steps.run("tokenize", many, "tokenize", *databases, *leads, "--out", many)
    size = ("--depth", arguments.depth, "--steps", arguments.pretrain_steps)
    steps.run("pretrain", foundation / "models/last", "pretrain", "--corpus", many, *size, "--out", foundation)
    steps.run("tokenize-mitdb", beats, "tokenize", mitdb, "--tokenizer-from", foundation, *leads, "--out", beats)
    simulated, labelled = work / "simdb", work / "labelled"
    patients = ("--patients", 200, "--minutes", 8, "--leads", "[MLII,V1]", "--seed", 11)
    steps.run("simulate", simulated, "data", "simulate", simulated, *patients)
    both = (mitdb, simulated, "--tokenizer-from", foundation, *leads)
    steps.run("tokenize-labelled", labelled, "tokenize", *both, "--out", labelled)
    tune = ("finetune", foundation, "--task", "beats", "--steps", arguments.steps)
    runs: dict[str, list[dict[str, Any]]] = {"": [], "labelled-": []}
    for prefix, corpus in (("", (beats,)), ("labelled-", (labelled, "--weights", "{mitdb: 2, simdb: 1}"))):
        for seed in seeds:
            scratch, tuned = work / f"{prefix}scratch-{seed}", work / f"{prefix}tuned-{seed}"
            train = (*tune, "--corpus", *corpus, "--seed", seed)
            steps.run(scratch.name, scratch / "models/last", *train, "--from-scratch", "--out", scratch)
            steps.run(tuned.name, tuned / "models/last", *train, "--out", tuned)
            score = ("evaluate", tuned, "--on", beats, "--random-init", scratch, "--checkpoint", "last")
            scores = tuned / "scores/ds2/scores.json"
            steps.run(f"{prefix}evaluate-{seed}", scores, *score, "--name", "ds2")
            runs[prefix].append(json.loads(scores.read_text()))
    machine = json.loads((foundation / "environment.json").read_text())
    settings = {key: value for key, value in vars(arguments).items() if isinstance(value, int)}
    write(columns_of(runs["labelled-"], runs[""]), steps.seconds, machine, settings)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=default, help="folder that holds mitdb and cudb")
    parser.add_argument("--cinc2017", type=Path, required=True, help="unpacked PhysioNet/CinC Challenge 2017")
    parser.add_argument("--ludb", type=Path, required=True, help="unpacked Lobachevsky University Database")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and runs go")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--pretrain-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=500)
    return parser.parse_args()


def columns_of(labelled: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the table: score blocks of every seed, by the name of the model."""
    columns = {}
    for runs, labels in ((alone, "DS1 alone"), (labelled, "DS1 and simulated patients")):
        rivals = [run["baselines"]["random initialisation"] for run in runs]
        columns[f"heartlm, pretrained; {labels}"] = [run["scores"] for run in runs]
        columns[f"heartlm, random initialisation; {labels}"] = rivals
        columns[f"gradient boosting; {labels}"] = [runs[0]["baselines"]["gradient boosting"]]
        columns[f"heartlm, pretrained; {labels}; without 202"] = [run["without"]["202"] for run in runs]
        columns[f"heartlm, pretrained; {labels}; without 232"] = [run["without"]["232"] for run in runs]
        columns[f"heartlm, random initialisation; {labels}; without 232"] = [
            without(block, "mitdb/232") for block in rivals
        ]
    columns["majority class"] = [alone[0]["baselines"]["majority class"]]
    return columns


def write(
    columns: dict[str, list[dict[str, Any]]],
    seconds: dict[str, float],
    machine: dict[str, Any],
    settings: dict[str, int],
) -> None:
    """Write the table as JSON and Markdown."""
    content = {**stamp("mitdb_beats"), "settings": settings, "seconds": seconds, "machine": machine, "scores": columns}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "mitdb_beats.json").write_text(json.dumps(content, indent=1) + "\n")
    text = "\n".join(table(columns, seconds, machine, settings)) + "\n"
    (RESULTS / "mitdb_beats.md").write_text(text)
    print(text)


def without(block: dict[str, Any], patient: str) -> dict[str, Any]:
    """The scores of `block` with one patient left out, from the confusion matrices of all others; no intervals."""
    others = [entry["confusion"] for entry in block["per_patient"] if entry["patient"] != patient]
    total = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*others, strict=True)]
    per_class = {}
    for index, label in enumerate(CLASSES):
        right, reference, predicted = total[index][index], sum(total[index]), sum(line[index] for line in total)
        values = {"se": right / reference, "ppv": right / predicted, "f1": 2 * right / (reference + predicted)}
        per_class[label] = {name: {"value": value, "ci": None} for name, value in values.items()}
    macro = sum(scores["f1"]["value"] for scores in per_class.values()) / len(CLASSES)
    return {"per_class": per_class, "macro_f1": {"value": macro, "ci": None}}


def table(
    columns: dict[str, list[dict[str, Any]]],
    seconds: dict[str, float],
    machine: dict[str, Any],
    settings: dict[str, int],
) -> list[str]:
    """The lines of the Markdown page."""
    lines = [
        "# Beats on mitdb, DS1 → DS2, single lead, annotated beats",
        "",
        f"`benchmarks/mitdb_beats.py` with {settings}; {machine['cpu']}, {machine['num_cores']} cores, torch "
        f"{machine['torch']}. F1: mean over seeds (smallest–largest) and the 95 % interval of the first seed, by "
        "bootstrap over patients. The seeds vary fine-tuning; all start from one foundation model.",
        "",
        *header("model", *(f"{name} F1" for name in CLASSES), "macro F1"),
    ]
    for name, blocks in columns.items():
        scores = [[block["per_class"][label]["f1"] for block in blocks] for label in CLASSES]
        lines.append(row(name, *map(cell, [*scores, [block["macro_f1"] for block in blocks]])))
    lines += ["", *header("Se / +P", *CLASSES)]
    for name, blocks in columns.items():
        pairs = []
        for label in CLASSES:
            both = [[block["per_class"][label][score] | {"ci": None} for block in blocks] for score in ("se", "ppv")]
            pairs.append(" / ".join(map(cell, both)))
        lines.append(row(name, *pairs))
    minutes = sum(seconds[name] for name in ONE_MODEL) / 60
    return [
        *lines,
        "",
        f"From recordings to one model scored, with the labels of DS1 alone: {minutes:.1f} minutes.",
        f"Seconds by step: {seconds}.",
    ]


if __name__ == "__main__":
    main()
