"""The one training loop.

    feed ─► micro-batches ─► losses, gradients ─► their sums over ranks ─► judged ─► optimiser ─► metrics, checkpoints

Pretraining and fine-tuning differ in batches and loss, not here. The loss of a step is a mean over the counting tokens
of the whole global batch, and everything random in it follows from the seed and the step: a run resumed, or split over
other ranks and micro-batches, repeats what an unbroken one on one rank would have done. Every rank runs this loop and
knows the same losses and norms, so all decide alike; only the first writes and speaks.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from heartlm.corpus.windows import Windows, WindowSampler
from heartlm.errors import HeartlmError
from heartlm.files import append_line
from heartlm.memory import keep_memory
from heartlm.models.heart import HeartModel
from heartlm.models.store import ModelInfo, save_tensors, whole_tensors
from heartlm.training.agreement import Agreement
from heartlm.training.bad_steps import BadSteps
from heartlm.training.batches import MakeBatch
from heartlm.training.checkpoint import Checkpoints, Progress
from heartlm.training.config import PretrainConfig, TrainingConfig
from heartlm.training.device import device_and_precision
from heartlm.training.energy import energy_counter
from heartlm.training.feed import Feed, StepBatches
from heartlm.training.learner import Learner
from heartlm.training.meters import Meters
from heartlm.training.objectives import LossSum
from heartlm.training.parallel import Sums, has_gone, reason_of
from heartlm.training.ranks import Ranks
from heartlm.training.run_folder import RunFolder
from heartlm.training.schedule import learning_rate
from heartlm.training.spans import Spans
from heartlm.training.utilization import flops_per_token, peak_flops


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
        ranks: this process among those that train together; each has the same job.
    """

    config: TrainingConfig
    run: RunFolder
    model: HeartModel
    info: ModelInfo
    sampler: WindowSampler
    make_batch: MakeBatch
    loss: LossSum
    validation: Windows | None = None
    ranks: Ranks = field(default_factory=Ranks)


def train(job: Job, resume: bool) -> Progress:
    """Train until the last step, from the newest checkpoint with `resume`; where there is none yet, from the beginning.

    Raises:
        HeartlmError: a bad step, nothing can be written, or a rank has gone; the last checkpoint is good.
        Stopped: a signal asked for it.
    """
    keep_memory()
    torch.set_flush_denormal(True)  # denormal gradients slow a CPU down tenfold
    try:
        return _Loop(job).run(resume)
    finally:
        torch.set_flush_denormal(False)


