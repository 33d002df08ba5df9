"""The Flower engine: server and nodes as processes of their own end with the model of the local engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.flower_app import APP, run_config, run_with_flower
from heartlm.extensions.federated.flower_client import app as client_app
from heartlm.extensions.federated.flower_fleet import Fleet, homes
from heartlm.extensions.federated.flower_messages import message, read
from heartlm.extensions.federated.models import patients_of as patients_here
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed

pytestmark = pytest.mark.slow

# --- the whole ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studies(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same study with both engines: three clients on two nodes, clients that die, moments."""
    folder = tmp_path_factory.mktemp("flower")
    study = typed(
        FederatedConfig,
        {
            "model": "tiny_ecg",
            "databases": [str(tiny_database)],
            "partition": "iid",
            "clients": 3,
            "rounds": 2,
            "local_steps": 3,
            "batch_size": 16,
            "failures": 0.3,
            "timeout_s": 300,
            "seed": 2,
        },
    )
    local = federate(replace(study, out=folder / "local")).folder
    flower = run_with_flower(replace(study, out=folder / "flower", engine="flower", nodes=2))
    return {"local": local, "flower": flower}


def test_flower_ends_with_the_model_of_the_local_engine_to_the_last_bit(studies: dict[str, Path]):
    models = [(studies[engine] / "models" / "last" / "model.safetensors").read_bytes() for engine in studies]
    assert models[0] == models[1]


def test_flower_ends_with_the_same_scores(studies: dict[str, Path]):
    assert read_json(studies["local"] / "scores.json") == read_json(studies["flower"] / "scores.json")


def test_the_same_clients_learnt_and_died(studies: dict[str, Path]):
    def clients(folder: Path) -> list[tuple[object, ...]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return sorted(
            (line["round"], line["client"], line.get("loss") or 0.0, line.get("lost") or "")
            for line in lines
            if line["kind"] == "client"
        )

    told = clients(studies["local"])
    assert told == clients(studies["flower"])
    assert any(lost for *_, lost in told)
    assert any(not lost for *_, lost in told)


# --- the same without processes -------------------------------------------------------------------------------------


class Nodes:
    """A grid whose nodes are this process: they get what SuperNodes would, and keep what those would keep."""

    def __init__(self, num_nodes: int, silent: tuple[str, int] | None = None) -> None:
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in range(100, 100 + num_nodes)}
        self.silent = silent

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        replies = []
        for number, sent in enumerate(messages):
            sent.metadata.__dict__["_message_id"] = f"{sent.metadata.group_id}-{number}"
            if (sent.metadata.message_type, sent.metadata.dst_node_id) != self.silent:
                replies.append(client_app(sent, self.contexts[sent.metadata.dst_node_id]))
        return replies


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the process of a server app knows of itself; what apps set for a process of their own is set back."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    yield
    torch.set_flush_denormal(False)


def language_study(corpus: Path, **changed: object) -> FederatedConfig:
    settings = {"model": "pretrain", "corpus": str(corpus), "training": {"depth": 1, "window": 32}, "device": "cpu"}
    small = {"partition": "iid", "clients": 3, "rounds": 2, "local_steps": 2, "batch_size": 4, "learning_rate": 1e-3}
    return typed(FederatedConfig, {**settings, **small, **changed})


