"""What a study measures, and what comes of it: a cell of its grid, and one measurement of a cell.

A measurement's parts are means over the ranks, each rank's clock by itself:

    |- data -|------ compute ------|- exposed communication -|- straggler -|- optimizer -|- other -|
                    |- hidden communication -|
    |---------------------------------------- a step ----------------------------------------------|

`exposed_communication_s` is what a rank waits for the sums over ranks, less `straggler_s`, in which it waits for a
slower rank to send its share. `hidden_communication_s` passes while the rank computes, so it is no part of the sum.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from heartlm.errors import HeartlmError
from heartlm.files import read_json, write_json
from heartlm.typed import typed

SCHEMA_VERSION = 1

PARTS = ("data", "compute", "exposed_communication", "straggler", "optimizer", "other")
"""Parts that add up to a step."""


@dataclass(frozen=True)
class StudyCell:
    """One combination of a study's grid.

    Attributes:
        stage: pretrain or finetune.
        database: name of the corpus, as the study calls it.
        window: tokens a window.
        ranks: of all nodes together.
        nodes: machines.
        cpus_per_task: cores, and threads, of a rank.
        precision: of matrix products.
        bucket_cap_mb: MiB of gradients sent together.
        scaling: strong keeps the global batch, weak the batch of a rank.
        global_batch: windows a step, of all ranks.
        accumulation: micro-batches of a rank and step.
        copies: independent trainings of one rank side by side, each with this whole batch: what the machine itself
            allows. Cells of a study proper have 1.
        parallel: how ranks share the work, ddp or fsdp.
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
        """Short, a file name, another for every cell."""
        layout = f"r{self.ranks}-n{self.nodes}-c{self.cpus_per_task}"
        sizes = f"b{self.bucket_cap_mb:g}-g{self.global_batch}-a{self.accumulation}"
        copies = f"-x{self.copies}" if self.copies > 1 else ""
        more = copies + ("-fsdp" if self.parallel == "fsdp" else "")
        return f"{self.stage}-{self.database}-w{self.window}-{layout}-{self.precision}-{self.scaling}-{sizes}{more}"

    @property
    def num_cores(self) -> int:
        """Cores it keeps busy."""
        return self.ranks * self.cpus_per_task * self.copies

    @property
    def tokens_per_step(self) -> int:
        """Places of tokens in the windows of a step."""
        return self.global_batch * self.window

    @property
    def work(self) -> tuple[str, str, int, str, int]:
        """What decides the losses, however they are computed: stage, database, window, precision, global batch."""
        return self.stage, self.database, self.window, self.precision, self.global_batch

    @property
    def base(self) -> StudyCell:
        """What it is compared with: one rank that computes the same (strong), or one rank's part of it (weak)."""
        batch = self.global_batch if self.scaling == "strong" else self.global_batch // self.ranks
        return replace(
            self, ranks=1, nodes=1, copies=1, global_batch=batch, bucket_cap_mb=StudyCell.bucket_cap_mb, parallel="ddp"
        )

    @property
    def ceiling(self) -> StudyCell:
        """As many copies of the base side by side as this has ranks: what the machine itself allows."""
        return replace(self.base, copies=self.ranks)


@dataclass(frozen=True)
class Measurement:
    """One training of a cell: seconds are means over steps and ranks, the warm-up left out.

    Attributes:
        cell: what was trained.
        repeat: from 0.
        steps: steps that count.
        step_s: seconds of every such step.
        tokens_per_s: valid tokens a second, of all ranks (and copies) together.
        data_s: waiting for batches.
        compute_s: forward and backward pass.
        exposed_communication_s: waiting for sums over ranks, without `straggler_s`.
        straggler_s: waiting for a slower rank.
        optimizer_s: clipping and the step of the optimiser.
        other_s: all else.
        forward_s: of `compute_s`; None where not measured.
        backward_s: of `compute_s`; None where not measured.
        hidden_communication_s: sums over ranks on their way while the rank computed; None where not measured.
        rank_busy_s: of every rank, the step without any waiting for others.
        num_parameters: that learn.
        num_blocks: of the model; 0 where it was not noted.
        gradient_bytes: that ranks add up in a step.
        flops_per_token: see `training.utilization`.
        peak_memory_bytes: the most main memory of a rank.
        peak_device_memory_bytes: the most memory of a GPU; None on CPUs.
        energy_j: of the steps that count, of all ranks; None without a counter.
        losses: of every step from the first on, warm-up included.
        wall_s: of the whole training, its start included.
        environment: machine, versions, and the machine's speed before and after (`probe_before`, `probe_after`).
        failed: why it must not be used; None where it passed its check.
    """

    cell: StudyCell
    repeat: int
    steps: int
    step_s: list[float]
    tokens_per_s: float
    data_s: float
    compute_s: float
    exposed_communication_s: float
    straggler_s: float
    optimizer_s: float
    other_s: float
    forward_s: float | None = None
    backward_s: float | None = None
    hidden_communication_s: float | None = None
    rank_busy_s: list[float] = field(default_factory=list)
    num_parameters: int = 0
    num_blocks: int = 0
    gradient_bytes: int = 0
    flops_per_token: float | None = None
    peak_memory_bytes: int = 0
    peak_device_memory_bytes: int | None = None
    energy_j: float | None = None
    losses: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None

    @property
    def mean_step_s(self) -> float:
        """Seconds a step; NaN where none was measured."""
        return sum(self.step_s) / len(self.step_s) if self.step_s else math.nan

    @property
    def training_s(self) -> float:
        """Seconds of all steps that count."""
        return sum(self.step_s)

    @property
    def part_s(self) -> dict[str, float]:
        """Seconds a step of each of `PARTS`; they add up to `mean_step_s`."""
        return {name: cast(float, getattr(self, f"{name}_s")) for name in PARTS}

    def path(self, study: Path) -> Path:
        """Its file in the folder of a study."""
        return study / "measurements" / f"{self.cell.name}.{self.repeat}.json"

    def save(self, study: Path) -> None:
        """Write it into the folder of a study, atomically."""
        write_json(self.path(study), {"schema": SCHEMA_VERSION, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Read one.

        Raises:
            HeartlmError: it cannot be read, or is none.
        """
        value = read_json(path, dict[str, Any])
        if (schema := value.pop("schema", None)) != SCHEMA_VERSION:
            raise HeartlmError(f"{path}: schema {schema!r} found, {SCHEMA_VERSION} expected: remove it, measure again")
        measurement = typed(cls, value, path)
        typed(_Probes, measurement.environment, f"{path}: environment")
        return measurement


class _Probes(TypedDict, total=False):
    """What is computed with of a measurement's environment; the rest is only shown."""

    probe_before: float | None
    probe_after: float | None


def load_measurements(study: Path) -> list[Measurement]:
    """All measurements in the folder of a study, failed ones too, by name.

    Raises:
        HeartlmError: there are none, or one cannot be read.
    """
    paths = sorted((study / "measurements").glob("*.json"))
    if not paths:
        raise HeartlmError(f"{study}: no measurements found: make some with  heartlm scale run STUDY.yaml")
    return [Measurement.load(path) for path in paths]
