"""The Flower engine: server and nodes as processes of their own, over TLS, end with the model of the local engine."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from heartlm.errors import HeartlmError
from heartlm.federated.client import Errand, Update
from heartlm.federated.federate import federate
from heartlm.federated.flower_app import run_with_flower, write_app
from heartlm.federated.flower_certificates import make_certificates
from heartlm.federated.flower_fleet import homes
from heartlm.federated.flower_messages import (
    errands_of,
    errands_told,
    members_of,
    message,
    patients_of,
    patients_told,
    read,
    update_of,
    update_told,
)
from heartlm.federated.partition import Member, Patient
from heartlm.federated.study_file import StudyConfig, study_of
from heartlm.files import read_json

# --- the whole ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studies(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same study with both engines: three clients on two nodes, clients that die, moments, memories, int8."""
    folder = tmp_path_factory.mktemp("flower")
    study = study_of(
        {
            "databases": [str(tiny_database)],
            "partition": "iid",
            "clients": 3,
            "rounds": 2,
            "local_steps": 3,
            "batch_size": 16,
            "failures": 0.3,
            "compression": "int8",
            "timeout_s": 300,
            "seed": 2,
        }
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


# --- parts --------------------------------------------------------------------------------------------------------


def test_certificates_are_good_for_this_machine_only(tmp_path: Path):
    made = make_certificates(tmp_path)
    assert made.key.stat().st_mode & 0o077 == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.server, made.key)
    client = ssl.create_default_context(cafile=str(made.authority))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                try:
                    with server.wrap_socket(connection, server_side=True) as secured:
                        secured.sendall(b"good")
                except ssl.SSLError:
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.recv(4) == b"good"
        with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLCertVerificationError):
            client.wrap_socket(plain, server_hostname="example.org")
        thread.join()


def test_messages_come_out_as_they_went_in():
    errands = {3: Errand(2, 5, 1.5, None), 7: Errand(2, 4, None, 1)}
    members = {3: Member("a", ("p", "q"), 12), 7: Member("b", ("r",), 3)}
    vector = torch.randn(11)
    told, vectors = read(message(errands_told(errands, members), {"global": vector}))
    assert errands_of(told) == errands
    assert members_of(told) == members
    assert torch.equal(vectors["global"], vector)

    update = Update(torch.randn(11, dtype=torch.float64), 12, 5, 0.1 + 0.2, 1.5)
    told, vectors = read(message(update_told(update), {"delta": update.delta}))
    again = update_of(told, vectors["delta"])
    assert torch.equal(again.delta, update.delta)
    assert (again.num_samples, again.loss, again.seconds) == (12, 0.1 + 0.2, 1.5)

    patient = Patient("p", "tinydb", 5, np.array([3, 2, 0, 0]))
    told, _ = read(message(patients_told([patient])))
    assert str(patients_of(told)) == str([patient])


def test_clients_live_where_all_their_patients_are():
    members = [Member("a", ("p",), 1), Member("b", ("q", "r"), 1), Member("c", ("p",), 1)]
    assert homes(members, [{"p"}, {"q", "r"}], [40, 50]) == {0: 40, 1: 50, 2: 40}
    shared = {"p", "q", "r"}
    assert homes(members, [shared, shared], [40, 50]) == {0: 40, 1: 50, 2: 40}
    with pytest.raises(HeartlmError, match="client b has patients of several nodes"):
        homes(members, [{"p", "q"}, {"r"}], [40, 50])


def test_the_app_holds_the_whole_study(tmp_path: Path):
    import tomllib

    study = StudyConfig(databases=['a "strange" name'], out=tmp_path / "study", engine="flower")
    write_app(study, tmp_path / "app")
    content = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    told = content["tool"]["flwr"]["app"]["config"]
    assert study_of(json.loads(told["study"])).databases == [str(Path('a "strange" name').resolve())]


@pytest.mark.parametrize(
    ("changed", "named"), [({"secure_sum": True}, "secure_sum"), ({"out": None}, "out"), ({"nodes": 0}, "nodes")]
)
def test_what_flower_cannot_do_is_refused_at_once(tiny_database: Path, changed: dict[str, object], named: str):
    study = StudyConfig(databases=[str(tiny_database)], out=Path("unused"), engine="flower")
    with pytest.raises(HeartlmError, match=f"^{named}: "):
        run_with_flower(replace(study, **changed))


def test_a_folder_that_holds_something_is_refused_before_anything_starts(tiny_database: Path, tmp_path: Path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "run.json").write_text("{}")
    study = StudyConfig(databases=[str(tiny_database)], out=tmp_path / "study", engine="flower")
    with pytest.raises(HeartlmError, match="holds something already"):
        run_with_flower(study)
