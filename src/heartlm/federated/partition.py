"""Partition of patients into clients; all data of a patient is on one client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, draws, uniform

PARTITION_STREAM = 11


@dataclass(frozen=True)
class PatientCounts:
    """Sample counts of a patient.

    Attributes:
        name: name of the patient, unique over databases.
        database: database of the recordings.
        num_samples: number of training samples.
        class_counts: number of samples of each class, int64 `[num_classes]`; empty without labels.
    """

    name: str
    database: str
    num_samples: int
    class_counts: NDArray[np.int64]


@dataclass(frozen=True)
class Member:
    """Patients of a client.

    Attributes:
        name: name of the client, unique in the study.
        patients: names of its patients, ascending.
        num_samples: number of training samples.
    """

    name: str
    patients: tuple[str, ...]
    num_samples: int


def partition(patients: Sequence[PatientCounts], study: FederatedConfig) -> list[Member]:
    """Partition `patients` into clients by the settings of `study`.

    Raises:
        HeartlmError: there are fewer patients than clients, or a patient is in two databases that form two clients.
    """
    patients = sorted(patients, key=lambda patient: patient.name)
    if study.partition == "central":
        return [_member("central", patients)]
    if study.partition == "patient":
        return [_member(patient.name, [patient]) for patient in patients]
    if study.partition == "database":
        of_patient = dict[str, str]()
        for patient in patients:
            if of_patient.setdefault(patient.name, patient.database) != patient.database:
                raise HeartlmError(
                    f"partition: 'database' found, but the patient {patient.name} is in {of_patient[patient.name]} and "
                    f"in {patient.database}: leave one of them out"
                )
        names = sorted({patient.database for patient in patients})
        return [_member(name, [patient for patient in patients if patient.database == name]) for name in names]
    if len(patients) < study.clients:
        raise HeartlmError(
            f"clients: {study.clients} found, at most {len(patients)} expected: a patient is on one only"
        )
    dealt = _at_random(patients, study) if study.partition == "iid" else _by_classes(patients, study)
    width = len(str(study.clients - 1))
    return [_member(f"client-{number:0{width}d}", group) for number, group in enumerate(dealt)]


def _member(name: str, patients: Sequence[PatientCounts]) -> Member:
    names = tuple(sorted(patient.name for patient in patients))
    return Member(name, names, sum(patient.num_samples for patient in patients))


def _at_random(patients: Sequence[PatientCounts], study: FederatedConfig) -> list[list[PatientCounts]]:
    """Assign patients in random order, each to the client with the fewest samples so far."""
    groups = [list[PatientCounts]() for _ in range(study.clients)]
    for place in np.argsort(_chances(study, 0, len(patients)), kind="stable"):
        sizes = [(sum(each.num_samples for each in group), len(group), n) for n, group in enumerate(groups)]
        empty = [size for size in sizes if size[1] == 0]
        groups[min(empty or sizes)[2]].append(patients[int(place)])
    return groups


def _by_classes(patients: Sequence[PatientCounts], study: FederatedConfig) -> list[list[PatientCounts]]:
    """Draw a client for each patient, likelier one that likes the classes of which the patient has more than others.

    How much each client likes a class is drawn from a symmetric Dirichlet distribution over clients (as Hsu et al.
    2019, arXiv 1909.06335, draw class shares); a patient's liking is the mean over its classes, each by how much
    commoner it is in the patient than in all of them, so that rare classes count.
    """
    counts = np.stack([patient.class_counts for patient in patients]).astype(np.float64)
    if counts.sum() == 0:
        raise HeartlmError("partition: 'label_skew' found, but no sample of these patients has a label")
    usual = counts.sum(axis=0) / counts.sum()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    excess = np.divide(share, usual, out=np.zeros_like(share), where=usual > 0)
    excess /= np.maximum(excess.sum(axis=1, keepdims=True), 1e-12)
    generator = np.random.Generator(np.random.Philox(key=[study.seed, PARTITION_STREAM]))
    liking = generator.dirichlet(np.full(study.clients, study.alpha), size=counts.shape[1])
    chance = np.cumsum(excess @ liking, axis=1)
    drawn = _chances(study, len(patients), len(patients)) * chance[:, -1]
    client = np.minimum((chance <= drawn[:, None]).sum(axis=1), study.clients - 1)
    groups = [[patients[int(place)] for place in np.flatnonzero(client == number)] for number in range(study.clients)]
    for group in groups:  # a client without patients gets the smallest of the one that has the most of them
        if not group:
            richest = max(groups, key=len)
            smallest = min(richest, key=lambda patient: (patient.num_samples, patient.name))
            richest.remove(smallest)
            group.append(smallest)
    return groups


def _chances(study: FederatedConfig, first: int, num: int) -> NDArray[np.float64]:
    return uniform(draws(Stream(study.seed, 0, PARTITION_STREAM), first, num))
