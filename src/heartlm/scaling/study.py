"""Settings of a study, and its folder: one study at a time, with one set of settings. Imports no torch.

study.json          settings that decide the numbers
skipped.json        cells that do not fit, with the reason
foundations/        one hardly trained model a database, for the fine-tunings
measurements/       one file a cell and repeat, written when it is whole
work/               the training that is running; what failed leaves its logs here
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.files import read_json, write_json
from heartlm.instrumentation.meters import Meters
from heartlm.scaling.cell import SCHEMA_VERSION


@dataclass
class ScalingStudyConfig:
    """Settings of a study.

    Attributes:
        out: the folder of the study; a study that was interrupted continues there.
        databases: name and corpus folder of each, for example {mitdb: corpora/mitdb}.
        stages: what to train.
        windows: tokens a window.
        ranks: processes that train together, of all nodes: GPUs, or CPU ranks.
        nodes: machines; more than one needs SLURM.
        cpus_per_task: cores, and threads, of a rank.
        precisions: of matrix products.
        buckets_mb: MiB of gradients that are sent together.
        parallels: how several ranks share the work: ddp, fsdp.
        scalings: strong keeps the global batch, weak gives every rank a batch of that size.
        batch_tokens: tokens of a global batch (of a rank's batch when weak); every window width gets about as many, in
            windows that all of `ranks` can share.
        accumulation: micro-batches of a rank and step.
        steps: steps that count.
        warm_up: steps before them that do not.
        repeats: measurements of each cell.
        again: how often one is taken again, at most, when the machine had not its usual speed before or after it.
        ceiling: measure, too, what independent trainings reach side by side; only on this machine.
        copies: the number of independent trainings of one rank side by side, too; on fewer GPUs they share them.
        prediction: measure, too, one rank at the batch that each of several gets, alone and side by side, so that their
            time can be predicted.
        depth: transformer blocks of the model.
        width: of the model; by default it follows from depth.
        task: of fine-tuning.
        seed: of all trainings.
        device: where to train.
        compile: compile the blocks of the model; warm_up must be long enough for it.
        slurm: a site profile, by name or YAML file: train as jobs of that cluster; by default on this machine.
        tolerance: how far, relatively, the loss of any step may be from that of one rank; by default 1e-4 in fp32 and
            2e-2 in bf16.
        timeout_s: seconds after which a training counts as hung.
        max_core_hours: stop before the study has cost more.
    """

    out: Path | None = None
    databases: dict[str, str] = field(default_factory=dict)
    stages: list[Literal["pretrain", "finetune"]] = field(default_factory=lambda: ["pretrain"])
    windows: list[int] = field(default_factory=lambda: [128])
    ranks: list[int] = field(default_factory=lambda: [1, 2])
    nodes: list[int] = field(default_factory=lambda: [1])
    cpus_per_task: list[int] = field(default_factory=lambda: [1])
    precisions: list[Literal["fp32", "bf16"]] = field(default_factory=lambda: ["fp32"])
    buckets_mb: list[float] = field(default_factory=lambda: [25.0])
    parallels: list[Literal["ddp", "fsdp"]] = field(default_factory=lambda: ["ddp"])
    scalings: list[Literal["strong", "weak"]] = field(default_factory=lambda: ["strong"])
    batch_tokens: int = 4096
    accumulation: int = 1
    steps: int = 8
    warm_up: int = 3
    repeats: int = 3
    again: int = 2
    ceiling: bool = True
    copies: list[int] = field(default_factory=list)
    prediction: bool = False
    depth: int = 4
    width: int | None = None
    task: Literal["beats", "rhythm"] = "beats"
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    compile: bool = False
    slurm: str | None = None
    tolerance: float | None = None
    timeout_s: float = 900.0
    max_core_hours: float | None = None

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an impossible value."""
        for name, value in vars(self).items():
            if isinstance(value, list | dict) and not value and name != "copies":
                raise HeartlmError(f"{name}: nothing found, at least one expected")
        counts = ["windows", "ranks", "nodes", "cpus_per_task", "copies"]
        counts += ["batch_tokens", "accumulation", "steps", "repeats", "depth", "width"]
        require(self, lambda value: value >= 1, "at least 1", *counts)
        require(self, lambda value: value >= Meters.WARM_UP_STEPS, f"at least {Meters.WARM_UP_STEPS}", "warm_up")
        require(self, lambda value: value >= 0, "at least 0", "again")
        limits = ("tolerance", "timeout_s", "max_core_hours", "buckets_mb")
        require(self, lambda value: value > 0, "more than 0", *limits)
        for name in self.databases:
            if not name.replace("_", "").isalnum():
                raise HeartlmError(f"databases: {name!r} found, a name of letters, digits and _ expected")

    def folder(self) -> Path:
        """Where the study lies.

        Raises:
            HeartlmError: there is none in the settings.
        """
        if self.out is None:
            raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")
        return Path(self.out)


DECIDES = ("accumulation", "batch_tokens", "compile", "depth", "device", "seed", "steps", "task", "warm_up", "width")
"""Settings that must not change during a study: its numbers would not be comparable."""


def describe(config: ScalingStudyConfig, folder: Path) -> None:
    """Note what decides the numbers of a study, or see that a study that is continued has the same.

    Raises:
        HeartlmError: a corpus cannot be opened, or the study was started with other settings.
    """
    from heartlm.corpus.corpus import open_corpus  # slow to import

    hashes = {name: open_corpus(Path(path)).manifest_hash for name, path in config.databases.items()}
    path = folder / "study.json"
    about = {"schema": SCHEMA_VERSION, **{name: getattr(config, name) for name in DECIDES}}
    before = {"databases": {}, **started_with(path, about)}
    for name, value in hashes.items():
        if before["databases"].setdefault(name, value) != value:
            raise HeartlmError(f"databases: {name} is another corpus than that of {folder}: choose another name")
    write_json(path, before)


def started_with(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a folder was started with, of the file at `path`; `about` where there is no file.

    Raises:
        HeartlmError: a value of `about` differs from it.
    """
    before = read_json(path, dict[str, Any]) if path.exists() else dict(about)
    for name, value in about.items():
        if before.get(name) != value:
            raise HeartlmError(
                f"{name}: {value} found, but {path.parent} was started with {before.get(name)}: choose another --out"
            )
    return before
