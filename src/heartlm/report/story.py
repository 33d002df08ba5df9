"""Head of the page: summary of the training, the key scores, and the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heartlm.report.numbers import Score, count, decimal, short
from heartlm.report.scores import BY_WINDOW, MEASURES, MODEL, block_of, class_score, score_rows
from heartlm.runs.run_folder import RunFolder, WrittenScores
from heartlm.typed import is_number

TITLES = {
    ("pretrain", None): "A heart language model, pretrained",
    ("finetune", "beats"): "A heart language model that names heartbeats",
    ("finetune", "rhythm"): "A heart language model that names rhythms",
    ("finetune", "waveform"): "A network that finds ventricular fibrillation",
}
OBJECTIVES = {"masked": "by filling in masked tokens", "causal": "by predicting the next token"}


@dataclass(frozen=True)
class Card:
    """One key score at the top of the page."""

    label: str
    value: str
    note: str
    score: Score


def title(folder: RunFolder) -> str:
    """Return the heading of the page."""
    return TITLES.get((str(folder.run_json.get("kind")), folder.run_json.get("task")), "A heart language model")


def sentences(folder: RunFolder) -> Iterator[str]:
    """Yield the sentences of the introduction: size, pretraining, fine-tuning, scoring."""
    size = folder.run_json.get("num_parameters")
    yield f"A transformer with {short(size)} parameters." if is_number(size) else "A transformer."
    for run in folder.lineage():
        yield _training_sentence(run)
    if folder.run_json.get("from_scratch"):
        yield "Its weights started at random: it is a baseline for pretraining."
    if folder.score_sets:
        yield _scoring_sentence(folder.score_sets[0].scores)


def _training_sentence(folder: RunFolder) -> str:
    run, source = folder.run_json, _databases(folder.corpora)
    how = OBJECTIVES.get(str(run.get("objective")), "")
    aim = f"to label {run.get('task') or 'tokens'}"
    verb = f"Pretrained {how}".strip() if run.get("kind") == "pretrain" else f"Fine-tuned {aim}"
    return f"{verb} on {source}, {count(run.get('steps'))} steps."


def _databases(corpora: list[dict[str, Any]]) -> str:
    manifests = [corpus.get("manifest") or {} for corpus in corpora]
    databases = [each for manifest in manifests for each in manifest.get("databases") or []]
    words = ", ".join(dict.fromkeys(str(each.get("name")) for each in databases))
    training = [((each.get("splits") or {}).get("train") or {}).get("patients") for each in databases]
    known = [patients for patients in training if is_number(patients)]
    words = words or "a corpus that data.json does not describe"
    return f"{words} ({count(sum(known))} patients of the training split)" if known else words


def _scoring_sentence(scores: Mapping[str, Any]) -> str:
    block = block_of(scores)
    unit = "s" if scores.get("task") == "waveform" else "beats"
    what = f"windows of {count(scores.get('window'))} {unit}" if scores.get("task") in BY_WINDOW else "heartbeats"
    amount = (
        f"{count(block['num_beats'])} {scores.get('beats') or ''} ".replace("  ", " ") if "num_beats" in block else ""
    )
    people = f" of {count(block['num_patients'])} patients" if "num_patients" in block else ""
    return f"Scored on {amount}{what}{people}, {scores.get('split') or 'all'} split of {corpus_name(scores)}."


def corpus_name(scores: Mapping[str, Any]) -> str:
    """Return the last part of the path of the scored corpus."""
    return str(scores.get("on") or "a corpus").rstrip("/").rsplit("/", 1)[-1]


def score_cards(score_set: WrittenScores) -> list[Card]:
    """Return the key scores, each next to its best baseline."""
    scores, block = score_set.scores, block_of(score_set.scores)
    rows = score_rows(scores)
    if scores.get("task") in BY_WINDOW:
        chosen = {name: rows[name] for name in (MEASURES[key] for key in ("f1", "se", "sp", "ppv", "auroc"))}
    else:
        ectopic = [name for name in ("V", "S", "F") if (_support(block, name) or 0) > 0]
        chosen = {name: rows.get(name, {}) for name in ("macro F1", *(f"{each} F1" for each in ectopic))}
    cards = [_score_card(name, row) for name, row in chosen.items()]
    if scores.get("task") not in BY_WINDOW:
        cards.append(_score_card("accuracy", {MODEL: Score.of(block.get("accuracy"))}))
    return cards


def _support(block: Mapping[str, Any], name: str) -> float | None:
    of_class = (block.get("per_class") or {}).get(name) or {}
    support = of_class.get("support")
    return float(support) if is_number(support) else None


def _score_card(name: str, row: Mapping[str, Score]) -> Card:
    own = row.get(MODEL, Score())
    others = {method: score.value for method, score in row.items() if method != MODEL and score.value is not None}
    best = max(others, key=lambda method: others[method], default=None)
    note = f"{best} {decimal(others[best], 3)}" if best is not None else ""
    return Card(name, own.text, note, own)


def next_step(folder: RunFolder) -> str | None:
    """Return the command that produces the results missing in the head of the page, or None."""
    if folder.score_sets:
        return None
    if folder.run_json.get("kind") == "pretrain":
        return f"heartlm finetune {folder.path} --task beats"
    return f"heartlm evaluate {folder.path} --on CORPUS"


def table_rows(scores: Mapping[str, Any], methods: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per class for the table of beat scores: beats, F1, Se, +P, Sp, and the F1 of the other methods."""
    block = block_of(scores)
    rows = [
        {
            "name": name,
            "support": count(_support(block, name)),
            "own": [class_score(block, name, measure) for measure in ("f1", "se", "ppv", "sp")],
            "others": [class_score(each, name, "f1") for method, each in methods.items() if method != MODEL],
        }
        for name in block.get("classes") or []
    ]
    macro = [Score.of(each.get("macro_f1")) for each in methods.values()]
    total = {"name": "macro", "support": count(block.get("num_beats"))}
    return [*rows, {**total, "own": [macro[0], None, None, None], "others": macro[1:]}]
