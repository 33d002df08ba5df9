"""Changes of a review as patches of its table: checks of what a page or a program asks for.

{"do": "name", "family": 3, "symbol": "V"} ─► patch ─► table and journal
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import KINDS
from heartlm.errors import HeartlmError
from heartlm.review.decided import ReviewedEvent
from heartlm.review.families import divided
from heartlm.review.spread import CLASSES, FOLLOW, NEAR, Evidence
from heartlm.review.table import NAMED, SPREAD, BeatTable, Patch, patch_of

Places = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Changes:
    """Makes the patches of changes.

    Attributes:
        table: the beats as they are.
        features: of each automatic beat, see `features_of`.
        num_samples: length of the recording.
        evidence: what named beats tell of others.
        spreads: whether corrections spread.
        events: function that returns the events as they are.
    """

    table: BeatTable
    features: Floats
    num_samples: int
    events: Callable[[], Sequence[ReviewedEvent]]
    evidence: Evidence
    spreads: bool = True

    def patch(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        """Return the patch of a change, the rows that follow by spreading, and what it does in words."""
        makers = {
            **{"name": self._name, "split": self._split, "merge": self._merge, "insert": self._insert},
            **{"delete": self._delete, "event": self._event, "add": self._add},
        }
        do = change.get("do")
        if do not in makers:
            raise HeartlmError(f"do: {do!r} found, {', '.join(makers)} expected")
        return makers[do](change)

    def _chosen(self, change: Mapping[str, Any]) -> Places:
        """Return the rows of `beats` or of `family`."""
        table = self.table
        if ("beats" in change) == ("family" in change):
            raise HeartlmError("beats: either beats (samples) or family (an id) expected")
        if "family" in change:
            rows = np.flatnonzero(table.alive & (table.family == _whole(change, "family")))
            if not len(rows):
                raise HeartlmError(f"family: no family {change['family']!r}")
            return rows
        beats = change["beats"]
        if not isinstance(beats, list | tuple | np.ndarray) or not len(beats):
            raise HeartlmError("beats: a list of samples expected")
        rows_by_place = self.table.in_order()
        places, wanted = table.sample[rows_by_place], np.unique(np.asarray(beats, np.int64))
        at = np.minimum(np.searchsorted(places, wanted), max(0, len(places) - 1))
        if not len(places) or not np.array_equal(places[at], wanted):
            missing = wanted if not len(places) else wanted[places[at] != wanted]
            raise HeartlmError(f"beats: no beat at sample {missing[0]:,}")
        return np.sort(rows_by_place[at])

    def _name(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        table, rows, symbol = self.table, self._chosen(change), _symbol(change)
        family, seen = dict[int, Places](), np.empty(0, np.int64)
        if "family" not in change:
            seen = rows
            leaves = rows[table.symbol[rows] != symbol]  # a family stays of one class
            if len(leaves) and self._is_part(leaves):
                family[table.next_family] = leaves
        else:  # what was seen by itself keeps its name, in a family of its own
            other = table.seen[rows] & (table.symbol[rows] != symbol)
            if other.any() and not other.all():
                family[table.next_family], rows = rows[other], rows[~other]
        spread = np.empty(0, np.int64)
        if self.spreads and change.get("spread", True):
            spread = self._followers(rows, symbol)
        patch = patch_of(
            symbol={symbol: np.concatenate([rows, spread])},
            source={NAMED: rows, SPREAD: spread},
            family=family,
            seen={1: seen},
        )
        followed = f", {len(spread):,} follow" if len(spread) else ""
        return patch, spread, f"{len(rows):,} beats named {symbol}{followed}"

    def _is_part(self, rows: Places) -> bool:
        """Return whether beats are not a whole family."""
        table = self.table
        ids = np.unique(table.family[rows])
        return len(ids) > 1 or int((table.alive & (table.family == ids[0])).sum()) != len(rows)

    def _followers(self, rows: Places, symbol: str) -> Places:
        """Return the beats near `rows` that follow if these are named; they stay in their families."""
        table, num = self.table, len(self.features)
        rows = rows[rows < num]
        free = table.alive[:num] & (table.source[:num] != NAMED) & (table.symbol[:num] != symbol)
        free[rows] = False
        if not len(rows) or not free.any():
            return np.empty(0, np.int64)
        probability = self.evidence.probability(table.named_groups(num) | {("now", symbol): (symbol, rows)})
        likely = probability[:, CLASSES.index(symbol)] >= FOLLOW
        return np.flatnonzero(free & likely & (self.evidence.likeness(rows) >= NEAR))

    def _split(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        rows, nothing = self._chosen(change), np.empty(0, np.int64)
        if "beats" in change:
            return patch_of(family={self.table.next_family: rows}), nothing, f"{len(rows):,} beats split off"
        rows = rows[rows < len(self.features)]
        second = divided(self.features[rows]) if len(rows) > 1 else None
        if second is None:
            raise HeartlmError(f"family: {change['family']} cannot be split: its beats are alike")
        if second.sum() * 2 > len(second):
            second = ~second  # the larger part keeps the id
        parts = f"{int((~second).sum()):,} and {int(second.sum()):,} beats"
        return patch_of(family={self.table.next_family: rows[second]}), nothing, f"split in {parts}"

    def _merge(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        ids = change.get("families")
        if not isinstance(ids, list | tuple) or len(ids) < 2:
            raise HeartlmError("families: a list of two ids or more expected")
        chosen = [self._chosen({"family": each}) for each in ids]
        moved = np.concatenate(chosen[1:])
        return patch_of(family={int(ids[0]): moved}), np.empty(0, np.int64), f"{len(ids)} families merged"

    def _insert(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        table, symbol, sample = self.table, _symbol(change), _whole(change, "sample")
        if not 0 <= sample < self.num_samples:
            raise HeartlmError(f"sample: {sample:,} found, 0 to {self.num_samples - 1:,} expected")
        if np.any(table.alive & (table.sample == sample)):
            raise HeartlmError(f"sample: there is a beat at {sample:,} already")
        row = np.array([len(table.sample)])
        patch = patch_of(symbol={symbol: row}, source={NAMED: row})
        return patch | {"insert": [[int(row[0]), sample]]}, np.empty(0, np.int64), f"beat {symbol} inserted"

    def _delete(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        rows = self._chosen(change)
        return patch_of(alive={0: rows}), np.empty(0, np.int64), f"{len(rows):,} beats deleted"

    def _event(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        name, state = change.get("id"), change.get("state")
        states = ("confirmed", "refused", "changed", "automatic")
        if state not in states:
            raise HeartlmError(f"state: {state!r} found, {', '.join(states)} expected")
        reviewed = next((each for each in self.events() if each.id == name), None)
        if reviewed is None:
            raise HeartlmError(f"id: no event {name!r}")
        event, known = reviewed.event, self.table.decisions.get(reviewed.id)
        if state == "automatic" or (state == "refused" and reviewed.state == "added"):
            decision = None  # an event that was added and is refused was none
        else:
            was = known["was"] if known is not None else [event.start, event.stop]
            if reviewed.state == "added":
                state = "added"
            start, stop = _span(change, self.num_samples) if change["state"] == "changed" else was
            decision = {"kind": event.kind, "start": start, "stop": stop, "state": state, "was": was}
            decision["confidence"] = event.confidence
        return {"events": {reviewed.id: decision}}, np.empty(0, np.int64), f"{event.kind} {change['state']}"

    def _add(self, change: Mapping[str, Any]) -> tuple[Patch, Places, str]:
        kind = change.get("kind")
        if kind not in KINDS:
            raise HeartlmError(f"kind: {kind!r} found, one of {', '.join(KINDS)} expected")
        start, stop = _span(change, self.num_samples)
        name = f"{kind}@{start}"
        if any(each.id == name for each in self.events()):
            raise HeartlmError(f"kind: there is {kind} from sample {start:,} already; change it")
        decision = {"kind": kind, "start": start, "stop": stop, "state": "added", "was": [start, stop]}
        return {"events": {name: decision | {"confidence": 1.0}}}, np.empty(0, np.int64), f"{kind} added"


def _symbol(change: Mapping[str, Any]) -> str:
    symbol = change.get("symbol")
    if not isinstance(symbol, str) or len(symbol) != 1 or symbol not in CLASSES:
        raise HeartlmError(f"symbol: {symbol!r} found, {', '.join(CLASSES)} expected")
    return symbol


def _whole(change: Mapping[str, Any], name: str) -> int:
    value = change.get(name)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise HeartlmError(f"{name}: {value!r} found, a whole number expected")
    return int(value)


def _span(change: Mapping[str, Any], num_samples: int) -> tuple[int, int]:
    start, stop = _whole(change, "start"), _whole(change, "stop")
    if not 0 <= start < stop <= num_samples:
        raise HeartlmError(f"start: {start:,} to {stop:,} found, a part of 0 to {num_samples:,} samples expected")
    return start, stop
