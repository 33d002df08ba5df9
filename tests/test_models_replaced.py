"""A model that another replaces: whatever moment the process dies at, one of the two loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from heartlm.models.info import ModelInfo
from heartlm.models.store import load_model, save_model
from heartlm.storage import atomic
from tests.synthetic_corpus import small_model


def test_a_model_set_aside_by_a_killed_replacement_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the filesystem cannot exchange names, there is a moment in which only the other name is there."""
    model = small_model()
    save_model(tmp_path / "best", model, ModelInfo(model.config, "0" * 64, "beat", "masked", 16, step=1))
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    rename = Path.rename

    def die_between(self: Path, to: Path) -> Path:
        if to == tmp_path / "best":
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", die_between)
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path / "best", model, ModelInfo(model.config, "0" * 64, "beat", "masked", 16, step=2))
    monkeypatch.undo()
    assert not (tmp_path / "best").exists()
    _, info = load_model(tmp_path / "best")
    assert info.step == 1
