"""The rounds of a federated study.

    global weights ─► clients asked: local steps ─► weighted mean over ranks ─► strategy ─► next global weights
                                                        (on its way)

With staleness 1 the mean of round t is on its way while clients take the local steps of round t + 1, and moves the
global weights after them: clients of round t start from weights that know of rounds up to t − 2. With staleness 0 it is
waited for before round t + 1 begins; what can be computed meanwhile is the evaluation of the weights that the round
started from. Either way `overlap` says only whether something is computed meanwhile, never what comes out.

A client that dies is left out of the mean of its round, whose weights are then shares of those that are left; nothing
it keeps has changed. If all die, the global weights stay. What a rank has no clients for, it adds nothing to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heartlm.federated.aggregate import Aggregator, Here, Mean, PendingMean, Share
from heartlm.federated.client import Between, Client, ClientLost, Errand, Update
from heartlm.federated.errands import errands
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.partition import Member
from heartlm.federated.strategy import Strategy
from heartlm.federated.study_file import StudyConfig

TESTS = 6
"""How often in a round somebody looks whether sums that are on their way are there, about: where MPI has no thread to
get on with them, a look gives the core to other ranks that share it."""

Line = dict[str, Any]
"""A line of metrics: what it is about under `kind`, and numbers."""


def test_every(local_steps: int) -> int:
    """Local steps between two tests."""
    return max(1, local_steps // TESTS)


@dataclass
class Server:
    """What the next round follows from, the same on every rank.

    Attributes:
        vector: global weights, float32 `[P]` in main memory.
        strategy: of the server, with what it keeps.
        round_index: the next round.
        late: with staleness 1, the mean of the round before, which has not moved the weights yet; None where there is
            none.
    """

    vector: Tensor
    strategy: Strategy
    round_index: int = 0
    late: Mean | None = None


@dataclass
class Rounds:
    """Runs the rounds of a study on one rank.

    Attributes:
        study: settings.
        members: all clients of the study.
        clients: those of this rank, by number.
        server: where the study stands.
        aggregator: of updates over ranks.
        meter: of communication.
        evaluate: scores some weights on all ranks together; a pure function of them.
        rank: of this process.
        lines: metrics of this rank that nobody has taken yet.
    """

    study: StudyConfig
    members: Sequence[Member]
    clients: Mapping[int, Client]
    server: Server
    aggregator: Aggregator
    meter: CommunicationMeter
    evaluate: Callable[[Tensor, Between, bool], Line]
    rank: int = 0
    lines: list[Line] = field(default_factory=list)
    _pending: PendingMean | None = None
    _to_evaluate: tuple[int, Tensor] | None = None
    _evaluation_s: float = 0.0
    _num_calls: int = 0

    def run(self, save: Callable[[], None]) -> None:
        """Run the rounds that are left; call `save` when nothing is on its way and the study asks for it."""
        if self.server.late is not None:
            self._pending = Here(self.server.late)
        for round_index in range(self.server.round_index, self.study.rounds):
            last = round_index + 1 == self.study.rounds
            saves = last or (round_index + 1) % self.study.save_every == 0
            self._round(round_index, last, saves)
            if saves:
                save()

    def _round(self, round_index: int, last: bool, saves: bool) -> None:
        begin_s = time.perf_counter()
        asked = errands(self.study, self.members, round_index)
        shares, num_lost = self._train(asked)
        compute_s = time.perf_counter() - begin_s - self.meter.inside_s()
        self._finish()  # with staleness, of the round before
        meanwhile = self.study.staleness or (self.study.overlap and self._to_evaluate is not None)
        self._pending = self.aggregator.start(round_index, shares, self._samples_of(asked), at_once=not meanwhile)
        if self.study.overlap:
            self._evaluate_now()
        if last or not self.study.staleness:
            self._finish()
        elif saves or not self.study.overlap:
            self.server.late = self._pending.wait()
            self._pending = Here(self.server.late)
        self.server.round_index = round_index + 1
        if self._is_evaluated(round_index):
            self._to_evaluate = round_index, self.server.vector
            if saves or not self.study.overlap:
                self._evaluate_now()
        self._note(round_index, len(asked), num_lost, time.perf_counter() - begin_s, compute_s)

    def _train(self, asked: Mapping[int, Errand]) -> tuple[list[Share], int]:
        """Let the clients of this rank take their local steps; what they give, and how many died."""
        samples, shares, num_lost = self._samples_of(asked), list[Share](), 0
        for number, errand in asked.items():
            client = self.clients.get(number)
            if client is None:
                continue
            line = {"kind": "client", "round": errand.round_index, "client": client.name, "rank": self.rank}
            try:
                update = client.train(self.server.vector, errand, self._get_on)
            except ClientLost as error:
                num_lost += 1
                self.lines.append({**line, "lost": str(error)})
                continue
            self.lines.append({**line, **_told(update)})
            if update.num_steps:
                shares.append(Share(number, self.members[number].num_samples / samples, update))
        return shares, num_lost

    def _samples_of(self, asked: Mapping[int, Errand]) -> int:
        return sum(self.members[number].num_samples for number in asked)

    def _get_on(self) -> None:
        if self._pending is not None and self._pending.wants_tests:
            self._num_calls += 1
            if self._num_calls % test_every(self.study.local_steps) == 0:
                self._pending.test()

    def _finish(self) -> None:
        """Wait for the mean that is on its way, and move the global weights by it."""
        if self._pending is None:
            return
        delta = self._pending.wait().delta
        self._pending = self.server.late = None
        if delta is not None:
            self.server.vector = self.server.strategy.step(self.server.vector, delta)

    def _is_evaluated(self, round_index: int) -> bool:
        every, num = self.study.evaluate_every, round_index + 1
        return num == self.study.rounds or (every > 0 and num % every == 0)

    def _evaluate_now(self) -> None:
        """Score the weights that wait for it, if any do."""
        if self._to_evaluate is None:
            return
        (round_index, vector), self._to_evaluate = self._to_evaluate, None
        begin_s, calls_s = time.perf_counter(), self.meter.inside_s()
        scores = self.evaluate(vector, self._get_on, round_index + 1 == self.study.rounds)
        seconds = time.perf_counter() - begin_s - (self.meter.inside_s() - calls_s)
        self._evaluation_s += seconds
        if self.rank == 0:
            self.lines.append({"kind": "evaluation", "round": round_index, **scores})

    def _note(self, round_index: int, num_asked: int, num_lost: int, round_s: float, compute_s: float) -> None:
        """Where the time of this rank went in the round: the parts add up to it."""
        cost = self.meter.take()
        evaluation_s, self._evaluation_s = self._evaluation_s, 0.0
        self.lines.append(
            {
                "kind": "round",
                "round": round_index,
                "rank": self.rank,
                "num_asked": num_asked,
                "num_lost": num_lost,
                "round_s": round_s,
                "compute_s": compute_s,
                "evaluation_s": evaluation_s,
                "exposed_s": cost.exposed_s,
                "other_s": round_s - compute_s - evaluation_s - cost.exposed_s,
                "hidden_s": cost.hidden_s,
                "hidden_share": cost.hidden_share,
                "library_s": cost.calls_s,
                "bytes": cost.num_bytes,
            }
        )


def _told(update: Update) -> Line:
    return {
        "num_samples": update.num_samples,
        "num_steps": update.num_steps,
        "loss": update.loss if update.num_steps else None,
        "train_s": update.seconds,
    }
