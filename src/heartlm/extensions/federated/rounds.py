"""The rounds of a federated study.

    global weights ─► clients asked: local steps ─► weighted mean over ranks ─► strategy ─► next global weights
                                                        (on its way)

With staleness 1 the mean of round t is on its way while clients take the local steps of round t + 1, and moves the
global weights after them: clients of round t start from weights that know of rounds up to t − 2. With staleness 0 it is
waited for before round t + 1 begins.

A client that dies is left out of the mean of its round, whose weights are then shares of those that are left; nothing
it keeps has changed. If all die, the global weights stay. What a rank has no clients for, it adds nothing to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heartlm.extensions.federated.aggregate import Aggregator, PendingMean
from heartlm.extensions.federated.client import Clients, ClientTask, Update, sample_clients
from heartlm.extensions.federated.communicator import Communicator
from heartlm.extensions.federated.fixed_point import FixedPoint
from heartlm.extensions.federated.models import Learning
from heartlm.extensions.federated.partition import Member
from heartlm.extensions.federated.scores import scores_of, shown
from heartlm.extensions.federated.strategy import Strategy
from heartlm.extensions.federated.study_file import FederatedConfig

Line = dict[str, Any]
"""A line of metrics: its `kind`, and numbers."""


@dataclass
class Server:
    """State of the server, equal on every rank.

    Attributes:
        vector: global weights, float32 `[P]` in host memory.
        strategy: server optimiser with its state.
        round_index: number of the next round.
        late: with staleness 1, in a saved state, the mean of the previous round, not yet applied to the weights.
    """

    vector: Tensor
    strategy: Strategy
    round_index: int = 0
    late: FixedPoint | None = None


@dataclass
class Rounds:
    """Runs the rounds of a study on one rank.

    Attributes:
        study: settings.
        members: all clients of the study.
        clients: clients of this rank.
        server: state of the server.
        aggregator: aggregator of updates over ranks.
        learning: model that scores the global weights on the test patients.
        communicator: of the ranks.
        lines: metrics of this rank not yet written.
    """

    study: FederatedConfig
    members: Sequence[Member]
    clients: Clients
    server: Server
    aggregator: Aggregator
    learning: Learning
    communicator: Communicator
    lines: list[Line] = field(default_factory=list)
    _pending: PendingMean | None = None

    def run(self, save: Callable[[], None]) -> None:
        """Run the remaining rounds; call `save` every `save_every` rounds, when nothing is pending."""
        for round_index in range(self.server.round_index, self.study.rounds):
            last = round_index + 1 == self.study.rounds
            saves = last or (round_index + 1) % self.study.save_every == 0
            self._round(round_index, last, saves)
            if saves:
                save()

    def _round(self, round_index: int, last: bool, saves: bool) -> None:
        study, server, begin_s = self.study, self.server, time.perf_counter()
        tasks = sample_clients(study, self.members, round_index)
        asked_samples = sum(self.members[number].num_samples for number in tasks)
        updates = self._train(tasks)
        compute_s, evaluation_s = time.perf_counter() - begin_s, 0.0
        self._apply()  # with staleness 1, the mean of the round before
        self._pending = self.aggregator.start(round_index, updates, asked_samples)
        if last or not study.staleness:
            self._apply()
        elif saves:
            server.late, self._pending = self._pending.wait(), None
        server.round_index = round_index + 1
        if last or (study.evaluate_every and (round_index + 1) % study.evaluate_every == 0):
            evaluation_begin_s = time.perf_counter()
            scores = self.evaluate()
            evaluation_s = time.perf_counter() - evaluation_begin_s
            if self.communicator.rank == 0:
                print(f"round {round_index + 1}/{study.rounds}  {shown(scores)}", file=sys.stderr, flush=True)
                self.lines.append({"kind": "evaluation", "round": round_index, **scores})
        cost, round_s = self.aggregator.meter.take(), time.perf_counter() - begin_s
        # Where the time of this rank went: compute, evaluation, exposed and other add up to the round.
        self.lines.append(
            {
                "kind": "round",
                "round": round_index,
                "rank": self.communicator.rank,
                "num_asked": len(tasks),
                "num_lost": sum("lost" in line for line in self.lines if line["round"] == round_index),
                "round_s": round_s,
                "compute_s": compute_s,
                "evaluation_s": evaluation_s,
                "other_s": round_s - compute_s - evaluation_s - cost["exposed_s"],
                **cost,
            }
        )

    def _train(self, tasks: Mapping[int, ClientTask]) -> dict[int, Update]:
        """Train the clients of this rank; return the updates of those that did not fail."""
        updates = dict[int, Update]()
        for number, update in self.clients.train(self.server.vector, tasks).items():
            round_index, name = tasks[number].round_index, self.members[number].name
            line = {"kind": "client", "round": round_index, "client": name, "rank": self.communicator.rank}
            if isinstance(update, str):
                line |= {"lost": update}
            else:
                updates[number] = update
                line |= {"num_samples": update.num_samples, "num_steps": update.num_steps}
                line |= {"loss": update.loss, "train_s": update.seconds}
            self.lines.append(line)
        return updates

    def evaluate(self, final: bool = False) -> Line:
        """Score the global weights, with each rank scoring its part; with `final`, add confidence intervals.

        Ranks other than 0 return an empty line.
        """
        self.learning.flat.vector.copy_(self.server.vector)
        parts = self.communicator.gather_objects(self.learning.evaluate())
        return scores_of(parts, final) if self.communicator.rank == 0 else {}

    def _apply(self) -> None:
        """Wait for the mean of the last round, if it was not applied, and move the global weights by it."""
        delta = self.server.late if self._pending is None else self._pending.wait()
        self._pending = self.server.late = None
        if delta is not None:
            self.server.vector = self.server.strategy.step(self.server.vector, delta)
