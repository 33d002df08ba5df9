"""A rank of `federated.py`: rounds in three ways, in turns, and what communication each of them leaves to wait for.

    mpiexec -n 4 python benchmarks/federated_rounds.py tiny_ecg DATABASE OUT.json

- study: a blocking all-reduce for every parameter, in float32, through host memory, as the published study does it.
- blocking: the flat vector in fixed point, waited for at once.
- overlapped: the same, on its way while the next local steps are taken (staleness 1), tested between steps.

Ranks begin their local steps together. What a rank waits for after them, others that are slower included, is what the
published study calls its communication: "as it comes". With a barrier behind the local steps only the sums are left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heartlm.federated.aggregate import ExactMean, Share
from heartlm.federated.client import Errand, Update, nothing
from heartlm.federated.communicators import communicator_of
from heartlm.federated.language import CorpusPatients
from heartlm.federated.local import LocalClient
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.mpi import MPICommunicator
from heartlm.federated.partition import partition
from heartlm.federated.rounds import test_every
from heartlm.federated.strategy import OuterSGD
from heartlm.federated.study_file import StudyConfig
from heartlm.federated.tiny import TinyPatients
from heartlm.training.full_speed import at_full_speed

WAYS = ("study", "blocking", "overlapped")


class Rank:
    """One client of the study, and the three ways to add up what it learnt."""

    def __init__(self, study: StudyConfig, communicator: MPICommunicator) -> None:
        self.communicator, self.study = communicator, study
        patients = TinyPatients(study) if study.model == "tiny_ecg" else CorpusPatients(study)
        members = partition(patients.patients(), study)
        rank = communicator.rank
        learning = patients.learning(members, [rank], 0, 1)
        self.samples = sum(member.num_samples for member in members)
        self.client = LocalClient(rank, members[rank].name, members[rank].num_samples, learning, study, {})
        self.flat, self.strategy, self.meter = learning.flat, OuterSGD(), CommunicationMeter()
        self.vector = self.flat.on_host()
        self.mean = ExactMean(communicator, len(self.flat), round(study.bucket_mib * 2**20), self.meter)
        self.round_index = 0

    def steps(self, between: Any = nothing) -> Update:
        self.round_index += 1
        return self.client.train(self.vector, Errand(self.round_index, self.study.local_steps), between)

    def share(self, update: Update) -> list[Share]:
        return [Share(self.client.number, self.client.num_samples / self.samples, update)]

    def clock(self, barrier: bool) -> float:
        if barrier:
            self.communicator.gather_objects(None)
        return time.perf_counter()

    def by_study(self, barrier: bool) -> dict[str, float]:
        """The study's `comm_ms`: parameter after parameter, unweighted."""
        from mpi4py import MPI

        self.steps()
        begin_s = self.clock(barrier)
        for parameter in self.flat.parameters:
            numbers = parameter.detach().cpu().numpy().copy()
            total = np.empty_like(numbers)
            MPI.COMM_WORLD.Allreduce(numbers, total, op=MPI.SUM)
            parameter.data.copy_(torch.from_numpy(total / self.communicator.size))
        exposed_s = time.perf_counter() - begin_s
        return {"exposed_s": exposed_s, "hidden_s": 0.0, "bytes": float(self.flat.vector.nbytes)}

    def blocking(self, barrier: bool) -> dict[str, float]:
        update = self.steps()
        begin_s = self.clock(barrier)
        mean = self.mean.start(0, self.share(update), self.samples).wait().delta
        assert mean is not None
        self.strategy.step(self.vector, mean)
        exposed_s, cost = time.perf_counter() - begin_s, self.meter.take()
        return {"exposed_s": exposed_s, "hidden_s": 0.0, "bytes": float(cost.num_bytes)}

    def overlapped(self, barrier: bool) -> dict[str, float]:
        update = self.steps()
        self.clock(barrier)
        pending = self.mean.start(0, self.share(update), self.samples)
        every, calls = test_every(self.study.local_steps), itertools.count(1)
        self.steps(lambda: pending.wants_tests and next(calls) % every == 0 and pending.test())
        mean = pending.wait().delta
        assert mean is not None
        begin_s = time.perf_counter()
        self.strategy.step(self.vector, mean)
        moved_s, cost = time.perf_counter() - begin_s, self.meter.take()
        return {"exposed_s": cost.exposed_s + moved_s, "hidden_s": cost.hidden_s, "bytes": float(cost.num_bytes)}

    def run(self, repeats: int) -> dict[str, dict[str, float]]:
        """Medians over repeats, means over ranks; the first repeat does not count."""
        works = dict(zip(WAYS, (self.by_study, self.blocking, self.overlapped), strict=True))
        cases = [(way, barrier) for barrier in (False, True) for way in WAYS]
        taken: dict[str, list[dict[str, float]]] = {_name(*case): [] for case in cases}
        for repeat in range(repeats + 1):
            for way, barrier in cases:
                self.clock(barrier=True)
                costs = self.communicator.gather_objects(works[way](barrier))
                if repeat:
                    mean = {name: statistics.mean(cost[name] for cost in costs) for name in costs[0]}
                    taken[_name(way, barrier)].append(mean)
        return {
            way: {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            for way, rounds in taken.items()
        }


def _name(way: str, barrier: bool) -> str:
    return f"{way}, barrier" if barrier else way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["tiny_ecg", "pretrain"])
    parser.add_argument("source")
    parser.add_argument("out", type=Path)
    for name, value in (("repeats", 9), ("local-steps", 20), ("batch-size", 64), ("depth", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    shared: dict[str, Any] = {"local_steps": chosen.local_steps, "batch_size": chosen.batch_size, "device": "cpu"}
    communicator = communicator_of(StudyConfig(communicator="mpi", device="cpu"))
    assert isinstance(communicator, MPICommunicator)
    shared |= {"partition": "iid", "clients": communicator.size}
    if chosen.model == "tiny_ecg":
        study = StudyConfig(databases=[chosen.source], **shared)
    else:
        training = {"depth": chosen.depth, "window": 128}
        study = StudyConfig(
            model="pretrain", corpus=Path(chosen.source), training=training, learning_rate=1e-3, **shared
        )
    with at_full_speed():
        rank = Rank(study, communicator)
        result = rank.run(chosen.repeats)
    if communicator.rank == 0:
        about = {"num_parameters": len(rank.flat), "num_tensors": len(rank.flat.parameters), "ranks": communicator.size}
        chosen.out.write_text(json.dumps({**about, "ways": result}))
    communicator.close()


if __name__ == "__main__":
    main()
