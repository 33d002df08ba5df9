"""Models as one folder, in the layout of the Hugging Face hub; commands take it like a run folder.

README.md           model card: YAML fields that the hub reads, then text
config.json         sizes, task, classes and tokenizer of the model
model.safetensors   weights
tokenizer/          tokenizer of the model's input
run.json            kind and task of the run
data.json           databases it was trained on; patients only where a shipped model lists them
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from heartlm.corpus.schema import Manifest
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import FOLDER, is_saved, shipped_name
from heartlm.runs.run_folder import SCHEMA_VERSION, RunFolder
from heartlm.storage.atomic import atomic_folder, write_json
from heartlm.storage.reading import MAX_YAML_BYTES, read_text
from heartlm.storage.safe_yaml import parse_yaml
from heartlm.storage.typed import is_number, typed

if TYPE_CHECKING:
    from heartlm.models.info import ModelInfo

_FILES = {"README.md", "config.json", "model.safetensors", "tokenizer", "run.json", "data.json", "reliability.svg"}
# Entries of `run.json` that are saved; others may name people, machines and paths.
_ABOUT = ("kind", "from_scratch", "manifest_hash", "num_parameters")
_HEADER = re.compile(r"---\n(.*?)\n---\n+", re.DOTALL)


def save_pretrained(
    folder: Path,
    weights: Path,
    info: ModelInfo,
    save_tokenizer: Callable[[Path], None],
    source: Path,
    licence: str | None,
) -> None:
    """Write a model and its card to `folder`, atomically.

    Args:
        folder: a new or empty folder, or a saved model, which is replaced.
        weights: folder with the `model.safetensors` to save, in single precision.
        info: description of the model.
        save_tokenizer: writes the tokenizer to a folder.
        source: folder that the model was loaded from: a run, a saved model, or one with the model alone.
        licence: as the hub names it; by default that of `source`, Apache 2.0 of a shipped model, else unknown.

    Raises:
        HeartlmError: the folder has other files, or cannot be written.
    """
    from safetensors.numpy import save

    from heartlm.models.weights import read_weights, write_weights

    if folder.exists() and not (folder.is_dir() and (is_saved(folder) or not any(folder.iterdir()))):
        raise HeartlmError(f"{folder}: exists and is no saved model: choose another folder")
    if others := {each.name for each in folder.glob("*")} - _FILES:
        raise HeartlmError(f"{folder}: has other files ({', '.join(sorted(others)[:3])}): choose another folder")
    run = RunFolder(source)
    about: dict[str, Any] = run.run_json if (source / "run.json").is_file() else {}
    known = {"kind": "finetune" if info.task else "pretrain", "from_scratch": False, "manifest_hash": ""}
    about = known | {key: about[key] for key in _ABOUT if key in about} | {"objective": info.objective}
    corpora = [dict[str, Any](each) for each in (run.trained_on if (source / "data.json").is_file() else [])]
    for corpus in corpora:
        corpus["manifest"] = {key: corpus["manifest"][key] for key in Manifest.__annotations__}
    corpora = [{"path": None} | {key: each[key] for key in ("manifest", "patients") if key in each} for each in corpora]
    with atomic_folder(folder) as temporary:
        write_weights(temporary, save(read_weights(weights)[0]), info)
        save_tokenizer(temporary / "tokenizer")
        described = {"schema": SCHEMA_VERSION, "name": shipped_name(source), "finished": "saved", "parent": None}
        write_json(temporary / "run.json", described | about | {"task": info.task, "steps": info.step})
        if corpora:
            write_json(temporary / "data.json", corpora)
        if (source / "reliability.svg").is_file():
            (temporary / "reliability.svg").write_bytes((source / "reliability.svg").read_bytes())
        (temporary / "README.md").write_text(_card(run, info, corpora, licence), encoding="utf-8")


def _card(run: RunFolder, info: ModelInfo, corpora: list[dict[str, Any]], licence: str | None) -> str:
    """Return README.md: that of a saved model, with the text of a shipped model, or with a new text."""
    text, fields = "", dict[str, Any]()
    for name in ("README.md", "card.md"):
        if not text and (run.path / name).is_file():
            text = read_text(run.path / name, MAX_YAML_BYTES)
    if header := _HEADER.match(text):
        try:
            fields, text = typed(dict[str, Any], parse_yaml(header[1])), text[header.end() :]
        except (ValueError, HeartlmError) as error:
            raise HeartlmError(
                f"{run.path}/README.md: fields in YAML expected between the lines ---: {error}"
            ) from error
    databases = [each["name"] for corpus in corpora for each in corpus["manifest"]["databases"]]
    shipped = "apache-2.0" if run.path.parent == FOLDER else "unknown"
    fields = {
        "license": shipped,
        "library_name": "heartlm",
        "tags": ["ecg", "electrocardiography", "arrhythmia", info.task or "foundation-model"],
        "datasets": databases,
        "metrics": ["f1"],
        **fields,
        **({"license": licence} if licence else {}),
    }
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n\n{text or _text(run, info, corpora)}"


def _text(run: RunFolder, info: ModelInfo, corpora: list[dict[str, Any]]) -> str:
    """Return a card for a model that has none."""
    contents = f"classes {', '.join(info.classes)}" if info.task else "trained without labels, to fine-tune"
    lines = [f"# {shipped_name(run.path)}: {info.task or 'foundation model'} ({contents})", ""]
    lines += ["Research software, not a medical device.", "", "## Use", ""]
    lines += ['    model = heartlm.load_model("hf:OWNER/NAME")', "", "## Trained on", ""]
    for corpus in corpora:
        for each in corpus["manifest"]["databases"]:
            train = each["splits"].get("train", {})
            lines.append(f"- {each['name']}: {train.get('patients', 0):,} patients, {train.get('tokens', 0):,} tokens")
    for scores in run.score_sets[:1]:
        lines += ["", "## Scores", "", f"{Path(str(scores.get('on'))).name}, split {scores.get('split')}", ""]
        lines += ["| score | value | 95 % interval over patients |", "|---|---|---|"]
        for name, score in scores.get("scores", {}).items():
            if isinstance(score, dict) and is_number(score.get("value")):
                # the ends are None with fewer than two patients
                interval = " to ".join(f"{end:.3f}" for end in score.get("ci") or () if is_number(end))
                lines.append(f"| {name} | {score['value']:.3f} | {interval or 'none'} |")
    return "\n".join([*lines, "", "## Not for", "", "Decisions about patients.", ""])
