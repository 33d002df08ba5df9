"""The one training loop.

Pretraining and fine-tuning differ in batches and loss, not here: draw the windows of the step, make the batch, split
it into micro-batches, sum their losses over the counting tokens of the whole global batch, step. Everything random in a
step follows from the seed and the step, so a resumed run repeats what an unbroken one would have done.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import AdamW

from heartlm.corpus.windows import Windows, WindowSampler, generator
from heartlm.errors import HeartlmError
from heartlm.files import append_line
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, save_model
from heartlm.training.batches import MakeBatch
from heartlm.training.checkpoint import Progress, complete_checkpoints, restore_checkpoint, save_checkpoint
from heartlm.training.config import TrainingConfig
from heartlm.training.device import device_and_precision
from heartlm.training.meters import Clock
from heartlm.training.objectives import LossSum
from heartlm.training.run_folder import RunFolder
from heartlm.training.schedule import learning_rate

DROPOUT_STREAM = 3


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop (SIGTERM, SIGINT) and left a checkpoint."""


@dataclass(frozen=True)
class Job:
    """Everything a loop trains with.

    Attributes:
        config: settings, resolved.
        run: where to write.
        model: what learns.
        info: how the saved model describes itself.
        sampler: windows of every step.
        make_batch: windows to batches.
        loss: batches to sums of losses.
        validation: windows of the validation split, in order; none where there is no such split.
    """

    config: TrainingConfig
    run: RunFolder
    model: HeartModel
    info: ModelInfo
    sampler: WindowSampler
    make_batch: MakeBatch
    loss: LossSum
    validation: Windows | None = None


def train(job: Job, resume: bool) -> Progress:
    """Train until the last step, from the newest checkpoint with `resume`; where there is none yet, from the beginning.

    Raises:
        HeartlmError: the loss is not finite, or nothing can be written; the last checkpoint is good.
        Stopped: a signal asked for it.
    """
    torch.set_flush_denormal(True)  # denormal gradients slow a CPU down tenfold
    try:
        return _Loop(job).run(resume)
    finally:
        torch.set_flush_denormal(False)


