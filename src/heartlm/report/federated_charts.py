"""What the figures of a sweep over federated studies show: throughput, where the time goes, its share, by ranks.

Values of a repeat are means over ranks and rounds, the first round left out where there are more, because it warms up;
points are geometric means over repeats with their 95 % intervals.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.report.numbers import significant
from heartlm.report.scaling_model import Chart, Curve, Point
from heartlm.scaling.equations import Interval, geometric_interval

Lines = list[dict[str, str]]


@dataclass(frozen=True)
class Group:
    """Cells that differ in ranks and repeats alone.

    Attributes:
        name: what they have in common.
        of: lines of the table by ranks, and by repeat.
    """

    name: str
    of: dict[int, list[Lines]]

    def over(self, value: Callable[[Lines], float]) -> dict[int, Interval]:
        """`value` of each repeat, as an interval, by ranks."""
        return {ranks: geometric_interval([value(lines) for lines in repeats]) for ranks, repeats in self.of.items()}


def read_table(path: Path) -> Lines:
    """The lines of a sweep's table.

    Raises:
        HeartlmError: there is none, or it has none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
    except OSError as error:
        raise HeartlmError(f"{path}: cannot be read ({error.strerror}): run  heartlm federate sweep  first") from error
    if not lines:
        raise HeartlmError(f"{path}: no line found: no study of the sweep was finished")
    return lines


def groups_of(lines: Iterable[dict[str, str]]) -> list[Group]:
    """The lines that count, by what changes only with the ranks."""
    lines = list(lines)
    several = any(line["round_idx"] != "0" for line in lines)
    found: dict[str, dict[int, dict[str, Lines]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in lines:
        if line["round_idx"] != "0" or not several:
            name = f"{line['config']}, {line['batch_size']} × {line['local_steps']}"
            found[name][int(line["world_size"])][line["repeat"]].append(line)
    return [
        Group(name, {ranks: list(of[ranks].values()) for ranks in sorted(of)}) for name, of in sorted(found.items())
    ]


def throughput(lines: Lines) -> float:
    """Samples per second of all ranks together."""
    by_rank = defaultdict[str, list[float]](list)
    for line in lines:
        by_rank[line["rank"]].append(float(line["samples_per_s"] or 0))
    return sum(sum(values) / len(values) for values in by_rank.values())


def local_ms(lines: Lines) -> float:
    """Local steps of a rank in a round."""
    return sum(float(line["local_train_ms"]) for line in lines) / len(lines)


def exposed_ms(lines: Lines) -> float:
    """Communication that a rank waits for in a round."""
    return sum(float(line["comm_ms"]) for line in lines) / len(lines)


def share(lines: Lines) -> float:
    """Of local steps and communication, the part that is communication, in percent."""
    both = local_ms(lines) + exposed_ms(lines)
    return 100 * exposed_ms(lines) / both if both else 0.0


def charts_of(groups: Sequence[Group]) -> dict[str, Chart]:
    """The figures by the names of their files."""
    ranks = sorted({ranks for group in groups for ranks in group.of})
    times = [(f"local, {group.name}", group.over(local_ms)) for group in groups]
    times += [(f"communication, {group.name}", group.over(exposed_ms)) for group in groups]
    return {
        "throughput": _chart(
            "Throughput", "samples/s", ranks, [(group.name, group.over(throughput)) for group in groups]
        ),
        "local-and-communication": _chart("Time of a rank in a round", "ms", ranks, times),
        "communication-share": _chart(
            "Share of communication", "%", ranks, [(group.name, group.over(share)) for group in groups]
        ),
    }


def _chart(title: str, unit: str, ranks: Sequence[int], curves: Sequence[tuple[str, dict[int, Interval]]]) -> Chart:
    return Chart(
        title,
        unit,
        "batch × local steps",
        "ranks",
        tuple(map(str, ranks)),
        tuple(_curve(name, tone, ranks, values, unit) for tone, (name, values) in enumerate(curves)),
    )


def _curve(name: str, tone: int, ranks: Sequence[int], values: dict[int, Interval], unit: str) -> Curve:
    points = [
        Point(place, values[number], f"{name}, {number} ranks: {significant(values[number].value)} {unit}")
        for place, number in enumerate(ranks)
        if number in values
    ]
    return Curve(name, tone, tone, tuple(points))
