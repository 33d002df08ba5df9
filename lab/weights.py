"""What the scores of a result file belong to: weights that ship, or the recipe of models that a study trains itself.

`write_results` keeps a digest of each in the entry `models`. Where one has changed since, or was not kept, the result
is stale: `lab.figures` marks every text that quotes it and says how it is measured again.
"""

from __future__ import annotations

import ast
import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

from heartlm.models.pretrained import FOLDER, model_files
from heartlm.storage.atomic import digest_of_files
from lab.catalog import BENCHMARKS
from lab.places import ROOT

ANALYSIS = ("beats", "af", "waveform", "delineation", "statements")
LIVE = ("beats-causal", "waveform", "af-onset")
BEATS = ("recipes/beats.py",)
WAVES = ("recipes/train_delineator.py", "lab/delineation_data.py")
MEASURED_WITH: dict[str, tuple[str, ...]] = {
    "quality-shipped": ("beats",),
    "findings": ANALYSIS,
    "conduction": ANALYSIS,
    "atria": ANALYSIS,
    "strangers": ANALYSIS[:3],
    "strangers-probe": ("foundation",),
    "unlike": ("beats",),
    "monitor-alarms": LIVE,
    "monitor-beats": ("beats-causal",),
    "monitor-links": LIVE,
    "bedside": LIVE,
    "bedside-ds2": LIVE,
    "quality": BEATS,
    "quality-causal": BEATS,
    "quality-ds2": BEATS,
    "quality-svdb": BEATS,
    "two_leads": (*BEATS, "af", "waveform", "delineation"),
    "labels": ("studies/labels.py",),
    "statements": ("recipes/statements.py",),
    "af_rhythm": ("recipes/af.py",),
    "waveform": ("recipes/vf.py",),
    "delineate": WAVES,
    "delineate_export": WAVES,
}
"""For each result with scores, the shipped models that gave them, or the recipe of its folds."""

FILES = {
    "delineation": (ROOT / "src/heartlm/delineation/network.safetensors",),
    "af-onset": (FOLDER / "af-onset/model.safetensors",),
}


def digests_of(name: str) -> dict[str, str]:
    """Digests of what gives the scores of the result `name` now; empty if it has no scores of a model."""
    return {each: _digest(each) for each in MEASURED_WITH.get(name, ())}


def _digest(of: str) -> str:
    if of.endswith(".py"):
        return code_digest((ROOT / of).read_text(encoding="utf-8"))
    return digest_of_files(*FILES.get(of, model_files(FOLDER / of / "models/last")))


def code_digest(source: str) -> str:
    """Digest of a recipe without its imports, which change where modules move."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:16]


def changed(name: str, content: Mapping[str, Any]) -> list[str]:
    """What has changed since the result was measured, or was not recorded: names of models and files of recipes."""
    recorded = content.get("models", {})
    return [each for each, digest in digests_of(name).items() if recorded.get(each) != digest]


def origins(changes: Mapping[str, list[str]]) -> str:
    """Sentences that mark, of the results that a text quotes, those of earlier weights and those of recipes.

    Args:
        changes: of each result, what `changed` says.
    """
    earlier = [f"{name} ({', '.join(of)})" for name, of in changes.items() if of and not _is_of_recipe(name)]
    recipes = [
        name + (f" ({', '.join(of)} changed since, or not recorded)" if of else "")
        for name, of in changes.items()
        if _is_of_recipe(name)
    ]
    sentences = [f"**Of earlier weights than those that ship**: {', '.join(earlier)}."] if earlier else []
    if recipes:
        sentences.append(f"Of models that the study trained in folds, not of weights that ship: {', '.join(recipes)}.")
    return " ".join(sentences)


def _is_of_recipe(name: str) -> bool:
    return any(each.endswith(".py") for each in MEASURED_WITH.get(name, ()))


def command_of(name: str, content: Mapping[str, Any]) -> str:
    """How a result is measured again."""
    if any(each.name == name for each in BENCHMARKS):
        return shlex.join(["make", "benchmarks", f"ONLY={name}"])
    return str(content["command"])
