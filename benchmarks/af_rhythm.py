"""Atrial fibrillation from RR intervals: learnt on afdb's annotations, tested on mitdb, beside Zhou 2015.

    python benchmarks/af_rhythm.py --data ../shared/data --work FOLDER

For windows of 41, 128, 256 and 512 beats: a rhythm model is pretrained on afdb, nsrdb (annotation files only) and
simulated patients, fine-tuned on the labels of afdb and of the simulated ones, and scored on the mitdb records that
hold atrial fibrillation, and on all 48. No mitdb record is trained on. The simulated patients are there for their
ectopic beats, which a model of afdb alone takes for fibrillation. Window labels are the majority of beats; flutter
counts as no fibrillation.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from steps import RESULTS, Steps, cell, header, row
from timing import stamp

WIDTHS = (41, 128, 256, 512)
AF_RECORDS = "201,202,203,210,217,219,221,222"
"""The mitdb records whose annotations hold the rhythm (AFIB."""
SCORES = ("f1", "se", "sp", "ppv")


def main() -> None:
    arguments = options()
    steps, work, data = Steps(arguments.work), arguments.work, arguments.data
    simulated, corpus = work / "simdb", work / "corpus"
    patients = ("--patients", 200, "--minutes", 30, "--leads", "[MLII]", "--seed", 7)
    steps.run("simulate", simulated, "data", "simulate", simulated, *patients)
    databases = (data / "afdb", data / "nsrdb", simulated)
    steps.run("tokenize", corpus, "tokenize", *databases, "--tokenizer", "rhythm", "--out", corpus)
    for width in WIDTHS:
        foundation, tuned, scratch = (work / f"{name}-{width}" for name in ("foundation", "tuned", "scratch"))
        size = ("--depth", arguments.depth, "--window", width, "--steps", arguments.steps)
        steps.run(
            f"pretrain-{width}", foundation / "models/last", "pretrain", "--corpus", corpus, *size, "--out", foundation
        )
        weights = ("--weights", "{afdb: 1, simdb: 1}")
        tune = ("finetune", foundation, "--task", "rhythm", "--corpus", corpus, *size[2:], *weights)
        steps.run(f"tuned-{width}", tuned / "models/last", *tune, "--out", tuned)
        steps.run(f"scratch-{width}", scratch / "models/last", *tune, "--from-scratch", "--out", scratch)
        score = ("evaluate", tuned, "--on", data / "mitdb", "--split", "all", "--random-init", scratch)
        done = tuned / "scores"
        steps.run(f"af-{width}", done / "af-records", *score, "--records", AF_RECORDS, "--name", "af-records")
        steps.run(f"all-{width}", done / "all-records", *score, "--name", "all-records")
    write(work, steps.seconds, json.loads((work / "tuned-128" / "environment.json").read_text()), arguments)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("HEARTLM_TEST_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=default, help="folder that holds afdb, nsrdb and mitdb")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and runs go")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    return parser.parse_args()


def write(work: Path, seconds: dict[str, float], machine: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the tables as JSON and Markdown."""
    settings = {key: value for key, value in vars(arguments).items() if isinstance(value, int)}
    content: dict[str, Any] = {
        **stamp("af_rhythm"),
        "settings": settings,
        "seconds": seconds,
        "machine": machine,
        "scores": {},
    }
    lines = [
        "# Atrial fibrillation from RR intervals: learnt on afdb and simulated patients, tested on mitdb",
        "",
        f"`benchmarks/af_rhythm.py` with {settings}, one seed; {machine['cpu']}, {machine['num_cores']} cores, torch "
        f"{machine['torch']}. [95 % interval by bootstrap over patients].",
    ]
    for name, title in (("af-records", f"Records with AF ({AF_RECORDS})"), ("all-records", "All 48 records")):
        lines += ["", f"## {title}", "", *header("window", "model", *(score.upper() for score in SCORES))]
        for width in WIDTHS:
            scored = json.loads((work / f"tuned-{width}" / "scores" / name / "scores.json").read_text())
            models = {"heartlm": scored["scores"], **scored["baselines"]}
            content["scores"][f"{name}-{width}"] = models
            for model, block in models.items():
                if block is not None:
                    lines.append(row(width, model, *(cell([block[score]]) for score in SCORES)))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "af_rhythm.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "af_rhythm.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
