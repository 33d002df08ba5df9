"""Run folders made up for tests of the report: the shape is that of real ones, every number is invented."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ["N", "S", "V", "F", "Q"]


def write_runs(folder: Path) -> tuple[Path, Path]:
    """Write a pretraining run and a fine-tuning run made from it, with scores; return both folders."""
    parent, child = folder / "foundation", folder / "beats"
    write_run(parent, kind="pretrain", steps=600)
    write_run(child, kind="finetune", steps=200, parent=str(parent))
    _json(child / "scores" / "test" / "scores.json", beat_scores())
    return parent, child


def write_run(path: Path, *, kind: str, steps: int, parent: str | None = None) -> None:
    path.mkdir(parents=True)
    run = {
        "schema": 1,
        "kind": kind,
        "name": path.name,
        "created": "2025-01-02T03:04:05",
        "finished": "2025-01-02T03:14:05",
        "command": f"heartlm {kind} {parent or '--corpus corpus'} --steps {steps}",
        "parent": parent,
        "from_scratch": False,
        "num_parameters": 1_234_567,
        "task": "beats" if kind == "finetune" else None,
        "objective": "masked" if kind == "pretrain" else None,
        "steps": steps,
        "manifest_hash": "0123456789abcdef",
    }
    _json(path / "run.json", run)
    _json(path / "data.json", [{"path": "corpora/invented", "manifest": manifest()}])
    _json(path / "environment.json", {"python": "3.12.1", "torch": "2.11.0", "device": "cpu", "num_cores": 2})
    (path / "config.yaml").write_text("depth: 4\nseed: 1\n")
    lines = metrics(kind, steps)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def manifest() -> dict[str, Any]:
    splits = {
        "train": {"records": 22, "patients": 22, "tokens": 51_000, "rhythms": {"N": 40_000, "AFIB": 5_000}},
        "validation": {"records": 4, "patients": 4, "tokens": 9_000},
        "test": {"records": 22, "patients": 22, "tokens": 49_693},
    }
    splits["train"]["beats_per_class"] = {"N": 45_866, "S": 944, "V": 3_788, "F": 415, "Q": 8}
    splits["test"]["beats_per_class"] = {"N": 44_259, "S": 1_837, "V": 3_221, "F": 388, "Q": 7}
    database = {"name": "inventdb", "num_records": 48, "num_patients": 47, "num_beats": 109_494, "hours": 24.1}
    facets = [{"name": f"code{level}", "size": 64, "causal": True} for level in range(3)]
    facets += [{"name": "rr", "size": 32, "causal": True}, {"name": "next_rr", "size": 32, "causal": False}]
    return {
        "schema_version": 1,
        "command": "heartlm tokenize inventdb --tokenizer beat --out corpora/invented",
        "tokenizer": {
            "kind": "beat",
            "hash": "feedc0ffee" * 4,
            "facets": facets,
            "causal": False,
            "decode_error": 0.21,
        },
        "num_tokens": 109_494,
        "num_records": 48,
        "num_patients": 47,
        "databases": [{**database, "rate_hz": 360.0, "splits": splits}],
        "dropped": [{"record": "x1", "reason": "no room for a window at the edge", "count": 12}] * 2,
    }


def metrics(kind: str, steps: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    lines: list[dict[str, Any]] = []
    for step in range(2, steps + 1, 2):
        fall = 0.6 + 2.4 * math.exp(-3 * step / steps)
        common = {"step": step, "elapsed_s": step * 0.9}
        rate = 1e-3 * min(step / (0.1 * steps), 0.5 + 0.5 * math.cos(math.pi * step / steps))
        noisy = fall * float(rng.lognormal(0, 0.06))
        speed = float(rng.normal(8200, 150))
        lines.append({**common, "split": "train", "loss": noisy, "learning_rate": rate, "tokens_per_s": speed})
        if step % (steps // 10) == 0:
            validation = {**common, "split": "validation", "loss": fall * 1.08}
            if kind == "pretrain":
                validation |= {f"loss/code{level}": fall + 0.5 * level for level in range(3)} | {"loss/rr": fall}
            else:
                rise = 1 - math.exp(-4 * step / steps)
                validation |= {"f1_N": 0.98 * rise, "f1_V": 0.9 * rise, "f1_S": 0.4 * rise, "f1_F": None}
                validation["macro_f1"] = 0.6 * rise
            lines.append(validation)
    return lines


def _score(value: float | None, half_width: float = 0.04) -> dict[str, Any]:
    return {"value": value, "ci": None if value is None else [max(value - half_width, 0), min(value + half_width, 1)]}


def block(shift: float = 0.0) -> dict[str, Any]:
    """Scores of one method; `shift` lowers them."""
    confusion = [[43_500, 420, 250, 80, 9], [1_200, 560, 60, 17, 0], [160, 40, 2_960, 61, 0], [180, 4, 54, 150, 0]]
    confusion.append([4, 0, 3, 0, 0])
    matrix = np.array(confusion)
    f1 = {"N": 0.977, "S": 0.39, "V": 0.921, "F": 0.43, "Q": 0.0}
    measures = {
        name: {
            **{key: _score(max(f1[name] - shift, 0.0)) for key in ("se", "ppv", "f1")},
            "sp": _score(0.97),
            "support": int(matrix[index].sum()),
        }
        for index, name in enumerate(CLASSES)
    }
    return {
        "classes": CLASSES,
        "num_beats": int(matrix.sum()),
        "num_patients": 22,
        "num_left_out": 31,
        "accuracy": _score(0.93 - shift),
        "macro_f1": _score(0.54 - shift),
        "per_class": measures,
        "confusion": confusion,
        "confusion_labels": CLASSES,
        "per_patient": [patient(number) for number in range(22)],
    }


def patient(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    support = rng.integers([1500, 0, 0, 0, 0], [2800, 60, 500, 20, 1])
    right = (support * rng.uniform([0.93, 0, 0.6, 0, 0], [1, 0.9, 1, 0.8, 1])).astype(int)
    confusion = np.diag(right)
    confusion[1:, 0] = (support - right)[1:]
    confusion[0, 2] = (support - right)[0]
    called = confusion.sum(axis=0)
    f1 = {
        name: float(2 * right[i] / (support[i] + called[i])) if support[i] else None for i, name in enumerate(CLASSES)
    }
    return {
        "patient": str(200 + number),
        "num_beats": int(support.sum()),
        "confusion": confusion.tolist(),
        "f1": f1,
    }


def beat_scores() -> dict[str, Any]:
    return {
        "schema": 1,
        "task": "beats",
        "name": "test",
        "on": "corpora/invented",
        "split": "test",
        "beats": "annotated",
        "command": "heartlm evaluate runs/beats --on corpora/invented",
        "created": "2025-01-02T04:00:00",
        "scores": block(),
        "baselines": {"majority class": block(0.4), "gradient boosting": block(0.1), "random initialisation": None},
    }


def rhythm_scores() -> dict[str, Any]:
    one = {"se": _score(0.95), "sp": _score(0.97), "ppv": _score(0.9), "f1": _score(0.925), "auroc": _score(None)}
    zhou = {key: _score(0.85) for key in ("se", "sp", "ppv", "f1", "accuracy")}
    return {
        "schema": 1,
        "task": "rhythm",
        "on": "corpora/invented",
        "split": "test",
        "positive": "AFIB",
        "window": 128,
        "labels": "majority",
        "scores": one,
        "baselines": {"Zhou 2015": zhou},
        "durations": {"se": _score(0.94), "hours": 3.5},
    }


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def losses(run: Path) -> dict[tuple[str, int], float]:
    """Loss of a run by split and step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {(line["split"], line["step"]): line["loss"] for line in lines}
