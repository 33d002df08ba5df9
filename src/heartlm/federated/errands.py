"""Who is asked in a round, and what fate awaits them: a pure function of seed, round and client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heartlm.federated.client import Errand
from heartlm.federated.partition import Member
from heartlm.federated.study_file import StudyConfig
from heartlm.kernels.draws import Stream, draws, uniform

ASKED_STREAM, SLOW_STREAM, LOST_STREAM = 12, 13, 14


def errands(study: StudyConfig, members: Sequence[Member], round_index: int) -> dict[int, Errand]:
    """What each client asked in round `round_index` is to do, by its number, ascending.

    Of stragglers the deadline finds a share of their steps done that is equally likely from one step to one less than
    all; of clients that die, death comes before any of their steps, equally likely.
    """
    num = len(members)
    order = np.argsort(_chances(study, round_index, ASKED_STREAM, num), kind="stable")
    asked = sorted(int(client) for client in order[: max(1, round(study.participation * num))])
    slow, how_slow = _chances(study, round_index, SLOW_STREAM, 2 * num).reshape(num, 2).T
    lost, how_soon = _chances(study, round_index, LOST_STREAM, 2 * num).reshape(num, 2).T
    result = dict[int, Errand]()
    for client in asked:
        steps = study.local_steps
        if slow[client] < study.stragglers:
            steps = int(how_slow[client] * study.local_steps)
            steps = 0 if study.late == "drop" else max(1, steps)
        dies = int(how_soon[client] * max(1, steps)) if lost[client] < study.failures else None
        result[client] = Errand(round_index, steps, study.deadline_s, dies)
    return result


def _chances(study: StudyConfig, round_index: int, use: int, num: int) -> NDArray[np.float64]:
    return uniform(draws(Stream(study.seed, round_index, use), 0, num))
