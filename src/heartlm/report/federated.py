"""Report of a sweep over federated studies: one page and its figures as SVG, next to the table.

Values of a repeat are means over ranks and rounds. The first round is a warm-up and is excluded if there are more.
Points are geometric means over repeats with their 95 % intervals.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json
from heartlm.report.charts import Series, line_chart
from heartlm.report.figures import save_drawings
from heartlm.report.numbers import percent, significant
from heartlm.report.render import render
from heartlm.scaling.equations import Interval, geometric_interval

Lines = list[dict[str, str]]

FIGURES = {
    "throughput": "Throughput, samples/s",
    "local": "Local steps in a round, ms",
    "communication": "Communication in a round, ms",
    "communication-share": "Share of communication, %",
}
"""Titles of the figures by file name."""


@dataclass(frozen=True)
class Group:
    """Cells that differ only in ranks and repeats.

    Attributes:
        name: description of the common fields.
        of: lines of the table by number of ranks, then by repeat.
    """

    name: str
    of: dict[int, list[Lines]]

    def over(self, value: Callable[[Lines], float]) -> dict[int, Interval]:
        """Return the interval over the repeats of `value`, by number of ranks."""
        return {ranks: geometric_interval([value(lines) for lines in repeats]) for ranks, repeats in self.of.items()}


def read_table(path: Path) -> Lines:
    """Return the lines of a sweep's table.

    Raises:
        HeartlmError: the table does not exist or is empty.
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
    """Group the valid lines by all fields except ranks and repeat."""
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
    """Return the samples per second of all ranks together."""
    by_rank = defaultdict[str, list[float]](list)
    for line in lines:
        by_rank[line["rank"]].append(float(line["samples_per_s"] or 0))
    return sum(sum(values) / len(values) for values in by_rank.values())


def local_ms(lines: Lines) -> float:
    """Return the time of a rank's local steps in a round, in ms."""
    return sum(float(line["local_train_ms"]) for line in lines) / len(lines)


def exposed_ms(lines: Lines) -> float:
    """Return the time that a rank waits for communication in a round, in ms."""
    return sum(float(line["comm_ms"]) for line in lines) / len(lines)


def share(lines: Lines) -> float:
    """Return communication as a percentage of local steps and communication."""
    both = local_ms(lines) + exposed_ms(lines)
    return 100 * exposed_ms(lines) / both if both else 0.0


def write_sweep_report(folder: Path) -> list[Path]:
    """Write the page and the figures of the sweep in `folder` next to its table; return the files.

    Raises:
        HeartlmError: the table is missing, an optional package is missing, or the folder cannot be written.
    """
    groups = groups_of(read_table(folder / "table.csv"))
    ranks = sorted({ranks for group in groups for ranks in group.of})
    columns = [[group.over(value) for group in groups] for value in (throughput, local_ms, exposed_ms, share)]
    charts = {}
    for (name, title), of_groups in zip(FIGURES.items(), columns, strict=True):
        curves = [
            Series.measured(group.name, sorted(values.items()), tone)
            for tone, (group, values) in enumerate(zip(groups, of_groups, strict=True))
        ]
        if chart := line_chart(curves, title=title, from_zero=True, along="ranks", ticks=ranks):
            charts[name] = chart
    rows = []
    for group, *values in zip(groups, *columns, strict=True):
        for number, repeats in group.of.items():
            rows.append([group.name, str(number), str(len(repeats)), *(_written(column[number]) for column in values)])
        if len(group.of) > 1:  # throughput at the highest rank count relative to the lowest
            first, last = min(group.of), max(group.of)
            gain = values[0][last].value / values[0][first].value
            words = f"× {gain:.2f}, efficiency {percent(gain * first / last)}"
            rows.append([group.name, f"{first} → {last}", "", words, "", "", ""])
    page, skipped = folder / "report.html", folder / "skipped.json"
    shown = {
        "name": folder.resolve().name,
        "path": str(folder),
        "title": f"Federated rounds on 1 to {ranks[-1]} ranks" if ranks[-1] > 1 else "Federated rounds on one rank",
        "num_studies": sum(len(repeats) for group in groups for repeats in group.of.values()),
        "drawings": list(charts.values()),
        "rows": rows,
        "skipped": read_json(skipped, list[tuple[str, str]]) if skipped.exists() else [],
    }
    text = render("federated.html", **shown)
    with atomic_file(page) as stream:
        stream.write(text)
    return [page, *(save_drawings([("", chart)], folder / f"{name}.svg") for name, chart in charts.items())]


def _written(value: Interval) -> str:
    text = significant(value.value)
    return text if value.low is None else f"{text} [{significant(value.low)}, {significant(value.high)}]"
