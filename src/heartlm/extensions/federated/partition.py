"""Partition of patients into clients; all data of a patient is on one client."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heartlm.errors import HeartlmError
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, Use, draws, uniform


@dataclass(frozen=True)
class PatientCounts:
    """Sample counts of a patient.

    Attributes:
        name: name of the patient, unique over databases.
        database: database of the recordings.
        num_samples: number of training samples.
        class_counts: number of samples of each class, of models that weight them.
    """

    name: str
    database: str
    num_samples: int
    class_counts: list[int] = field(default_factory=list)


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
    if study.partition == "patient":
        return [_member(patient.name, [patient]) for patient in patients]
    if study.partition == "database":
        database_of = dict[str, str]()
        for patient in patients:
            if database_of.setdefault(patient.name, patient.database) != patient.database:
                raise HeartlmError(
                    f"partition: 'database' found, but the patient {patient.name} is in {database_of[patient.name]} "
                    f"and in {patient.database}: leave one of them out"
                )
        names = sorted({patient.database for patient in patients})
        return [_member(name, [patient for patient in patients if patient.database == name]) for name in names]
    if len(patients) < study.clients:
        raise HeartlmError(
            f"clients: {study.clients} found, at most {len(patients)} expected: a patient is on one only"
        )
    groups = [list[PatientCounts]() for _ in range(study.clients)]
    chances = uniform(draws(Stream(study.seed, 0, Use.PARTITION), 0, len(patients)))
    # In random order, each to the first client of a heap: one without patients, else the one with the fewest samples.
    heap = [(False, 0, 0, number) for number in range(study.clients)]
    for index in np.argsort(chances, kind="stable").tolist():
        _, num_samples, num_patients, number = heap[0]
        groups[number].append(patients[index])
        heapq.heapreplace(heap, (True, num_samples + patients[index].num_samples, num_patients + 1, number))
    width = len(str(study.clients - 1))
    return [_member(f"client-{number:0{width}d}", group) for number, group in enumerate(groups)]


def _member(name: str, patients: Sequence[PatientCounts]) -> Member:
    names = tuple(sorted(patient.name for patient in patients))
    return Member(name, names, sum(patient.num_samples for patient in patients))
