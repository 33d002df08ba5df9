"""`Review`: the state of one reviewed recording, what a page or a notebook shows of it, and changes of it.

stored analysis ─► table of beats ─► families, questions
     journal ─► patches ─┘   └─► `Findings.corrected` ─► events, page, tables
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Findings
from heartlm.databases.database import opened
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.review.changes import Changes
from heartlm.review.decided import ReviewedEvent, corrected_findings, reviewed_events
from heartlm.review.families import Family
from heartlm.review.journal import ReviewJournal
from heartlm.review.shown import Shape, shown_families
from heartlm.review.spread import CLASSES, Evidence
from heartlm.review.stored import Stored
from heartlm.review.table import AUTOMATIC, NAMED, BeatTable, Patch, unpacked

SHOWN = 64
"""Beats that a question shows at most."""
IN_PASSING = 0.2
"""Doubt of a beat that was named with its family, as a fraction of what it would be without."""
DOUBTFUL = 0.9
"""Probability below which an automatic class is doubtful."""

Places = NDArray[np.int64]


class ConflictError(HeartlmError):
    """A change was made on an earlier revision than the present one: read the state again, then repeat it."""


@dataclass(frozen=True)
class Changed:
    """What a change did.

    Attributes:
        revision: revision after it.
        beats: samples of the beats that it named, inserted or deleted, ascending.
        spread: samples of the beats that followed.
        text: what it did, one line.
    """

    revision: int
    beats: Places
    spread: Places
    text: str


@dataclass(frozen=True)
class Question:
    """What to ask a reviewer next: the class of some beats that are shown together.

    Attributes:
        kind: family, whose name applies to all its beats; or beats, of a family that has its name, seen one by one.
        family: id of the family.
        beat: sample of the most doubtful beat.
        beats: samples of the beats to show, the most doubtful first, up to `SHOWN`; in a larger family the last fourth
            is spread over all of it.
        symbol: class of most of them as it is.
        count: number of beats of the family that were not seen.
        expected: number of wrong beats among the most doubtful ones that is expected.
    """

    kind: str
    family: int
    beat: int
    beats: Places
    symbol: str
    count: int
    expected: float


class Review:
    """The state of one reviewed recording.

    Made by `open`. All methods may be called from several threads; a process that changes the same review at the same
    time waits for the lock of the journal, reads what the other one wrote, and loses nothing.

    Attributes:
        recording: the recording.
        automatic: the findings of the models, which stay as they are.
        folder: folder of the analysis and of the results.
        reviewer: name that the journal gets.
        revision: number of changes that were applied, undone or redone.
        waves: wave of each automatic beat, float16 `[num_beats, num_leads, num_samples]`, see `families`.
        notes: what was repaired or differs from what was expected, one line each.
    """

    def __init__(self, stored: Stored, folder: Path, reviewer: str = "", spreads: bool = True) -> None:
        self.stored, self.folder, self.reviewer = stored, Path(folder), reviewer
        self.automatic: Findings = stored.findings
        self.recording: Recording = stored.findings.recording
        self.waves = stored.waves
        self.revision = 0
        self._table = BeatTable(stored)
        self._evidence = Evidence(stored.features, stored.classes)
        made_of = self._table, stored.features, self.recording.num_samples, self.events, self._evidence
        self._changes = Changes(*made_of, spreads)
        self._shapes = dict[bytes, Shape]()
        self._undone, self._done = list[Patch](), list[tuple[Patch, Any]]()
        self._lock, self._known = threading.RLock(), dict[str, tuple[int, Any]]()
        head = {"record": self.recording.record_id, "analysis": stored.identity}
        self._journal = ReviewJournal(self.folder / f"{self.recording.record_id}.review.jsonl", head)
        if self._journal.path.exists():
            self.catch_up()

    @classmethod
    def open(
        cls,
        recording: Recording | Path | str,
        folder: Path | str,
        *,
        reviewer: str = "",
        findings: Findings | None = None,
        models: Sequence[Path] = (),
    ) -> Review:
        """Open the review of a recording: its stored analysis, and the journal of its changes.

        If the folder has no analysis of this recording, or one by other models and no journal, the recording is
        analysed and the result stored.

        Args:
            recording: recording with a signal, or its path.
            folder: folder of `heartlm analyze`, or a new one.
            reviewer: name for the journal.
            findings: result of an analysis of this recording; by default it is analysed if need be.
            models: models of beats, AF, waveform and statements; by default the shipped ones.

        Raises:
            HeartlmError: the recording cannot be analysed or has changed since its analysis, or a file is damaged, of
                another recording or cannot be written.
        """
        from heartlm.review.opening import stored_analysis

        recording = opened(recording)
        stored, notes = stored_analysis(recording, Path(folder), findings, tuple(models))
        review = cls(stored, Path(folder), reviewer)
        review.notes[:0] = notes
        return review

    @property
    def notes(self) -> list[str]:
        """What was repaired or differs from what was expected, one line each."""
        return self._journal.notes

    # The beats, by position.

    def _rows(self) -> Places:
        rows: Places = self._cached("rows", self._table.in_order)
        return rows

    @property
    def sample(self) -> Places:
        """Position of each beat, int64 `[num_beats]`, ascending."""
        return self._table.sample[self._rows()]

    @property
    def symbol(self) -> NDArray[np.str_]:
        """Class of each beat, N, S, V or F, `<U1` `[num_beats]`."""
        return self._table.symbol[self._rows()]

    @property
    def probability(self) -> NDArray[np.float32]:
        """Probability of the class, float32 `[num_beats]`; 1 of named beats."""
        return self._table.probability(self._rows())

    @property
    def source(self) -> NDArray[np.uint8]:
        """What gave the class, uint8 `[num_beats]`: 0 the models, 1 a correction that spread, 2 the reviewer."""
        return self._table.source[self._rows()]

    @property
    def family(self) -> Places:
        """Id of the family of each beat, int64 `[num_beats]`; -1 for inserted beats."""
        return self._table.family[self._rows()]

    def families(self) -> list[Family]:
        """Return the families, those first in which most wrong beats are expected."""
        with self._lock:
            of = self._table, self.stored, self._shapes
            found: list[Family] = self._cached("families", lambda: shown_families(*of))
            return list(found)

    # Events.

    def findings(self) -> Findings:
        """Return the corrected findings: the rules run again, with the events that the reviewer decided."""
        with self._lock:
            found: Findings = self._cached("findings", self._findings)
            return found

    def _findings(self) -> Findings:
        return corrected_findings(self.automatic, self._table, self.in_words()) if self._done else self.automatic

    def num_changed(self) -> tuple[int, int]:
        """Return the number of beats and of events that are not as the models found them."""
        table, num = self._table, len(self.stored.family)
        same = table.alive[:num] & (table.symbol[:num] == table.model_symbol[:num])
        return int((~same).sum() + table.alive[num:].sum()), len(table.decisions)

    def in_words(self) -> str:
        """Return what was reviewed, one line: `reviewed, 12 beats and 3 events changed`."""
        beats, events = self.num_changed()
        plural = ["" if number == 1 else "s" for number in (beats, events)]
        return f"reviewed, {beats:,} beat{plural[0]} and {events:,} event{plural[1]} changed"

    def events(self) -> list[ReviewedEvent]:
        """Return the events by start, refused ones too."""
        with self._lock:
            return list(self._cached("events", lambda: reviewed_events(self.findings(), self._table.decisions)))

    # Questions.

    def doubt(self) -> NDArray[np.float32]:
        """Return the estimated probability that the class of each beat is wrong, float32 `[num_beats]`.

        Named beats are evidence for those near them. It is 0 of beats that were named by themselves.
        """
        with self._lock:
            by_row: NDArray[np.float32] = self._cached("doubt", self._doubt)
            return by_row[self._rows()]

    def _doubt(self) -> NDArray[np.float32]:
        """Return the doubt of each row; 0 of those that are not alive."""
        table, num = self._table, len(self.stored.family)
        probability = self._evidence.probability(table.named_groups(num))
        doubt = np.zeros(len(table.sample), np.float32)
        for place, name in enumerate(CLASSES):
            of_class = np.flatnonzero(table.symbol[:num] == name)
            doubt[of_class] = 1 - probability[of_class, place]
        # That the models are sure counts too: their rules see other beats and leads.
        automatic = table.source[:num] == AUTOMATIC
        doubt[:num][automatic] = np.sqrt(doubt[:num] * (1 - table.model_probability[:num]))[automatic]
        doubt[:num] = np.maximum(doubt[:num], 1e-4)  # nothing is sure before it was seen
        doubt[table.source == NAMED] *= IN_PASSING
        doubt[table.seen] = 0
        doubt[~table.alive] = 0
        return doubt

    def question(self) -> Question | None:
        """Return the question whose answer settles most: the expected number of wrong beats; None if none is left."""
        with self._lock:
            doubt, table, num = self._cached("doubt", self._doubt), self._table, len(self.stored.family)
            rows = np.flatnonzero(doubt[:num] > 0)
            if not len(rows):
                return None
            # Each family by the beats that its page would show.
            order = rows[np.lexsort((-doubt[rows], table.family[rows]))]
            _, first, counts = np.unique(table.family[order], return_index=True, return_counts=True)
            rank = np.arange(len(order)) - np.repeat(first, counts)
            expected = np.add.reduceat(np.where(rank < SHOWN, doubt[order], 0), first)
            best = int(expected.argmax())
            members = order[first[best] : first[best] + counts[best]]
            shown = members[:SHOWN]
            if len(members) > SHOWN:  # a fourth of the page is of all of the family
                odd, others = np.split(members, [SHOWN * 3 // 4])
                shown = np.concatenate([odd, np.sort(others)[:: -(-len(others) // (SHOWN // 4))]])
            symbol = Counter(table.symbol[shown].tolist()).most_common(1)[0][0]
            kind = "beats" if np.all(table.source[members] == NAMED) else "family"
            family, beats = int(table.family[shown[0]]), table.sample[shown]
            return Question(kind, family, int(beats[0]), beats, symbol, len(members), float(expected[best]))

    def next_doubtful(self, after: int) -> int | None:
        """Return the next beat after a sample whose automatic class is doubtful; None if there is none."""
        doubtful = (self.source == AUTOMATIC) & (self.probability < DOUBTFUL) & (self.sample > after)
        places = self.sample[doubtful]
        return int(places[0]) if len(places) else None

    # Changes.

    def apply(self, change: Mapping[str, Any]) -> Changed:
        """Apply a change and append it to the journal; it is on the disk when this returns.

        Args:
            change: JSON-able, by its `do`:
                `name`: `symbol` for `beats` (samples) or all beats of `family` (an id);
                `split`: `family` in two by shape, or `beats` off their families;
                `merge`: `families` (ids) into the first;
                `insert`: a beat at `sample` with `symbol`; `delete`: `beats`, or all beats of `family`;
                `event`: `id` gets `state` confirmed, refused, changed (with `start` and `stop`) or automatic;
                `add`: an event of `kind` from `start` to `stop`.
                With `revision`, it is refused unless it is the present one. With `spread` false, no beat follows.

        Raises:
            ConflictError: another window or process changed the review since `revision`.
            HeartlmError: a field is missing or wrong, or the journal cannot be written; nothing is changed.
        """
        with self._lock, self._journal.locked() as lines:
            self._replay(lines)
            self._check_revision(change.get("revision"))
            plain = json.loads(json.dumps(dict(change), default=_as_list))
            patch, spread, text = self._changes.patch(plain)
            model = self._said(patch)
            self._append(plain, model, patch)
            self._done.append((patch, self._table.apply(patch)))
            self._undone.clear()
            return self._changed(patch, spread, text)

    def undo(self, revision: int | None = None) -> Changed | None:
        """Undo the last change that is not undone; None if there is none. It is journalled too.

        Raises:
            ConflictError: `revision` is given and is not the present one.
        """
        return self._step("undo", revision)

    def redo(self, revision: int | None = None) -> Changed | None:
        """Apply the last undone change again; None if there is none, or a change was applied since.

        Raises:
            ConflictError: `revision` is given and is not the present one.
        """
        return self._step("redo", revision)

    def _step(self, do: str, revision: int | None) -> Changed | None:
        with self._lock, self._journal.locked() as lines:
            self._replay(lines)
            self._check_revision(revision)
            if not (self._done if do == "undo" else self._undone):
                return None
            patch = (self._done[-1][0]) if do == "undo" else self._undone[-1]
            self._append({"do": do}, {}, {})
            self._take_step(do)
            return self._changed(patch, np.empty(0, np.int64), do)

    def _take_step(self, do: str) -> None:
        if do == "undo" and self._done:
            patch, undo = self._done.pop()
            undo()
            self._undone.append(patch)
        elif do == "redo" and self._undone:
            patch = self._undone.pop()
            self._done.append((patch, self._table.apply(patch)))

    def catch_up(self) -> bool:
        """Read what other processes appended to the journal; return whether there was anything."""
        with self._lock, self._journal.locked() as lines:
            self._replay(lines)
            return bool(lines)

    def _replay(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            try:
                do, revision, effect = line["change"]["do"], line["revision"], line["effect"]
                if revision != self.revision + 1:
                    raise HeartlmError(f"revision {revision} found, {self.revision + 1} expected")
                if do in ("undo", "redo"):
                    self._take_step(do)
                else:
                    self._done.append((effect, self._table.apply(effect)))
                    self._undone.clear()
            except (KeyError, TypeError, ValueError, AttributeError, HeartlmError) as error:
                raise HeartlmError(
                    f"{self._journal.path}: change {self.revision + 1} is damaged ({error}); restore the file, or move "
                    "it away to start again"
                ) from error
            self.revision += 1

    def _append(self, change: dict[str, Any], model: dict[str, Any], effect: Patch) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"revision": self.revision + 1, "at": at, "reviewer": self.reviewer}
        self._journal.append(entry | {"change": change, "model": model, "effect": effect})
        self.revision += 1

    def _check_revision(self, made_on: Any) -> None:
        if made_on is not None and made_on != self.revision:
            raise ConflictError(
                f"revision: the change was made on {made_on}, the review is at {self.revision}: another window changed "
                "it; look at it again and repeat the change"
            )

    def _changed(self, patch: Patch, spread: Places, text: str) -> Changed:
        rows = [unpacked(each) for of in ("symbol", "alive") for each in patch.get(of, {}).values()]
        rows.append(np.array([row for row, _ in patch.get("insert", ())], np.int64))
        touched = np.unique(np.concatenate(rows)).astype(np.int64)
        own = np.setdiff1d(touched, spread)
        return Changed(self.revision, np.sort(self._table.sample[own]), np.sort(self._table.sample[spread]), text)

    def _said(self, patch: Patch) -> dict[str, Any]:
        """Return what the models said of the beats and events of a patch."""
        said = dict[str, Any]()
        rows = [unpacked(each) for of in ("symbol", "alive") for each in patch.get(of, {}).values()]
        if rows:
            chosen = np.unique(np.concatenate(rows))
            chosen = chosen[chosen < len(self.stored.family)]
            said["beats"] = dict(Counter(self._table.model_symbol[chosen].tolist()))
            if len(chosen):
                said["probability"] = round(float(self._table.model_probability[chosen].mean()), 4)
        if patch.get("events"):
            automatic = {f"{each.kind}@{each.start}": each for each in self.automatic.events}
            of = {name: automatic.get(name) for name in patch["events"]}
            said["events"] = {
                name: each and {"start": each.start, "stop": each.stop, "confidence": round(each.confidence, 4)}
                for name, each in of.items()
            }
        return said

    def write(self) -> list[Path]:
        """Write the corrected results next to the automatic ones; return the files.

        RECORD.reviewed.hlm has beats and rhythms in WFDB format, RECORD.reviewed.html is the page,
        RECORD.reviewed.events.csv and RECORD.reviewed.hours.csv the tables; RECORD.review.jsonl, the journal, is there.

        Raises:
            HeartlmError: a file cannot be written.
        """
        from heartlm.analysis.recordings import write_findings
        from heartlm.report.holter import holter_page

        findings = self.findings()
        stem = self.folder / f"{self.recording.record_id}.reviewed"
        return [*write_findings(findings, stem, holter_page(findings))[1], self._journal.path]

    def _cached(self, name: str, make: Any) -> Any:
        """Return what `make` returns, made again after a change."""
        with self._lock:
            revision, value = self._known.get(name, (-1, None))
            if revision != self.revision:
                value = make()
                self._known[name] = (self.revision, value)
            return value


def _as_list(value: Any) -> Any:
    """Return arrays and numbers of NumPy as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise HeartlmError(f"change: {type(value).__name__} found, values of JSON expected")
