"""The parts of a federated study: partitions, strategies, fixed point, the meter, flat models, waveforms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from heartlm_tiny_ecg.learning import TinyPatients
from heartlm_tiny_ecg.network import TinyECG
from heartlm_tiny_ecg.waveforms import NUM_CLASSES, WINDOW, beat_set, labelled_records
from hypothesis import given
from hypothesis import strategies as st

from heartlm.databases.splits import DS1
from heartlm.errors import HeartlmError
from heartlm.extensions.federated.aggregate import Aggregator, PendingMean
from heartlm.extensions.federated.client import ClientTask, Update
from heartlm.extensions.federated.communicator import Communicator, Pending, local_rank
from heartlm.extensions.federated.fixed_point import LARGEST, FixedPoint, sum_in_fixed_point
from heartlm.extensions.federated.flat import FlatModel
from heartlm.extensions.federated.local import LocalClients, remembered, restore
from heartlm.extensions.federated.meter import CommunicationMeter
from heartlm.extensions.federated.partition import PatientCounts, partition
from heartlm.extensions.federated.strategy import Adaptive, OuterSGD
from heartlm.extensions.federated.study_file import FederatedConfig
from tests.conftest import shared_data
from tests.extensions.federated.small import STUDY, learning_of, members

# --- partitions ------------------------------------------------------------------------------------------------------


def patients_of(sizes: list[int], databases: int = 2) -> list[PatientCounts]:
    return [PatientCounts(f"db{n % databases}/p{n}", f"db{n % databases}", size) for n, size in enumerate(sizes)]


@given(
    sizes=st.lists(st.integers(1, 500), min_size=6, max_size=20),
    kind=st.sampled_from(["patient", "iid", "database"]),
    clients=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_every_patient_is_on_one_client_and_every_client_has_one(sizes, kind, clients, seed):
    study = FederatedConfig(partition=kind, clients=clients, seed=seed)
    patients = patients_of(sizes)
    made = partition(patients, study)
    names = [name for member in made for name in member.patients]
    assert sorted(names) == sorted(patient.name for patient in patients)
    assert all(member.patients for member in made) and len({member.name for member in made}) == len(made)
    assert sum(member.num_samples for member in made) == sum(sizes)
    assert len(made) == {"patient": len(sizes), "database": 2}.get(kind, clients)
    assert made == partition(patients[::-1], study)


def test_a_patient_in_two_databases_cannot_be_apart():
    one, other = (PatientCounts("mitdb/100", database, 5) for database in ("mitdb", "qtdb"))
    with pytest.raises(HeartlmError, match="is in mitdb and in qtdb"):
        partition([one, other], FederatedConfig(partition="database"))


# --- the server ------------------------------------------------------------------------------------------------------


def in_fixed_point(numbers: torch.Tensor) -> FixedPoint:
    totals = torch.zeros(len(numbers), dtype=torch.int64)
    sum_in_fixed_point(totals, [(numbers, 1.0)])
    return FixedPoint(totals)


def test_fedavg_moves_by_the_mean_and_diloco_by_nesterov_momentum():
    vector, means = torch.tensor([1.0, -2.0]), [torch.tensor([0.5, 0.25], dtype=torch.float64)] * 3
    assert OuterSGD().step(vector, in_fixed_point(means[0])).tolist() == [1.5, -1.75]
    diloco, weights, velocity = OuterSGD(0.7, 0.9), np.array([1.0, -2.0]), np.zeros(2)
    for mean in means:
        vector = diloco.step(vector, in_fixed_point(mean))
        velocity = 0.9 * velocity + mean.numpy()
        weights = np.float32(weights + 0.7 * (mean.numpy() + 0.9 * velocity)).astype(np.float64)
    np.testing.assert_array_equal(vector.numpy(), weights.astype(np.float32))


@pytest.mark.parametrize("yogi", [False, True])
def test_adaptive_servers_follow_algorithm_2_of_reddi(yogi: bool):
    rate, beta1, beta2, tau = 0.1, 0.9, 0.95, 0.01
    server, vector = Adaptive(rate, beta1, beta2, tau, yogi), torch.zeros(2)
    x, m, v = np.zeros(2), np.zeros(2), np.full(2, tau**2)
    for delta in ([0.2, -0.1], [0.1, 0.0], [-0.3, 0.4]):
        d = np.array(delta)
        m = beta1 * m + (1 - beta1) * d
        v = v - (1 - beta2) * d**2 * np.sign(v - d**2) if yogi else beta2 * v + (1 - beta2) * d**2
        x = x + rate * m / (np.sqrt(v) + tau)
        vector = server.step(vector, in_fixed_point(torch.from_numpy(d)))
    np.testing.assert_allclose(vector.numpy(), x, rtol=1e-6)
    again = Adaptive(rate, beta1, beta2, tau, yogi)
    again.kept = dict(server.kept)
    mean = in_fixed_point(torch.tensor([0.1, 0.1], dtype=torch.float64))
    assert torch.equal(again.step(vector, mean), server.step(vector, mean))


def test_fedprox_keeps_clients_closer():
    def moved(**settings: object) -> float:
        study = replace(STUDY, optimizer="sgd", learning_rate=0.1, **settings)  # type: ignore[arg-type]
        learning = learning_of(study, range(1))
        update = LocalClients(study, members(), learning, {0: {}}).train(
            learning.flat.on_host(), {0: ClientTask(0, 20)}
        )[0]
        assert not isinstance(update, str)
        return float(update.delta.norm())

    assert moved(strategy="fedprox", proximal=0.0) == moved()
    assert moved(strategy="fedprox", proximal=2.0) < 0.9 * moved()


def test_the_mean_weighs_by_samples_whoever_is_missing():
    mean = Aggregator(FederatedConfig(), Communicator(), 3, 3)
    updates = {
        client: Update(torch.full((3,), value, dtype=torch.float64), num, 1, 0.0, 0.0)
        for client, value, num in ((0, 1.0, 10), (1, 4.0, 20))
    }
    arrived = mean.start(0, updates, asked_samples=40).wait()  # a third client, of 10 samples, died
    assert arrived is not None
    torch.testing.assert_close(arrived.double(), torch.full((3,), 3.0, dtype=torch.float64), rtol=0, atol=1e-13)
    assert mean.start(0, {}, asked_samples=40).wait() is None


# --- numbers ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(2**-25, 1000, width=32), min_size=1, max_size=20))
def test_weights_survive_fixed_point_to_the_last_bit(values: list[float]):
    numbers = torch.tensor(values + [-value for value in values] + [0.0], dtype=torch.float64)
    assert torch.equal(in_fixed_point(numbers).double(), numbers)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), LARGEST])
def test_updates_that_are_no_numbers_or_too_large_end_the_study(value: float):
    with pytest.raises(HeartlmError, match="diverged"):
        in_fixed_point(torch.tensor([0.0, value], dtype=torch.float64))


@pytest.mark.parametrize(("completed_s", "hidden_s"), [(7.0, 4.0), (3.5, 2.5)])
def test_the_meter_tells_exposed_seconds_from_hidden_ones(
    completed_s: float, hidden_s: float, monkeypatch: pytest.MonkeyPatch
):
    pending = Pending(torch.zeros(2, dtype=torch.int64))
    pending.completed_s = completed_s
    now = iter([0.0, 1.0, 5.0, 5.0, 8.0])  # sending from 0 to 1, computing until 5, waiting until 8
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    meter = CommunicationMeter()
    with meter:
        meter.num_bytes += 16
    PendingMean(torch.zeros(2, dtype=torch.int64), 1, meter, pending, sent_s=1.0).wait()
    assert meter.take() == {"exposed_s": 4.0, "hidden_s": hidden_s, "bytes": 16}
    assert meter.take() == {"exposed_s": 0.0, "hidden_s": 0.0, "bytes": 0}


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_flat_model_is_its_vector():
    torch.manual_seed(0)
    model = TinyECG()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flat = FlatModel(model)
    assert len(flat) == sum(parameter.numel() for parameter in model.parameters()) == 1509
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    flat.vector.zero_()
    assert all(not parameter.any() for parameter in model.parameters())
    model.classifier.bias.data.fill_(2.0)
    assert flat.vector[-5:].tolist() == [2.0] * 5


def test_frozen_parameters_are_not_sent():
    model = TinyECG()
    model.classifier.requires_grad_(False)
    assert len(FlatModel(model)) == 1509 - 17 * 5


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_what_an_optimizer_remembers_comes_back(kind):
    torch.manual_seed(0)
    settings = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.1}

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        model(torch.ones(1, 1, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return model.classifier.weight.detach().clone()

    one, other = TinyECG(), TinyECG()
    of_one, of_other = kind(one.parameters(), **settings), kind(other.parameters(), **settings)
    step(one, of_one)
    other.load_state_dict(one.state_dict())
    restore(of_other, remembered(of_one))
    assert torch.equal(step(one, of_one), step(other, of_other))


# --- waveforms -------------------------------------------------------------------------------------------------------


def test_waveforms_of_a_simulated_database(tiny_database: Path):
    found, left_out = labelled_records([tiny_database])
    beats, counts = beat_set(found), np.sum([each.counts for each in found], axis=0)
    assert not left_out and len(beats.label) == counts.sum() > 500
    assert beats.waveform.shape == (len(beats.label), 1, len(WINDOW.times_s)) and beats.waveform.dtype == np.float32
    assert np.isfinite(beats.waveform).all() and np.abs(beats.waveform).max() <= WINDOW.clip
    assert np.bincount(beats.label, minlength=NUM_CLASSES).tolist() == counts.tolist()
    alone = beat_set(found[3:4])  # a recording's waveforms do not depend on the others
    assert np.array_equal(alone.waveform, beats.waveform[beats.patient == found[3].patient_id])
    assert set(alone.patient) == {found[3].patient_id}


def test_clients_of_mitdb_are_the_patients_of_ds1():
    patients = TinyPatients(FederatedConfig(model="tiny_ecg", databases=[str(shared_data("mitdb"))]))
    made = partition(patients.patients(), FederatedConfig())
    assert len(made) == len(DS1) and sum(member.num_samples for member in made) == 51_013
    # The one documented exception of de Chazal's split: 201 (DS1) and 202 (DS2) are one patient.
    trained = {name for member in made for name in member.patients}
    assert {each.patient_id for each in patients.records_by_split["test"]} & trained == {"mitdb/201"}


# --- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
def test_every_rank_of_a_machine_has_a_gpu_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch):
    asked = list[int]()

    def device_and_precision(device: str, precision: str, number: int = 0) -> tuple[torch.device, torch.dtype]:
        asked.append(number)
        return torch.device("cpu"), torch.float32

    monkeypatch.setattr("heartlm_tiny_ecg.learning.device_and_precision", device_and_precision)
    monkeypatch.setenv(name, "3")
    learning_of(STUDY, range(1))
    assert asked == [3]
    assert local_rank({}) == 0
