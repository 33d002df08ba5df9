"""A cell of a study's grid, and one measurement of a cell.

The parts of a measurement are means over the ranks; each rank uses its own clock:

    |- data -|------ compute ------|- exposed communication -|- straggler -|- optimizer -|- other -|
    |---------------------------------------- a step ----------------------------------------------|

`exposed_communication` is the time that a rank waits for sums over ranks, without `straggler`, the time that it waits
for a slower rank. Sums that overlap with computation are not part of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from heartlm.errors import HeartlmError
from heartlm.storage.atomic import write_json
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed

SCHEMA_VERSION = 3

PARTS = ("data", "compute", "exposed_communication", "straggler", "optimizer", "other")
"""Parts that add up to a step."""


@dataclass(frozen=True)
class StudyCell:
    """One combination of a study's grid.

    Attributes:
        stage: pretrain or finetune.
        database: name of the corpus in the study.
        window: number of tokens per window.
        ranks: total number of ranks on all nodes.
        nodes: number of nodes.
        cpus_per_task: number of cores, and of threads, per rank.
        precision: precision of matrix products.
        bucket_cap_mb: size of the gradient buckets in MiB.
        scaling: strong keeps the global batch, weak the batch of a rank.
        global_batch: number of windows per step of all ranks.
        accumulation: number of micro-batches per rank and step.
        copies: number of independent one-rank trainings that run concurrently, each with the whole batch, to measure
            the limit of the machine itself; 1 for normal cells.
        parallel: distribution over ranks: ddp or fsdp.
    """

    stage: Literal["pretrain", "finetune"]
    database: str
    window: int
    ranks: int = 1
    nodes: int = 1
    cpus_per_task: int = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    bucket_cap_mb: float = 25.0
    scaling: Literal["strong", "weak"] = "strong"
    global_batch: int = 16
    accumulation: int = 1
    copies: int = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"

    @property
    def name(self) -> str:
        """Short name, unique for every cell and usable as a file name."""
        layout = f"r{self.ranks}-n{self.nodes}-c{self.cpus_per_task}"
        sizes = f"b{self.bucket_cap_mb:g}-g{self.global_batch}-a{self.accumulation}"
        copies = f"-x{self.copies}" if self.copies > 1 else ""
        more = copies + ("-fsdp" if self.parallel == "fsdp" else "")
        return f"{self.stage}-{self.database}-w{self.window}-{layout}-{self.precision}-{self.scaling}-{sizes}{more}"

    @property
    def num_cores(self) -> int:
        """Number of cores that the cell uses."""
        return self.ranks * self.cpus_per_task * self.copies

    @property
    def sharing(self) -> str:
        """How ranks share the work: the size of the gradient buckets, or fsdp."""
        return "fsdp" if self.parallel == "fsdp" else f"{self.bucket_cap_mb:g} MiB"

    @property
    def tokens_per_step(self) -> int:
        """Number of token positions in the windows of a step."""
        return self.global_batch * self.window

    @property
    def work(self) -> tuple[str, str, int, str, int]:
        """Fields that determine the losses: stage, database, window, precision and global batch."""
        return self.stage, self.database, self.window, self.precision, self.global_batch

    @property
    def base(self) -> StudyCell:
        """Baseline cell: one rank with the same work (strong), or with one rank's part of it (weak)."""
        batch = self.global_batch if self.scaling == "strong" else self.global_batch // self.ranks
        return replace(
            self, ranks=1, nodes=1, copies=1, global_batch=batch, bucket_cap_mb=StudyCell.bucket_cap_mb, parallel="ddp"
        )

    @property
    def ceiling(self) -> StudyCell:
        """Ceiling cell: as many concurrent copies of the base as this cell has ranks, the limit of the machine."""
        return replace(self.base, copies=self.ranks)


