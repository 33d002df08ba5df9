"""The training loop.

    feed ─► micro-batches ─► a step (`step.py`) ─► its numbers ─► judged ─► metrics, checkpoints

Pretraining and fine-tuning share this loop; they differ in batches and loss. The loss of a step is the mean over the
counted tokens of the global batch. All random numbers of a step are derived from the seed and the step, so a resumed
run, or one with other numbers of ranks and micro-batches, reproduces an uninterrupted run on one rank. Every rank has
the same losses and norms, so all ranks make the same decisions. Only rank 0 writes and prints.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from heartlm.corpus.windows import Windows
from heartlm.distributed.agreement import RankConsensus
from heartlm.distributed.communication import GradientSync
from heartlm.distributed.device import device_and_precision
from heartlm.distributed.parallel import HostAllReduce, is_peer_failure, reason_of
from heartlm.errors import HeartlmError
from heartlm.models.store import save_tensors, whole_tensors
from heartlm.system.garbage import search_as_usual
from heartlm.training.bad_steps import BadSteps
from heartlm.training.checkpoint import Checkpoints, Progress
from heartlm.training.feed import Feed, StepBatches
from heartlm.training.job import Job
from heartlm.training.learner import Learner, at_full_speed, learning_rate
from heartlm.training.log import Log
from heartlm.training.queued import QueuedSteps
from heartlm.training.resident import ResidentCodes, fits
from heartlm.training.step import StepNumbers, Steps

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Stopped(Exception):  # noqa: N818
    """The run received one of `STOP_SIGNALS`, saved a checkpoint and stopped."""


@at_full_speed()
def train(job: Job, resume: bool) -> Progress:
    """Train to the last step; with `resume`, start from the newest checkpoint if there is one.

    Raises:
        HeartlmError: a step is bad, files cannot be written, or a rank exited; the last checkpoint is intact.
        Stopped: the process received a stop signal.
    """
    search_as_usual()
    gc.collect()
    gc.freeze()  # a collection that scans all imported modules on one rank delays the others
    loop = None
    try:
        loop = _Loop(job)
        return loop.train(resume)
    except RuntimeError as error:
        if not is_peer_failure(error):
            raise
        when = f"in step {loop.progress.step + 1}" if loop else "before the first step"
        complete = loop.checkpoints.complete() if loop else []
        good = f"{complete[-1].name} is good, " if complete else ""
        raise HeartlmError(
            f"rank {job.ranks.rank} lost another rank {when} ({reason_of(error)}): {good}continue with --resume "
            f"{job.folder.path}"
        ) from error
    finally:
        gc.unfreeze()


class _Loop:
    """State of a running loop: the learner, the progress and the log."""

    def __init__(self, job: Job) -> None:
        task, config = job.task, job.config
        self.job, self.config, self.ranks = job, config, job.ranks
        device, precision = device_and_precision(config.device, config.precision, job.ranks.local_rank)
        self.sums = HostAllReduce(job.ranks, config.timeout_s)
        self.log = Log(job, device, precision, self.sums)
        measured = config.measure or config.spans or config.profile
        sync = GradientSync(self.log.meters, device, measured)
        self.learner = Learner(
            task.model, task.loss, config, device=device, precision=precision, layout=job.layout, grad_sync=sync
        )
        self.checkpoints = Checkpoints(job.folder.checkpoints, config.keep_checkpoints, config.timeout_s)
        self.bad_steps = BadSteps(config.bad_steps, config.spike_factor)
        self.progress = Progress()
        self.saved_step = 0
        self.stop_asked = False

    def train(self, resume: bool) -> Progress:
        try:
            if resume:
                self._resume()
            self.learner.replicate()
            steps = self._steps()
            feed = Feed(
                self.job.sampler,
                self.job.make_batch,
                range(self.progress.step, self.config.steps),
                self.learner.layout,
                form=steps.form,
                prefetch=self.config.prefetch,
                is_static=self.learner.is_static,
                keys=steps.draw_keys,
            )
            with self._signals(), feed, _own_stream(self.learner.device):
                self._take_all(steps, feed)
            if not self.config.measure:
                self._export("last")
                if self.progress.best_loss is None:
                    self._export("best")
            self.checkpoints.wait()
        finally:
            self.log.close(finished=self.progress.step == self.config.steps)
        return self.progress

    # --- before the first step ----------------------------------------------------------------------------------------

    def _resume(self) -> None:
        if RankConsensus().first(self.checkpoints.complete):
            self.progress = self.checkpoints.restore(self.learner.model, self.learner.optimizer)
            self.bad_steps.load(self.progress.bad_steps)
        self.saved_step = self.progress.step
        if self.ranks.is_first:
            self.job.folder.truncate_metrics(self.progress.step)
        self.log.say(f"resumed after step {self.progress.step}")

    def _steps(self) -> Steps:
        """Return what takes the steps; on a GPU they are queued."""
        learner, make_batch, on_gpu = self.learner, self.job.make_batch, self.learner.device.type == "cuda"
        if not learner.is_queued:
            return Steps(learner, make_batch, self.bad_steps, sums=self.sums, span=self.log.meters.span)
        corpus, keep_resident, resident = make_batch.corpus, self.config.resident, None
        if keep_resident is None:
            keep_resident = on_gpu and fits(corpus, learner.device)
        if keep_resident and make_batch.can_be_resident:
            resident = ResidentCodes(corpus, self.job.sampler.width, learner.device)
        captures = on_gpu and self.config.compile is not False and self.ranks.world_size == 1
        where, say = "on the GPU" if resident else "in host memory, sent each step", self.log.say
        say(f"codes of the corpus: {corpus.codes.nbytes / 1e6:.0f} MB {where}")
        if on_gpu and learner.compiles:
            say("the first steps compile the model, which can take a minute; compiled code is kept for later runs")
        return QueuedSteps(learner, make_batch, self.bad_steps, resident, captures)

    # --- a step -------------------------------------------------------------------------------------------------------

    def _take_all(self, steps: Steps, feed: Feed) -> None:
        meters, batches = self.log.meters, iter(feed)
        for step in feed.steps:
            with meters.step(step + 1):
                with meters.span("data"):
                    step_batches = next(batches)
                meters.share_data(step_batches.num_prepared)
                done, stop = self._take(steps, step_batches)
            if stop or self._is_due(step + 1):
                done += steps.read()
            self.log.stepped()
            for numbers in done:
                self._judge(numbers)
                self._record(numbers)
            if self._is_due(step + 1):  # else the last step that is done may be one that was validated before
                self._validate_and_save()
            if stop:
                self._checkpoint()
                self.checkpoints.wait()
                raise Stopped(f"stopped after step {self.progress.step}; continue with --resume {self.job.folder.path}")

    def _take(self, steps: Steps, batches: StepBatches) -> tuple[list[StepNumbers], bool]:
        """Take a step; return the steps that are done, and whether any rank received a stop signal."""
        meters = self.log.meters
        totals = self.sums.begin(batches.num_counted, batches.num_tokens, self.stop_asked)

        def num_counted() -> float:
            with meters.span("communication"):
                return max(1.0, totals()[0])

        with meters.span("forward_backward"):
            steps.take(batches, self._rate(batches.step), num_counted)
            self.learner.grad_sync.over()
            _, num_tokens, stop = totals()
            # Steps before the first measured one were in flight as well: to wait here would count them twice.
            waits = (stop > 0 or self._is_due(batches.step + 1)) and not self.config.measure
            done = list(steps.read(0 if waits else steps.MAX_PENDING))
        meters.count(int(num_tokens))
        return done, stop > 0

    def _rate(self, step: int) -> float:
        config, peak = self.config, self.config.learning_rate or 0.0
        warmup_steps, final_share = config.warmup_steps or 0, config.final_learning_rate
        return learning_rate(step, peak=peak, warmup_steps=warmup_steps, steps=config.steps, final_share=final_share)

    def _judge(self, numbers: StepNumbers) -> None:
        """Report a step that was not taken; save the state before one that stops the run."""
        action, reason = self.bad_steps.judge(numbers.step + 1, numbers.losses["loss"], numbers.norm)
        if action == "stop":
            self._checkpoint()
            self.checkpoints.wait()
            raise HeartlmError(f"{reason}; the checkpoints before it are good; start again with a lower learning_rate")
        if action == "skip":
            self.log.say(f"{reason}: skipped")

    def _record(self, numbers: StepNumbers) -> None:
        """Count a step that is done, and write its metrics if they are due."""
        done = self.progress.step = numbers.step + 1
        if self.log.measured is not None:
            self.log.measured.loss(done, numbers.losses["loss"])
        if numbers.is_taken and (done % self.config.log_every == 0 or done == self.config.steps):
            entry = {"loss": numbers.losses["loss"], "learning_rate": numbers.rate, "grad_norm": numbers.norm}
            parts = {f"loss/{name}": loss for name, loss in numbers.losses.items() if name != "loss"}
            self.log.write(done, "train", entry | parts)

    # --- between steps ------------------------------------------------------------------------------------------------

    def _is_due(self, step: int) -> bool:
        """Return whether the run validates, saves or ends after `step`, so that all steps must be done."""
        config = self.config
        is_period = step % config.checkpoint_every == 0 or step % config.validate_every == 0
        return step == config.steps or (is_period and not config.measure)

    def _validate_and_save(self) -> None:
        """Validate and save a checkpoint after the last step that is done, whichever is due."""
        if self.config.measure:
            return
        step, last = self.progress.step, self.progress.step == self.config.steps
        if self.job.validation is not None and (step % self.config.validate_every == 0 or last):
            self._validate(self.job.validation)
        if step % self.config.checkpoint_every == 0 or last:
            self._checkpoint()

    def _validate(self, windows: Windows) -> None:
        """Compute mean losses over the counted tokens of `windows`, split among ranks."""
        with self.log.meters.paused("validation"):
            totals = dict[str, float]()
            size = self.learner.model.windows_at_once(windows.width) * self.ranks.world_size
            for begin in range(0, len(windows), size):
                part = windows[begin : begin + size]
                first, stop = self.learner.layout.rows_of_rank(len(part))
                # a rank without a window computes an uncounted one, since sharded weights need every rank
                own = part[first : max(stop, first + 1)]
                batch = self.job.make_batch(own, None, begin + first, len(windows))
                losses = {"counted": float(batch.num_counted), **self.learner.evaluate(batch)}
                for name, value in losses.items():
                    totals[name] = totals.get(name, 0.0) + (value if stop > first else 0.0)
            numbers = dict(zip(totals, self.sums(*totals.values()), strict=True))
            counted = max(1.0, numbers.pop("counted"))
            entry = {name if name == "loss" else f"loss/{name}": value / counted for name, value in numbers.items()}
        self.log.write(self.progress.step, "validation", entry)
        if self.progress.best_loss is None or entry["loss"] < self.progress.best_loss:
            self.progress.best_loss = entry["loss"]
            self._export("best")

    def _checkpoint(self) -> None:
        if self.saved_step == self.progress.step:
            return
        self.progress.bad_steps = self.bad_steps.state()
        with self.log.meters.paused("checkpoint"):
            self.checkpoints.save(self.learner.model, self.learner.optimizer, self.progress)
        self.saved_step = self.progress.step

    def _export(self, which: str) -> None:
        with self.log.meters.paused("export"):
            tensors = whole_tensors(self.learner.model)
            self.sums(0.0)  # fails if a rank was lost: NCCL may have gathered invalid values
            if self.ranks.is_first:
                save_tensors(
                    self.job.folder.model(which), tensors, replace(self.job.task.info, step=self.progress.step)
                )

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, frame: object) -> None:
            self.stop_asked = True

        before = {number: signal.signal(number, ask) for number in STOP_SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # a launcher blocks it until now
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Compute on a stream of its own on a GPU, since the default stream cannot be captured."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
