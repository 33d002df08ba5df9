"""Sums over ranks keep what they were, however often they are asked for."""

from __future__ import annotations

import time
from pathlib import Path

from heartlm.distributed.parallel import HostAllReduce
from tests.ranks import run_in_a_process_of_its_own, run_ranks
from tests.test_training_parallel import this


def ask_again_when_another_rank_is_ahead(folder: str) -> None:
    sums, begun = HostAllReduce(this()), Path(folder) / "begun"
    totals = sums.begin(3.0 + this().rank, 1.0)
    assert totals() == [7.0, 2.0]
    assert sums(10.0) == [20.0]
    if this().is_first:
        later = sums.begin(1000.0, 1000.0)
        begun.touch()
    else:
        while not begun.exists():
            time.sleep(0.001)
    assert totals() == [7.0, 2.0]
    if not this().is_first:
        later = sums.begin(1.0, 1.0)
    assert later() == [1001.0, 1001.0]


def in_two_ranks(folder: str) -> None:
    assert run_ranks(2, ask_again_when_another_rank_is_ahead, folder) == [0, 0]


def test_a_sum_asked_for_twice_is_the_same_although_another_rank_is_ahead(tmp_path: Path) -> None:
    run_in_a_process_of_its_own("tests.test_training_sums:in_two_ranks", str(tmp_path))
