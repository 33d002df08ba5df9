"""Answers until a reviewed recording is right: an expert answers from the reference annotations.

    recording ─► analysis by models that never saw the patient ─► questions ─► answers ─► V and S each right to 0.98

The expert uses the functions of the page: names a beat, names, splits or deletes a family, inserts a beat. Each is one
answer; a selection of several beats counts as many as it has. The end: sensitivity and positive predictivity of V and S
are each 0.98 or more over the beats of the recording, as ANSI/AAMI EC57 counts them (fusion beats called V, and beats
that cannot be classified, count neither way). A reference beat that was not detected counts as missed until it is
inserted; looking for it is not counted.

Three ways: `beats`, each beat by itself, those first whose class has the least probability; `families`, the question of
`Review.question` without spreading; `shipped`, with spreading.

    python studies/clicks.py --work DIR                  the folds of quality.py over DS1 of mitdb and svdb
    python studies/clicks.py --work DIR --day            a simulated day of three leads
    python studies/clicks.py --work DIR --test           DS2, by the shipped models
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.review.review import Review

ENOUGH = 0.98
FEW, FEW_SHARE = 3, 0.1
"""A family with at most so many wrong beats, and such a fraction of them, is named whole and these beats singly."""
MOST = 20_000
HARMS = {"N": "SV", "S": "NVFx", "V": "NSx", "F": "SV"}
"""Reference classes (x: no beat) that make the score of V or S worse if they have a name."""
WAYS = ("beats", "families", "shipped")


@dataclass
class Expert:
    """Answers from the reference annotations.

    Attributes:
        truth: class of the reference at each detection: N, S, V, F, Q, or x where there is no beat.
        missed: number of reference beats V and S without a detection.
        total: number of reference beats V and S.
        answers: number of answers so far, by kind.
    """

    truth: dict[int, str]
    missed: Counter[str]
    total: Counter[str]
    answers: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, known: Annotations, sample: NDArray[np.int64]) -> Expert:
        classes = np.append(np.array(list("NSVFQ")), "Q")[known.beat_classes()]
        match = match_beats(known.sample, sample, known.rate_hz)
        truth = dict.fromkeys(sample.tolist(), "x")
        truth |= dict(zip(sample[match.detected].tolist(), classes[match.reference].tolist(), strict=True))
        return cls(truth, Counter(classes[match.missed].tolist()), Counter(classes.tolist()))

    def pairs(self, sample: NDArray[np.int64], symbol: NDArray[np.str_]) -> Counter[tuple[str, str]]:
        """Number of beats by class of the reference and class."""
        return Counter(zip(self.classes(sample), symbol.tolist(), strict=True))

    def classes(self, sample: NDArray[np.int64]) -> list[str]:
        return [self.truth[each] for each in sample.tolist()]

    def insertions(self, pairs: Counter[tuple[str, str]]) -> int | None:
        """The insertions that are still needed once all else is right enough; None as long as it is not."""
        needed = 0
        for name in "VS":
            right, false = pairs[name, name], sum(pairs[other, name] for other in HARMS[name])
            more = max(0, int(np.ceil(ENOUGH * self.total[name] - 1e-9)) - right)
            right += more
            if more > self.missed[name] or (false and right < ENOUGH * (right + false)):
                return None
            needed += more
        return needed

    def answer(self, review: Review) -> None:
        """Answer the next question."""
        question = review.question()
        assert question is not None, "all beats were asked"
        shown = question.beats.tolist()
        truth = Counter(self.truth[each] for each in shown)
        wrong = {name: sum(truth[other] for other in HARMS[name]) for name in HARMS}
        name = min(wrong, key=lambda each: (wrong[each], -truth[each], each != question.symbol))
        is_family, is_whole = question.kind == "family", question.count <= len(shown)
        if truth["x"] == len(shown) and is_family and is_whole:
            self._apply(review, "delete", {"do": "delete", "family": question.family})
            return
        if is_family and wrong[name] > max(FEW, FEW_SHARE * len(shown)):
            try:
                self._apply(review, "split", {"do": "split", "family": question.family})
                return
            except HeartlmError:  # its beats are alike
                pass
        # A family of more beats than are shown is named once those that are shown are all right.
        of = {"family": question.family} if is_family and (is_whole or not wrong[name]) else None
        if of is None:
            of = {"beats": [each for each in shown if self.truth[each] not in HARMS[name]]}
        if "family" in of or of["beats"]:
            self._apply(review, "page", {"do": "name", "symbol": name} | of)
        for beat in shown:
            if self.truth[beat] in HARMS[name]:
                self.name(review, beat)

    def name(self, review: Review, beat: int) -> None:
        """Name one beat."""
        truth = self.truth[beat]
        if truth == "x":
            self._apply(review, "beat", {"do": "delete", "beats": [beat]})
        else:
            self._apply(review, "beat", {"do": "name", "beats": [beat], "symbol": truth.replace("Q", "N")})

    def _apply(self, review: Review, kind: str, change: dict[str, Any]) -> None:
        review.apply(change)
        self.answers[kind] += 1


def answers_until_right(review: Review, known: Annotations, way: str) -> Counter[str]:
    """The answers by kind; `review` has no changes yet."""
    expert = Expert.of(known, review.sample)
    if way == "beats":
        return beat_by_beat(expert, review)
    while (inserted := expert.insertions(expert.pairs(review.sample, review.symbol))) is None:
        expert.answer(review)
        assert expert.answers.total() < MOST
    expert.answers["insertion"] += inserted
    return expert.answers


def beat_by_beat(expert: Expert, review: Review) -> Counter[str]:
    """The answers if each beat is asked by itself; a page would show one after the other."""
    truth, symbol = expert.classes(review.sample), review.symbol.tolist()
    pairs = Counter(zip(truth, symbol, strict=True))
    for num, beat in enumerate([-1, *np.argsort(review.probability, kind="stable").tolist()]):
        if beat >= 0:
            pairs[truth[beat], symbol[beat]] -= 1
            pairs[truth[beat], truth[beat] if truth[beat] in "SVF" else "N"] += 1
        if (inserted := expert.insertions(pairs)) is not None:
            return Counter({"beat": num, "insertion": inserted})
    raise AssertionError("all beats were named")
