"""The beats of a review as a table, patches that change it, and their inverses.

Rows stay where they are: a deleted beat is not alive, an inserted one is appended. So patches, which a journal has as
JSON, can name rows, and undoing one restores the values that it replaced.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.review.stored import Stored

AUTOMATIC, SPREAD, NAMED = 0, 1, 2
"""Sources of a class: the models, spread from a correction, the reviewer."""
SPREAD_PROBABILITY = 0.9
"""Probability of a class that was spread."""
FEW = 32
"""Number of rows up to which they are written as a list."""

Rows = NDArray[np.int64]
Patch = dict[str, Any]
"""By column, the rows of each new value: `{"symbol": {"V": [3]}, "source": {"2": [3]}}`; `insert` has pairs of row and
sample, `events` the decision about each event, None for none."""
_COLUMNS: dict[str, Callable[[str], Any]] = {"symbol": str, "source": int, "family": int, "alive": int, "seen": int}


class BeatTable:
    """Beats of a review.

    Attributes:
        sample: position of each row, int64 `[num_rows]`; rows after the automatic beats were inserted.
        symbol, source, family, alive, seen: what a patch changes, `[num_rows]`; `seen` beats were named by themselves.
        model_symbol, model_probability: what the models say, `[num_rows]`; empty and 0 of inserted ones.
        decisions: of each event that the reviewer decided on, by its id.
    """

    def __init__(self, stored: Stored) -> None:
        found = stored.findings
        self.sample = found.sample.copy()
        self.symbol, self.model_symbol = found.symbol.astype("<U1"), found.symbol.astype("<U1")
        self.model_probability = found.probability.astype(np.float32)
        self.source = np.zeros(len(self.sample), np.uint8)
        self.family = stored.family.astype(np.int64)
        self.alive = np.ones(len(self.sample), np.bool_)
        self.seen = np.zeros(len(self.sample), np.bool_)
        self.decisions = dict[str, dict[str, Any]]()
        self.next_family = int(self.family.max(initial=-1)) + 1

    def in_order(self) -> Rows:
        """Return the rows of the beats by position."""
        rows = np.flatnonzero(self.alive)
        if len(self.sample) == len(self.model_probability) and not np.any(np.diff(self.sample[rows]) <= 0):
            return rows
        return rows[np.argsort(self.sample[rows], kind="stable")]

    def probability(self, rows: Rows) -> NDArray[np.float32]:
        """Return the probability of the class of each row."""
        by_source = np.array([0, SPREAD_PROBABILITY, 1], np.float32)[self.source[rows]]
        return np.where(self.source[rows] == AUTOMATIC, self.model_probability[rows], by_source).astype(np.float32)

    def named_groups(self, num: int) -> dict[Hashable, tuple[str, Rows]]:
        """Return class and rows of the first `num` beats that the reviewer named, by family and class."""
        rows = np.flatnonzero((self.source[:num] == NAMED) & self.alive[:num])
        keys = self.family[rows] * 256 + self.symbol[rows].view(np.uint32).astype(np.int64)
        order = np.argsort(keys, kind="stable")
        _, first = np.unique(keys[order], return_index=True)
        groups = np.split(rows[order], first[1:]) if len(rows) else []
        return {
            (int(self.family[each[0]]), str(self.symbol[each[0]]), len(each)): (str(self.symbol[each[0]]), each)
            for each in groups
        }

    def apply(self, patch: Mapping[str, Any]) -> Callable[[], None]:
        """Apply a patch; return the function that undoes it.

        Raises:
            HeartlmError: the patch is damaged; the table is unchanged.
        """
        changes = list[tuple[str, Rows, Any]]()
        inserted = [(int(row), int(sample)) for row, sample in patch.get("insert", ())]
        num_rows = max([len(self.sample), *(row + 1 for row, _ in inserted)])
        for column, cast in _COLUMNS.items():
            for value, named in patch.get(column, {}).items():
                rows = unpacked(named)
                if len(rows) and not 0 <= rows.min() <= rows.max() < num_rows:
                    raise HeartlmError(f"rows: {rows.min()} to {rows.max()} found, 0 to {num_rows - 1} expected")
                changes.append((column, rows, cast(value)))
        for row, sample in inserted:
            self._insert(row, sample)
        old = [(column, rows, getattr(self, column)[rows].copy()) for column, rows, _ in changes]
        for column, rows, value in changes:
            getattr(self, column)[rows] = value
            if column == "family":
                self.next_family = max(self.next_family, int(value) + 1)
        decided = {name: self.decisions.get(name) for name in patch.get("events", {})}
        self._decide(patch.get("events", {}))

        def undo() -> None:
            for column, rows, values in reversed(old):
                getattr(self, column)[rows] = values
            for row, _ in inserted:
                self.alive[row] = False
            self._decide(decided)

        return undo

    def _insert(self, row: int, sample: int) -> None:
        if row < len(self.sample):  # was undone
            self.alive[row] = True
            return
        self.sample = np.append(self.sample, sample)
        self.symbol = np.append(self.symbol, "N")
        self.model_symbol = np.append(self.model_symbol, "")
        self.model_probability = np.append(self.model_probability, np.float32(0))
        self.source = np.append(self.source, np.uint8(NAMED))
        self.family = np.append(self.family, -1)
        self.alive = np.append(self.alive, True)
        self.seen = np.append(self.seen, False)

    def _decide(self, decisions: Mapping[str, Any]) -> None:
        for name, decision in decisions.items():
            if decision is None:
                self.decisions.pop(name, None)
            else:
                self.decisions[name] = dict(decision)


def patch_of(**columns: Mapping[Any, Rows]) -> Patch:
    """Return a patch of rows by value of some columns, without empty ones."""
    patch = {
        column: {str(value): packed(np.sort(rows)) for value, rows in by_value.items() if len(rows)}
        for column, by_value in columns.items()
    }
    return {column: by_value for column, by_value in patch.items() if by_value}


def packed(rows: Rows) -> list[int] | str:
    """Return ascending rows as a list, or as base64 of the compressed differences, which runs make short."""
    if len(rows) <= FEW:
        return [int(row) for row in rows]
    return base64.b64encode(zlib.compress(np.diff(rows, prepend=0).astype("<i4").tobytes())).decode()


def unpacked(value: Any) -> Rows:
    """Return the rows of `packed`.

    Raises:
        HeartlmError: it is none.
    """
    try:
        if isinstance(value, str):
            return np.cumsum(np.frombuffer(zlib.decompress(base64.b64decode(value)), "<i4").astype(np.int64))
        return np.array(value, np.int64).reshape(-1)
    except (ValueError, zlib.error, TypeError) as error:
        raise HeartlmError(f"rows: {str(value)[:40]!r} found, indices of beats expected") from error
