"""An exported model gives the same numbers without heartlm."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from heartlm.models.config import ModelConfig
from heartlm.models.info import ModelInfo
from heartlm.models.store import build_model, load_model, save_model
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "plain_pytorch.py"
SIZES = (6, 4, 9)


def exported(folder: Path, causal: bool) -> None:
    torch.manual_seed(3)
    config = ModelConfig(SIZES, depth=3, width=60, heads=5, causal=causal).resolve()
    model = build_model(config, [torch.randn(size, 2 + facet) for facet, size in enumerate(SIZES)])
    torch.nn.init.normal_(model.embedding.free)
    save_model(folder, model, ModelInfo(config, "0" * 64, "beat", "causal" if causal else "masked", 16))


@pytest.mark.parametrize("causal", [False, True])
def test_it_gives_the_same_hidden_states(tmp_path: Path, causal: bool) -> None:
    exported(tmp_path / "model", causal)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), names)
    codes = torch.stack([torch.randint(size + 1, (2, 16)) for size in SIZES], dim=-1)
    model, _ = load_model(tmp_path / "model")
    with torch.no_grad():
        expected, _ = model.hidden(codes)
        assert_close(names["hidden_states"](str(tmp_path / "model"), codes), expected, rtol=1e-4, atol=1e-5)


def test_it_runs_alone_and_needs_no_heartlm(tmp_path: Path) -> None:
    exported(tmp_path / "model", causal=False)
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(EXAMPLE.read_text()))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
    }
    assert imported == {"json", "sys", "pathlib", "torch", "safetensors"}
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path / "model"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tensor([[[")
