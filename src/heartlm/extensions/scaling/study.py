"""Settings of a study, and its folder with one set of settings. Imports no torch.

study.json          settings that determine the results
skipped.json        cells that do not fit, with the reason
foundations/        one briefly trained model per database, for the fine-tunings
measurements/       one file per cell and repeat, written when complete
work/               the current training, and logs of failed ones
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError, require
from heartlm.extensions.scaling.cell import SCHEMA_VERSION
from heartlm.instrumentation.meters import Meters
from heartlm.storage.atomic import write_json

FEWEST_ON_GPU = 12
"""Fewest steps of warm-up on a GPU: a step is captured in the fourth, and then the host runs ahead by up to eight."""


@dataclass
class ScalingStudyConfig:
    """Settings of a study.

    Attributes:
        out: folder of the study; an interrupted study continues there.
        databases: name and corpus folder of each database, for example {mitdb: corpora/mitdb}.
        stages: stages to train.
        windows: numbers of tokens per window.
        ranks: total numbers of processes on all nodes: one per GPU, or CPU ranks.
        nodes: numbers of nodes; more than one needs SLURM.
        cpus_per_task: numbers of cores, and of threads, per rank.
        precisions: precisions of matrix products.
        buckets_mb: sizes of the gradient buckets in MiB.
        parallels: distributions over ranks: ddp, fsdp.
        scalings: strong keeps the global batch, weak gives every rank a batch of that size.
        batch_tokens: approximate tokens of a global batch (of a rank's batch when weak) at every window width; their
            number of windows is divisible by all of `ranks`.
        accumulation: number of micro-batches per rank and step.
        steps: number of counted steps.
        warm_up: number of steps before them that are not counted; by default 3, on a GPU 16.
        repeats: number of measurements of each cell.
        ceiling: also measure independent concurrent trainings, the limit of the machine; only on this machine.
        prediction: also measure one rank at the batch of each of several ranks, alone and next to copies, so that their
            time can be predicted.
        depth: number of transformer blocks.
        width: width of the model; by default it follows from the depth.
        task: task of fine-tuning.
        seed: random seed of all trainings.
        device: device of the training.
        compile: compile the model, see `heartlm pretrain --compile`; by default on a GPU.
        slurm: site profile, a name or a YAML file, to train as SLURM jobs; by default train on this machine.
        tolerance: maximum relative difference of the loss of a step from that of one rank; by default 1e-4 in fp32 and
            2e-2 in bf16.
        timeout_s: time in seconds after which a training counts as hung.
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
    warm_up: int | None = None
    repeats: int = 3
    ceiling: bool = True
    prediction: bool = False
    depth: int = 4
    width: int | None = None
    task: Literal["beats", "rhythm"] = "beats"
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    compile: bool | None = None
    slurm: str | None = None
    tolerance: float | None = None
    timeout_s: float = 900.0

    def check(self) -> None:
        """Raise a HeartlmError that names the first field with an invalid value."""
        for name, value in vars(self).items():
            if isinstance(value, list | dict) and not value:
                raise HeartlmError(f"{name}: nothing found, at least one expected")
        counts = ["windows", "ranks", "nodes", "cpus_per_task"]
        counts += ["batch_tokens", "accumulation", "steps", "repeats", "depth", "width"]
        require(self, lambda value: value >= 1, "at least 1", *counts)
        least = FEWEST_ON_GPU if self.device == "cuda" else Meters.WARM_UP_STEPS
        require(self, lambda value: value >= least, f"at least {least} on this device", "warm_up")
        require(self, lambda value: value > 0, "more than 0", "tolerance", "timeout_s", "buckets_mb")
        for name in self.databases:
            if not name.replace("_", "").isalnum():
                raise HeartlmError(f"databases: {name!r} found, a name of letters, digits and _ expected")

    @property
    def num_warm_up(self) -> int:
        """Number of steps before the counted ones."""
        return (16 if self.device == "cuda" else 3) if self.warm_up is None else self.warm_up

    @property
    def compiles(self) -> bool:
        """Whether the model is compiled."""
        return self.device == "cuda" if self.compile is None else self.compile

    def folder(self) -> Path:
        """Folder of the study.

        Raises:
            HeartlmError: the settings have no folder.
        """
        if self.out is None:
            raise HeartlmError("out: nothing found, a folder for the study expected: give --out FOLDER")
        return Path(self.out)


DECIDES = ("accumulation", "batch_tokens", "compile", "depth", "device", "seed", "steps", "task", "warm_up", "width")
"""Settings that must not change during a study, because its results would not be comparable."""


def about_study(config: ScalingStudyConfig) -> dict[str, Any]:
    """Return the settings that determine the results of a study, as `study.json` has them."""
    about = {"schema": SCHEMA_VERSION, **{name: getattr(config, name) for name in DECIDES}}
    return about | {"compile": config.compiles, "warm_up": config.num_warm_up}


def write_databases(config: ScalingStudyConfig, before: dict[str, Any]) -> None:
    """Write `study.json`: the settings in `before`, and the corpora of the study so far.

    Raises:
        HeartlmError: a corpus cannot be opened, or is another than that of its name before.
    """
    from heartlm.corpus.corpus import open_corpus  # slow to import

    known, folder = before.setdefault("databases", {}), config.folder()
    for name, path in config.databases.items():
        value = open_corpus(Path(path)).manifest_hash
        if known.setdefault(name, value) != value:
            raise HeartlmError(f"databases: {name} is another corpus than that of {folder}: choose another name")
    write_json(folder / "study.json", before)
