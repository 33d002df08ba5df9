"""Clients that die, are slow or not asked; and what a study looks like to whoever begins, kills or resumes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.client import Clients, ClientTask, Update, sample_clients
from heartlm.extensions.federated.federate import federate
from heartlm.extensions.federated.rounds import Rounds, Server
from heartlm.extensions.federated.strategy import OuterSGD
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.extensions.federated.study_folder import StudyFolder
from heartlm.extensions.federated.sweep_file import SweepConfig
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed
from tests.conftest import ROOT, Refused
from tests.extensions.federated.small import SIZES, STUDY, final_vector, members, mpiexec, of_waveforms, rounds_of


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_tasks_follow_from_seed_and_round():
    study = replace(STUDY, participation=0.5, stragglers=0.5, failures=0.3)
    of = [sample_clients(study, members(), index) for index in range(20)]
    assert of == [sample_clients(study, members(), index) for index in range(20)]
    assert of != [sample_clients(replace(study, seed=1), members(), index) for index in range(20)]
    assert all(len(asked) == 2 for asked in of)
    assert {number for asked in of for number in asked} == {0, 1, 2, 3}
    every = [task for asked in of for task in asked.values()]
    assert any(task.num_steps < study.local_steps for task in every)
    assert all(1 <= task.num_steps <= study.local_steps for task in every)
    assert any(task.dies_after is not None for task in every)


def test_slow_clients_give_part_of_their_steps():
    tasks = sample_clients(replace(STUDY, stragglers=1.0), members(), 0)
    assert all(0 < task.num_steps < STUDY.local_steps for task in tasks.values())
    assert not torch.equal(final_vector(stragglers=1.0), final_vector())


def test_seeds_decide_and_repeat():
    assert torch.equal(final_vector(seed=3), final_vector(seed=3))
    assert not torch.equal(final_vector(seed=3), final_vector(seed=4))


# --- who dies --------------------------------------------------------------------------------------------------------


class Dying:
    """Clients of which some die in one round, after their local steps and before they give anything."""

    def __init__(self, inner: Clients, dying: set[int], dies_in: int) -> None:
        self.inner, self.kept, self.dying, self.dies_in = inner, inner.kept, dying, dies_in
        self.taken = list[tuple[int, int]]()

    def train(self, vector: torch.Tensor, tasks: Mapping[int, ClientTask]) -> Mapping[int, Update | str]:
        tasks = {
            number: replace(task, dies_after=task.num_steps - 1)
            if task.round_index == self.dies_in and number in self.dying
            else task
            for number, task in tasks.items()
        }
        found = self.inner.train(vector, tasks)
        self.taken += [(tasks[n].round_index, n) for n, update in found.items() if isinstance(update, Update)]
        return found


def test_a_client_that_dies_loses_its_round_and_nothing_else():
    rounds = rounds_of(STUDY)
    dying = Dying(rounds.clients, {1}, dies_in=1)
    rounds.clients = dying
    moments, vectors = list[dict[str, torch.Tensor]](), list[torch.Tensor]()
    for index in range(STUDY.rounds):
        before = {key: value.clone() for key, value in dying.kept[1].items()}
        rounds._round(index, last=False, saves=False)
        vectors.append(rounds.server.vector)
        moments.append(before)
    assert [index for index, number in dying.taken if number == 1] == [0, 2, 3]
    assert moments[1].keys() == moments[2].keys()
    assert all(torch.equal(moments[1][key], moments[2][key]) for key in moments[1])
    assert not all(torch.equal(moments[2][key], moments[3][key]) for key in moments[2])
    lost = [line for line in rounds.lines if line["kind"] == "client" and "lost" in line]
    assert [(line["round"], line["client"]) for line in lost] == [(1, "client-1")]

    whole = rounds_of(STUDY)
    whole._round(0, last=False, saves=False)
    assert torch.equal(whole.server.vector, vectors[0])
    asked = sample_clients(STUDY, members(), 1)
    updates = whole.clients.train(vectors[0], {number: asked[number] for number in (0, 2, 3)})
    samples = sum(SIZES[number] for number in updates)
    mean = sum(update.delta * (SIZES[number] / samples) for number, update in updates.items())
    torch.testing.assert_close(vectors[1].double(), vectors[0].double() + mean, rtol=1e-6, atol=1e-9)


def test_a_round_in_which_all_die_changes_nothing():
    rounds = rounds_of(STUDY)
    begin = rounds.server.vector.clone()
    rounds.clients = Dying(rounds.clients, set(range(len(SIZES))), dies_in=0)
    rounds._round(0, last=False, saves=False)
    assert torch.equal(rounds.server.vector, begin)


# --- a study from its file to its folder -----------------------------------------------------------------------------


def test_a_state_that_is_empty_is_named(tmp_path: Path):
    folder = StudyFolder(tmp_path)
    folder.state(3).mkdir(parents=True)
    (folder.state(3) / "server.pt").touch()
    with pytest.raises(HeartlmError, match=r"server\.pt cannot be read .*: remove its folder"):
        folder.load_server(Server(torch.zeros(1), OuterSGD()), folder.last_round())


def small_study(database: Path, out: Path, **settings: Any) -> FederatedConfig:
    common = {"rounds": 4, "local_steps": 2, "batch_size": 16, "evaluate_every": 2, "save_every": 2, "device": "cpu"}
    return FederatedConfig(model="tiny_ecg", databases=[str(database)], out=out, **{**common, **settings})  # type: ignore[arg-type]


def test_a_study_leaves_a_folder_that_says_everything(tiny_database: Path, tmp_path: Path):
    outcome = federate(small_study(tiny_database, tmp_path / "study", failures=0.2))
    folder = outcome.folder
    told = json.loads((folder / "clients.json").read_text())
    patients = [patient for client in told["clients"] for patient in client["patients"]]
    assert len(patients) == len(set(patients)) > 1
    rounds, clients = lines_of(folder, "round"), lines_of(folder, "client")
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    for line in rounds:
        parts = sum(line[f"{name}_s"] for name in ("compute", "evaluation", "exposed", "other"))
        assert parts == pytest.approx(line["round_s"], rel=1e-5, abs=1e-6) and line["other_s"] >= 0
        assert line["bytes"] == 8 * (1492 + 1)
    assert len(clients) == 4 * len(told["clients"]) and any("lost" in line for line in clients)
    assert [line["round"] for line in lines_of(folder, "evaluation")] == [1, 3]
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["per_class"]["V"]["f1"]["value"] == lines_of(folder, "evaluation")[-1]["f1/V"]
    assert (folder / "models" / "last" / "model.safetensors").is_file()
    assert StudyFolder(folder).settings["rounds"] == 4


@pytest.mark.parametrize(
    "settings", [{}, {"staleness": 1, "strategy": "fedyogi", "save_every": 1}], ids=["fedavg", "stale"]
)
def test_a_killed_study_resumes_to_the_same_model(
    tiny_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
):
    whole = federate(small_study(tiny_database, tmp_path / "whole", **settings)).folder
    study, run = small_study(tiny_database, tmp_path / "killed", **settings), Rounds._round

    def killed(self: Rounds, round_index: int, *rest: bool) -> None:
        if round_index == 3:
            raise KeyboardInterrupt
        run(self, round_index, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Rounds, "_round", killed)
        federate(study)
    federate(FederatedConfig(resume=tmp_path / "killed"))
    model = "models/last/model.safetensors"
    assert (whole / model).read_bytes() == (tmp_path / "killed" / model).read_bytes()
    for kind in ("round", "evaluation"):
        expected, found = (lines_of(folder, kind) for folder in (whole, tmp_path / "killed"))
        assert [line["round"] for line in found] == [line["round"] for line in expected]
    with pytest.raises(HeartlmError, match="finished on"):
        federate(FederatedConfig(resume=tmp_path / "killed"))


@pytest.mark.parametrize("model", ["pretrain", "finetune"])
def test_language_models_learn_over_clients(model: str, tiny_corpus: Path, tiny_pretrained: Path, tmp_path: Path):
    study = FederatedConfig(
        model=model,  # type: ignore[arg-type]
        corpus=tiny_corpus,
        foundation=tiny_pretrained if model == "finetune" else None,
        training={"window": 32} if model == "finetune" else {"window": 32, "depth": 1},
        partition="iid",
        clients=3,
        strategy="diloco",
        rounds=4,
        local_steps=2,
        batch_size=4,
        learning_rate=3e-3,
        evaluate_every=2,
        device="cpu",
        out=tmp_path / "study",
    )
    folder = federate(study).folder
    losses = [line["loss"] for line in lines_of(folder, "client")]
    assert sum(losses[-3:]) < sum(losses[:3])
    from heartlm.models.store import load_model

    _, info = load_model(folder / "models" / "last")
    assert info.task == ("beats" if model == "finetune" else None)
    assert lines_of(folder, "evaluation")[-1].keys() >= ({"f1/V"} if model == "finetune" else {"loss"})


# --- what is refused -------------------------------------------------------------------------------------------------

WRONG = {
    "rounds: 0": "rounds: 0 found, at least 1",
    "rounds: many": "rounds",
    "strategy: fedsgd": "strategy",
    "participation: 0": "participation: 0",
    "staleness: 2": "staleness: 2 found, 0 or 1",
    "runds: 3": "runds",
    "model: pretrain": "corpus: nothing found",
    "model: soup": "model: 'soup' found, one of pretrain, finetune, tiny_ecg expected",
    "{model: pretrain, databases: [d], corpus: c}": "databases",
    "secure_sum: 3": "3",
    "- a": "fields with their values",
}


@pytest.mark.parametrize("text", WRONG)
def test_bad_studies_are_refused_in_one_line(text: str, tmp_path: Path, refused: Refused):
    path = tmp_path / "study.yaml"
    path.write_text(
        text
        if text.startswith(("-", "{"))
        else f"databases: [data]\n{text}\n" + "model: tiny_ecg\n" * ("model" not in text)
    )
    assert WRONG[text] in refused("federate", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_out_no_database_and_a_taken_folder_are_refused(tiny_database: Path, tmp_path: Path, refused: Refused):
    assert "out: nothing found" in refused("federate", *of_waveforms(tiny_database))
    assert "no such folder" in refused("federate", *of_waveforms(tmp_path / "nowhere"), "--out", str(tmp_path / "out"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thing").touch()
    assert "no federated study" in refused("federate", *of_waveforms(tiny_database), "--out", str(tmp_path / "taken"))
    assert "rounds: cannot change" in refused("federate", "--resume", str(tmp_path / "taken"), "--rounds", "9")
    assert "no run.json" in refused("federate", "--resume", str(tmp_path / "taken"))
    clients = ["--partition", "iid", "--clients", "99"]
    assert "clients: 99 found" in refused(
        "federate", *of_waveforms(tiny_database), "--out", str(tmp_path / "o"), *clients
    )


FILES = [*(ROOT / "examples").glob("federated_*.yaml"), *(ROOT / "studies/tiny_ecg").glob("*.yaml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_files_that_ship_are_studies(path: Path) -> None:
    content = read_yaml(path, "a study")
    if "sweep" in path.stem:
        typed(SweepConfig, content | {"out": "out"}).check()
    else:
        source = {"corpus": "c"} if content["model"] == "pretrain" else {"databases": ["d"]}
        typed(FederatedConfig, content | source | {"out": "out"}).check()


@pytest.mark.slow
def test_ranks_that_agree_on_a_mistake_tell_of_it_once(tmp_path: Path):
    words = [
        "federate",
        "--model",
        "tiny_ecg",
        "--databases",
        f"[{tmp_path / 'nowhere'}]",
        "--out",
        str(tmp_path / "out"),
    ]
    done = mpiexec(2, "-m", "heartlm", *words)
    assert done.returncode == 2
    assert done.stderr.count("no such folder") == 1 and "MPI_ABORT" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_study_gives_the_same_model_on_three_mpi_ranks_as_in_one_process(tiny_database: Path, tmp_path: Path):
    words = [
        "--model=tiny_ecg",
        f"--databases=[{tiny_database}]",
        "--partition=iid",
        "--clients=3",
        "--local-steps=2",
        "--batch-size=16",
    ]
    words += ["--rounds=4", "--save-every=2", "--evaluate-every=2", "--device=cpu"]
    done = mpiexec(3, "-m", "heartlm", "federate", *words, "--out", str(tmp_path / "three"))
    assert done.returncode == 0, done.stderr
    assert main(["federate", *words, "--threads=1", "--out", str(tmp_path / "one")]) == 0
    model = "models/last/model.safetensors"
    assert (tmp_path / "one" / model).read_bytes() == (tmp_path / "three" / model).read_bytes()
    assert {line["rank"] for line in lines_of(tmp_path / "three", "round")} == {0, 1, 2}
