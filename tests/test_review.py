"""`Review`: changes, their journal, undo, several writers, and the events that follow."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import Event
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.review.families import divided
from heartlm.review.review import SHOWN, ConflictError, Review
from heartlm.review.spread import CLASSES, FOLLOW, NEAR, Evidence
from heartlm.review.stored import stored_of
from heartlm.review.table import packed, unpacked
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, analyst: Analyst) -> Path:
    """A folder with a simulated recording, s0001, and its stored analysis; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("review")
    simulate_database(folder / "simdb", SimulationConfig(patients=4, minutes=3.0, seed=5, noise=0.3, name="simdb"))
    database = open_database(folder / "simdb")
    found = analyst.analyze(database.recording("s0002"))
    assert {"V", "S", "N"} <= set(found.symbol.tolist())
    Review.open(found.recording, folder / "out", findings=found)
    (folder / "name").write_text("s0002")
    return folder


class Copy:
    """A copy of the folder that a test may change."""

    def __init__(self, folder: Path, to: Path) -> None:
        shutil.copytree(folder, to, dirs_exist_ok=True)
        self.name = (to / "name").read_text()
        self.path, self.out = to / "simdb" / self.name, to / "out"
        self.journal = self.out / f"{self.name}.review.jsonl"

    def open(self, reviewer: str = "A") -> Review:
        return Review.open(self.path, self.out, reviewer=reviewer)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Copy:
    return Copy(folder, tmp_path / "copy")


def plain(events: tuple[Event, ...]) -> list[tuple]:
    """Events as tuples that are equal if the events are: NaN is not equal to itself."""
    return [tuple(None if value != value else value for value in astuple(each)) for each in events]


def state(review: Review) -> tuple:
    columns = (review.sample, review.symbol, review.source, review.family)
    return *(each.tolist() for each in columns), [(each.id, each.state) for each in review.events()]


def a_family(review: Review, name: str = "V") -> int:
    return next(each.id for each in review.families() if each.name == name and each.count > 1)


def test_uncorrected_findings_are_the_automatic_ones(copy: Copy) -> None:
    automatic = copy.open().automatic
    assert automatic.events and plain(automatic.corrected().events) == plain(automatic.events)


def test_an_opened_analysis_is_the_one_that_was_made(folder: Path, copy: Copy, analyst: Analyst) -> None:
    review = copy.open()
    fresh = analyst.analyze(review.recording)
    for name in ("sample", "symbol", "probability", "quality", "lost", "left_out", "paced", "disputed"):
        np.testing.assert_array_equal(getattr(review.automatic, name), getattr(fresh, name), name)
    made = stored_of(fresh, analyst.beats)
    for name in ("waves", "features", "classes", "family"):
        np.testing.assert_allclose(getattr(review.stored, name), getattr(made, name), rtol=1e-4, atol=1e-4)
    assert plain(review.automatic.events) == plain(fresh.events)
    assert review.automatic.summary() == fresh.summary()
    for mine, other in zip(review.automatic.waves.beat_rows(), fresh.waves.beat_rows(), strict=True):
        assert mine == other


def test_a_name_applies_to_all_beats_of_the_family_and_the_events_follow(copy: Copy) -> None:
    review = copy.open()
    before = len(review.findings().of_kind("couplet")), int((review.symbol == "V").sum())
    family = next(each for each in review.families() if each.id == a_family(review))
    done = review.apply({"do": "name", "family": family.id, "symbol": "N", "spread": False})
    assert done.revision == review.revision == 1 and done.beats.tolist() == family.members.tolist()
    assert set(review.symbol[np.isin(review.sample, family.members)]) == {"N"}
    assert int((review.symbol == "V").sum()) == before[1] - family.count
    by_hand = review.automatic.corrected(symbol=review.symbol)
    assert plain(review.findings().events) == plain(by_hand.events)
    assert review.findings().reviewed == f"reviewed, {family.count} beats and 0 events changed"


