"""Files of a fine-tuned model that no training writes: one line that names file and field, exit status 2."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from heartlm.models.pretrained import FOLDER
from heartlm.tasks.load import load_finetuned
from tests.conftest import Refused


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        (
            "beats",
            {"task": None},
            "config.json: classes: ('N', 'S', 'V', 'F', '|') found, names for task None expected",
        ),
        ("beats", {"task": "sleep"}, "task: sleep found, one of beats, rhythm, waveform, statements expected"),
        ("beats", {"task": "rhythm"}, "positive: () found, 2 texts for task rhythm expected"),
        ("beats", {"positive": ["AFIB"]}, "positive: ('AFIB',) found, 0 texts for task beats expected"),
        ("beats", {"classes": ["N", "S", "V", "F", "X"]}, "classes: ('N', 'S', 'V', 'F', 'X') found, N S V F or"),
        ("beats", {"tokenizer_kind": "words"}, "tokenizer_kind: words found, one of beat, "),
        ("beats", {"objective": "guess"}, "objective: guess found, masked, causal or labels expected"),
        ("beats", {"pooled": True}, "pooled: True found, False for task beats expected"),
        ("beats", {"tokenizer_hash": "0" * 64}, "000000000000 expected by tokenizer_hash in config.json"),
        ("af", {"positive": ["AFIB", "some"]}, "positive: ('AFIB', 'some') found, a rhythm of"),
        ("af", {"positive": []}, "positive: () found, 2 texts for task rhythm expected"),
        ("af", {"window": 0}, "window: 0 found"),
        ("waveform", {"window": 7}, "window: 7 found, 400, the tokens of 4 s, expected"),
    ],
)
def test_a_field_that_does_not_belong_to_the_task_is_named(
    tmp_path: Path, refused: Refused, model: str, changes: dict[str, Any], reason: str
):
    shutil.copytree(FOLDER / model, tmp_path / model)
    path = tmp_path / model / "models/last/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    words = ["evaluate", str(tmp_path / model), "--on", str(tmp_path), "--checkpoint", "last"]
    line = refused(*words)
    assert reason in line and str(tmp_path / model) in line and len(line) < 1000


@pytest.mark.parametrize("file", ["tokenizer/tensors.safetensors", "tokenizer/tokenizer.json", "run.json"])
def test_a_pipe_in_place_of_a_file_of_a_run_is_refused(tmp_path: Path, refused: Refused, file: str):
    run = tmp_path / "beats"
    shutil.copytree(FOLDER / "beats", run)
    (run / file).unlink()
    os.mkfifo(run / file)
    reason = "no run.json" if file == "run.json" else f"{Path(file).name}: a regular file expected"
    assert reason in refused("evaluate", run, "--on", tmp_path, "--checkpoint", "last")


@pytest.mark.parametrize("name", ["beats", "beats-causal", "af", "waveform"])
def test_shipped_models_pass(name: str):
    assert load_finetuned(FOLDER / name, "last").tokenizer
