"""Run folders of models with random weights: what they say is nonsense, but the same nonsense every time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from heartlm.databases.database import Database
from heartlm.labels.tokens import BEAT_TASK_CLASSES
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.info import ModelInfo
from heartlm.models.store import build_model, save_model
from heartlm.tokenizers.base import Lead, Tokenizer
from heartlm.tokenizers.beat import BeatTokenizer

WINDOW = 32


def annotated_leads(database: Database) -> list[Lead]:
    """The first lead of every recording, with its annotated beats."""
    leads = []
    for record_id in database.record_ids:
        annotations = database.annotations(record_id)
        assert annotations is not None
        leads.append(Lead(annotations, database.recording(record_id).signal(leads=[0])[0]))
    return leads


def small_beat_tokenizer(database: Database) -> BeatTokenizer:
    tokenizer = BeatTokenizer(num_levels=2, num_deviation_levels=1, num_codes=16)
    tokenizer.fit(annotated_leads(database))
    return tokenizer


def small_model(tokenizer: Tokenizer, *, causal: bool = True, num_classes: int = 0) -> HeartModel:
    torch.manual_seed(7)
    sizes = tuple(facet.size for facet in tokenizer.facets)
    config = ModelConfig(sizes, depth=1, causal=causal).resolve()
    model = build_model(config, [torch.from_numpy(places) for places in tokenizer.geometry()], num_classes)
    with torch.no_grad():
        for weight in (model.facet_heads, *([model.class_head.weight] if model.class_head else [])):
            weight.mul_(20)  # so that answers differ from token to token
    return model.eval()


def spread_answers(model: HeartModel, times: float = 4) -> None:
    """Change random weights, and means and variances of batches, so that answers differ."""
    spread_norms(model)
    if model.config.network == "transformer":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(times)


def spread_norms(model: nn.Module) -> None:
    """Change means and variances of batches, and what follows them, from 0 and 1."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 2)
                module.bias.normal_()


def untrained_run(
    folder: Path, tokenizer: Tokenizer, *, task: str | None = None, causal: bool = True, parent: Path | None = None
) -> Path:
    """Write a run folder as pretraining (no `task`) or fine-tuning would leave it."""
    classes = {"beats": BEAT_TASK_CLASSES, "rhythm": ("other", "AFIB")}.get(task or "", ())
    model = small_model(tokenizer, causal=causal, num_classes=len(classes))
    info = ModelInfo(
        config=model.config,
        tokenizer_hash=tokenizer.content_hash(),
        tokenizer_kind=tokenizer.kind,
        objective="causal" if causal else "masked",
        window=WINDOW,
        task=task,
        classes=classes,
        positive=("AFIB", "negative") if task == "rhythm" else (),
    )
    return write_run(folder, model, info, tokenizer, parent)


def write_run(
    folder: Path, model: HeartModel, info: ModelInfo, tokenizer: Tokenizer, parent: Path | None = None
) -> Path:
    """Write a run folder with `model` as its best one."""
    folder.mkdir(parents=True)
    save_model(folder / "models" / "best", model, info)
    tokenizer.save(folder / "tokenizer")
    about = {
        "schema": 1,
        "name": folder.name,
        "kind": "finetune" if info.task else "pretrain",
        "task": info.task,
        "objective": info.objective,
        "parent": str(parent) if parent else None,
        "from_scratch": False,
        "manifest_hash": "0" * 64,
        "finished": None,
    }
    (folder / "run.json").write_text(json.dumps(about))
    return folder
