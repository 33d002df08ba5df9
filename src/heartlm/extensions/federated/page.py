"""Table of a sweep over federated studies, from the lines of its `table.csv`.

Values of a repeat are means over ranks and rounds. The first round is a warm-up and is excluded if there are more.
Numbers are geometric means over repeats with their 95 % intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from heartlm.extensions.scaling.equations import geometric_interval
from heartlm.report.numbers import Interval, significant

Lines = Sequence[Mapping[str, Any]]

HEADING = ["batch × local steps", "ranks", "repeats", "samples/s", "local ms", "communication ms", "communication %"]


def sweep_table(lines: Lines) -> list[list[str]]:
    """Return a heading, and a row for each configuration and number of ranks."""
    several = any(int(line["round_idx"]) for line in lines)
    by_config: dict[tuple[str, int], dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if int(line["round_idx"]) or not several:
            name = f"{line['config']}, {line['batch_size']} × {line['local_steps']}"
            by_config[name, int(line["world_size"])][str(line["repeat"])].append(line)
    rows = [HEADING]
    for (name, num_ranks), repeats in sorted(by_config.items()):
        columns = zip(*(measured(measured_lines, num_ranks) for measured_lines in repeats.values()), strict=True)
        values = [_written(geometric_interval(column)) for column in columns]
        rows.append([name, str(num_ranks), str(len(repeats)), *values])
    return rows


def measured(lines: Lines, num_ranks: int) -> tuple[float, float, float, float]:
    """Return the samples per second of all ranks together, local and communication ms, and the latter's percentage."""
    rate, local_ms, communication_ms = (
        fmean(float(line[name] or 0) for line in lines) for name in ("samples_per_s", "local_train_ms", "comm_ms")
    )
    busy_ms = local_ms + communication_ms
    return num_ranks * rate, local_ms, communication_ms, 100 * communication_ms / busy_ms if busy_ms else 0.0


def _written(value: Interval) -> str:
    text = significant(value.value)
    return text if value.low is None else f"{text} [{significant(value.low)}, {significant(value.high)}]"