def test_undo_and_redo_have_no_limit_and_restore_every_state(copy: Copy) -> None:
    review = copy.open()
    gap = int(review.sample[10] + (review.sample[11] - review.sample[10]) // 2)
    first_event = review.events()[0].id
    changes = [
        {"do": "event", "id": first_event, "state": "refused"},
        {"do": "name", "family": a_family(review), "symbol": "S"},
        {"do": "insert", "sample": gap, "symbol": "V"},
        {"do": "split", "family": a_family(review, "N")},
        {"do": "delete", "beats": [int(review.sample[3]), gap]},
        {"do": "add", "kind": "AF", "start": 100, "stop": 5000},
        {"do": "merge", "families": [each.id for each in review.families()[:2]]},
        {"do": "name", "beats": review.sample[20:23], "symbol": "F"},
    ]
    states = [state(review)]
    for change in changes:
        review.apply(change)
        states.append(state(review))
    assert all(one != other for one, other in pairwise(states))
    for expected in states[-2::-1]:
        assert review.undo() is not None
        assert state(review) == expected
    assert review.undo() is None
    for expected in states[1:]:
        assert review.redo() is not None
        assert state(review) == expected
    assert review.redo() is None and review.revision == 3 * len(changes)
    assert state(copy.open()) == states[-1]


def test_a_single_name_is_not_undone_by_the_name_of_its_former_family(copy: Copy) -> None:
    review = copy.open()
    family = next(each for each in review.families() if each.name == "N" and each.count > 2)
    beat = int(family.members[1])
    review.apply({"do": "name", "beats": [beat], "symbol": "S", "spread": False})
    review.apply({"do": "name", "family": family.id, "symbol": "N", "spread": False})
    assert review.symbol[review.sample == beat] == ["S"]


def test_beats_follow_with_a_mark_but_never_named_ones(copy: Copy) -> None:
    review = copy.open()
    family = max((each for each in review.families() if each.name == "V"), key=lambda each: each.count)
    keep, some = int(family.members[0]), family.members[1 : family.count - 2]
    review.apply({"do": "name", "beats": [keep], "symbol": "V"})
    before, classes = state(review), review.symbol
    review._changes.evidence._classes[:] = 0.25  # a model that knows nothing, so that few beats are enough
    review._changes.evidence._log_model[:] = np.log(0.25)
    done = review.apply({"do": "name", "beats": some, "symbol": "S"})
    assert keep not in done.spread and review.symbol[review.sample == keep] == ["V"]
    followed = np.isin(review.sample, done.spread)
    assert followed.any() and not set(some.tolist()) & set(done.spread.tolist())
    assert set(review.source[followed]) == {1} and np.all(review.symbol[followed] != classes[followed])
    assert np.all(review.probability[followed] < 1) and np.all(review.probability[np.isin(review.sample, some)] == 1)
    review.undo()
    assert state(review) == before


def test_named_beats_are_evidence_for_those_near_them_alone() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(0, 0.2, (400, 6)).astype(np.float32)
    features[200:, 0] += 2
    evidence = Evidence(features, np.tile(np.array([0.6, 0.1, 0.2, 0.1], np.float32), (400, 1)))
    groups = {"named": ("V", np.arange(200, 300))}
    known = evidence.probability(groups)
    likeness = evidence.likeness(np.arange(200, 300))
    assert np.all(known[300:, CLASSES.index("V")] >= FOLLOW) and np.all(likeness[300:] >= NEAR)
    assert np.all(likeness[:200] < NEAR)
    assert np.all(known[:200].argmax(axis=1) == CLASSES.index("N"))
    again = evidence.probability({})
    assert np.all(again.argmax(axis=1) == CLASSES.index("N"))  # what was undone tells nothing


def test_questions_settle_everything(copy: Copy) -> None:
    review = copy.open()
    asked = set[str]()
    for _ in range(200):
        question = review.question()
        if question is None:
            break
        asked.add(question.kind)
        assert len(question.beats) <= SHOWN and question.beat == question.beats[0]
        of = {"family": question.family} if question.kind == "family" else {"beats": question.beats}
        review.apply({"do": "name", "symbol": question.symbol, "spread": False} | of)
    assert review.question() is None and asked == {"family", "beats"}
    assert np.all(review.source == 2) and not review.doubt().any()


def test_events_are_refused_confirmed_changed_and_added(copy: Copy) -> None:
    review = copy.open()
    event = next(each for each in review.events() if each.event.kind in ("couplet", "VT", "bigeminy", "tachycardia"))

    def states() -> dict[str, str]:
        return {each.id: each.state for each in review.events()}

    review.apply({"do": "event", "id": event.id, "state": "refused"})
    assert states()[event.id] == "refused"
    assert not any(
        each.kind == event.event.kind and each.start == event.event.start for each in review.findings().events
    )
    review.apply({"do": "event", "id": event.id, "state": "confirmed"})
    assert states()[event.id] == "confirmed"
    confirmed = next(each for each in review.events() if each.id == event.id)
    assert confirmed.event.confidence == 1
    span = event.event.start + 5, event.event.stop + 7
    review.apply({"do": "event", "id": event.id, "state": "changed", "start": span[0], "stop": span[1]})
    changed = next(each for each in review.events() if each.id == event.id)
    assert (changed.state, changed.event.start, changed.event.stop) == ("changed", *span)
    review.apply({"do": "event", "id": event.id, "state": "automatic"})
    assert states()[event.id] == "automatic" and plain(review.findings().events) == plain(review.automatic.events)
    review.apply({"do": "add", "kind": "VF", "start": 1000, "stop": 3000})
    assert states()["VF@1000"] == "added" and review.findings().seconds_of("VF") == 2000 / review.recording.rate_hz
    review.apply({"do": "event", "id": "VF@1000", "state": "refused"})
    assert "VF@1000" not in states() and not review.findings().of_kind("VF")


def test_the_journal_tells_what_models_and_reviewer_said(copy: Copy) -> None:
    review = copy.open("Dr B")
    family = next(each for each in review.families() if each.name == "V")
    review.apply({"do": "name", "family": family.id, "symbol": "S", "spread": False})
    head, line = map(json.loads, copy.journal.read_text().splitlines())
    assert head["record"] == copy.name
    assert line["reviewer"] == "Dr B" and line["at"][:2] == "20" and line["change"]["symbol"] == "S"
    assert line["model"]["beats"] == {"V": family.count}


def test_a_killed_process_loses_nothing_and_a_torn_line_is_cut(copy: Copy) -> None:
    code = f"""
import os, signal
from heartlm.review.review import Review
review = Review.open({str(copy.path)!r}, {str(copy.out)!r}, reviewer="killed")
for beat in review.sample[:3].tolist():
    review.apply({{"do": "name", "beats": [beat], "symbol": "S", "spread": False}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGKILL
    with copy.journal.open("ab") as stream:
        stream.write(b'{"revision": 4, "at": "2026')
    review = copy.open()
    assert review.revision == 3 and set(review.symbol[:3]) == {"S"}
    assert len(review.notes) == 1 and "cut off" in review.notes[0]
    review.apply({"do": "insert", "sample": 5, "symbol": "N"})
    assert copy.open().revision == 4 and not copy.open().notes


def test_two_writers_lose_nothing_and_a_change_on_an_old_revision_is_refused(copy: Copy) -> None:
    one, other = copy.open("one"), copy.open("other")
    places = one.sample[:2].tolist()
    one.apply({"do": "name", "beats": [places[0]], "symbol": "S", "spread": False, "revision": 0})
    with pytest.raises(ConflictError, match="revision"):
        other.apply({"do": "name", "beats": [places[1]], "symbol": "V", "spread": False, "revision": 0})
    assert other.revision == 1 and other.symbol[0] == "S"
    other.apply({"do": "name", "beats": [places[1]], "symbol": "V", "spread": False, "revision": 1})
    one.apply({"do": "insert", "sample": 7, "symbol": "N"})  # without a revision it is made on what is there
    assert one.revision == 3 and other.catch_up() and state(one) == state(other) == state(copy.open())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "do: None found"),
        ({"do": "name", "family": 999_999, "symbol": "V"}, "family: no family 999999"),
        ({"do": "name", "beats": [1], "symbol": "V"}, "beats: no beat at sample 1"),
        ({"do": "name", "beats": [], "symbol": "V"}, "beats: a list"),
        ({"do": "name", "family": 0, "symbol": "X"}, "symbol: 'X' found"),
        ({"do": "insert", "sample": -1, "symbol": "V"}, "sample: -1 found"),
        ({"do": "insert", "sample": 1.5, "symbol": "V"}, "sample: 1.5 found"),
        ({"do": "event", "id": "VT@1", "state": "refused"}, "id: no event 'VT@1'"),
        ({"do": "add", "kind": "cold", "start": 0, "stop": 9}, "kind: 'cold' found"),
        ({"do": "add", "kind": "AF", "start": 9, "stop": 9}, "start: 9 to 9 found"),
        ({"do": "merge", "families": [0]}, "families: a list of two"),
        ({"do": "name", "family": 0, "symbol": "V", "why": {1}}, "change: set found"),
    ],
)
def test_a_bad_change_is_refused_with_one_line_and_changes_nothing(copy: Copy, change: dict, expected: str) -> None:
    review = copy.open()
    before = state(review)
    with pytest.raises(HeartlmError, match=expected):
        review.apply(change)
    assert state(review) == before and review.revision == 0
    assert copy.journal.read_bytes() == b""


def test_another_recording_or_a_changed_one_is_refused(copy: Copy) -> None:
    copy.open().apply({"do": "insert", "sample": 5, "symbol": "N"})
    text = copy.journal.read_text()
    copy.journal.write_text(text.replace(f'"record": "{copy.name}"', '"record": "s9"'))
    with pytest.raises(HeartlmError, match="a journal of another recording"):
        copy.open()
    copy.journal.write_text(text.replace('"revision": 1', '"revision": 7'))
    with pytest.raises(HeartlmError, match="revision 7 found, 1 expected"):
        copy.open()
    copy.journal.write_text(text)
    signal_file = next(copy.path.parent.glob(f"{copy.name}.dat"))
    signal_file.write_bytes(signal_file.read_bytes()[:-2] + b"\0\1")
    with pytest.raises(HeartlmError, match="has changed since its analysis"):
        copy.open()


def test_the_results_lie_next_to_the_automatic_ones(copy: Copy) -> None:
    review = copy.open()
    review.apply({"do": "name", "family": a_family(review), "symbol": "S"})
    paths = review.write()
    assert [path.name.removeprefix(f"{copy.name}.") for path in paths] == [
        *("reviewed.hlm", "reviewed.events.csv", "reviewed.hours.csv", "reviewed.html", "review.jsonl")
    ]
    written = read_annotation_file(paths[0])
    assert written.symbol[np.isin(written.symbol, list("NSVF"))].tolist() == review.symbol.tolist()
    assert review.findings().reviewed.capitalize() in paths[3].read_text()


def test_rows_are_packed_without_loss() -> None:
    for rows in (np.arange(0), np.array([3]), np.arange(5, 100_000), np.arange(0, 90_000, 7)):
        np.testing.assert_array_equal(unpacked(json.loads(json.dumps(packed(rows)))), rows)
    assert len(packed(np.arange(5, 100_000))) < 1000
    with pytest.raises(HeartlmError, match="rows"):
        unpacked("?")


def test_two_kinds_of_beats_are_divided() -> None:
    features = np.concatenate([np.zeros((30, 4)), np.ones((10, 4))]).astype(np.float32)
    features += np.random.default_rng(0).normal(0, 0.1, features.shape).astype(np.float32)
    part = divided(features)
    assert part is not None and len(set(part[:30])) == len(set(part[30:])) == 1 and part[0] != part[-1]
    assert divided(np.ones((5, 4), np.float32)) is None
