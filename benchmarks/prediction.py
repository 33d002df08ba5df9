"""Predicted and measured time of two CPU ranks; the prediction uses measurements of one rank.

    python benchmarks/prediction.py --work FOLDER            about 8 minutes
    python benchmarks/prediction.py --study STUDY            of a study that is there, made with prediction: true

The study measures one rank at the whole batch and at half of it, two concurrent copies, and two ranks. The prediction
uses all of these except the last. Both cores must be idle.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from bench.measure import Spread, Table
from bench.output import write_results
from steps import Steps

from heartlm.storage.reading import read_json


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--work", type=Path)
    where.add_argument("--study", type=Path)
    parser.add_argument("--windows", type=int, nargs="+", default=[128, 512, 1024])
    for name, value in (("repeats", 3), ("steps", 12), ("tokens", 4096)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def make_study(chosen: argparse.Namespace) -> Path:
    """Simulate a database and run the study."""
    steps, data, corpus = Steps(chosen.work), chosen.work / "data", chosen.work / "corpus"
    steps.run("simulate", data, "data", "simulate", data, "--patients", 20, "--minutes", 10, "--seed", 1)
    steps.run("tokenize", corpus, "tokenize", data, "--tokenizer", "beat", "--out", corpus)
    settings = {
        "databases": {"simulated": str(corpus)},
        "stages": ["pretrain", "finetune"],
        "windows": chosen.windows,
        "ranks": [1, 2],
        "batch_tokens": chosen.tokens,
        "steps": chosen.steps,
        "repeats": chosen.repeats,
        "prediction": True,
    }
    (chosen.work / "study.yaml").write_text(yaml.safe_dump(settings))
    study: Path = chosen.work / "study"
    steps.run("study", study, "scale", "run", chosen.work / "study.yaml", "--out", study)
    return study


def main() -> None:
    chosen = options()
    columns = ("cell", "predicted ms", "95 % interval", "measured ms", "error", "outside its interval by", "bottleneck")
    table = Table("two CPU ranks predicted from one, a typical step", columns)
    study = chosen.study or make_study(chosen)
    out = study / "validation.json"
    Steps(study).run("validate", study / "no result of its own", "scale", "validate", study, "--out", out)
    found = read_json(out)
    for each in found["cells"]:
        predicted, cell = each["predicted"], each["predicted"]["cell"]
        low, high = (f"{1e3 * predicted[name]:.1f}" for name in ("low_s", "high_s"))
        table.add(
            f"{cell['stage']} {cell['window']}, {cell['cpus_per_task']} core a rank",
            f"{1e3 * predicted['step_s']:.1f}",
            f"{low}–{high}",
            Spread.of([1e3 * taken for taken in each["repeats_s"]]),
            f"{100 * each['error']:+.1f} %",
            f"{100 * each['outside']:.1f} %",
            predicted["bottleneck"],
        )
    table.close()
    about = {"median_error": f"{100 * found['median_error']:.1f} %", "cells_outside": found["num_outside"]}
    write_results("prediction", "The time of two ranks, predicted from one", [table], about)


if __name__ == "__main__":
    main()
