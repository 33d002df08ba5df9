"""Answers until a reviewed recording is right: an expert answers from the reference annotations.

    recording ─► analysis by models that never saw the patient ─► questions ─► answers ─► V and S each right to 0.98

The expert uses the functions of the page and sees what a question shows, at most 64 beats. One answer is a key: the
name of all that is shown or of the whole family, a split, a deletion, the name of a single beat, an insertion. A family
with more beats than are shown is named as a whole once all that are shown are right; one with more than three and a
tenth of the shown beats wrong is split.

The end: sensitivity and positive predictivity of V and S are each 0.98 or more over the beats of the recording, as
ANSI/AAMI EC57 counts them (fusion beats called V, and beats that cannot be classified, count neither way). A reference
beat that was not detected is missed until it is inserted; looking for it is not counted.

Three ways: `beats`, each beat by itself, those first whose class has the least probability; `families`, the questions
of `Review` without spreading; `shipped`, with spreading.

    python -m studies.clicks --work DIR --quality DIR    the folds of quality.py over DS1 of mitdb and svdb
    python -m studies.clicks --work DIR --day            a simulated day of three leads, by the shipped models
    python -m studies.clicks --work DIR --test           DS2, by the shipped models
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.databases.database import open_database
from heartlm.databases.splits import de_chazal_split
from heartlm.ecg.matching import match_beats
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.review.review import Review
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from lab.measure import Table
from lab.output import write_results
from lab.places import options

ENOUGH = 0.98
FEW, FEW_SHARE = 3, 0.1
"""Largest number and fraction of wrong beats with which a family is named whole, and these beats singly."""
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
        of: dict[str, Any] = {"beats": [each for each in shown if self.truth[each] not in HARMS[name]]}
        if is_family and (is_whole or not wrong[name]):
            of = {"family": question.family}
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


def of_folds(data: Path, quality: Path) -> Iterator[tuple[str, Recording, Sequence[Path]]]:
    """Each recording of the folds, with models that were trained without its patient."""
    for fold in sorted(quality.glob("fold-*")):
        models = fold / "tuned-0", *map(Path, ("af", "waveform", "statements"))
        for name in ("mitdb", "svdb"):
            splits = json.loads((fold / name / "database.json").read_text())["splits"]
            database = open_database(data / name)
            for record_id in sorted(patient for patient, split in splits.items() if split == "test"):
                yield fold.name, database.recording(record_id), models


def of_ds2(data: Path) -> Iterator[tuple[str, Recording, Sequence[Path]]]:
    database = open_database(data / "mitdb")
    for record_id in database.record_ids:
        if de_chazal_split(record_id) == "test":
            yield "ds2", database.recording(record_id), ()


def of_a_day(work: Path) -> Iterator[tuple[str, Recording, Sequence[Path]]]:
    folder, leads = work / "simulated", ("MLII", "V1", "V5")
    if not folder.exists():
        config = SimulationConfig(
            patients=1, minutes=1440, rate_hz=125, leads=leads, seed=3, noise=0.5, name="simulated"
        )
        simulate_database(folder, config)
    database = open_database(folder)
    yield "day", database.recording(database.record_ids[0]), ()


def measured(work: Path, part: str, recording: Recording, models: Sequence[Path]) -> dict[str, Any]:
    """Answers by way and kind, kept in the folder of the analysis."""
    kept = work / part / f"{recording.record_id}.answers.json"
    if not kept.exists():
        stored = Review.open(recording, work / part, models=models).stored
        known = recording.annotations
        assert known is not None, "an annotated recording"
        found: dict[str, Any] = {"beats": stored.findings.num_beats}
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                found[way] = dict(
                    answers_until_right(Review(stored, Path(folder), spreads=way == "shipped"), known, way)
                )
        kept.write_text(json.dumps(found))
        print(part, recording.record_id, {way: sum(found[way].values()) for way in WAYS}, flush=True)
    return dict(json.loads(kept.read_text()))


def main() -> None:
    parser = options(__doc__, "work", data="mitdb and svdb")
    parser.add_argument("--quality", type=Path, help="folder of the folds of quality.py")
    parser.add_argument("--day", action="store_true", help="a simulated day")
    parser.add_argument("--test", action="store_true", help="DS2 of mitdb")
    settings = parser.parse_args()
    if settings.day:
        name, chosen = "clicks-day", of_a_day(settings.work)
    elif settings.test:
        name, chosen = "clicks-ds2", of_ds2(settings.data)
    else:
        name, chosen = "clicks", of_folds(settings.data, settings.quality)
    rows = [measured(settings.work, *each) for each in chosen]
    heads = ("way", "recordings", "median", "worst tenth from", "most", "all answers", "by kind")
    table = Table("Answers until V and S each have Se and +P of 0.98", heads)
    for way in WAYS:
        numbers = np.array([sum(row[way].values()) for row in rows])
        kinds = sum((Counter(row[way]) for row in rows), Counter[str]())
        by_kind = ", ".join(f"{kind} {number:,}" for kind, number in kinds.most_common())
        worst = f"{np.quantile(numbers, 0.9):.0f}"
        table.add(way, len(rows), f"{np.median(numbers):g}", worst, int(numbers.max()), int(numbers.sum()), by_kind)
    write_results(name, "Answers until a reviewed recording is right", [table])


if __name__ == "__main__":
    main()
