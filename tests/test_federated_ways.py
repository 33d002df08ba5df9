"""Whole studies whose updates are compressed, masked or bounded, on simulated recordings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from heartlm.errors import HeartlmError
from heartlm.federated.federate import federate
from heartlm.federated.privacy import epsilon_of
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.sweep import mpiexec, run_here
from heartlm.federated.sweep_file import SweepConfig
from heartlm.files import read_json

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
    return FederatedConfig(databases=[str(database)], out=out, **{**SMALL, **changed})


def model(folder: Path) -> bytes:
    return (folder / "models" / "last" / "model.safetensors").read_bytes()


def sent_bytes(folder: Path) -> int:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return sum(line["bytes"] for line in lines if line["kind"] == "round")


@pytest.mark.parametrize("settings", [{"compression": "int8-by-chance"}])
def test_ranks_of_mpiexec_end_with_the_model_of_one_process(
    tiny_database: Path, tmp_path: Path, settings: dict[str, Any]
):
    try:
        mpiexec(2)
    except HeartlmError as error:
        pytest.skip(str(error))
    alone = federate(study_of(tiny_database, tmp_path / "alone", rounds=2, **settings)).folder
    (tmp_path / "study.yaml").write_text(
        yaml.safe_dump(study_of(tiny_database, tmp_path / "ranks", rounds=2, **settings).to_yaml())
    )
    assert run_here(tmp_path / "study.yaml", 2, tmp_path / "log", SweepConfig(timeout_s=120.0)) is None
    assert model(alone) == model(tmp_path / "ranks")


def test_compression_sends_less_and_says_how_much(tiny_database: Path, tmp_path: Path):
    """One client a rank: exact sums merge the clients of a rank before they are sent, compressed ones cannot."""
    settings = {"clients": 1, "rounds": 2}
    sent = {
        name: sent_bytes(federate(study_of(tiny_database, tmp_path / name, compression=name, **settings)).folder)
        for name in ("none", "bf16", "int8-by-chance")
    }
    assert sent["none"] > sent["bf16"] > sent["int8-by-chance"] > 0


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
        (
            {"secure_sum": True, "engine": "flower", "compression": "bf16"},
            "secure_sum: true found with compression bf16",
        ),
        ({"secure_sum": True}, "secure_sum: True found, nothing expected by engine ranks"),
    ],
)
def test_what_does_not_go_together_is_refused(tiny_database: Path, tmp_path: Path, changed: dict[str, Any], words: str):
    with pytest.raises(HeartlmError, match=f"^{words}"):
        federate(study_of(tiny_database, tmp_path / "study", **changed))