@pytest.mark.usefixtures("in_a_run")
def test_a_language_model_ends_with_the_weights_of_the_local_engine(tiny_corpus: Path, tmp_path: Path):
    study = language_study(tiny_corpus, strategy="diloco")
    local = federate(replace(study, out=tmp_path / "local")).folder
    torch.set_flush_denormal(True)
    here = replace(study, out=tmp_path / "flower", engine="flower")
    federate(here, fleet=Fleet(Nodes(2), here, 2))
    torch.set_flush_denormal(False)
    weights = [load_file(folder / "models" / "last" / "model.safetensors") for folder in (local, tmp_path / "flower")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.usefixtures("in_a_run")
def test_a_node_that_does_not_answer_loses_its_clients_of_the_round(tiny_database: Path, tmp_path: Path):
    study = small_study(tiny_database, tmp_path / "study", engine="flower", rounds=1)
    federate(study, fleet=Fleet(Nodes(2, silent=("train", 101)), study, 2))
    lines = [json.loads(line) for line in (tmp_path / "study" / "metrics.jsonl").read_text().splitlines()]
    lost = {line["client"]: line.get("lost") for line in lines if line["kind"] == "client"}
    assert lost == {"client-0": None, "client-1": "its node did not answer", "client-2": None}


def small_study(database: Path, out: Path, **changed: Any) -> FederatedConfig:
    settings = {"partition": "iid", "clients": 3, "rounds": 2, "local_steps": 2, "batch_size": 8, "timeout_s": 3.0}
    settings |= {"model": "tiny_ecg", "databases": [str(database)], "device": "cpu"}
    return FederatedConfig(out=out, **{**settings, **changed})


@pytest.mark.usefixtures("in_a_run")
def test_masked_sums_of_nodes_give_the_model_of_plain_sums_to_the_last_bit(tiny_database: Path, tmp_path: Path):
    study = small_study(tiny_database, tmp_path / "local", failures=0.3, rounds=3)
    local = federate(study).folder
    study = replace(study, out=tmp_path / "flower", engine="flower", secure_sum=True)
    nodes = Nodes(2)
    torch.set_flush_denormal(True)
    federate(study, fleet=Fleet(nodes, study, 2))
    torch.set_flush_denormal(False)
    models = [(folder / "models" / "last" / "model.safetensors").read_bytes() for folder in (local, study.out)]
    assert models[0] == models[1]
    assert not any(name.startswith("masks-") for context in nodes.contexts.values() for name in context.state)


@pytest.mark.usefixtures("in_a_run")
def test_a_node_that_goes_before_its_masked_sum_costs_the_round(
    tiny_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study = small_study(tiny_database, tmp_path / "study", engine="flower", secure_sum=True, rounds=1)
    first = patients_here(study).learning([], [], 0, 1).flat.on_host()
    federate(study, fleet=Fleet(Nodes(2, silent=("train.mask", 101)), study, 2))
    assert "101 announced a key and sent nothing; the round is abandoned" in capsys.readouterr().err
    weights = load_file(tmp_path / "study" / "models" / "last" / "model.safetensors")
    last = torch.cat([tensor.flatten() for tensor in weights.values()])
    assert torch.equal(last.sort().values, first.sort().values)  # nothing moved, whatever the order of tensors


@pytest.mark.usefixtures("in_a_run")
def test_noise_under_masks_is_stated(tiny_database: Path, tmp_path: Path):
    pytest.importorskip("opacus")
    promise = {"clip_norm": 0.5, "noise_multiplier": 1.0, "privacy_delta": 0.01, "secure_sum": True}
    study = small_study(tiny_database, tmp_path / "study", engine="flower", **promise)
    federate(study, fleet=Fleet(Nodes(2), study, 2))
    said = read_json(tmp_path / "study" / "privacy.json")
    assert (said["num_rounds"], said["delta"]) == (2, 0.01)
    assert said["epsilon"] > said["epsilon_per_round"] > 0


@pytest.mark.usefixtures("in_a_run")
def test_what_nodes_kept_is_gone_so_flower_studies_are_not_resumed(tiny_database: Path, tmp_path: Path):
    study = small_study(tiny_database, tmp_path / "study", engine="flower", rounds=1)
    federate(study, fleet=Fleet(Nodes(2), study, 2))
    about = read_json(tmp_path / "study" / "run.json")
    write_json(tmp_path / "study" / "run.json", {**about, "finished": None})
    with pytest.raises(HeartlmError, match=r"resume: .* found, nothing expected by engine flower"):
        federate(FederatedConfig(resume=tmp_path / "study"))


def test_too_few_nodes_are_told_of(tiny_database: Path):
    study = FederatedConfig(model="tiny_ecg", databases=[str(tiny_database)], engine="flower", timeout_s=0.5)
    with pytest.raises(HeartlmError, match=r"1 nodes came within 0\.5 s, 2 expected"):
        Fleet(Nodes(1), study, 2)


# --- parts --------------------------------------------------------------------------------------------------------


def test_messages_come_out_as_they_went_in():
    vector = torch.randn(11)
    sent = {"losses": [0.1 + 0.2, 1e-300], "name": "p", "none": None}
    told, vectors = read(message(sent, {"global": vector, "double": vector.double()}))
    assert told == sent
    assert torch.equal(vectors["global"], vector)
    assert vectors["double"].dtype == torch.float64
    with pytest.raises(HeartlmError, match="another version of heartlm"):
        read(RecordDict())


def test_clients_live_where_all_their_patients_are():
    members = [Member("a", ("p",), 1), Member("b", ("q", "r"), 1), Member("c", ("p",), 1)]
    assert homes(members, [{"p"}, {"q", "r"}], [40, 50]) == {0: 40, 1: 50, 2: 40}
    shared = {"p", "q", "r"}
    assert homes(members, [shared, shared], [40, 50]) == {0: 40, 1: 50, 2: 40}
    with pytest.raises(HeartlmError, match="client b has patients of several nodes"):
        homes(members, [{"p", "q"}, {"r"}], [40, 50])


def test_the_app_gets_the_whole_study(tmp_path: Path):
    import tomllib

    study = FederatedConfig(model="tiny_ecg", databases=['a "strange" name'], out=tmp_path / "study", engine="flower")
    told = tomllib.loads(run_config(study))
    defaults = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert told.keys() == defaults.keys()
    assert typed(FederatedConfig, json.loads(told["study"])).databases == [str(Path('a "strange" name').resolve())]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"resume": Path("x")}, "resume"),
        ({"out": None}, "out"),
        ({"nodes": 0}, "nodes"),
    ],
)
def test_what_flower_cannot_do_is_refused_at_once(tiny_database: Path, changed: dict[str, object], named: str):
    study = FederatedConfig(model="tiny_ecg", databases=[str(tiny_database)], out=Path("unused"), engine="flower")
    with pytest.raises(HeartlmError, match=f"^{named}: "):
        run_with_flower(replace(study, **changed))


def test_a_folder_that_holds_something_is_refused_before_anything_starts(tiny_database: Path, tmp_path: Path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "run.json").write_text("{}")
    study = FederatedConfig(model="tiny_ecg", databases=[str(tiny_database)], out=tmp_path / "study", engine="flower")
    with pytest.raises(HeartlmError, match="holds something already"):
        run_with_flower(study)