@dataclass(frozen=True)
class Measurement:
    """One training of a cell. Times are means over steps and ranks in seconds, without the warm-up.

    Attributes:
        cell: cell that was trained.
        repeat: index of the repeat, from 0.
        step_s: time of every counted step.
        tokens_per_s: valid tokens per second of all ranks (and copies) together.
        part_s: time of each of `PARTS`; they add up to `mean_step_s`. `compute` is the forward and backward pass,
            `optimizer` gradient clipping and the optimiser step.
        num_parameters: number of trainable parameters.
        peak_memory_bytes: maximum main memory of a rank.
        peak_device_memory_bytes: maximum GPU memory of a rank; None on CPUs.
        energy_j: energy of the counted steps of all ranks in joules; None without a counter.
        losses: loss of every step, with the warm-up.
        wall_s: duration of the whole training, with its start.
        environment: machine, versions, and the machine's speed before and after (`probe_before`, `probe_after`).
        failed: reason why the measurement must not be used; None if it passed its check.
    """

    cell: StudyCell
    repeat: int
    step_s: list[float] = field(default_factory=list)
    tokens_per_s: float = 0.0
    part_s: dict[str, float] = field(default_factory=dict)
    num_parameters: int = 0
    peak_memory_bytes: int = 0
    peak_device_memory_bytes: int | None = None
    energy_j: float | None = None
    losses: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None

    @property
    def mean_step_s(self) -> float:
        """Mean time of a step in seconds; NaN without a measured step."""
        return sum(self.step_s) / len(self.step_s) if self.step_s else math.nan

    @property
    def training_s(self) -> float:
        """Total time of all counted steps in seconds."""
        return sum(self.step_s)

    def path(self, study: Path) -> Path:
        """Return the path of the measurement's file in a study folder."""
        return study / "measurements" / f"{self.cell.name}.{self.repeat}.json"

    def save(self, study: Path) -> None:
        """Write the measurement into a study folder, atomically."""
        write_json(self.path(study), {"schema": SCHEMA_VERSION, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Read a measurement.

        Raises:
            HeartlmError: the file cannot be read, is not a measurement, or a value is outside of its `_RANGES`.
        """
        value = read_json(path, dict[str, Any])
        if (schema := value.pop("schema", None)) != SCHEMA_VERSION:
            raise HeartlmError(f"{path}: schema {schema!r} found, {SCHEMA_VERSION} expected: remove it, measure again")
        measurement = typed(cls, value, path)
        probes = typed(_Probes, measurement.environment, f"{path}: environment")
        _check_ranges(path, vars(measurement.cell))
        if measurement.failed is None:
            if measurement.part_s.keys() != set(PARTS):
                raise HeartlmError(
                    f"{path}: part_s: {', '.join(measurement.part_s)} found, {', '.join(PARTS)} expected"
                )
            if not measurement.step_s:
                raise HeartlmError(f"{path}: step_s: no step found, at least 1 expected: remove it, measure again")
            _check_ranges(path, vars(measurement) | probes | {"sum of part_s": sum(measurement.part_s.values())})
        return measurement


_SECONDS, _COUNT = (1e-9, 1e9), (1, 1 << 31)
# Smallest and largest values with which ratios, logarithms and their intervals can be computed.
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("window", "ranks", "nodes", "cpus_per_task", "global_batch", "accumulation", "copies"), _COUNT),
    **dict.fromkeys(("step_s", "sum of part_s"), _SECONDS),
    **dict.fromkeys(("bucket_cap_mb", "tokens_per_s", "probe_before", "probe_after"), (1e-9, 1e18)),
    **dict.fromkeys(("energy_j", "num_parameters", "peak_memory_bytes", "peak_device_memory_bytes"), (0, 1e18)),
    "part_s": (-1e9, 1e9),  # the rest of a step may be below 0 by rounding
}


def _check_ranges(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in _RANGES:
            continue
        low, high = _RANGES[name]
        each = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
        if bad := [number for number in each if number is not None and not low <= number <= high]:
            raise HeartlmError(f"{path}: {name}: {bad[0]:g} found, {low:g} to {high:g} expected: measure it again")


class _Probes(TypedDict, total=False):
    """Environment fields that are used in computations; the other fields are only shown."""

    probe_before: float | None
    probe_after: float | None


def load_measurements(study: Path) -> list[Measurement]:
    """Return all measurements in a study folder, with failed ones, sorted by name.

    Raises:
        HeartlmError: there are no measurements, or one cannot be read.
    """
    paths = sorted((study / "measurements").glob("*.json"))
    if not paths:
        raise HeartlmError(f"{study}: no measurements found: make some with  heartlm scale run STUDY.yaml")
    return [Measurement.load(path) for path in paths]
