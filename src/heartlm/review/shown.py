"""Families of beats as a reviewer sees them: mean wave, spread, examples and doubt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.review.families import Family
from heartlm.review.stored import Stored
from heartlm.review.table import NAMED, BeatTable

EXAMPLES, ODD = 8, 4
"""Numbers of beats that show what is usual in a family, and what is not."""
SAMPLED = 2000
"""Beats of a family whose waves are averaged."""


Shape = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]
"""Mean wave, spread, and rows of the examples."""


def shown_families(table: BeatTable, stored: Stored, shapes: dict[bytes, Shape]) -> list[Family]:
    """Return the families, those first in which most wrong beats are expected.

    Args:
        table: the beats as they are.
        stored: their waves and features.
        shapes: those of earlier families by their beats, which become those of these families.
    """
    rows = np.flatnonzero(table.alive[: len(stored.family)])
    order = rows[np.argsort(table.family[rows], kind="stable")]
    ids, first = np.unique(table.family[order], return_index=True)
    found, before = [], dict(shapes)
    shapes.clear()
    for number, members in zip(ids.tolist(), np.split(order, first[1:]), strict=True):
        key = members.tobytes()
        mean, spread, examples = shapes[key] = before.get(key) or _shape(members, stored)
        named = table.source[members] == NAMED
        doubt = np.where(named, 0, 1 - table.probability(members))
        name = chr(np.bincount(table.symbol[members].view(np.uint32)).argmax())
        found.append(
            Family(
                *(number, name, len(members), float(doubt.mean()), table.sample[members]),
                *(mean, spread, table.sample[examples], bool(named.all())),
            )
        )
    return sorted(found, key=lambda each: (-each.doubt * each.count, -each.count, each.id))


def _shape(members: NDArray[np.int64], stored: Stored) -> Shape:
    some = members[:: -(-len(members) // SAMPLED)]
    waves, features = stored.waves[some].astype(np.float32), stored.features[some]
    distance = ((features - features.mean(axis=0)) ** 2).sum(axis=1)
    by_distance = some[np.argsort(distance, kind="stable")]
    examples = np.concatenate([by_distance[:EXAMPLES], by_distance[EXAMPLES:][-ODD:]])
    return waves.mean(axis=0), waves.std(axis=0), examples
