"""Strong scaling: one global batch on one and on two CPU ranks, compared with two independent trainings.

    python -m benchmarks.scaling --work FOLDER                   a study of 16,384 tokens a step, about 6 minutes
    python -m benchmarks.scaling --work FOLDER --study STUDY     and the table of a study that is there

A study is the output of `heartlm scale run`. Speedups are ratios of whole trainings without warm-up: geometric means
over repeats, with 95 % intervals. The upper bound is the speedup of two independent one-rank trainings.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from heartlm.extensions.scaling.cell import load_measurements
from heartlm.extensions.scaling.table import CellRow, table_of
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps

COLUMNS: tuple[str, ...] = (
    "stage, window",
    "step of one rank ms",
    "of two ms",
    "speedup",
    "95 % from",
    "to",
    "ceiling",
)
COLUMNS += ("of the ceiling", "exposed communication %", "stragglers %", "data %")


def table_from(study: Path) -> Table:
    """The rows of two ranks of a study, dated when its first measurement was written."""
    measurements = load_measurements(study)
    found = table_of(measurements)
    ones = {row.cell: row for row in found.rows if row.cell.ranks == 1}
    twos = [row for row in found.rows if row.cell.ranks == 2 and row.speedup is not None and row.ceiling is not None]
    if not twos:
        raise SystemExit(f"{study}: no measurement of two ranks with its base and its ceiling found")
    tokens = twos[0].cell.global_batch * twos[0].cell.window
    repeats = min(row.repeats for row in twos)
    table = Table(f"{tokens:,} tokens a step on one rank and on two (at least {repeats} repeats)", COLUMNS)
    for row in twos:
        add(table, ones[row.cell.base], row)
    first_s = min(path.stat().st_mtime for path in (study / "measurements").glob("*.json"))
    table.date = datetime.fromtimestamp(first_s, UTC).strftime("%Y-%m-%d %H:%M")
    moved = sum(row.num_moved for row in found.rows)
    table.notes.append(
        f"{len(measurements)} measurements, {len(found.failed)} failed; the machine's speed changed by more than a "
        f"tenth during {moved}."
    )
    return table


def add(table: Table, one: CellRow, two: CellRow) -> None:
    """A row of the table from those of one rank and of two."""
    assert two.speedup and two.ceiling and two.efficiency_of_ceiling
    step_s = sum(two.part_s.values())
    shares = (100 * two.part_s[name] / step_s for name in ("exposed_communication", "straggler", "data"))
    table.add(
        f"{two.cell.stage} {two.cell.window}",
        1e3 * one.step_median_s,
        1e3 * two.step_median_s,
        *(two.speedup.value, two.speedup.low, two.speedup.high),
        two.ceiling.value,
        two.efficiency_of_ceiling.value,
        *shares,
    )


def main() -> None:
    parser = options(__doc__, "work", tokens=16384, repeats=3)
    parser.add_argument("--study", type=Path, nargs="*", default=[], help="studies that are there")
    parser.add_argument("--windows", type=int, nargs="+", default=[128, 1024])
    given = parser.parse_args()
    shape = {"batch_tokens": given.tokens, "warm_up": 2, "steps": 5, "repeats": given.repeats}
    made = Steps(given.work).study(given.windows, stages=["pretrain", "finetune"], **shape)
    tables = [table_from(study) for study in (made, *given.study)]
    write_results("scaling", "Two CPU ranks, strong scaling", tables)


if __name__ == "__main__":
    main()
