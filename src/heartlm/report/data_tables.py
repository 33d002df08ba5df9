"""What the model was fed: databases, splits, classes, tokens, and what was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.report.numbers import count, decimal
from heartlm.report.training_charts import facet_losses
from heartlm.runs.run_folder import RunFolder
from heartlm.typed import is_number

SPLITS = ("train", "validation", "test", "excluded")


def corpora_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Describe every corpus of the run and its parents once, by its path and tokenizer."""
    described: dict[tuple[str, str], dict[str, Any]] = {}
    for run in folder.lineage():
        for corpus in run.corpora:
            manifest = corpus.get("manifest") or {}
            key = (str(corpus.get("path")), str((manifest.get("tokenizer") or {}).get("hash")))
            entry = described.setdefault(key, _describe(str(corpus.get("path", "")), manifest))
            entry["used_by"].append("pretraining" if run.run_json.get("kind") == "pretrain" else "fine-tuning")
    return list(described.values())


def _describe(path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    databases = [each for each in manifest.get("databases") or [] if isinstance(each, dict)]
    return {
        "path": path,
        "used_by": [],
        "command": manifest.get("command"),
        "num_tokens": count(manifest.get("num_tokens")),
        "num_records": count(manifest.get("num_records")),
        "num_patients": count(manifest.get("num_patients")),
        "databases": [_database_row(each) for each in databases],
        "classes": _class_rows(databases),
        "rhythms": _rhythm_rows(databases),
        "dropped": _dropped_rows(manifest.get("dropped") or []),
    }


def _database_row(database: Mapping[str, Any]) -> dict[str, Any]:
    splits = database.get("splits") or {}
    return {
        "name": database.get("name", "–"),
        "cells": [
            count(database.get("num_records")),
            count(database.get("num_patients")),
            count(database.get("num_beats")),
            decimal(database.get("hours"), 1),
            _rates(database.get("rate_hz")),
            *(count((splits.get(split) or {}).get("patients")) for split in SPLITS),
        ],
    }


def _rates(rate_hz: object) -> str:
    rates = rate_hz if isinstance(rate_hz, list) else [rate_hz]
    return ", ".join(f"{rate:g}" for rate in rates if is_number(rate)) or "–"


def _class_rows(databases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Beats of each class by split, summed over databases, for splits with labelled beats."""
    rows = []
    for split in SPLITS:
        totals = _totals(databases, split, "beats_per_class")
        if sum(totals.values()):
            known = [name for name in BEAT_CLASSES if totals[name]]
            others = sorted(set(totals) - set(BEAT_CLASSES))
            rows.append(
                {
                    "split": split,
                    "total": count(sum(totals.values())),
                    "classes": [(name, totals[name], count(totals[name])) for name in BEAT_CLASSES],
                    "others": [(name, count(totals[name])) for name in others],
                    "shares": [(name, totals[name] / sum(totals.values())) for name in known],
                }
            )
    return rows


def _rhythm_rows(databases: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for split in SPLITS:
        totals = _totals(databases, split, "rhythms")
        if totals:
            rows.append((split, ", ".join(f"{name} {count(number)}" for name, number in totals.most_common())))
    return rows


def _totals(databases: list[dict[str, Any]], split: str, key: str) -> Counter[str]:
    totals: Counter[str] = Counter()
    for database in databases:
        counts = ((database.get("splits") or {}).get(split) or {}).get(key) or {}
        totals.update({str(name): int(number) for name, number in counts.items() if is_number(number) and number})
    return totals


def _dropped_rows(dropped: list[Any]) -> list[dict[str, Any]]:
    """What was left out, by reason, most first, with the records concerned."""
    totals: Counter[str] = Counter()
    records: dict[str, list[str]] = {}
    for entry in dropped:
        if isinstance(entry, dict):
            reason, number = str(entry.get("reason", "no reason given")), entry.get("count")
            totals[reason] += int(number) if is_number(number) else 1
            records.setdefault(reason, []).append(str(entry.get("record", "–")))
    return [
        {"reason": reason, "count": count(number), "records": list(dict.fromkeys(records[reason]))}
        for reason, number in totals.most_common()
    ]


def tokenizer_of(folder: RunFolder) -> dict[str, Any] | None:
    """Describe the tokenizer and, for each facet, how much of it the model learnt to predict."""
    tokenizers = [(corpus.get("manifest") or {}).get("tokenizer") for corpus in folder.corpora]
    tokenizer = next((each for each in tokenizers if isinstance(each, dict)), None)
    if tokenizer is None:
        return None
    error = tokenizer.get("decode_error")
    return {
        "kind": tokenizer.get("kind", "unknown"),
        "hash": str(tokenizer.get("hash", "–"))[:12],
        "causal": tokenizer.get("causal"),
        "decode_error": decimal(error, 3) if is_number(error) else None,
        "facets": facet_losses(folder, tokenizer.get("facets") or []),
    }