class _Loop:
    """State of a running loop: the learner, the progress and the meters."""

    def __init__(self, job: Job) -> None:
        self.job, self.config, self.ranks = job, job.config, job.ranks
        device, precision = device_and_precision(job.config.device, job.config.precision, job.ranks.local_rank)
        self.sums = Sums(job.config.timeout_s)
        self.spans = Spans(job.run.spans(job.ranks.rank), job.ranks.rank) if job.config.spans else None
        self.meters = _meters(job, device, precision, self.sums, self.spans)
        self.exposed = ExitStack()
        self.learner = Learner(
            job.model, job.loss, job.config, device=device, precision=precision, ranks=job.ranks, ready=self._ready
        )
        self.checkpoints = Checkpoints(job.run.checkpoints, job.config.keep_checkpoints, timeout_s=job.config.timeout_s)
        self.bad_steps = BadSteps(job.config.bad_steps, job.config.spike_factor)
        self.progress = Progress()
        self.saved_step = 0
        self.stop_asked = False

    def run(self, resume: bool) -> Progress:
        try:
            if resume:
                self._resume()
            self._replicate()
            with self._signals(), self._feed() as feed:
                self._all_steps(feed)
            self._export("last")
            if self.progress.best_loss is None:
                self._export("best")
            self.checkpoints.wait()
        except RuntimeError as error:
            if not has_gone(error):
                raise
            raise HeartlmError(self._left_behind(error)) from error
        finally:
            if self.spans is not None:
                self.spans.flush()
        return self.progress

    # --- before the first step --------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if Agreement().first(self.checkpoints.complete):
            self.progress = self.checkpoints.restore(self.learner.model, self.learner.optimizer)
            self.bad_steps.load(self.progress.bad_steps)
        self.saved_step = self.progress.step
        if self.ranks.is_first:
            self.job.run.truncate_metrics(self.progress.step)
        self._say(f"resumed after step {self.progress.step}")

    def _replicate(self) -> None:
        part = self.job.sampler.batch_size // (self.ranks.world_size * self.config.accumulation)
        first = self.ranks.rank * self.config.accumulation * part
        windows = self.job.sampler.windows(0, first, part)
        some = self.job.make_batch(windows, 0, first, self.job.sampler.batch_size)
        self.learner.replicate(some.to(self.learner.device), self.sums)

    def _feed(self) -> Feed:
        return Feed(
            self.job.sampler,
            self.job.make_batch,
            first_step=self.progress.step,
            last_step=self.config.steps,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            accumulation=self.config.accumulation,
            device=self.learner.device,
            prefetch=self.config.prefetch,
        )

    # --- a step -----------------------------------------------------------------------------------------------------

    def _all_steps(self, feed: Feed) -> None:
        batches = iter(feed)
        while self.progress.step < self.config.steps:
            with self.meters.step(self.progress.step + 1):
                with self.meters.span("data"):
                    of_step = next(batches)
                entry, stop = self._step(of_step)
            step = self.progress.step
            if entry and (step % self.config.log_every == 0 or step == self.config.steps):
                self._log("train", entry)
            self._now_and_then()
            if stop:
                self._checkpoint()
                self.checkpoints.wait()
                raise Stopped(f"stopped after step {step}; continue with --resume {self.job.run.path}")

    def _step(self, batches: StepBatches) -> tuple[dict[str, float], bool]:
        """Take a step; return its metrics, nothing where it was skipped, and whether a rank was asked to stop."""
        totals = self.sums.begin(batches.num_counted, batches.num_tokens, self.stop_asked)
        with self.meters.span("forward_backward"):
            losses, norm = self.learner.gradients(batches.step, batches.micro_batches, lambda: totals()[0])
            self.exposed.close()
        with self.meters.span("communication"):
            values = self.sums(*losses.values())
        num_counted, num_tokens, stop = totals()
        self.meters.count(int(num_tokens))
        means = {name: value / max(1.0, num_counted) for name, value in zip(losses, values, strict=True)}
        rate = self._rate()
        taken = self._judged(means["loss"], norm)
        with self.meters.span("optimizer"):
            self.learner.step(rate, norm) if taken else self.learner.forget()
        self.progress.step += 1
        entry = {"loss": means["loss"], "learning_rate": rate, "grad_norm": norm}
        return entry | {f"loss/{name}": means[name] for name in means if name != "loss"} if taken else {}, stop > 0

    def _ready(self) -> None:
        """The gradients of this rank are there: what is left of the backward pass is communication."""
        if self.learner.device.type == "cuda":
            torch.cuda.current_stream(self.learner.device).synchronize()
        self.exposed.enter_context(self.meters.span("communication"))

    def _rate(self) -> float:
        config = self.config
        return learning_rate(
            self.progress.step,
            peak=config.learning_rate or 0.0,
            warmup_steps=config.warmup_steps or 0,
            steps=config.steps,
            final_share=config.final_learning_rate,
        )

    def _judged(self, loss: float, norm: float) -> bool:
        """Whether the optimiser is to take the step; the state before one that stops the run is kept."""
        verdict = self.bad_steps.judge(self.progress.step + 1, loss, norm)
        if verdict.action == "stop":
            self._checkpoint()
            self.checkpoints.wait()
            raise HeartlmError(
                f"{verdict.reason}; the checkpoints before it are good; start anew with a lower learning_rate"
            )
        if verdict.action == "skip":
            self._say(f"{verdict.reason}: skipped")
        return verdict.action == "take"

    # --- now and then -----------------------------------------------------------------------------------------------

    def _now_and_then(self) -> None:
        step, last = self.progress.step, self.progress.step == self.config.steps
        if self.job.validation is not None and (step % self.config.validate_every == 0 or last):
            self._validate(self.job.validation)
        if step % self.config.checkpoint_every == 0 or last:
            self._checkpoint()

    def _validate(self, windows: Windows) -> None:
        with self.meters.paused("validation"):
            entry = self._validation(windows)
        self._log("validation", entry)
        if self.progress.best_loss is None or entry["loss"] < self.progress.best_loss:
            self.progress.best_loss = entry["loss"]
            self._export("best")

    def _validation(self, windows: Windows) -> dict[str, float]:
        """Mean loss over the counting tokens of the validation windows, and the same part by part."""
        sums, size = dict[str, float](), self.job.sampler.batch_size
        for begin in range(0, len(windows), size):
            for name, value in self._validated(windows[begin : begin + size]).items():
                sums[name] = sums.get(name, 0.0) + value
        numbers = dict(zip(sums, self.sums(*sums.values()), strict=True))
        counted = max(1.0, numbers.pop("counted"))
        return {name if name == "loss" else f"loss/{name}": value / counted for name, value in numbers.items()}

    def _validated(self, windows: Windows) -> dict[str, float]:
        """This rank's part of the sums over `windows`; every rank computes something, as sharded weights demand."""
        rank, of, num = self.ranks.rank, self.ranks.world_size, len(windows)
        first, stop = rank * num // of, (rank + 1) * num // of
        batch = self.job.make_batch(windows[first : max(stop, first + 1)], None, first, num)
        numbers = {"counted": float(batch.num_counted), **self.learner.evaluate(batch)}
        return numbers if stop > first else dict.fromkeys(numbers, 0.0)

    def _checkpoint(self) -> None:
        if self.saved_step == self.progress.step:
            return
        self.progress.bad_steps = self.bad_steps.state()
        with self.meters.paused("checkpoint"):
            self.checkpoints.save(self.learner.model, self.learner.optimizer, self.progress)
        self.saved_step = self.progress.step

    def _export(self, which: str) -> None:
        with self.meters.paused("export"):
            tensors = whole_tensors(self.learner.model)
            if self.ranks.is_first:
                save_tensors(self.job.run.model(which), tensors, replace(self.job.info, step=self.progress.step))

    # --- words and signals ------------------------------------------------------------------------------------------

    def _log(self, split: str, entry: dict[str, float]) -> None:
        rates = self.meters.line() if split == "train" else {}
        line = {"step": self.progress.step, "split": split, **entry, **rates, "elapsed_s": self.meters.elapsed_s()}
        if self.ranks.is_first:
            append_line(self.job.run.metrics, json.dumps({key: _rounded(value) for key, value in line.items()}))
            self._say(_story(line, self.config.steps, self.meters))

    def _say(self, line: str) -> None:
        if self.ranks.is_first:
            print(line, file=sys.stderr, flush=True)

    def _left_behind(self, error: RuntimeError) -> str:
        complete = self.checkpoints.complete()
        where = f"{complete[-1].name} is good, continue with --resume {self.job.run.path}"
        return (
            f"rank {self.ranks.rank} lost another rank in step {self.progress.step + 1} ({reason_of(error)}): "
            f"{where if complete else 'there is no checkpoint yet, start anew'}"
        )

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


