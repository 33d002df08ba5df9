"""Families of beats as a reviewer sees them: mean wave, spread, examples and doubt."""

from __future__ import annotations

from collections import Counter

import numpy as np

from heartlm.review.families import Family
from heartlm.review.stored import Stored
from heartlm.review.table import NAMED, BeatTable

EXAMPLES, ODD = 8, 4
"""Numbers of beats that show what is usual in a family, and what is not."""
SAMPLED = 2000
"""Beats of a family whose waves are averaged."""


def shown_families(table: BeatTable, stored: Stored) -> list[Family]:
    """Return the families, those first in which most wrong beats are expected."""
    rows = np.flatnonzero(table.alive[: len(stored.family)])
    order = rows[np.argsort(table.family[rows], kind="stable")]
    ids, first = np.unique(table.family[order], return_index=True)
    found = []
    for number, members in zip(ids.tolist(), np.split(order, first[1:]), strict=True):
        some = members[:: -(-len(members) // SAMPLED)]
        waves, features = stored.waves[some].astype(np.float32), stored.features[some]
        distance = ((features - features.mean(axis=0)) ** 2).sum(axis=1)
        by_distance = some[np.argsort(distance, kind="stable")]
        examples = by_distance[:EXAMPLES], by_distance[EXAMPLES:][-ODD:]
        named = table.source[members] == NAMED
        doubt = np.where(named, 0, 1 - table.probability(members))
        name = Counter(table.symbol[members].tolist()).most_common(1)[0][0]
        found.append(
            Family(
                *(number, name, len(members), float(doubt.mean()), table.sample[members]),
                *(waves.mean(axis=0), waves.std(axis=0), table.sample[np.concatenate(examples)], bool(named.all())),
            )
        )
    return sorted(found, key=lambda each: (-each.doubt * each.count, -each.count, each.id))
