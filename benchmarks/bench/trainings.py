"""Short trainings with heartlm and with plain PyTorch; each rank is a new process forked from one that has torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.measure import cores
from heartlm.corpus.corpus import open_corpus
from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.cells import ranks_of, run_ranks
from heartlm.extensions.scaling.cell import StudyCell
from heartlm.extensions.scaling.collect import measured, read_ranks
from heartlm.instrumentation.utilization import peak_flops
from heartlm.models.config import ModelConfig
from heartlm.storage.reading import read_json
from heartlm.system.cores import cpus_of, usable_cores

if TYPE_CHECKING:
    from bench.train import Options

PLAINLY = "bench.plain_training:train_plainly"
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Trained:
    """Measurements of one training.

    Attributes:
        seconds: duration of the measured steps.
        tokens: tokens of all ranks in the measured steps.
        part_s: mean seconds of each part of a step; None if unknown.
        num_parameters: number of model parameters.
        flops_per_token: floating-point operations of training per token.
    """

    seconds: float
    tokens: int
    part_s: Mapping[str, float | None]
    num_parameters: int
    flops_per_token: float


@dataclass(frozen=True)
class Size:
    """Complete settings of a training.

    Attributes:
        objective: causal or masked.
        depth: number of blocks.
        width: width of the residual stream.
        heads: number of attention heads.
        window: tokens per window.
        batch_size: windows per rank and step.
        steps: number of measured steps.
        warm_up: number of steps before the measured ones.
        threads: threads of a rank on a CPU.
        device: cpu or cuda.
        precision: fp32 or bf16.
        device_name: name of the GPU; else `a CPU`.
        most_ranks: largest number of ranks on this machine.
        places: description of the available cores or GPUs.
    """

    objective: str
    depth: int
    width: int
    heads: int
    window: int
    batch_size: int
    steps: int
    warm_up: int
    threads: int
    device: str
    precision: str
    device_name: str
    most_ranks: int
    places: str

    @property
    def peak_flops(self) -> float | None:
        """Of one device; None where it is not known."""
        return peak_flops(self.device_name, "bf16" if self.precision == "bf16" else "fp32")


def size_of(options: Options, corpus: Path) -> Size:
    """Make every choice that the options leave open.

    Raises:
        HeartlmError: no such device, a corpus too short, or an impossible shape.
    """
    device, kind = device_and_precision(options.device, options.precision)
    opened = open_corpus(corpus)
    if len(opened.codes) <= options.window + 1:
        raise HeartlmError(
            f"{corpus}: {len(opened.codes)} tokens found, more than a window of {options.window} expected"
        )
    shape = ModelConfig((1,), options.depth, options.width).resolve()
    assert shape.width is not None and shape.heads is not None
    gpu, num_cores = device.type == "cuda", len(cores())
    most = torch.cuda.device_count() if gpu else num_cores // options.threads
    return Size(
        options.objective,
        shape.depth,
        shape.width,
        shape.heads,
        options.window,
        options.batch_size,
        options.steps,
        options.warm_up,
        options.threads,
        device.type,
        "bf16" if kind == torch.bfloat16 else "fp32",
        torch.cuda.get_device_name(device) if gpu else "a CPU",
        most,
        f"{most} GPU(s)" if gpu else f"{num_cores} core(s), {options.threads} for each rank",
    )


class Trainer:
    """Trains, and says what it took.

    Args:
        size: of every training.
        corpus: to train on.
        scratch: folder for what the ranks leave.
    """

    def __init__(self, size: Size, corpus: Path, scratch: Path) -> None:
        self.size, self.corpus, self.scratch = size, corpus, scratch
        self._number = itertools.count()

    def _shared(self, out: Path) -> dict[str, Any]:
        """Settings that both ways have."""
        size = self.size
        shape = {"depth": size.depth, "width": size.width, "heads": size.heads, "steps": size.warm_up + size.steps}
        how = {"device": size.device, "precision": size.precision, "threads": size.threads}
        return {"corpus": self.corpus, "out": out, **shape, **how}

    def heartlm(self, num_ranks: int) -> Trained:
        """Train with `heartlm pretrain`, which measures itself.

        Raises:
            HeartlmError: it failed; the text says why.
        """
        size, out = self.size, self._folder()
        fields = {
            **self._shared(out),
            "objective": size.objective,
            "window": size.window + (size.objective == "causal"),
            "batch_size": num_ranks * size.batch_size,
            "log_every": size.warm_up + size.steps,
            "measure": True,
        }
        self._run("pretrain", fields, num_ranks, out)
        ranks = read_ranks(out, num_ranks)
        cell = StudyCell("pretrain", "bench", size.window, num_ranks, global_batch=num_ranks * size.batch_size)
        found = measured(cell, 0, [ranks], warm_up=size.warm_up, wall_s=0.0, environment={})
        _check_finite("heartlm", found.losses)
        part_s = dict(found.part_s)
        part_s["communication"] = part_s.pop("exposed_communication") + part_s.pop("straggler")
        tokens = round(found.tokens_per_s * found.training_s)
        return Trained(found.training_s, tokens, part_s, found.num_parameters, ranks[0]["flops_per_token"] or math.nan)

    def plain(self, num_ranks: int) -> Trained:
        """Train with torch's own modules and a plain loop.

        Raises:
            HeartlmError: it failed; the text says why.
        """
        size, out = self.size, self._folder()
        fields = {
            **self._shared(out),
            "window": size.window,
            "causal": size.objective == "causal",
            "batch_size": size.batch_size,
        }
        self._run(PLAINLY, fields, num_ranks, out)
        ranks = [read_json(out / f"rank-{rank}.json") for rank in range(num_ranks)]
        for rank in ranks:
            _check_finite("plain PyTorch", [step["loss"] for step in rank["steps"]])
        counted = [rank["steps"][size.warm_up :] for rank in ranks]
        seconds = max(sum(step["step_s"] for step in steps) for steps in counted)
        tokens = sum(step["num_tokens"] for steps in counted for step in steps)
        part_s: dict[str, float | None] = {"communication": None, "other": None}
        for name in ("data", "compute", "optimizer"):
            each = [step[f"{name}_s"] for steps in counted for step in steps]
            part_s[name] = sum(each) / len(each)
        return Trained(seconds, tokens, part_s, ranks[0]["num_parameters"], ranks[0]["flops_per_token"])

    def _folder(self) -> Path:
        return self.scratch / f"training-{next(self._number)}"

    def _run(self, command: str, fields: Mapping[str, Any], num_ranks: int, out: Path) -> None:
        on_cpus = self.size.device != "cuda"
        used = cpus_of(usable_cores()[: num_ranks * self.size.threads if on_cpus else None])
        ranks = ranks_of(command, fields, num_ranks, used, out.with_name(f"{out.name}.log"))
        if reason := run_ranks(ranks, TIMEOUT_S):
            raise HeartlmError(f"{num_ranks} rank(s) of {command.partition(':')[0]}: {reason}")


def _check_finite(way: str, losses: Sequence[float]) -> None:
    if not losses or not all(map(math.isfinite, losses)):
        raise HeartlmError(f"{way}: losses that are not finite: nothing to compare")