def _meters(job: Job, device: torch.device, precision: torch.dtype, sums: Sums, spans: Spans | None) -> Meters:
    config, gpu, uuid, peak = job.config, device.type == "cuda", None, None
    if gpu:
        of_fp32 = "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        peak = peak_flops(torch.cuda.get_device_name(device), "bf16" if precision == torch.bfloat16 else of_fp32)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    share = (1.0 if config.objective == "causal" else config.mask_share) if isinstance(config, PretrainConfig) else 0.0
    return Meters(
        flops_per_token=flops_per_token(job.model.config, config.window, job.model.num_classes, share),
        peak_flops=None if peak is None else peak * job.ranks.world_size,
        energy_j=energy_counter(uuid, job.ranks.local_rank),
        sum_over_ranks=lambda value: sums(value)[0],
        peak_device_memory_bytes=(lambda: torch.cuda.max_memory_allocated(device)) if gpu else None,
        spans=spans,
        synchronize=(lambda: torch.cuda.synchronize(device)) if gpu and spans is not None else None,
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _story(line: dict[str, Any], steps: int, meters: Meters) -> str:
    """One line worth reading."""
    head = f"step {line['step']:>{len(str(steps))}}/{steps}  {line['split']:<10} loss {line['loss']:.4f}"
    if "tokens_per_s" not in line:
        return head
    left = time.strftime("%H:%M:%S", time.gmtime(meters.remaining_s(steps - line["step"])))
    rate, waited = line["tokens_per_s"] / 1000, 100 * line["data_wait_share"]
    return (
        f"{head}  lr {line['learning_rate']:.1e}  norm {line['grad_norm']:.2f}"
        f"  {rate:.1f} k tokens/s  data wait {waited:.1f} %  left {left}"
    )
