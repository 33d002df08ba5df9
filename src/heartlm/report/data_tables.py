"""Tables of the training data: databases, splits, classes, tokens, and exclusions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from heartlm.report.numbers import count, decimal
from heartlm.report.training_charts import facet_losses
from heartlm.runs.run_folder import RunFolder
from heartlm.typed import is_number

SPLITS = ("train", "validation", "test", "excluded")


def corpora_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Describe each corpus of the run and its parents once, identified by path and tokenizer."""
    described: dict[tuple[str, str], dict[str, Any]] = {}
    for run in folder.lineage():
        for corpus in run.corpora:
            manifest = corpus.get("manifest") or {}
            key = (str(corpus.get("path")), str((manifest.get("tokenizer") or {}).get("hash")))
            databases = [each for each in manifest.get("databases") or [] if isinstance(each, dict)]
            entry = described.setdefault(
                key,
                {
                    "path": str(corpus.get("path", "")),
                    "used_by": [],
                    "manifest": manifest,
                    "databases": databases,
                    "beats": _by_split(databases, "beats_per_class"),
                    "rhythms": _by_split(databases, "rhythms"),
                    "dropped": _dropped_rows(manifest.get("dropped") or []),
                },
            )
            entry["used_by"].append("pretraining" if run.run_json.get("kind") == "pretrain" else "fine-tuning")
    return list(described.values())


def _by_split(databases: list[dict[str, Any]], key: str) -> dict[str, Counter[str]]:
    """Count labels over databases, for each non-empty split."""
    found: dict[str, Counter[str]] = {}
    for split in SPLITS:
        for database in databases:
            counts = ((database.get("splits") or {}).get(split) or {}).get(key) or {}
            known = {str(name): int(number) for name, number in counts.items() if is_number(number) and number}
            if known:
                found.setdefault(split, Counter()).update(known)
    return found


def _dropped_rows(dropped: list[Any]) -> list[dict[str, Any]]:
    """Return the number of exclusions by reason, in descending order, with the records concerned."""
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
    """Describe the tokenizer, and for each facet how much of it the model learnt to predict."""
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
