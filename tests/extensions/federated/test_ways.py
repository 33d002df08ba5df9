"""Whole studies with differential privacy, on simulated recordings; settings that exclude each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.privacy import epsilon_of
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.reading import read_json

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "partition": "iid",
    "clients": 4,
    "rounds": 4,
    "local_steps": 3,
    "batch_size": 16,
    "evaluate_every": 0,
    "save_every": 2,
    "device": "cpu",
}


def study_of(database: Path, out: Path, **changed: Any) -> FederatedConfig:
    return FederatedConfig(model="tiny_ecg", databases=[str(database)], out=out, **{**SMALL, **changed})


def model(folder: Path) -> bytes:
    return (folder / "models" / "last" / "model.safetensors").read_bytes()


def test_a_private_study_states_what_it_promises(
    tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("opacus")
    promise = {"clip_norm": 0.5, "noise_multiplier": 1.0, "privacy_delta": 0.01, "participation": 0.5}
    folder = federate(study_of(tiny_database, tmp_path / "private", **promise)).folder
    said = read_json(folder / "privacy.json")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clients = [line["client"] for line in lines if line["kind"] == "client"]
    most = max(clients.count(name) for name in clients)
    assert said["num_rounds"] == most < 2 * SMALL["rounds"]
    assert said["epsilon"] == pytest.approx(epsilon_of(1.0, most, 0.01))
    assert said["epsilon_per_round"] == pytest.approx(epsilon_of(1.0, 1, 0.01))
    assert re.search(
        r"privacy: each client, with all its patients: epsilon [\d.]+ at delta 0.01", capsys.readouterr().err
    )


def test_noise_does_not_follow_from_the_seed(tiny_database: Path, tmp_path: Path):
    pytest.importorskip("opacus")
    promise = {"clip_norm": 0.5, "noise_multiplier": 1.0, "privacy_delta": 0.01, "rounds": 1}
    one, other = (federate(study_of(tiny_database, tmp_path / name, **promise)).folder for name in ("one", "other"))
    assert model(one) != model(other)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clip_norm": 1.0}, "noise_multiplier: nothing found"),
        ({"clip_norm": 1.0, "noise_multiplier": 0.0, "privacy_delta": 0.01}, "noise_multiplier: 0.0 found"),
        ({"clip_norm": 1.0, "noise_multiplier": 1.0, "privacy_delta": 0.5}, "privacy_delta: 0.5 found"),
        ({"secure_sum": True}, "secure_sum: True found, nothing expected by engine ranks"),
    ],
)
def test_what_does_not_go_together_is_refused(tiny_database: Path, tmp_path: Path, changed: dict[str, Any], words: str):
    with pytest.raises(HeartlmError, match=f"^{words}"):
        federate(study_of(tiny_database, tmp_path / "study", **changed))
