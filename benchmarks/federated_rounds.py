"""Cost of the reduction per round for a rank, with four methods in turns: the seconds without computation.

    python -m benchmarks.federated_rounds --data DATABASE --work FOLDER         about 6 minutes

| way | staleness | what is done |
|---|---|---|
| floats, by parameter | 0 | a blocking float32 all-reduce for each parameter, as in the CrossScale study; unweighted |
| floats, one vector | 0 | one blocking float32 all-reduce of all parameters, unweighted |
| exact | 0 | differences in double precision, weighted, in 64-bit fixed point, added up, waited for at once |
| exact, one round late | 1 | the same, added up by another thread while the next local steps are taken |

Each method starts from the weights of a rank after its local steps and ends with the next weights in its model. Ranks
synchronise at a barrier after their local steps, so only the reduction is measured; "as it comes" omits the barrier and
includes the wait for slower ranks. With one round of staleness the wait for the sum is one round later, when the sum is
already complete. The remaining cost is the conversion to fixed point and back.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heartlm.distributed.joining import communicator_of
from heartlm.distributed.mpi import MPICommunicator
from heartlm.extensions.federated.aggregate import Aggregator, PendingMean
from heartlm.extensions.federated.client import ClientTask, Update
from heartlm.extensions.federated.local import LocalClients, patients_of
from heartlm.extensions.federated.partition import partition
from heartlm.extensions.federated.strategy import OuterSGD
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.training.learner import at_full_speed
from lab.measure import Spread, Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps, on_ranks

COLUMNS: tuple[str, ...] = ("model", "ranks", "way", "staleness", "exposed ms, behind a barrier")
COLUMNS += ("over floats by parameter", "over floats in one vector", "exposed ms, as it comes", "kB a rank")
WAYS = {"floats, by parameter": 0, "floats, one vector": 0, "exact": 0, "exact, one round late": 1}
"""With their staleness."""
MODELS: dict[str, tuple[str, tuple[object, ...]]] = {
    "TinyECG": ("tiny_ecg", ("--local-steps", 20, "--batch-size", 64)),
    "heart language model": ("pretrain", ("--local-steps", 2, "--batch-size", 4)),
}


class Rank:
    """One client of the study, and the ways to add up what it learnt."""

    def __init__(self, study: FederatedConfig, communicator: MPICommunicator) -> None:
        self.communicator, self.study = communicator, study
        patients = patients_of(study)
        members = partition(patients.patients(), study)
        rank = communicator.rank
        learning = patients.learning(members, [rank], 0, 1)
        self.samples = sum(member.num_samples for member in members)
        self.number = rank
        self.clients = LocalClients(study, members, learning, {rank: {}})
        self.flat, self.strategy = learning.flat, OuterSGD()
        self.vector = self.flat.on_host()
        self.mean, self.late_mean = (
            Aggregator(replace(study, staleness=staleness), communicator, len(self.flat), len(members))
            for staleness in (0, 1)
        )
        self.round_index = 0

    def steps(self) -> Update:
        self.round_index += 1
        task = ClientTask(self.round_index, self.study.local_steps)
        update = self.clients.train(self.vector, {self.number: task})[self.number]
        assert not isinstance(update, str)
        return update

    def clock(self, barrier: bool) -> float:
        if barrier:
            self.communicator.gather_objects(None)
        return time.perf_counter()

    def floats(self, tensors: Sequence[torch.Tensor], barrier: bool) -> float:
        from mpi4py import MPI

        self.steps()
        begin_s = self.clock(barrier)
        for tensor in tensors:
            numbers = tensor.detach().cpu().numpy().copy()
            total = np.empty_like(numbers)
            MPI.COMM_WORLD.Allreduce(numbers, total, op=MPI.SUM)
            tensor.data.copy_(torch.from_numpy(total / self.communicator.size))
        return time.perf_counter() - begin_s

    def exact(self, barrier: bool) -> float:
        update = self.steps()
        begin_s = self.clock(barrier)
        self._move(self._start(update, self.mean))
        return time.perf_counter() - begin_s

    def exact_late(self, barrier: bool) -> float:
        update = self.steps()
        begin_s = self.clock(barrier)
        pending = self._start(update, self.late_mean)
        handed_over_s = time.perf_counter() - begin_s
        self.steps()
        begin_s = time.perf_counter()
        self._move(pending)
        return handed_over_s + time.perf_counter() - begin_s

    def _start(self, update: Update, mean: Aggregator) -> PendingMean:
        delta = self.flat.vector.detach().cpu().double().sub_(self.vector)  # once more, as a client does it
        return mean.start(0, {self.number: replace(update, delta=delta)}, self.samples)

    def _move(self, pending: PendingMean) -> None:
        mean = pending.wait()
        assert mean is not None
        self.flat.vector.copy_(self.strategy.step(self.vector, mean))

    def run(self, repeats: int) -> dict[str, list[float]]:
        """Seconds of each repeat, means over ranks; the first repeat does not count."""
        works: tuple[Callable[[bool], float], ...] = (
            functools.partial(self.floats, self.flat.parameters),
            functools.partial(self.floats, [self.flat.vector]),
            self.exact,
            self.exact_late,
        )
        taken: dict[str, list[float]] = {}
        for repeat in range(repeats + 1):
            for (way, work), barrier in itertools.product(zip(WAYS, works, strict=True), (True, False)):
                self.clock(barrier=True)
                costs = self.communicator.gather_objects(work(barrier))
                if repeat:
                    taken.setdefault(f"{way}, barrier" if barrier else way, []).append(statistics.mean(costs))
        return taken


def as_rank(chosen: argparse.Namespace) -> None:
    """What each rank does."""
    shared: dict[str, Any] = {"local_steps": chosen.local_steps, "batch_size": chosen.batch_size, "device": "cpu"}
    communicator = communicator_of("mpi", "cpu")
    assert isinstance(communicator, MPICommunicator)
    shared |= {"partition": "iid", "clients": communicator.size}
    if chosen.model == "tiny_ecg":
        study = FederatedConfig(databases=[str(chosen.source)], **shared)
    else:
        training = {"depth": chosen.depth, "window": 128}
        study = FederatedConfig(model="pretrain", corpus=chosen.source, training=training, learning_rate=1e-3, **shared)
    with at_full_speed():
        rank = Rank(study, communicator)
        result = rank.run(chosen.repeats)
    if communicator.rank == 0:
        about = {"num_parameters": len(rank.flat), "num_tensors": len(rank.flat.parameters)}
        chosen.out.write_text(json.dumps({**about, "ways": result}))
    communicator.close()


def measured(chosen: argparse.Namespace) -> Table:
    """Start the ranks of every model and collect what they found."""
    table, corpus = Table("what adding up leaves to wait for in a round", COLUMNS), chosen.work / "corpus"
    Steps(chosen.work).run("tokenize", corpus, "tokenize", chosen.data, "--out", corpus)
    for model, (kind, words) in MODELS.items():
        for ranks in chosen.ranks:
            out = (chosen.work / f"rounds-{kind}-{ranks}.json").resolve()
            source = (chosen.data if kind == "tiny_ecg" else corpus).resolve()
            rank = ["--model", kind, "--source", source, "--out", out, "--repeats", chosen.repeats, *words]
            on_ranks(ranks, "-m", "benchmarks.federated_rounds", *rank)
            add_rows(table, model, ranks, json.loads(out.read_text()))
    return table.close()


def add_rows(table: Table, model: str, ranks: int, found: dict[str, Any]) -> None:
    """A row for each way; ratios are medians over repeats, whose ways took turns."""
    ways, about = found["ways"], f"{model} ({found['num_parameters']:,} parameters, {found['num_tensors']} tensors)"
    ours = {way: np.array(ways[f"{way}, barrier"]) for way in WAYS}
    for way, staleness in WAYS.items():
        table.add(
            about,
            ranks,
            way,
            staleness,
            Spread.of([1e3 * each for each in ours[way]]),
            *(Spread.of(list(ours[rival] / ours[way])) for rival in list(WAYS)[:2]),
            Spread.of([1e3 * each for each in ways[way]]),
            found["num_parameters"] * (8 if way.startswith("exact") else 4) / 1e3,
        )


def main() -> None:
    parser = options(__doc__, data="the records of mitdb", repeats=15, local_steps=20, batch_size=64, depth=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--work", type=Path)
    of_rank = parser.add_argument_group("of a rank that this script starts")
    of_rank.add_argument("--model", choices=["tiny_ecg", "pretrain"])
    of_rank.add_argument("--source", type=Path)
    of_rank.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.model is not None:
        as_rank(chosen)
    elif chosen.work is None:
        parser.error("--work is needed")
    else:
        write_results("federated_rounds", "What adding up costs a federated round", [measured(chosen)])


if __name__ == "__main__":
    main()
