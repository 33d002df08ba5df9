"""Labels of recordings: which statements a report makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.ecg.statements import STATEMENTS
from heartlm.labels.tokens import IGNORE

WINDOW, BATCH, LEARNING_RATE = 600, 32, 3e-3
"""Tokens of a window over leads, 6 s; windows of a batch and peak learning rate, unless they are set."""
CONTINUED_RATE = 3e-4
"""Peak learning rate from the weights of a run; larger ones forget what they know (docs/log/statements.md)."""
FEWEST_PATIENTS = 20
"""Patients with a statement, and without it, below which a model does not learn it unless it is named."""


def stated_labels(stated: Iterable[Mapping[str, bool]], names: Sequence[str]) -> NDArray[np.int64]:
    """Return labels of recordings, int64 `[num_recordings, num_statements]`: 1 present, 0 absent, −1 not known."""
    rows = [[int(each.get(name, IGNORE)) for name in names] for each in stated]
    return np.array(rows, np.int64).reshape(len(rows), len(names))


def stated_of(corpus: Corpus) -> list[Mapping[str, bool]]:
    """Return what is stated about the recording of each row of a corpus; rows of which the same is stated share it."""
    read: Callable[[str], Mapping[str, bool]] = cache(json.loads)
    return [read(row.statements) for row in corpus.records.rows]


def learnable(corpus: Corpus, rows: NDArray[np.int64], fewest: int = FEWEST_PATIENTS) -> tuple[str, ...]:
    """Return the statements of which `rows` have enough examples, in the order of the table, others by name."""
    stated = stated_of(corpus)
    patients: dict[tuple[str, bool], set[str]] = {}
    for row in rows.tolist():
        for name, is_present in stated[row].items():
            patients.setdefault((name, is_present), set()).add(str(corpus.records.patient_id[row]))
    order = {name: rank for rank, name in enumerate(STATEMENTS)}
    names = sorted({name for name, _ in patients}, key=lambda name: (order.get(name, len(order)), name))
    enough = (name for name in names if all(len(patients.get((name, is_it), ())) >= fewest for is_it in (True, False)))
    return tuple(enough)
