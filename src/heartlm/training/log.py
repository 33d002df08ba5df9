"""Output of a run: lines of metrics, messages to the user, and the meters that measure a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from heartlm.distributed.parallel import HostAllReduce
from heartlm.instrumentation.energy import energy_counter
from heartlm.instrumentation.measured import MeasuredSteps
from heartlm.instrumentation.meters import Meters, peak_memory_bytes
from heartlm.instrumentation.profile import Profiling
from heartlm.instrumentation.spans import Spans
from heartlm.instrumentation.utilization import flops_per_token, peak_flops
from heartlm.system.progress import hours_minutes_seconds, say
from heartlm.training.config import PretrainConfig
from heartlm.training.job import Job
from heartlm.training.listeners import LISTENERS


class Log:
    """Writes the metrics of a run; only rank 0 writes and prints.

    Attributes:
        meters: meters of this rank.
        measured: durations of the steps of this rank, with `measure`; else None.
    """

    def __init__(self, job: Job, device: torch.device, precision: torch.dtype, sums: HostAllReduce) -> None:
        self.job = job
        self.spans = Spans(job.folder.spans(job.ranks.rank), job.ranks.rank) if job.config.spans else None
        self.measured = MeasuredSteps(job.folder.measured(job.ranks.rank)) if job.config.measure else None
        self.meters = _meters(job, device, precision, sums, self.spans)
        # None until the first metrics
        self._listeners: dict[str, Any] = {name: None for name in LISTENERS if getattr(job.config, name)}
        profiles = job.config.profile and job.ranks.is_first
        self.profiling = Profiling(job.folder.profile, self.meters, device, self.say) if profiles else None
        self.meters.on_step = self.measured.add if self.measured else None

    def write(self, step: int, split: str, entry: dict[str, float]) -> None:
        """Write `entry` after `step`. Every rank calls this, since energy is summed over ranks."""
        rates = self.meters.line() if split == "train" else {}
        numbers = {**entry, **rates, "elapsed_s": self.meters.elapsed_s()}
        line = {"step": step, "split": split, **numbers}
        if self.job.ranks.is_first:
            self.job.folder.add_metrics(line)
            self.say(_format_line(line, self.job.config.steps, self.meters))
            self._show(step, {f"{split}/{name}": value for name, value in numbers.items()})

    def _show(self, step: int, numbers: dict[str, float]) -> None:
        """Show the numbers to each listener; drop one that fails."""
        for name in list(self._listeners):
            with self._may_fail(name):
                if self._listeners[name] is None:
                    with self.meters.paused(name):
                        self._listeners[name] = LISTENERS[name](self.job.folder, step)
                self._listeners[name].write(step, numbers)

    @contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._listeners[name]
            self.say(f"{LISTENERS[name].title} is dropped, the training continues: {' '.join(str(error).split())}")

    def stepped(self) -> None:
        """Advance the profiler between two steps."""
        if self.profiling is not None:
            self.profiling.stepped()

    def say(self, line: str) -> None:
        """Print `line` on rank 0."""
        if self.job.ranks.is_first:
            say(line)

    def close(self, finished: bool) -> None:
        """Write buffered output and close all files; `finished` tells whether the last step is done."""
        for name, listener in list(self._listeners.items()):
            if listener is not None:
                with self._may_fail(name):
                    listener.close(finished)
        if self.spans is not None:
            self.spans.flush()
        if self.profiling is not None:
            self.profiling.close()
        if self.measured is not None:
            memory = self.meters.peak_device_memory_bytes
            self.measured.write(
                rank=self.job.ranks.rank,
                world_size=self.job.ranks.world_size,
                num_parameters=sum(each.numel() for each in self.job.task.model.parameters() if each.requires_grad),
                flops_per_token=self.meters.flops_per_token,
                peak_memory_bytes=peak_memory_bytes(),
                peak_device_memory_bytes=None if memory is None else memory(),
                energy_j=self.meters.used_j(),
            )


def _meters(job: Job, device: torch.device, precision: torch.dtype, sums: HostAllReduce, spans: Spans | None) -> Meters:
    config, gpu, energy_j, peak = job.config, device.type == "cuda", None, None
    if gpu:
        fp32_kind = "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        peak = peak_flops(torch.cuda.get_device_name(device), "bf16" if precision == torch.bfloat16 else fp32_kind)
        energy_j = energy_counter(str(torch.cuda.get_device_properties(device).uuid))
    share = (1.0 if config.objective == "causal" else config.mask_share) if isinstance(config, PretrainConfig) else 0.0
    return Meters(
        flops_per_token=flops_per_token(job.task.model.config, config.window, job.task.model.num_classes, share)
        if job.task.model.config.network == "transformer"
        else None,
        peak_flops=None if peak is None else peak * job.ranks.world_size,
        energy_j=energy_j,
        sum_over_ranks=lambda value: sums(value)[0],
        peak_device_memory_bytes=(lambda: torch.cuda.max_memory_allocated(device)) if gpu else None,
        spans=spans,
        synchronize=(lambda: torch.cuda.synchronize(device)) if gpu and (spans or config.profile) else None,
    )


def _format_line(line: dict[str, Any], steps: int, meters: Meters) -> str:
    """Return `line` formatted for the console."""
    head = f"step {line['step']:>{len(str(steps))}}/{steps}  {line['split']:<10} loss {line['loss']:.4f}"
    if "tokens_per_s" not in line:
        return head
    left = hours_minutes_seconds(round(meters.remaining_s(steps - line["step"])))
    rate, waited = line["tokens_per_s"] / 1000, 100 * line["data_wait_share"]
    return (
        f"{head}  lr {line['learning_rate']:.1e}  norm {line['grad_norm']:.2f}"
        f"  {rate:.1f} k tokens/s  data wait {waited:.1f} %  left {left}"
    )