class _Loop:
    """State of a running loop: the optimiser, the progress and the clock."""

    def __init__(self, job: Job) -> None:
        self.job, self.config = job, job.config
        if job.config.threads:
            torch.set_num_threads(job.config.threads)
        self.device, self.precision = device_and_precision(job.config.device, job.config.precision)
        self.model = job.model.to(self.device)
        self.optimizer = AdamW(
            _groups(self.model, job.config.weight_decay), betas=(0.9, 0.95), fused=self.device.type == "cuda"
        )
        self.progress = Progress()
        self.clock = Clock()
        self.stop_asked = False

    def run(self, resume: bool) -> Progress:
        if resume:
            self._resume()
        with self._signals():
            for step in range(self.progress.step, self.config.steps):
                self._step(step)
                self.progress.step = step + 1
                self._now_and_then()
                if self.stop_asked:
                    self._checkpoint()
                    raise Stopped(f"stopped after step {step + 1}; continue with --resume {self.job.run.path}")
        self._export("last")
        if self.progress.best_loss is None:
            self._export("best")
        return self.progress

    def _resume(self) -> None:
        if complete_checkpoints(self.job.run.checkpoints):
            self.progress = restore_checkpoint(self.job.run.checkpoints, self.model, self.optimizer)
        self.job.run.truncate_metrics(self.progress.step)
        print(f"resumed after step {self.progress.step}", file=sys.stderr)

    def _step(self, step: int) -> None:
        config = self.config
        self.model.train()
        rate = learning_rate(
            step,
            peak=config.learning_rate or 0.0,
            warmup_steps=config.warmup_steps or 0,
            steps=config.steps,
            final_share=config.final_learning_rate,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.clock.waiting():
            batch = self.job.make_batch(self.job.sampler.windows(step), step)
        torch.manual_seed(int(generator(config.seed, step, DROPOUT_STREAM).integers(2**63)))
        total, parts = 0.0, dict[str, float]()
        for index in range(config.accumulation):
            value, named = self._backward(batch.part(index, config.accumulation), max(1, batch.num_counted))
            total += value
            for name, part in named.items():
                parts[name] = parts.get(name, 0.0) + part
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip))
        if not (torch.isfinite(torch.tensor([total, norm])).all()):
            raise HeartlmError(
                f"step {step + 1}: loss {total}, gradient norm {norm}: not finite; the checkpoints before it are good; "
                "start anew with a lower learning_rate"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.count(int(batch.valid.sum()))
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            entry = {"loss": total, "learning_rate": rate, "grad_norm": norm}
            self._log(step + 1, "train", entry | {f"loss/{name}": part for name, part in parts.items()})

    def _backward(self, batch: Any, num_counted: int) -> tuple[float, dict[str, float]]:
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            loss, parts = self.job.loss(self.model, batch, self.device)
        (loss / num_counted).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()) / num_counted, {name: float(part) / num_counted for name, part in parts.items()}

    def _now_and_then(self) -> None:
        step, last = self.progress.step, self.progress.step == self.config.steps
        if self.job.validation is not None and (step % self.config.validate_every == 0 or last):
            self._validate()
        if step % self.config.checkpoint_every == 0 or last:
            self._checkpoint()

    def _validate(self) -> None:
        with self.clock.paused():
            entry = self._validation()
        self._log(self.progress.step, "validation", entry)
        if self.progress.best_loss is None or entry["loss"] < self.progress.best_loss:
            self.progress.best_loss = entry["loss"]
            self._export("best")

    @torch.no_grad()
    def _validation(self) -> dict[str, float]:
        """Mean loss over the counting tokens of the validation windows, and the same part by part."""
        assert self.job.validation is not None
        self.model.eval()
        sums, counted, size = dict[str, float](), 0, self.job.sampler.batch_size
        for begin in range(0, len(self.job.validation), size):
            batch = self.job.make_batch(self.job.validation[begin : begin + size], None)
            if batch.num_counted:
                loss, parts = self.job.loss(self.model, batch, self.device)
                counted += batch.num_counted
                for name, value in {"loss": loss, **{f"loss/{key}": part for key, part in parts.items()}}.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
        return {name: value / max(1, counted) for name, value in sums.items()}

    def _log(self, step: int, split: str, entry: dict[str, float]) -> None:
        rates = self.clock.rates() if split == "train" else {}
        line = {"step": step, "split": split, **entry, **rates, "elapsed_s": self.clock.elapsed_s()}
        append_line(self.job.run.metrics, json.dumps({key: _rounded(value) for key, value in line.items()}))
        print(_story(line, self.config.steps, self.clock), file=sys.stderr, flush=True)

    def _checkpoint(self) -> None:
        with self.clock.paused():
            save_checkpoint(self.job.run.checkpoints, self.model, self.optimizer, self.progress)

    def _export(self, which: str) -> None:
        info = ModelInfo(**{**vars(self.job.info), "step": self.progress.step})
        save_model(self.job.run.model(which), self.model, info)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, frame: object) -> None:
            self.stop_asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _groups(model: HeartModel, weight_decay: float) -> list[dict[str, Any]]:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]


def _rounded(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _story(line: dict[str, Any], steps: int, clock: Clock) -> str:
    """One line worth reading."""
    head = f"step {line['step']:>{len(str(steps))}}/{steps}  {line['split']:<10} loss {line['loss']:.4f}"
    if "tokens_per_s" not in line:
        return head
    left = time.strftime("%H:%M:%S", time.gmtime(clock.remaining_s(steps - line["step"])))
    rate, waited = line["tokens_per_s"] / 1000, 100 * line["data_wait_share"]
    return (
        f"{head}  lr {line['learning_rate']:.1e}  norm {line['grad_norm']:.2f}"
        f"  {rate:.1f} k tokens/s  data wait {waited:.1f} %  left {left}"
    )
